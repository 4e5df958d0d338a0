#include "rlk/kernels/swiglu.h"

#include <bit>

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu {
namespace {

// The sigmoids of a pack. Where |x| <= 87, numerics::exp(-x) has no special case and a normal
// result, so its scaling by 2^n is exact and can be an addition to the exponent: the same bits.
RLK_DEVICE void sigmoids(const float (&x)[kWidth], float (&s)[kWidth]) {
  float squares = 0.0f;  // one test for the whole pack, which a NaN fails
  RLK_UNROLL
  for (int i = 0; i < kWidth; ++i) squares = numerics::fma(x[i], x[i], squares);
  if (!(squares <= 87.0f * 87.0f)) {
    for (int i = 0; i < kWidth; ++i) s[i] = numerics::sigmoid(x[i]);
    return;
  }
  RLK_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    const float t = numerics::fma(-x[i], numerics::kLog2E, numerics::kRoundMagic);
    const float y = numerics::exp_reduced(-x[i], t - numerics::kRoundMagic);
    // The low bits of t are n.
    const float e = std::bit_cast<float>(std::bit_cast<std::uint32_t>(y) +
                                         (std::bit_cast<std::uint32_t>(t) << 23));
    s[i] = numerics::reciprocal(1.0f + e);
  }
}

// What most calls are: whole packs, fewer than 2^31, kPacks of a thread. kFlat: rows lie end to
// end.
template <typename T, bool kFlat, int kPacks>
RLK_KERNEL(kElementThreads)
swiglu_packs_kernel(Ref<T> y, Ref<const T> g, Ref<const T> u, unsigned packs, unsigned row_packs) {
  using Held = Pack<T, kWidth>;
  const unsigned first = static_cast<unsigned>(block_x()) * (kPacks * kElementThreads) +
                         static_cast<unsigned>(thread());
  const auto at = [&](const auto& ref, unsigned i) {
    if constexpr (kFlat) return ref.data + std::int64_t{i} * kWidth;
    const unsigned t = i / row_packs;
    return &ref(t) + std::int64_t{i - t * row_packs} * kWidth;
  };
  Held gates[kPacks];
  Held ups[kPacks];
  RLK_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const unsigned i = first + static_cast<unsigned>(p * kElementThreads);
    if (i >= packs) continue;
    gates[p] = Held::read(at(g, i));
    ups[p] = Held::read(at(u, i));
  }
  RLK_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const unsigned i = first + static_cast<unsigned>(p * kElementThreads);
    if (i >= packs) continue;
    float gate[kWidth];
    float up[kWidth];
    float s[kWidth];
    gates[p].get(gate);
    sigmoids(gate, s);
    ups[p].get(up);
    RLK_UNROLL
    for (int k = 0; k < kWidth; ++k) gate[k] = (gate[k] * s[k]) * up[k];
    Held::of(gate).write(at(y, i));
  }
}

template <typename T, bool kWhole>
RLK_KERNEL(kElementThreads)
swiglu_kernel(Ref<T> y, Ref<const T> g, Ref<const T> u, std::int64_t rows, std::int64_t n) {
  const auto [t, k] = place(n, rows == 1);
  if (t >= rows) return;
  float gate[kWidth];
  float up[kWidth];
  load_elements<kWhole>(&g(t), g.stride[1], k, n, gate);
  load_elements<kWhole>(&u(t), u.stride[1], k, n, up);
  float s[kWidth];
  sigmoids(gate, s);
  RLK_UNROLL
  for (int i = 0; i < kWidth; ++i) gate[i] = (gate[i] * s[i]) * up[i];
  store_elements<kWhole>(&y(t), y.stride[1], k, n, gate);
}

template <typename T, bool kWhole>
RLK_KERNEL(kElementThreads)
swiglu_backward_kernel(Ref<T> dg, Ref<T> du, Ref<const T> dy, Ref<const T> g, Ref<const T> u,
                       std::int64_t rows, std::int64_t n) {
  const auto [t, k] = place(n, rows == 1);
  if (t >= rows) return;
  float gradient[kWidth];
  float gate[kWidth];
  float up[kWidth];
  load_elements<kWhole>(&dy(t), dy.stride[1], k, n, gradient);
  load_elements<kWhole>(&g(t), g.stride[1], k, n, gate);
  load_elements<kWhole>(&u(t), u.stride[1], k, n, up);
  float s[kWidth];
  sigmoids(gate, s);
  RLK_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    const float dup = gradient[i] * (gate[i] * s[i]);
    gate[i] = (gradient[i] * up[i]) * (s[i] * numerics::fma(gate[i], 1.0f - s[i], 1.0f));
    up[i] = dup;
  }
  store_elements<kWhole>(&du(t), du.stride[1], k, n, up);
  store_elements<kWhole>(&dg(t), dg.stride[1], k, n, gate);
}

}  // namespace

void swiglu(Exec& exec, const SwigluArgs& args) {
  const Rectangle size = rectangle(args.y, args.g, args.u);
  with_storage(args.y.dtype, [&]<typename T>() {
    const auto run_packs = [&]<int kPacks>(std::int64_t packs) {
      launch(exec, {ceil_div(packs, kPacks * kElementThreads)}, kElementThreads, 0,
             size.rows == 1 ? swiglu_packs_kernel<T, true, kPacks>
                            : swiglu_packs_kernel<T, false, kPacks>,
             ref<T>(args.y), ref<T>(args.g), ref<T>(args.u), static_cast<unsigned>(packs),
             static_cast<unsigned>(size.n / kWidth));
    };
    const auto run = [&]<bool kWhole>() {
      const std::int64_t packs = size.rows * (size.n / kWidth);
      if (kWhole && packs < (std::int64_t{1} << 31)) {
        // Two packs use the memory better, one fills a GPU sooner.
        return packs < (std::int64_t{1} << 18) ? run_packs.template operator()<1>(packs)
                                               : run_packs.template operator()<2>(packs);
      }
      launch(exec, element_grid(size.rows, size.n), kElementThreads, 0, swiglu_kernel<T, kWhole>,
             ref<T>(args.y), ref<T>(args.g), ref<T>(args.u), size.rows, size.n);
    };
    with_whole(run, size.n, args.y, args.g, args.u);
  });
}

void swiglu_backward(Exec& exec, const SwigluBackwardArgs& args) {
  const Rectangle size = rectangle(args.dy, args.dg, args.du, args.g, args.u);
  with_storage(args.dy.dtype, [&]<typename T>() {
    const auto run = [&]<bool kWhole>() {
      launch(exec, element_grid(size.rows, size.n), kElementThreads, 0,
             swiglu_backward_kernel<T, kWhole>, ref<T>(args.dg), ref<T>(args.du), ref<T>(args.dy),
             ref<T>(args.g), ref<T>(args.u), size.rows, size.n);
    };
    with_whole(run, size.n, args.dg, args.du, args.dy, args.g, args.u);
  });
}

}  // namespace rlk::gpu
