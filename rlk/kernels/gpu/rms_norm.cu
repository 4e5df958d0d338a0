#include "rlk/kernels/rms_norm.h"

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/lanes.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/kernels/gpu/token_sum.h"
#include "rlk/kernels/gpu/trees.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu {
namespace {

struct NormShape {
  std::int64_t rows;  // tokens * heads
  std::int64_t heads;
  std::int64_t n;
  int lanes;
  bool packed;

  // Whether packs of eight elements fill the rows.
  bool whole() const { return packed && n % 8 == 0; }
};

// The first kHeld packs of a row, as they are stored.
template <typename T, int kLanes, int kHeld>
struct HeldRow {
  Pack<T, kLanes> pack[kHeld > 0 ? kHeld : 1];
};

// Any pack of a row; where packs are held the rows are whole packs.
template <int kHeld, int W, typename T>
RLK_DEVICE void load_any(const T* row, std::int64_t stride, std::int64_t k, const NormShape& shape,
                         float (&x)[W]) {
  if constexpr (kHeld > 0) {
    Pack<T, W>::read(row + k).get(x);
  } else {
    load_pack(row, stride, k, shape.n, shape.packed, x);
  }
}
template <int kHeld, int W, typename T>
RLK_DEVICE void store_any(T* row, std::int64_t stride, std::int64_t k, const NormShape& shape,
                          const float (&x)[W]) {
  if constexpr (kHeld > 0) {
    Pack<T, W>::of(x).write(row + k);
  } else {
    store_pack(row, stride, k, shape.n, shape.packed, x);
  }
}

template <typename T, int kLanes, int kHeld>
RLK_KERNEL(kLaneThreads)
rms_norm_kernel(Ref<T> y, Ref<float> q_out, Ref<const T> x_in, Ref<const T> residual,
                Ref<T> residual_out, Ref<const T> w, float eps, NormShape shape,
                unsigned long long* fault) {
  const auto lane_row = LaneRow<kLanes>::make(shape.lanes);
  const bool live = lane_row.row < shape.rows;
  const std::int64_t row = live ? lane_row.row : 0;
  // Behind the last row there is nothing to read: row 0 may be written by its own threads.
  const std::int64_t n = live ? shape.n : 0;
  const std::int64_t t = divide(row, shape.heads);
  const std::int64_t h = row - t * shape.heads;
  const T* x_row = &x_in(t, h);
  std::int64_t stride = x_in.stride[2];

  float acc[kLanes] = {};
  const auto add = [&](const float(&v)[kLanes]) {
    RLK_UNROLL
    for (int i = 0; i < kLanes; ++i) acc[i] = numerics::fma(v[i], v[i], acc[i]);
  };
  HeldRow<T, kLanes, kHeld> held;
  lane_row.template for_each_held<kHeld>(
      n, [&](int k, int p) { held.pack[p] = Pack<T, kLanes>::read(x_row + k); });
  if (residual) {
    const T* const residual_row = &residual(t, h);
    T* const out_row = &residual_out(t, h);
    lane_row.template for_each_held<kHeld>(n, [&](int k, int p) {
      float v[kLanes];
      float r[kLanes];
      held.pack[p].get(v);
      Pack<T, kLanes>::read(residual_row + k).get(r);
      for (int i = 0; i < kLanes; ++i) v[i] = r[i] + v[i];
      held.pack[p] = Pack<T, kLanes>::of(v);
      held.pack[p].write(out_row + k);
    });
  }
  lane_row.template for_each_held<kHeld>(n, [&](int, int p) {
    float v[kLanes];
    held.pack[p].get(v);
    add(v);
  });
  lane_row.template for_each_pack<kHeld>(n, [&](std::int64_t k) {
    float v[kLanes];
    load_any<kHeld>(x_row, stride, k, shape, v);
    if (residual) {
      float r[kLanes];
      load_any<kHeld>(&residual(t, h), residual.stride[2], k, shape, r);
      for (int i = 0; i < kLanes; ++i) v[i] = round_to<T>(r[i] + v[i]);
      store_any<kHeld>(&residual_out(t, h), residual_out.stride[2], k, shape, v);
    }
    add(v);
  });
  const float s = lane_row.tree(acc);
  if (!live) return;

  // What this thread stored above it reads again here.
  if (residual) {
    x_row = &residual_out(t, h);
    stride = residual_out.stride[2];
  }
  const float q = numerics::rsqrt(s / static_cast<float>(shape.n) + eps);
  T* const y_row = &y(t, h);
  const auto scale = [&](float(&v)[kLanes], const float(&weight)[kLanes]) {
    RLK_UNROLL
    for (int i = 0; i < kLanes; ++i) v[i] = (v[i] * q) * weight[i];
  };
  lane_row.template for_each_held<kHeld>(n, [&](int k, int p) {
    float v[kLanes];
    float weight[kLanes];
    held.pack[p].get(v);
    Pack<T, kLanes>::read(w.data + k).get(weight);
    scale(v, weight);
    Pack<T, kLanes>::of(v).write(y_row + k);
  });
  lane_row.template for_each_pack<kHeld>(n, [&](std::int64_t k) {
    float v[kLanes];
    float weight[kLanes];
    load_any<kHeld>(x_row, stride, k, shape, v);
    load_any<kHeld>(w.data, w.stride[0], k, shape, weight);
    scale(v, weight);
    store_any<kHeld>(y_row, y.stride[2], k, shape, v);
  });
  if (lane_row.part == 0) {
    if (!numerics::is_finite(s)) report(fault, row);
    if (q_out) q_out(t, h) = q;
  }
}

template <typename T, int kLanes, int kHeld>
RLK_KERNEL(kLaneThreads)
rms_norm_backward_kernel(Ref<T> dx, Ref<const T> dy, Ref<const T> x, Ref<const T> w,
                         Ref<const float> q_in, NormShape shape) {
  const auto lane_row = LaneRow<kLanes>::make(shape.lanes);
  const bool live = lane_row.row < shape.rows;
  const std::int64_t row = live ? lane_row.row : 0;
  const std::int64_t n = live ? shape.n : 0;
  const std::int64_t t = divide(row, shape.heads);
  const std::int64_t h = row - t * shape.heads;
  const T* const dy_row = &dy(t, h);
  const T* const x_row = &x(t, h);
  T* const dx_row = &dx(t, h);
  HeldRow<T, kLanes, kHeld> held_dy;
  HeldRow<T, kLanes, kHeld> held_x;
  lane_row.template for_each_held<kHeld>(n, [&](int k, int p) {
    held_dy.pack[p] = Pack<T, kLanes>::read(dy_row + k);
    held_x.pack[p] = Pack<T, kLanes>::read(x_row + k);
  });
  // u and x of one pack.
  const auto held_operands = [&](int k, int p, float(&u)[kLanes], float(&v)[kLanes]) {
    float weight[kLanes];
    held_dy.pack[p].get(u);
    Pack<T, kLanes>::read(w.data + k).get(weight);
    held_x.pack[p].get(v);
    for (int i = 0; i < kLanes; ++i) u[i] = u[i] * weight[i];
  };
  const auto load_operands = [&](std::int64_t k, float(&u)[kLanes], float(&v)[kLanes]) {
    float weight[kLanes];
    load_any<kHeld>(dy_row, dy.stride[2], k, shape, u);
    load_any<kHeld>(w.data, w.stride[0], k, shape, weight);
    load_any<kHeld>(x_row, x.stride[2], k, shape, v);
    for (int i = 0; i < kLanes; ++i) u[i] = u[i] * weight[i];
  };

  float acc[kLanes] = {};
  const auto add = [&](const float(&u)[kLanes], const float(&v)[kLanes]) {
    RLK_UNROLL
    for (int i = 0; i < kLanes; ++i) acc[i] = numerics::fma(u[i], v[i], acc[i]);
  };
  float u[kLanes];
  float v[kLanes];
  lane_row.template for_each_held<kHeld>(n, [&](int k, int p) {
    held_operands(k, p, u, v);
    add(u, v);
  });
  lane_row.template for_each_pack<kHeld>(n, [&](std::int64_t k) {
    load_operands(k, u, v);
    add(u, v);
  });
  const float sum = lane_row.tree(acc);
  if (!live) return;

  const float q = q_in(t, h);
  const float z = ((q * q) * q) * (sum / static_cast<float>(shape.n));
  const auto finish = [&] {
    RLK_UNROLL
    for (int i = 0; i < kLanes; ++i) u[i] = numerics::fma(u[i], q, -(v[i] * z));
  };
  lane_row.template for_each_held<kHeld>(n, [&](int k, int p) {
    held_operands(k, p, u, v);
    finish();
    Pack<T, kLanes>::of(u).write(dx_row + k);
  });
  lane_row.template for_each_pack<kHeld>(n, [&](std::int64_t k) {
    load_operands(k, u, v);
    finish();
    store_any<kHeld>(dx_row, dx.stride[2], k, shape, u);
  });
}

template <typename T>
RLK_KERNEL(kTokenSumThreads)
rms_norm_backward_weight_kernel(Ref<float> dw, Ref<const T> dy, Ref<const T> x, Ref<const float> q,
                                Ref<const std::int32_t> cu_seqlens, std::int64_t num_samples,
                                std::int64_t token_block, std::int64_t heads, std::int64_t n) {
  const std::int64_t column = token_sum_column();
  const bool live = column < heads * n;
  const std::int64_t h = live ? divide(column, n) : 0;
  const std::int64_t k = live ? column - h * n : 0;
  token_sum(live ? &dw(h, k) : nullptr, cu_seqlens, num_samples, token_block,
            [&](std::int64_t t, float acc) {
              return numerics::fma(load(dy(t, h, k)), load(x(t, h, k)) * q(t, h), acc);
            });
}

RLK_KERNEL(kElementThreads)
merge_heads_kernel(Ref<float> dw, Ref<const float> partial, std::int64_t heads, std::int64_t n,
                   int leaves) {
  const std::int64_t k = block_x() * kElementThreads + thread();
  if (k >= n) return;
  TreeStack<1, kMaxTreeLevels> tree;
  for (int i = 0; i < leaves; ++i) {
    float acc[1] = {0.0f};
    for (std::int64_t h = i * heads / leaves; h < (i + 1) * heads / leaves; ++h) {
      acc[0] = acc[0] + partial(h, k);
    }
    tree.push(acc);
  }
  dw(k) = tree.result(0);
}

// Whether the rows of all tensors can be moved in packs of a thread's lanes.
bool packs_all(int lanes, const auto&... tensors) {
  bool yes = false;
  with_lanes(lanes, [&]<int kLanes>() { yes = (packs<kLanes>(tensors) && ...); });
  return yes;
}

NormShape norm_shape(const Exec& exec, const ConstTensorView& x) {
  return {x.shape(0) * x.shape(1), x.shape(1), x.shape(2),
          used_lanes(exec.contract.norm_lanes, x.shape(2)), false};
}

}  // namespace

void rms_norm(Exec& exec, const RmsNormArgs& args) {
  NormShape shape = norm_shape(exec, args.x);
  shape.packed = packs_all(shape.lanes, args.x, args.y, args.w, args.residual, args.residual_out);
  with_storage(args.x.dtype, [&]<typename T>() {
    with_held<T>(shape.lanes, shape.n, shape.whole(), [&]<int kLanes, int kHeld>() {
      launch(exec, lane_grid(shape.rows, shape.lanes, kLanes), kLaneThreads, 0,
             rms_norm_kernel<T, kLanes, kHeld>, ref<T>(args.y), ref<float>(args.q), ref<T>(args.x),
             ref<T>(args.residual), ref<T>(args.residual_out), ref<T>(args.w), args.eps, shape,
             exec.gpu->fault());
    });
  });
}

void rms_norm_backward(Exec& exec, const RmsNormBackwardArgs& args) {
  NormShape shape = norm_shape(exec, args.x);
  shape.packed = packs_all(shape.lanes, args.x, args.dy, args.dx, args.w);
  with_storage(args.x.dtype, [&]<typename T>() {
    with_held<T>(shape.lanes, shape.n, shape.whole(), [&]<int kLanes, int kHeld>() {
      launch(exec, lane_grid(shape.rows, shape.lanes, kLanes), kLaneThreads, 0,
             rms_norm_backward_kernel<T, kLanes, kHeld>, ref<T>(args.dx), ref<T>(args.dy),
             ref<T>(args.x), ref<T>(args.w), ref<float>(args.q), shape);
    });
  });
}

void rms_norm_backward_weight(Exec& exec, const RmsNormBackwardWeightArgs& args) {
  const std::int64_t heads = args.x.shape(1);
  const std::int64_t n = args.x.shape(2);
  with_storage(args.x.dtype, [&]<typename T>() {
    launch(exec, token_sum_grid(heads * n), kTokenSumThreads, 0, rms_norm_backward_weight_kernel<T>,
           ref<float>(args.dw), ref<T>(args.dy), ref<T>(args.x), ref<float>(args.q),
           ref<std::int32_t>(args.cu_seqlens), args.cu_seqlens.shape(0) - 1,
           std::int64_t{exec.contract.token_block}, heads, n);
  });
}

void merge_heads(Exec& exec, const MergeHeadsArgs& args) {
  const std::int64_t n = args.partial.shape(1);
  launch(exec, {ceil_div(n, kElementThreads)}, kElementThreads, 0, merge_heads_kernel,
         ref<float>(args.dw), ref<float>(args.partial), args.partial.shape(0), n,
         exec.contract.leaves);
}

}  // namespace rlk::gpu
