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
};

template <typename T, int kLanes>
RLK_KERNEL(kLaneThreads)
rms_norm_kernel(Ref<T> y, Ref<float> q_out, Ref<const T> x_in, Ref<const T> residual,
                Ref<T> residual_out, Ref<const T> w, float eps, NormShape shape,
                unsigned long long* fault) {
  const auto lane_row = LaneRow<kLanes>::make(shape.lanes);
  const bool live = lane_row.row < shape.rows;
  const std::int64_t row = live ? lane_row.row : 0;
  const std::int64_t t = divide(row, shape.heads);
  const std::int64_t h = row - t * shape.heads;
  const T* x_row = &x_in(t, h);
  std::int64_t stride = x_in.stride[2];

  float acc[kLanes] = {};
  lane_row.for_each_pack(shape.n, [&](std::int64_t k) {
    float v[kLanes];
    load_pack(x_row, stride, k, shape.n, shape.packed, v);
    if (residual) {
      float r[kLanes];
      load_pack(&residual(t, h), residual.stride[2], k, shape.n, shape.packed, r);
      for (int i = 0; i < kLanes; ++i) v[i] = round_to<T>(r[i] + v[i]);
      if (live) {
        store_pack(&residual_out(t, h), residual_out.stride[2], k, shape.n, shape.packed, v);
      }
    }
    for (int i = 0; i < kLanes; ++i) acc[i] = numerics::fma(v[i], v[i], acc[i]);
  });
  const float s = lane_row.tree(acc);
  if (!live) return;

  // What this thread stored above it reads again here.
  if (residual) {
    x_row = &residual_out(t, h);
    stride = residual_out.stride[2];
  }
  const float q = numerics::rsqrt(s / static_cast<float>(shape.n) + eps);
  lane_row.for_each_pack(shape.n, [&](std::int64_t k) {
    float v[kLanes];
    float weight[kLanes];
    load_pack(x_row, stride, k, shape.n, shape.packed, v);
    load_pack(&w(), w.stride[0], k, shape.n, shape.packed, weight);
    for (int i = 0; i < kLanes; ++i) v[i] = (v[i] * q) * weight[i];
    store_pack(&y(t, h), y.stride[2], k, shape.n, shape.packed, v);
  });
  if (lane_row.part == 0) {
    if (!numerics::is_finite(s)) report(fault, row);
    if (q_out) q_out(t, h) = q;
  }
}

template <typename T, int kLanes>
RLK_KERNEL(kLaneThreads)
rms_norm_backward_kernel(Ref<T> dx, Ref<const T> dy, Ref<const T> x, Ref<const T> w,
                         Ref<const float> q_in, NormShape shape) {
  const auto lane_row = LaneRow<kLanes>::make(shape.lanes);
  const bool live = lane_row.row < shape.rows;
  const std::int64_t row = live ? lane_row.row : 0;
  const std::int64_t t = divide(row, shape.heads);
  const std::int64_t h = row - t * shape.heads;
  // u and x of one pack.
  const auto load_operands = [&](std::int64_t k, float(&u)[kLanes], float(&v)[kLanes]) {
    float weight[kLanes];
    load_pack(&dy(t, h), dy.stride[2], k, shape.n, shape.packed, u);
    load_pack(&w(), w.stride[0], k, shape.n, shape.packed, weight);
    load_pack(&x(t, h), x.stride[2], k, shape.n, shape.packed, v);
    for (int i = 0; i < kLanes; ++i) u[i] = u[i] * weight[i];
  };

  float acc[kLanes] = {};
  lane_row.for_each_pack(shape.n, [&](std::int64_t k) {
    float u[kLanes];
    float v[kLanes];
    load_operands(k, u, v);
    for (int i = 0; i < kLanes; ++i) acc[i] = numerics::fma(u[i], v[i], acc[i]);
  });
  const float sum = lane_row.tree(acc);
  if (!live) return;

  const float q = q_in(t, h);
  const float z = ((q * q) * q) * (sum / static_cast<float>(shape.n));
  lane_row.for_each_pack(shape.n, [&](std::int64_t k) {
    float u[kLanes];
    float v[kLanes];
    load_operands(k, u, v);
    for (int i = 0; i < kLanes; ++i) u[i] = numerics::fma(u[i], q, -(v[i] * z));
    store_pack(&dx(t, h), dx.stride[2], k, shape.n, shape.packed, u);
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

NormShape norm_shape(const Exec& exec, const ConstTensorView& x) {
  return {x.shape(0) * x.shape(1), x.shape(1), x.shape(2), exec.contract.norm_lanes, false};
}

}  // namespace

void rms_norm(Exec& exec, const RmsNormArgs& args) {
  NormShape shape = norm_shape(exec, args.x);
  with_storage(args.x.dtype, [&]<typename T>() {
    with_lanes(shape.lanes, [&]<int kLanes>() {
      shape.packed = packs<kLanes>(args.x) && packs<kLanes>(args.y) && packs<kLanes>(args.w) &&
                     packs<kLanes>(args.residual) && packs<kLanes>(args.residual_out);
      launch(exec, lane_grid(shape.rows, shape.lanes, kLanes), kLaneThreads, 0,
             rms_norm_kernel<T, kLanes>, ref<T>(args.y), ref<float>(args.q), ref<T>(args.x),
             ref<T>(args.residual), ref<T>(args.residual_out), ref<T>(args.w), args.eps, shape,
             exec.gpu->fault());
    });
  });
}

void rms_norm_backward(Exec& exec, const RmsNormBackwardArgs& args) {
  NormShape shape = norm_shape(exec, args.x);
  with_storage(args.x.dtype, [&]<typename T>() {
    with_lanes(shape.lanes, [&]<int kLanes>() {
      shape.packed = packs<kLanes>(args.x) && packs<kLanes>(args.dy) && packs<kLanes>(args.dx) &&
                     packs<kLanes>(args.w);
      launch(exec, lane_grid(shape.rows, shape.lanes, kLanes), kLaneThreads, 0,
             rms_norm_backward_kernel<T, kLanes>, ref<T>(args.dx), ref<T>(args.dy), ref<T>(args.x),
             ref<T>(args.w), ref<float>(args.q), shape);
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
