// How threads share the elements of a matrix [rows, n]: each takes kWidth neighbours of a row.
#pragma once

#include "rlk/kernels/gpu/views.h"

namespace rlk::gpu {

inline constexpr int kWidth = 8;
inline constexpr int kElementThreads = 256;

template <typename A, typename B>
RLK_HD constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

// For 32-bit numbers the division of 32 bits, which is much faster on a GPU.
RLK_HD inline std::int64_t divide(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

// The shape of matrices of one shape, as one row where the rows of all of them lie end to end.
struct Rectangle {
  std::int64_t rows;
  std::int64_t n;
};
Rectangle rectangle(const ConstTensorView& first, const auto&... others) {
  const std::int64_t rows = first.shape(0);
  const std::int64_t n = first.shape(1);
  const auto dense = [&](const ConstTensorView& t) {
    return (t.stride(0) == n || rows == 1) && (t.stride(1) == 1 || n == 1);
  };
  if (rows != 0 && dense(first) && (dense(others) && ...)) return {1, rows * n};
  return {rows, n};
}

// Calls body.operator()<kWhole>(), kWhole = (n is a multiple of kWidth and the rows of all tensors
// can be moved in packs of kWidth).
template <typename Body>
void with_whole(const Body& body, std::int64_t n, const auto&... tensors) {
  if (n % kWidth == 0 && (packs<kWidth>(tensors) && ...)) {
    body.template operator()<true>();
  } else {
    body.template operator()<false>();
  }
}

// x[k .. k + kWidth) of a row of n: a whole pack, or what there is of it.
template <bool kWhole, typename T>
RLK_DEVICE void load_elements(const T* row, std::int64_t stride, std::int64_t k, std::int64_t n,
                              float (&x)[kWidth]) {
  if constexpr (kWhole) {
    Pack<T, kWidth>::read(row + k).get(x);
  } else {
    load_pack(row, stride, k, n, false, x);
  }
}
template <bool kWhole, typename T>
RLK_DEVICE void store_elements(T* row, std::int64_t stride, std::int64_t k, std::int64_t n,
                               const float (&x)[kWidth]) {
  if constexpr (kWhole) {
    Pack<T, kWidth>::of(x).write(row + k);
  } else {
    store_pack(row, stride, k, n, false, x);
  }
}

// The same elements kept as they are stored, so that many of them fit in registers.
template <typename T, bool kWhole>
struct HeldElements {
  Pack<T, kWidth> pack;

  RLK_DEVICE void load(const T* row, std::int64_t stride, std::int64_t k, std::int64_t n) {
    if constexpr (kWhole) {
      pack = Pack<T, kWidth>::read(row + k);
    } else {
      float x[kWidth];
      load_pack(row, stride, k, n, false, x);
      pack = Pack<T, kWidth>::of(x);
    }
  }
  RLK_DEVICE void get(float (&x)[kWidth]) const { pack.get(x); }
};

// The grid for [rows, n], and a thread's place in it.
inline Grid element_grid(std::int64_t rows, std::int64_t n) {
  return {ceil_div(rows * ceil_div(n, kWidth), kElementThreads)};
}
struct Place {
  std::int64_t row;  // rows or more: nothing to do
  std::int64_t k;
};
RLK_DEVICE Place place(std::int64_t n, bool one_row = false) {
  const std::int64_t packs_per_row = divide(n + kWidth - 1, kWidth);
  const std::int64_t i = block_x() * kElementThreads + thread();
  if (one_row) return {i < packs_per_row ? 0 : 1, i * kWidth};
  const std::int64_t row = divide(i, packs_per_row);
  return {row, (i - row * packs_per_row) * kWidth};
}

}  // namespace rlk::gpu
