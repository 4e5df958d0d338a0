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

template <int W>
RLK_DEVICE void add_squares(const float (&v)[W], float (&acc)[W]) {
  RLK_UNROLL
  for (int i = 0; i < W; ++i) acc[i] = numerics::fma(v[i], v[i], acc[i]);
}

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

// Rows of any shape, which are read twice.
template <typename T, int kLanes>
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
  lane_row.for_each_pack(n, [&](std::int64_t k) {
    float v[kLanes];
    load_pack(x_row, stride, k, shape.n, shape.packed, v);
    if (residual) {
      float r[kLanes];
      load_pack(&residual(t, h), residual.stride[2], k, shape.n, shape.packed, r);
      for (int i = 0; i < kLanes; ++i) v[i] = round_to<T>(r[i] + v[i]);
      store_pack(&residual_out(t, h), residual_out.stride[2], k, shape.n, shape.packed, v);
    }
    add_squares(v, acc);
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
  lane_row.for_each_pack(n, [&](std::int64_t k) {
    float v[kLanes];
    float weight[kLanes];
    load_pack(x_row, stride, k, shape.n, shape.packed, v);
    load_pack(w.data, w.stride[0], k, shape.n, shape.packed, weight);
    for (int i = 0; i < kLanes; ++i) v[i] = (v[i] * q) * weight[i];
    store_pack(y_row, y.stride[2], k, shape.n, shape.packed, v);
  });
  if (lane_row.part == 0) {
    if (!numerics::is_finite(s)) report(fault, row);
    if (q_out) q_out(t, h) = q;
  }
}

// Long rows of whole packs, with 256 of the contract's lanes. A row has kSegments times 32 threads;
// each 32 hold a segment of it in registers, kHeld packs a thread, and go on with the sums of the
// 32 before. Few registers a thread and many threads a row: so reads of some rows fall beside
// writes of others, and a single row takes little more than one trip to memory.
template <typename T, int kHeld, int kSegments, bool kResidual>
RLK_KERNEL(kLaneThreads)
rms_norm_held_kernel(Ref<T> y, Ref<float> q_out, Ref<const T> x_in, Ref<const T> residual,
                     Ref<T> residual_out, Ref<const T> w, float eps, NormShape shape,
                     unsigned long long* fault) {
  using Eight = Pack<T, 8>;
  constexpr int kThreads = 32;  // of a segment
  constexpr int kRows = kLaneThreads / (kThreads * kSegments);
  RLK_SHARED(float, passed, kRows* kThreads * 8);
  RLK_SHARED(float, totals, kRows);
  const int part = thread() % kThreads;
  const int segment = thread() / kThreads % kSegments;
  const int slot = thread() / (kThreads * kSegments);
  const std::int64_t at = block_x() * kRows + slot;
  const bool live = at < shape.rows;
  const std::int64_t row = live ? at : 0;
  const std::int64_t t = divide(row, shape.heads);
  const std::int64_t h = row - t * shape.heads;
  const int first = (segment * kHeld * kThreads + part) * 8;
  const int n = live ? static_cast<int>(shape.n) - first : 0;
  const auto for_each_held = [&](const auto& visit) {
    RLK_UNROLL
    for (int p = 0; p < kHeld; ++p) {
      if (p * kThreads * 8 < n) visit(p, p * kThreads * 8);
    }
  };
  const T* const x_row = &x_in(t, h) + first;
  const T* const weight_row = w.data + first;
  Eight x[kHeld];
  Eight weights[kHeld];
  Eight residuals[kResidual ? kHeld : 1];
  for_each_held([&](int p, int k) { x[p] = Eight::read(x_row + k); });
  if constexpr (kResidual) {
    const T* const residual_row = &residual(t, h) + first;
    for_each_held([&](int p, int k) { residuals[p] = Eight::read(residual_row + k); });
  }
  for_each_held([&](int p, int k) { weights[p] = Eight::read(weight_row + k); });
  if constexpr (kResidual) {
    T* const out_row = &residual_out(t, h) + first;
    for_each_held([&](int p, int k) {
      float v[8];
      float r[8];
      x[p].get(v);
      residuals[p].get(r);
      for (int i = 0; i < 8; ++i) v[i] = r[i] + v[i];
      x[p] = Eight::of(v);
      x[p].write(out_row + k);
    });
  }

  float acc[8] = {};
  float* const mine = passed + (slot * kThreads + part) * 8;
  RLK_UNROLL
  for (int turn = 0; turn < kSegments; ++turn) {
    if (segment == turn) {
      if (turn > 0) {
        for (int i = 0; i < 8; ++i) acc[i] = mine[i];
      }
      for_each_held([&](int p, int) {
        float v[8];
        x[p].get(v);
        add_squares(v, acc);
      });
      if (turn + 1 < kSegments) {
        for (int i = 0; i < 8; ++i) mine[i] = acc[i];
      }
    }
    if (turn + 1 < kSegments) barrier();
  }
  // Of the last segment; whole warps take part in its exchanges.
  const float sum = LaneRow<8>{256, part, row}.tree(acc);
  if (segment == kSegments - 1 && part == 0) totals[slot] = sum;
  barrier();
  if (!live) return;
  const float s = totals[slot];
  const float q = numerics::rsqrt(s / static_cast<float>(shape.n) + eps);
  T* const y_row = &y(t, h) + first;
  for_each_held([&](int p, int k) {
    float v[8];
    float weight[8];
    x[p].get(v);
    weights[p].get(weight);
    for (int i = 0; i < 8; ++i) v[i] = (v[i] * q) * weight[i];
    Eight::of(v).write(y_row + k);
  });
  if (segment == 0 && part == 0) {
    if (!numerics::is_finite(s)) report(fault, row);
    if (q_out) q_out(t, h) = q;
  }
}

constexpr int kShortRows = 2;  // of a thread

// Rows of whole packs, of which a thread holds one: heads. Fewer than 2^31 rows. kOneHead: rows lie
// as if each were a token.
template <typename T, bool kOneHead>
RLK_KERNEL(kLaneThreads)
rms_norm_short_kernel(Ref<T> y, Ref<float> q_out, Ref<const T> x_in, Ref<const T> w, float eps,
                      NormShape shape, unsigned long long* fault) {
  using Eight = Pack<T, 8>;
  const int parts = shape.lanes / 8;
  const int part = thread() % parts;
  const unsigned step = static_cast<unsigned>(kLaneThreads / parts);
  const unsigned first = static_cast<unsigned>(block_x()) * (kShortRows * step) +
                         static_cast<unsigned>(thread() / parts);
  const auto rows = static_cast<unsigned>(shape.rows);
  const auto heads = static_cast<unsigned>(shape.heads);
  const bool inside = part * 8 < static_cast<int>(shape.n);
  const auto row_of = [&](const auto& ref, unsigned row) {
    const unsigned t = kOneHead ? row : row / heads;
    return &ref(t, kOneHead ? 0 : row - t * heads);
  };
  Eight x[kShortRows];
  RLK_UNROLL
  for (int r = 0; r < kShortRows; ++r) {
    const unsigned row = first + static_cast<unsigned>(r) * step;
    if (row < rows && inside) x[r] = Eight::read(row_of(x_in, row) + part * 8);
  }
  float weight[8] = {};
  if (inside) Eight::read(w.data + part * 8).get(weight);
  RLK_UNROLL
  for (int r = 0; r < kShortRows; ++r) {
    const unsigned row = first + static_cast<unsigned>(r) * step;
    float v[8] = {};
    float acc[8] = {};
    if (row < rows && inside) x[r].get(v);
    add_squares(v, acc);
    const float s = LaneRow<8>{shape.lanes, part, row}.tree(acc);
    if (row >= rows) continue;
    const float q = numerics::rsqrt(s / static_cast<float>(shape.n) + eps);
    for (int i = 0; i < 8; ++i) v[i] = (v[i] * q) * weight[i];
    if (inside) Eight::of(v).write(row_of(y, row) + part * 8);
    if (part != 0) continue;
    if (!numerics::is_finite(s)) report(fault, row);
    if (q_out) *row_of(q_out, row) = q;
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

// One per head and element of it.
template <typename T>
struct WeightGradients {
  Ref<float> dw;
  Ref<const T> dy, x;
  Ref<const float> q;
  std::int64_t n;

  struct Item {
    float dy, xq;
  };
  struct Column {
    Ref<const T> dy, x;
    Ref<const float> q;
    RLK_DEVICE Item load(std::int64_t t) const {
      return {gpu::load(dy(t)), gpu::load(x(t)) * q(t)};
    }
  };
  RLK_DEVICE float* total(std::int64_t column) const {
    const std::int64_t h = divide(column, n);
    return &dw(h, column - h * n);
  }
  RLK_DEVICE Column at(std::int64_t column) const {
    const std::int64_t h = divide(column, n), k = column - h * n;
    return {
        {&dy(0, h, k), {dy.stride[0]}}, {&x(0, h, k), {x.stride[0]}}, {&q(0, h), {q.stride[0]}}};
  }
  RLK_DEVICE static float add(const Item& item, float acc) {
    return numerics::fma(item.dy, item.xq, acc);
  }
};

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

// False where the row is too long to be held in registers.
template <typename T>
bool rms_norm_held(Exec& exec, const RmsNormArgs& args, const NormShape& shape) {
  const auto run = [&]<int kHeld, int kSegments>() {
    launch(exec, {ceil_div(shape.rows * kSegments * 32, kLaneThreads)}, kLaneThreads, 0,
           args.residual ? rms_norm_held_kernel<T, kHeld, kSegments, true>
                         : rms_norm_held_kernel<T, kHeld, kSegments, false>,
           ref<T>(args.y), ref<float>(args.q), ref<T>(args.x), ref<T>(args.residual),
           ref<T>(args.residual_out), ref<T>(args.w), args.eps, shape, exec.gpu->fault());
    return true;
  };
  const std::int64_t packs = ceil_div(shape.n, 256);  // of a lane
  if (packs <= 4) return run.template operator()<2, 2>();
  if (packs <= 8) return run.template operator()<2, 4>();
  if (packs <= 16) return run.template operator()<4, 4>();
  if constexpr (sizeof(T) == 2) {
    if (packs <= 24) return run.template operator()<6, 4>();
    if (packs <= 32) return run.template operator()<8, 4>();
  }
  return false;
}

template <typename T>
void rms_norm_short(Exec& exec, const RmsNormArgs& args, const NormShape& shape) {
  const auto lies_flat = [&](const TensorView& t) {
    return !t || shape.heads == 1 || t.stride(0) == t.stride(1) * shape.heads;
  };
  Ref<const T> x = ref<T>(args.x);
  Ref<T> y = ref<T>(args.y);
  Ref<float> q = ref<float>(args.q);
  const bool one_head = (shape.heads == 1 || x.stride[0] == x.stride[1] * shape.heads) &&
                        lies_flat(args.y) && lies_flat(args.q);
  if (one_head && shape.heads > 1) {
    x.stride[0] = x.stride[1];
    y.stride[0] = y.stride[1];
    q.stride[0] = q.stride[1];
  }
  const std::int64_t rows_per_block = kShortRows * (kLaneThreads / (shape.lanes / 8));
  launch(exec, {ceil_div(shape.rows, rows_per_block)}, kLaneThreads, 0,
         one_head ? rms_norm_short_kernel<T, true> : rms_norm_short_kernel<T, false>, y, q, x,
         ref<T>(args.w), args.eps, shape, exec.gpu->fault());
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
    if (shape.whole() && shape.lanes >= 8 && shape.n <= shape.lanes && shape.lanes <= 256 &&
        !args.residual && shape.rows < (std::int64_t{1} << 30)) {
      return rms_norm_short<T>(exec, args, shape);
    }
    if (shape.whole() && shape.lanes == 256 && rms_norm_held<T>(exec, args, shape)) return;
    with_lanes(shape.lanes, [&]<int kLanes>() {
      launch(exec, lane_grid(shape.rows, shape.lanes, kLanes), kLaneThreads, 0,
             rms_norm_kernel<T, kLanes>, ref<T>(args.y), ref<float>(args.q), ref<T>(args.x),
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
    token_sum(exec, args.cu_seqlens, args.x.shape(0), heads * n,
              WeightGradients<T>{ref<float>(args.dw), ref<T>(args.dy), ref<T>(args.x),
                                 ref<float>(args.q), n});
  });
}

void merge_heads(Exec& exec, const MergeHeadsArgs& args) {
  const std::int64_t n = args.partial.shape(1);
  launch(exec, {ceil_div(n, kElementThreads)}, kElementThreads, 0, merge_heads_kernel,
         ref<float>(args.dw), ref<float>(args.partial), args.partial.shape(0), n,
         exec.contract.leaves);
}

}  // namespace rlk::gpu
