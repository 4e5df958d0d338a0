// Random choices for the properties of kernels: shapes, strides, data, backends.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/backends.h"

namespace rlk::test {

// From begin to end, both included.
inline std::int64_t draw(std::int64_t begin, std::int64_t end) {
  return *rc::gen::resize(100, rc::gen::inRange<std::int64_t>(begin, end + 1));
}

// Now and then an edge, else anything between.
inline std::int64_t draw_size(std::int64_t begin, std::int64_t end) {
  switch (draw(0, 9)) {
    case 0: return begin;
    case 1: return end;
    case 2: return std::min(end, begin + 1);
    default: return draw(begin, end);
  }
}

inline bool draw_bool() { return draw(0, 1) == 1; }

template <typename T>
T draw_one(const std::vector<T>& from) {
  return from[static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(from.size()) - 1))];
}

// bf16 data of any kind, with the seed that makes it.
inline Tensor draw_tensor(std::initializer_list<std::int64_t> sizes) {
  const Kind kind = draw_one<Kind>(
      {Kind::kNormal, Kind::kCancelling, Kind::kWide, Kind::kSubnormal, Kind::kMixed});
  return random_tensor(DType::kBF16, sizes, static_cast<std::uint64_t>(draw(0, 1 << 30)), kind);
}

inline const KernelTable& draw_cpu_kernels() { return cpu_kernels(draw_one(isas())); }

// A copy with gaps: rows further apart than they are long, elements `apart` from each other.
struct Strided2 {
  Tensor storage;
  TensorView view;
};
inline Strided2 with_gaps(const Tensor& dense, std::int64_t apart, std::int64_t row_gap,
                          bool column_major) {
  const std::int64_t rows = dense.shape(0), n = dense.shape(1);
  const std::int64_t outer = column_major ? rows * apart + row_gap : n * apart + row_gap;
  Strided2 out{Tensor(dense.dtype(), {(column_major ? n : rows) * outer + 1}), {}};
  out.view = {out.storage.view().data, dense.dtype(), Layout{rows, n}};
  out.view.layout.stride = column_major ? std::array<std::int64_t, 4>{apart, outer, 0, 0}
                                        : std::array<std::int64_t, 4>{outer, apart, 0, 0};
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < n; ++k) {
      *out.view.at<bf16>(i, k) = dense.data<bf16>()[i * n + k];
    }
  }
  return out;
}

inline void assert_same(const Tensor& a, const Tensor& b, const std::string& what) {
  if (!same_bytes(a, b)) RC_FAIL(what + ": " + same_bits(a, b).message());
}

}  // namespace rlk::test
