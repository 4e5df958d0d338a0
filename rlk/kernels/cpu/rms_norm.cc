#include "rlk/kernels/rms_norm.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {
namespace {

// Calls body(token, rows) for runs of rows: the heads of a token, or tokens that have one head.
template <typename Body>
void for_each_run(Exec& exec, const ConstTensorView& x, double ns_per_element, const Body& body) {
  const std::int64_t heads = x.shape(1);
  const double ns =
      static_cast<double>(heads) * (20.0 + ns_per_element * static_cast<double>(x.shape(2)));
  exec.pool.parallel_for(x.shape(0), grain(ns), [&](std::int64_t begin, std::int64_t end, int) {
    if (heads == 1) return body(begin, end - begin);
    for (std::int64_t t = begin; t < end; ++t) body(t, heads);
  });
}

// Distance of the rows of a run.
std::int64_t row_stride(const ConstTensorView& x) { return x.stride(x.shape(1) == 1 ? 0 : 1); }

}  // namespace

template <Isa I>
void rms_norm(Exec& exec, const RmsNormArgs& args) {
  if (!dense(2, args.x, args.y, args.residual, args.residual_out) || !dense(0, args.w) ||
      exec.contract.norm_lanes < kLeastLanes) {
    return reference::rms_norm(exec, args);
  }
  const bool residual = static_cast<bool>(args.residual);
  with_storage(args.x.dtype, [&]<typename T>() {
    for_each_run(exec, args.x, 0.3, [&](std::int64_t t, std::int64_t rows) {
      const std::int64_t bad = storage_rows<T>(I).rms_norm({
          .y = args.y.at<T>(t),
          .y_stride = row_stride(args.y),
          .q = args.q ? args.q.at<float>(t) : nullptr,
          .q_stride = row_stride(args.q),
          .x = args.x.at<T>(t),
          .x_stride = row_stride(args.x),
          .w = args.w.at<T>(),
          .residual_out = residual ? args.residual_out.at<T>(t) : nullptr,
          .residual_out_stride = row_stride(args.residual_out),
          .residual = residual ? args.residual.at<T>(t) : nullptr,
          .residual_stride = row_stride(args.residual),
          .rows = rows,
          .n = args.x.shape(2),
          .lanes = exec.contract.norm_lanes,
          .eps = args.eps,
      });
      if (bad >= 0) exec.fault.report(t * args.x.shape(1) + bad);
    });
  });
}

template <Isa I>
void rms_norm_backward(Exec& exec, const RmsNormBackwardArgs& args) {
  if (!dense(2, args.x, args.dy, args.dx) || !dense(0, args.w) ||
      exec.contract.norm_lanes < kLeastLanes) {
    return reference::rms_norm_backward(exec, args);
  }
  with_storage(args.x.dtype, [&]<typename T>() {
    for_each_run(exec, args.x, 0.5, [&](std::int64_t t, std::int64_t rows) {
      storage_rows<T>(I).rms_norm_backward({
          .dx = args.dx.at<T>(t),
          .dx_stride = row_stride(args.dx),
          .dy = args.dy.at<T>(t),
          .dy_stride = row_stride(args.dy),
          .x = args.x.at<T>(t),
          .x_stride = row_stride(args.x),
          .w = args.w.at<T>(),
          .q = args.q.at<float>(t),
          .q_stride = row_stride(args.q),
          .rows = rows,
          .n = args.x.shape(2),
          .lanes = exec.contract.norm_lanes,
      });
    });
  });
}

namespace {

// The blocks of all samples, in order.
struct Blocks {
  std::int64_t* begin;
  std::int64_t* end;
  std::int64_t count = 0;
};

Blocks token_blocks(Workspace::Frame& frame, const ConstTensorView& cu_seqlens,
                    std::int64_t token_block) {
  const std::int64_t num_samples = cu_seqlens.shape(0) - 1;
  const std::int64_t tokens =
      num_samples > 0 ? *cu_seqlens.at<std::int32_t>(num_samples) - *cu_seqlens.at<std::int32_t>(0)
                      : 0;
  const std::int64_t most = tokens / token_block + num_samples + 1;
  Blocks blocks{frame.take<std::int64_t>(most), frame.take<std::int64_t>(most), 0};
  for (std::int64_t sample = 0; sample < num_samples; ++sample) {
    const std::int64_t end = *cu_seqlens.at<std::int32_t>(sample + 1);
    for (std::int64_t t = *cu_seqlens.at<std::int32_t>(sample); t < end; t += token_block) {
      blocks.begin[blocks.count] = t;
      blocks.end[blocks.count++] = std::min(t + token_block, end);
    }
  }
  return blocks;
}

// Wide gradients are shared by columns; narrow ones by blocks, whose sums are folded in order.
template <typename T>
void weight_gradient(Exec& exec, const RmsNormBackwardWeightArgs& args, Isa which) {
  const StorageRows<T>& isa = storage_rows<T>(which);
  const std::int64_t heads = args.x.shape(1);
  const std::int64_t n = args.x.shape(2);
  Workspace::Frame frame(exec.workspace);
  const Blocks blocks = token_blocks(frame, args.cu_seqlens, exec.contract.token_block);
  const auto add = [&](float* dw, std::int64_t block, std::int64_t h, std::int64_t k,
                       std::int64_t columns, bool fresh) {
    const std::int64_t t = blocks.begin[block];
    isa.rms_norm_weight(dw,
                        {.dx = nullptr,
                         .dx_stride = 0,
                         .dy = args.dy.at<T>(t, h, k),
                         .dy_stride = args.dy.stride(0),
                         .x = args.x.at<T>(t, h, k),
                         .x_stride = args.x.stride(0),
                         .w = nullptr,
                         .q = args.q.at<float>(t, h),
                         .q_stride = args.q.stride(0),
                         .rows = blocks.end[block] - t,
                         .n = columns,
                         .lanes = 0},
                        fresh);
  };

  constexpr std::int64_t kColumns = 256;
  const std::int64_t parts = (n + kColumns - 1) / kColumns;
  const std::int64_t tokens =
      blocks.count == 0 ? 0 : blocks.end[blocks.count - 1] - blocks.begin[0];
  if (heads * parts >= 4 * exec.pool.num_threads() || exec.pool.num_threads() == 1) {
    const double ns = 0.3 * static_cast<double>(tokens * std::min(n, kColumns));
    exec.pool.parallel_for(heads * parts, grain(ns),
                           [&](std::int64_t begin, std::int64_t end, int) {
                             for (std::int64_t i = begin; i < end; ++i) {
                               const std::int64_t k = i % parts * kColumns;
                               float* dw = args.dw.at<float>(i / parts, k);
                               for (std::int64_t b = 0; b < blocks.count; ++b) {
                                 add(dw, b, i / parts, k, std::min(kColumns, n - k), false);
                               }
                             }
                           });
    return;
  }

  // As many blocks at a time as scratch of a fixed size holds.
  constexpr std::int64_t kScratch = std::int64_t{1} << 18;
  const std::int64_t step =
      std::max<std::int64_t>(1, kScratch / std::max<std::int64_t>(1, heads * n));
  float* sums = frame.take<float>(std::min(step, blocks.count) * heads * n);
  for (std::int64_t first = 0; first < blocks.count; first += step) {
    const std::int64_t count = std::min(step, blocks.count - first);
    const double ns = 0.3 * static_cast<double>(exec.contract.token_block * heads * n);
    exec.pool.parallel_for(count, grain(ns), [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t b = begin; b < end; ++b) {
        for (std::int64_t h = 0; h < heads; ++h) {
          add(sums + (b * heads + h) * n, first + b, h, 0, n, true);
        }
      }
    });
    for (std::int64_t b = 0; b < count; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        rows_isa(which).f32.add_to_f32(args.dw.at<float>(h), sums + (b * heads + h) * n, n);
      }
    }
  }
}

}  // namespace

template <Isa I>
void rms_norm_backward_weight(Exec& exec, const RmsNormBackwardWeightArgs& args) {
  if (!dense(2, args.x, args.dy) || !dense(1, args.dw)) {
    return reference::rms_norm_backward_weight(exec, args);
  }
  with_storage(args.x.dtype, [&]<typename T>() { weight_gradient<T>(exec, args, I); });
}

template <Isa I>
void merge_heads(Exec& exec, const MergeHeadsArgs& args) {
  if (!dense(0, args.dw) || !dense(1, args.partial) || exec.contract.leaves > 64) {
    return reference::merge_heads(exec, args);
  }
  rows_isa(I).merge_heads(args.dw.at<float>(), args.partial.at<float>(), args.partial.stride(0),
                          args.partial.shape(0), args.partial.shape(1), exec.contract.leaves);
}

RLK_INSTANTIATE(rms_norm, RmsNormArgs);
RLK_INSTANTIATE(rms_norm_backward, RmsNormBackwardArgs);
RLK_INSTANTIATE(rms_norm_backward_weight, RmsNormBackwardWeightArgs);
RLK_INSTANTIATE(merge_heads, MergeHeadsArgs);

}  // namespace rlk::cpu
