// Seeded data that is hard on a wrong order or rounding, and what a kernel test needs around a
// call.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <vector>

#include "rlk/core/tensor.h"
#include "rlk/kernels/exec.h"
#include "rlk/numerics/bf16.h"
#include "rlk/numerics/bits.h"

namespace rlk::test {

// splitmix64.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
  }
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
  double normal() {
    return std::sqrt(-2.0 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());
  }

 private:
  std::uint64_t state_;
};

enum class Kind {
  kNormal,      // N(0, 1)
  kCancelling,  // neighbours of opposite sign and nearly equal size, now and then a small one
  kWide,        // exponents from 2^-20 to 2^20, random signs
  kSubnormal,   // around 2^-130, so that products underflow, and some ordinary numbers
  kMixed,       // rows of all the kinds above, of zeros with either sign, huge and tiny rows
};

inline constexpr Kind kAllKinds[] = {Kind::kNormal, Kind::kCancelling, Kind::kWide,
                                     Kind::kSubnormal, Kind::kMixed};

// Fills one row of n numbers.
inline std::vector<double> random_row(Rng& rng, std::int64_t n, Kind kind) {
  std::vector<double> row(static_cast<std::size_t>(n));
  if (kind == Kind::kMixed) {
    const std::int64_t choice = rng.below(7);
    if (choice < 4) return random_row(rng, n, static_cast<Kind>(choice));
    const double scale = choice == 4 ? 0x1p20 : 0x1p-60;
    for (double& x : row) {
      const double sign = rng.below(2) == 0 ? 1.0 : -1.0;
      x = choice == 6 || rng.below(8) == 0 ? sign * 0.0 : scale * rng.normal();
    }
    return row;
  }
  double last = 0.0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double x = rng.normal();
    switch (kind) {
      case Kind::kCancelling:
        row[i] = i % 2 == 0 ? x * 64.0 : -last * (1.0 + 0.01 * x);
        if (rng.below(8) == 0) row[i] = x * 0x1p-8;
        break;
      case Kind::kWide: row[i] = std::ldexp(x, static_cast<int>(rng.below(41)) - 20); break;
      case Kind::kSubnormal: row[i] = rng.below(4) == 0 ? x : x * 0x1p-130; break;
      default: row[i] = x;
    }
    last = row[i];
  }
  return row;
}

// A tensor of random rows along its last dimension, each number rounded to dtype once.
inline Tensor random_tensor(DType dtype, std::initializer_list<std::int64_t> sizes,
                            std::uint64_t seed, Kind kind = Kind::kNormal, double scale = 1.0) {
  Tensor tensor(dtype, sizes);
  const std::int64_t n = sizes.size() == 0 ? 1 : *(sizes.end() - 1);
  Rng rng(seed);
  for (std::int64_t begin = 0; begin < tensor.size(); begin += n) {
    const std::vector<double> row = random_row(rng, n, kind);
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = static_cast<float>(row[static_cast<std::size_t>(i)] * scale);
      if (dtype == DType::kBF16) {
        tensor.data<bf16>()[begin + i] = numerics::to_bf16(x);
      } else {
        tensor.data<float>()[begin + i] = x;
      }
    }
  }
  return tensor;
}

inline Tensor i32_tensor(const std::vector<std::int32_t>& values) {
  Tensor tensor(DType::kI32, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data<std::int32_t>());
  return tensor;
}

inline Tensor f32_tensor(const std::vector<float>& values) {
  Tensor tensor(DType::kF32, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

inline Tensor bf16_tensor(const std::vector<float>& values) {
  Tensor tensor(DType::kBF16, {static_cast<std::int64_t>(values.size())});
  for (std::size_t i = 0; i < values.size(); ++i) {
    tensor.data<bf16>()[i] = numerics::to_bf16(values[i]);
  }
  return tensor;
}

// [0, n0, n0 + n1, ..]
inline Tensor cu_seqlens(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> offsets(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), offsets.begin() + 1);
  return i32_tensor(offsets);
}

// Element i in storage order, of a bf16 or f32 tensor.
inline float value(const Tensor& tensor, std::int64_t i) {
  return tensor.dtype() == DType::kBF16 ? numerics::to_f32(tensor.data<bf16>()[i])
                                        : tensor.data<float>()[i];
}

inline std::vector<double> values(const Tensor& tensor) {
  std::vector<double> out(static_cast<std::size_t>(tensor.size()));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = value(tensor, static_cast<int>(i));
  return out;
}

// Same type, shape and bytes; at least one element, no NaN.
inline testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.layout().shape != b.layout().shape) {
    return testing::AssertionFailure() << "different type or shape: " << a.layout().to_string()
                                       << " and " << b.layout().to_string();
  }
  const numerics::BitComparison bits =
      a.dtype() == DType::kBF16
          ? numerics::compare_bits(a.data<bf16>(), b.data<bf16>(), a.size())
          : numerics::compare_bits(a.data<float>(), b.data<float>(), a.size());
  if (bits.equal()) return testing::AssertionSuccess() << bits.to_string();
  return testing::AssertionFailure() << bits.to_string();
}

// What a kernel gets besides its arguments.
struct TestExec {
  ThreadPool pool;
  Workspace workspace;
  Contract contract;
  Fault fault;
  Exec exec{pool, workspace, contract, fault};

  explicit TestExec(const Contract& with = {}, int num_threads = 1)
      : pool(num_threads), contract(with) {}
  operator Exec&() { return exec; }  // NOLINT: used as the kernels' first argument
};

}  // namespace rlk::test
