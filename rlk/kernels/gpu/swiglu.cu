#include "rlk/kernels/swiglu.h"

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu {
namespace {

template <typename T>
RLK_KERNEL(kElementThreads)
swiglu_kernel(Ref<T> y, Ref<const T> g, Ref<const T> u, std::int64_t rows, std::int64_t n,
              bool packed) {
  const auto [t, k] = place(n);
  if (t >= rows) return;
  float gate[kWidth];
  float up[kWidth];
  load_pack(&g(t), g.stride[1], k, n, packed, gate);
  load_pack(&u(t), u.stride[1], k, n, packed, up);
  for (int i = 0; i < kWidth; ++i) gate[i] = numerics::silu(gate[i]) * up[i];
  store_pack(&y(t), y.stride[1], k, n, packed, gate);
}

template <typename T>
RLK_KERNEL(kElementThreads)
swiglu_backward_kernel(Ref<T> dg, Ref<T> du, Ref<const T> dy, Ref<const T> g, Ref<const T> u,
                       std::int64_t rows, std::int64_t n, bool packed) {
  const auto [t, k] = place(n);
  if (t >= rows) return;
  float gradient[kWidth];
  float gate[kWidth];
  float up[kWidth];
  load_pack(&dy(t), dy.stride[1], k, n, packed, gradient);
  load_pack(&g(t), g.stride[1], k, n, packed, gate);
  load_pack(&u(t), u.stride[1], k, n, packed, up);
  for (int i = 0; i < kWidth; ++i) {
    const float s = numerics::sigmoid(gate[i]);
    const float dup = gradient[i] * (gate[i] * s);
    gate[i] = (gradient[i] * up[i]) * (s * numerics::fma(gate[i], 1.0f - s, 1.0f));
    up[i] = dup;
  }
  store_pack(&du(t), du.stride[1], k, n, packed, up);
  store_pack(&dg(t), dg.stride[1], k, n, packed, gate);
}

}  // namespace

void swiglu(Exec& exec, const SwigluArgs& args) {
  const std::int64_t rows = args.y.shape(0);
  const std::int64_t n = args.y.shape(1);
  const bool packed = packs<kWidth>(args.y) && packs<kWidth>(args.g) && packs<kWidth>(args.u);
  with_storage(args.y.dtype, [&]<typename T>() {
    launch(exec, element_grid(rows, n), kElementThreads, 0, swiglu_kernel<T>, ref<T>(args.y),
           ref<T>(args.g), ref<T>(args.u), rows, n, packed);
  });
}

void swiglu_backward(Exec& exec, const SwigluBackwardArgs& args) {
  const std::int64_t rows = args.dy.shape(0);
  const std::int64_t n = args.dy.shape(1);
  const bool packed = packs<kWidth>(args.dg) && packs<kWidth>(args.du) && packs<kWidth>(args.dy) &&
                      packs<kWidth>(args.g) && packs<kWidth>(args.u);
  with_storage(args.dy.dtype, [&]<typename T>() {
    launch(exec, element_grid(rows, n), kElementThreads, 0, swiglu_backward_kernel<T>,
           ref<T>(args.dg), ref<T>(args.du), ref<T>(args.dy), ref<T>(args.g), ref<T>(args.u), rows,
           n, packed);
  });
}

}  // namespace rlk::gpu
