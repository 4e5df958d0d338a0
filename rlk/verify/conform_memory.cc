#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "rlk/numerics/bf16.h"
#include "rlk/verify/conform_vectors.h"

namespace rlk::conformance {
namespace {

constexpr Family kPure[] = {Family::kNormal, Family::kCancelling, Family::kWide, Family::kSubnormal,
                            Family::kZeros,  Family::kHuge,       Family::kTiny};
constexpr std::int64_t kNumPure = std::size(kPure);

// Fills one row of n numbers.
void fill_row(Rng& rng, Family family, std::int64_t n, double* row) {
  if (family == Family::kMixed) family = kPure[rng.below(kNumPure)];
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = rng.normal();
    const double sign = rng.below(2) == 0 ? 1.0 : -1.0;
    const std::int64_t eighth = rng.below(8);
    row[i] = x;
    switch (family) {
      case Family::kCancelling:
        row[i] = i % 2 == 0 ? x * 64.0 : -row[i - 1] * (1.0 + 0.01 * x);
        if (eighth == 0) row[i] = x * 0x1p-8;
        break;
      case Family::kWide: row[i] = std::ldexp(x, static_cast<int>(rng.below(41)) - 20); break;
      case Family::kSubnormal:
        if (eighth > 1) row[i] = x * 0x1p-130;
        break;
      case Family::kZeros:
        if (eighth > 1) row[i] = sign * 0.0;
        break;
      case Family::kHuge: row[i] = x * 0x1p20; break;
      case Family::kTiny: row[i] = x * 0x1p-60; break;
      default: break;
    }
  }
}

// Calls visit(pointer) for the rows of the last dimension.
template <typename Visit>
void for_each_row(const TensorView& t, const Visit& visit) {
  if (t.layout.size() == 0) return;
  const int last = t.rank() - 1;
  const std::int64_t n = t.shape(last);
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  std::int64_t count = t.layout.size() / n;
  for (std::int64_t r = 0; r < count; ++r) {
    std::int64_t rest = r;
    std::int64_t at = 0;
    for (int d = last - 1; d >= 0; --d) {
      at += rest % t.shape(d) * t.stride(d);
      rest /= t.shape(d);
    }
    visit(static_cast<char*>(t.data) + at * size);
  }
}

}  // namespace

std::uint64_t Rng::next() {
  std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

double Rng::normal() {
  const std::uint64_t x = next();
  const std::uint64_t sum = (x & 0xffff) + ((x >> 16) & 0xffff) + ((x >> 32) & 0xffff) + (x >> 48);
  return (static_cast<double>(sum) * 0x1p-16 - 2.0) * 1.7320508;
}

const char* to_string(Family family) {
  static constexpr const char* kNames[] = {"normal", "cancelling", "wide", "subnormal",
                                           "zeros",  "huge",       "tiny", "mixed"};
  return kNames[static_cast<int>(family)];
}

Family family_of(std::int64_t i) {
  return i % (kNumPure + 1) == kNumPure ? Family::kMixed : kPure[i % (kNumPure + 1)];
}

TensorView Memory::make(DType dtype, const std::vector<std::int64_t>& sizes, Lie lie) {
  Layout layout(sizes);
  std::int64_t first = 0;
  std::int64_t length = layout.size();
  if (lie != Lie::kDense && layout.rank > 1) {
    first = 1;
    std::int64_t stride = lie == Lie::kSpread ? 3 : 1;
    for (int d = layout.rank - 1; d >= 0; --d) {
      layout.stride[static_cast<std::size_t>(d)] = stride;
      stride = stride * layout.shape[static_cast<std::size_t>(d)] + (d > 0 ? 5 : 0);
    }
    length = stride + first;
  }
  // No Tensor is without an element, so that an empty one has an address too.
  Tensor& storage =
      storage_.emplace_back(dtype, std::vector<std::int64_t>{std::max<std::int64_t>(length, 1)});
  std::memset(storage.view().data, 0xff, storage.size_bytes());
  return {storage.data<char>() + static_cast<std::size_t>(first) * size_of(dtype), dtype, layout};
}

TensorView Memory::random(DType dtype, std::vector<std::int64_t> sizes, Family family, Lie lie,
                          double scale) {
  const TensorView t = make(dtype, sizes, lie);
  const std::int64_t n = sizes.empty() ? 1 : sizes.back();
  const std::int64_t step = sizes.empty() ? 1 : t.stride(t.rank() - 1);
  std::vector<double> row(static_cast<std::size_t>(n));
  for_each_row(t, [&](char* at) {
    fill_row(rng_, family, n, row.data());
    for (std::int64_t i = 0; i < n; ++i) {
      const auto x = static_cast<float>(row[static_cast<std::size_t>(i)] * scale);
      if (dtype == DType::kBF16) {
        reinterpret_cast<bf16*>(at)[i * step] = numerics::to_bf16(x);
      } else {
        reinterpret_cast<float*>(at)[i * step] = x;
      }
    }
  });
  return t;
}

TensorView Memory::unwritten(DType dtype, std::vector<std::int64_t> sizes, Lie lie) {
  return make(dtype, sizes, lie);
}

TensorView Memory::f32(const std::vector<float>& values) {
  const TensorView t = make(DType::kF32, {std::ssize(values)}, Lie::kDense);
  std::copy(values.begin(), values.end(), t.at<float>());
  return t;
}

TensorView Memory::i32(const std::vector<std::int32_t>& values) {
  const TensorView t = make(DType::kI32, {std::ssize(values)}, Lie::kDense);
  std::copy(values.begin(), values.end(), t.at<std::int32_t>());
  return t;
}

TensorView Memory::i64(const std::vector<std::int64_t>& values) {
  const TensorView t = make(DType::kI64, {std::ssize(values)}, Lie::kDense);
  std::copy(values.begin(), values.end(), t.at<std::int64_t>());
  return t;
}

TensorView Memory::f64(const std::vector<double>& values) {
  const TensorView t = make(DType::kF64, {std::ssize(values)}, Lie::kDense);
  std::copy(values.begin(), values.end(), t.at<double>());
  return t;
}

TensorView Memory::offsets(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> sums(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), sums.begin() + 1);
  return i32(sums);
}

void Memory::restore() {
  for (std::size_t i = 0; i < storage_.size(); ++i) {
    std::memcpy(storage_[i].view().data, kept_[i].view().data, storage_[i].size_bytes());
  }
}

}  // namespace rlk::conformance
