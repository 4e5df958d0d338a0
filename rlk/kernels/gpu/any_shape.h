// The kernels for any shape and strides: they load their numbers one by one, and are the same text
// for every matrix instruction. What differs is `S`, matrices of 16 x 16 of a wave (sm90/square.h,
// cdna/square.h):
//
//   kWave              threads of a wave
//   kLines             lines of a matrix of which a lane has a part, four places of each
//   line(h), place(j)  which they are
//   Operand            16 x 16 bf16 numbers: lines are rows of the sums, or columns; k runs along
//                      the places
//   operand(element)   the lane's part of one, from element(h, j)
//   padding(left)      of one operand, where only the first `left` places are there and the other
//                      operand is +0: leaves any state of a chain as it is
//   kSums              sums of a lane: i is line(i / 4), place(i % 4)
//   multiply(a, b, sums)   sums go on over 16 values of k: lines are those of a, places those of b
//   max(x), tree(x)    over a line: the largest x; the neighbour tree of the 16 places
//
// So sums, rounded, are an operand of the next product as they lie.
#pragma once

#include "rlk/kernels/gpu/views.h"

namespace rlk::gpu::any_shape {

// Vectors of up to 16 * kTiles dense numbers, of which a lane knows N; null: +0.
template <int N>
struct Vectors {
  const bf16* at[N];

  RLK_DEVICE bf16 number(int i, int x, int d) const {
    return at[i] != nullptr && x < d ? at[i][x] : bf16{};
  }
};
template <int N, typename Find>
RLK_DEVICE Vectors<N> find_vectors(const Find& find) {
  Vectors<N> vectors;
  RLK_UNROLL
  for (int i = 0; i < N; ++i) vectors.at[i] = find(i);
  return vectors;
}

// Numbers 16 tile .. 16 tile + 15 of the vectors, a line each.
template <typename S>
RLK_DEVICE typename S::Operand lines_of(const Vectors<S::kLines>& vectors, int tile, int d) {
  return S::operand([&](int h, int j) { return vectors.number(h, 16 * tile + S::place(j), d); });
}
template <typename S, int kTiles>
RLK_DEVICE void load_vectors(const Vectors<S::kLines>& vectors, int d,
                             typename S::Operand (&to)[kTiles]) {
  RLK_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) to[tile] = lines_of<S>(vectors, tile, d);
}

// Loaded vectors by 16 others over d: one chain each. The lines of the others are the sums'
// columns.
template <typename S, int kTiles>
RLK_DEVICE void multiply_vectors(const typename S::Operand (&loaded)[kTiles],
                                 const Vectors<S::kLines>& others, int d, float (&sums)[S::kSums]) {
  RLK_UNROLL
  for (float& sum : sums) sum = 0.0f;
  RLK_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    if (16 * tile >= d) break;
    S::multiply(loaded[tile], lines_of<S>(others, tile, d), sums);
  }
  RLK_UNROLL
  for (float& sum : sums) sum = sum + 0.0f;
}

// acc goes on over 16 vectors: weights, whose places they are, by their numbers. Sum i of acc[tile]
// is number 16 * tile + place(i % 4).
template <typename S, int kTiles>
RLK_DEVICE void add_weighted(const typename S::Operand& weights, const Vectors<4>& vectors, int d,
                             float (&acc)[kTiles][S::kSums]) {
  RLK_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    if (16 * tile >= d) break;
    const typename S::Operand numbers =
        S::operand([&](int h, int j) { return vectors.number(j, 16 * tile + S::line(h), d); });
    S::multiply(weights, numbers, acc[tile]);
  }
}

// Calls visit(h, x, tile, i) for the lane's sums of such vectors.
template <typename S, int kTiles, typename Visit>
RLK_DEVICE void for_each_number(int d, const Visit& visit) {
  RLK_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    RLK_UNROLL
    for (int i = 0; i < S::kSums; ++i) {
      const int x = 16 * tile + S::place(i % 4);
      if (x < d) visit(i / 4, x, tile, i);
    }
  }
}

// Numbers where sums lie, rounded, as an operand.
template <typename S>
RLK_DEVICE typename S::Operand rounded(const float (&x)[S::kSums]) {
  return S::operand([&](int h, int j) { return numerics::to_bf16(x[4 * h + j]); });
}

}  // namespace rlk::gpu::any_shape
