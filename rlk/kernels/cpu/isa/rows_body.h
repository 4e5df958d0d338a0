// Row by row operators, one text for every instruction set and both storage types. Included inside
// the anonymous namespace of rows_*.cc, after the vectors.

using rlk::cpu::AdamwRows;
using rlk::cpu::GrpoLossRows;
using rlk::cpu::KlRows;
using rlk::cpu::NormGradientRows;
using rlk::cpu::NormRows;
using rlk::cpu::RatioRows;
using rlk::cpu::RopeRows;
using rlk::cpu::RowsIsa;
using rlk::cpu::StorageRows;
using rlk::cpu::ValueLossRows;
using rlk::cpu::WideSum;

template <typename T>
void embedding(T* y, const T* x, std::int64_t n) {
  map_pairs<true>(
      n, y, [](P v) { return v + both(zero()); }, x);
}

template <typename T>
void add_to_f32(float* y, const T* x, std::int64_t n) {
  std::int64_t k = 0;
  for (; k + kWidth <= n; k += kWidth) store(y + k, load(y + k) + load_value(x + k));
  if (k == n) return;
  const int count = static_cast<int>(n - k);
  store_n(y + k, load_n(y + k, count) + load_value_n(x + k, count), count);
}

template <typename T>
void residual_add(T* y, const T* a, const T* b, std::int64_t n) {
  map_pairs<true>(
      n, y, [](P v, P w) { return v + w; }, a, b);
}

#include "rlk/kernels/cpu/isa/rows_norm.h"
//
#include "rlk/kernels/cpu/isa/rows_rope.h"
//
#include "rlk/kernels/cpu/isa/rows_loss.h"
//
#include "rlk/kernels/cpu/isa/rows_step.h"

template <typename T>
void swiglu(T* y, const T* g, const T* u, std::int64_t n) {
  map_pairs<true>(
      n, y, [](P gate, P up) { return (gate * sigmoid(gate)) * up; }, g, u);
}

struct SwigluGradient {
  P dg, du;
};

inline SwigluGradient swiglu_gradient(P dy, P g, P u) {
  const P one = both(set1(1.0f));
  const P s = sigmoid(g);
  return {(dy * u) * (s * fma(g, one - s, one)), dy * (g * s)};
}

template <typename T>
void swiglu_backward(T* dg, T* du, const T* dy, const T* g, const T* u, std::int64_t n) {
  for_pairs(
      n,
      [&](std::int64_t k) {
        prefetch(dy + k);
        prefetch(g + k);
        prefetch(u + k);
        const SwigluGradient d =
            swiglu_gradient(load_pair(dy + k), load_pair(g + k), load_pair(u + k));
        store_pair(du + k, d.du);
        store_pair(dg + k, d.dg);
      },
      [&](std::int64_t k, int count) {
        const SwigluGradient d = swiglu_gradient(
            load_pair_n(dy + k, count), load_pair_n(g + k, count), load_pair_n(u + k, count));
        store_pair_n(du + k, d.du, count);
        store_pair_n(dg + k, d.dg, count);
      });
}

template <typename T>
constexpr StorageRows<T> kStorage = {
    .embedding = embedding<T>,
    .add_to_f32 = add_to_f32<T>,
    .residual_add = residual_add<T>,
    .rms_norm = rms_norm<T>,
    .rms_norm_backward = rms_norm_backward<T>,
    .rms_norm_weight = rms_norm_weight<T>,
    .rope = rope<T>,
    .rope_backward = rope_backward<T>,
    .swiglu = swiglu<T>,
    .swiglu_backward = swiglu_backward<T>,
};

constexpr RowsIsa kTable = {
    .bf16 = kStorage<std::uint16_t>,
    .f32 = kStorage<float>,
    .merge_heads = merge_heads,
    .ratio = ratio,
    .kl = kl,
    .grpo_loss = grpo_loss,
    .value_loss = value_loss,
    .adamw = adamw,
    .max_exponent = max_exponent,
    .square_sum = square_sum,
};
