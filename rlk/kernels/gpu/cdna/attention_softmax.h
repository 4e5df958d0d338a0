// Contract section 4 for a query that is a column of a wave's matrices: every lane of the column
// holds m and its own lanes of l.
#pragma once

#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/cdna/attention_shapes.h"
#include "rlk/kernels/gpu/cdna/pairs.h"

namespace rlk::gpu::cdna {

template <typename Shape>
struct Softmax {
  float m = -numerics::kInfinity;
  Float2 l[Shape::kLanes / 2] = {};
  bool in_range = true;  // every m' was

  // Of the keys behind: what the lane's o has to be multiplied by, and -m' for the terms.
  struct Step {
    float a;
    float minus_m;
  };

  // max_s: the largest score the lane has of the visible keys of a block, -inf where it has none.
  RLK_DEVICE Step begin_block(float c, float max_s) {
    const float new_m = maximum(m, c * Shape::max(max_s));
    // Without a visible key so far m is -inf, and nothing below changes o or l, which are +0.
    const float minus_m = new_m == -numerics::kInfinity ? 0.0f : -new_m;
    if (!(numerics::abs(minus_m) < 0x1p22f)) in_range = false;
    const float a = numerics::exp2p(m + minus_m);
    m = new_m;
    RLK_UNROLL
    for (Float2& x : l) x = x * a;
    return {a, minus_m};
  }

  // The scores of a tile become terms, rounded as products take them: operand r is of kDepth keys.
  // Of the tile's keys the column sees `limit`; own_limit: limit - 4 * group().
  template <bool kMasked>
  RLK_DEVICE void add_terms(float c, const Step& step, int own_limit, const typename Shape::Sums& s,
                            Half4 (&terms)[Shape::kSums / 4]) {
    RLK_UNROLL
    for (int r = 0; r < Shape::kSums / 4; ++r) {
      Float2 e[2];
      RLK_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int i = 4 * r + 2 * half;
        e[half] = fma(Float2{s[i], s[i + 1]}, pair_of(c), pair_of(step.minus_m));
      }
      exp2p(e);
      std::uint32_t word[2];
      RLK_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int i = 4 * r + 2 * half;
        if (kMasked && Shape::offset(i) >= own_limit) e[half][0] = 0.0f;
        if (kMasked && Shape::offset(i + 1) >= own_limit) e[half][1] = 0.0f;
        Float2& lanes = l[i % Shape::kLanes / 2];
        lanes = lanes + e[half];
        word[half] = bf16_pair(e[half][0], e[half][1]);
      }
      terms[r] = half4_of(word);
      stay_in_order();
    }
  }

  // The largest of a tile's scores and max_s.
  template <bool kMasked>
  RLK_DEVICE static float max_of(int own_limit, const typename Shape::Sums& s, float max_s) {
    RLK_UNROLL
    for (int i = 0; i < Shape::kSums; ++i) {
      if (!kMasked || Shape::offset(i) < own_limit) max_s = maximum(max_s, s[i]);
    }
    return max_s;
  }

  // The split is over: its l; m and l begin anew.
  RLK_DEVICE float end_split() {
    float lanes[Shape::kLanes];
    RLK_UNROLL
    for (int i = 0; i < Shape::kLanes; ++i) lanes[i] = l[i / 2][i % 2];
    m = -numerics::kInfinity;
    RLK_UNROLL
    for (Float2& x : l) x = Float2{};
    return Shape::tree(lanes);
  }
};

// The scores of a wave's columns against a block of keys become terms; returns what o has to be
// multiplied by. The column sees the keys of the block below `limit`.
template <bool kMasked, typename Shape, int kTiles>
RLK_DEVICE float softmax_block(float c, int limit, const typename Shape::Sums (&s)[kTiles],
                               Softmax<Shape>& softmax, Half4 (&terms)[kTiles][Shape::kSums / 4]) {
  const int own_limit = limit - 4 * Shape::group();
  float max_s = -numerics::kInfinity;
  RLK_UNROLL
  for (int i = 0; i < kTiles; ++i) {
    max_s = softmax.template max_of<kMasked>(own_limit - i * Shape::kSize, s[i], max_s);
  }
  const auto step = softmax.begin_block(c, max_s);
  RLK_UNROLL
  for (int i = 0; i < kTiles; ++i) {
    softmax.template add_terms<kMasked>(c, step, own_limit - i * Shape::kSize, s[i], terms[i]);
  }
  return step.a;
}

// The splits so far of one query, in a left fold.
struct SplitFold {
  float m = 0.0f;
  float l = 0.0f;

  // Goes on with a split; o = fma(o, a1, o2 * a2). The first one is taken as it is, and one without
  // a visible key (m2 = -inf) changes nothing.
  struct Weights {
    float a1;
    float a2;
  };
  RLK_DEVICE Weights add(bool first, float m2, float l2) {
    if (first) {
      m = m2;
      l = l2;
      return {0.0f, 1.0f};
    }
    if (m2 == -numerics::kInfinity) return {1.0f, 0.0f};
    const float new_m = maximum(m, m2);
    const Weights w{numerics::exp2p(m - new_m), numerics::exp2p(m2 - new_m)};
    m = new_m;
    l = numerics::fma(l, w.a1, l2 * w.a2);
    return w;
  }
  RLK_DEVICE float lse() const { return lse_of(l, m); }
};

}  // namespace rlk::gpu::cdna
