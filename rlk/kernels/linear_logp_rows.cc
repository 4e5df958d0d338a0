#include "rlk/kernels/linear_logp_rows.h"

#include <algorithm>
#include <utility>

namespace rlk {
namespace {

std::int64_t count(const ConstTensorView& list) { return list ? list.shape(0) : 0; }

// Rows of which `bytes` hold `element_bytes` per column.
std::int64_t tile_rows(std::int64_t bytes, std::size_t element_bytes, std::int64_t columns) {
  const std::int64_t row = static_cast<std::int64_t>(element_bytes) * columns;
  return std::max<std::int64_t>(1, bytes / std::max<std::int64_t>(1, row));
}

TensorView some_rows(const TensorView& t, std::int64_t begin, std::int64_t end) {
  return t ? rows(t, begin, end) : t;
}
ConstTensorView some_rows(const ConstTensorView& t, std::int64_t begin, std::int64_t end) {
  return t ? rows(t, begin, end) : t;
}

TensorView logits_of(const KernelTable& kernels, Exec& exec, const LinearLogpArgs& tile,
                     float* memory) {
  GemmArgs product;
  product.c = view(memory, {tile.hidden.shape(0), tile.vocab_size});
  product.a = tile.hidden;
  product.b = rows(tile.head, 0, tile.vocab_size);
  product.packed_b = tile.packed_forward;
  product.segments = {tile.hidden.shape(1), 0, 0};
  kernels.gemm(exec, product);
  return product.c;
}

// A kernel on rows from `begin` on reports rows of the whole call.
template <typename Args>
void run(void (*kernel)(Exec&, const Args&), Exec& exec, const Args& args, std::int64_t begin) {
  Fault fault;
  Exec part{exec.pool, exec.workspace, exec.contract, fault};
  kernel(part, args);
  if (fault.row() >= 0) exec.fault.report(begin + fault.row());
}

}  // namespace

LinearLogpArgs rows_of(const LinearLogpArgs& args, std::int64_t begin, std::int64_t end) {
  LinearLogpArgs part = args;
  part.logp = some_rows(args.logp, begin, end);
  part.entropy = some_rows(args.entropy, begin, end);
  part.hidden = rows(args.hidden, begin, end);
  part.targets = rows(args.targets, begin, end);
  if (args.num_params != 1) {
    part.params = args.params + begin;
    part.num_params = end - begin;
  }
  part.state = some_rows(args.state, begin, end);
  return part;
}

RowParts::RowParts(const Exec& exec, const LinearLogpBackwardArgs& args, Workspace::Frame& frame)
    : portable_(exec.contract.profile == Profile::kPortable),
      num_rows_(args.forward.hidden.shape(0)),
      ends_(args.group_ends),
      cu_seqlens_(args.cu_seqlens),
      end_memory_(frame.take<std::int64_t>(count(ends_))),
      offset_memory_(frame.take<std::int32_t>(count(cu_seqlens_) + 2)) {}

std::int64_t RowParts::end(std::int64_t begin, std::int64_t most) const {
  const std::int64_t end = begin + most;
  if (end >= num_rows_ || portable_) return std::min(end, num_rows_);
  // A sample and a group of samples start new groups of mac.
  std::int64_t start = 0;
  for (std::int64_t i = 0; i < count(ends_); ++i) {
    const std::int64_t group_end = *ends_.at<std::int64_t>(i);
    if (group_end <= end) start = std::max(start, group_end);
  }
  for (std::int64_t i = 0; i < count(cu_seqlens_); ++i) {
    const std::int64_t offset = *cu_seqlens_.at<std::int32_t>(i);
    if (offset <= end) start = std::max(start, offset);
  }
  return start + (end - start) / kGroup * kGroup;
}

void RowParts::set(std::int64_t begin, std::int64_t end, ConstTensorView* group_ends,
                   ConstTensorView* cu_seqlens) {
  std::int64_t n = 0;
  for (; next_ < count(ends_); ++next_) {
    const std::int64_t group_end = *ends_.at<std::int64_t>(next_);
    if (group_end > end) break;
    end_memory_[n++] = group_end - begin;
  }
  *group_ends = view(std::as_const(end_memory_), {n});
  if (!cu_seqlens_) return;
  n = 0;
  offset_memory_[n++] = 0;
  for (std::int64_t i = 0; i < count(cu_seqlens_); ++i) {
    const std::int64_t offset = *cu_seqlens_.at<std::int32_t>(i);
    if (offset > begin && offset < end) {
      offset_memory_[n++] = static_cast<std::int32_t>(offset - begin);
    }
  }
  offset_memory_[n++] = static_cast<std::int32_t>(end - begin);
  *cu_seqlens = view(std::as_const(offset_memory_), {n});
}

void linear_logp_by_rows(const KernelTable& kernels, Exec& exec, const LinearLogpArgs& args) {
  const std::int64_t num_tokens = args.hidden.shape(0);
  const std::int64_t tile = tile_rows(kLinearLogpBytes / 2, 4, args.vocab_size);
  Workspace::Frame frame(exec.workspace);
  float* memory = frame.take<float>(std::min(tile, num_tokens) * args.vocab_size);
  for (std::int64_t begin = 0; begin < num_tokens; begin += tile) {
    const LinearLogpArgs part = rows_of(args, begin, std::min(begin + tile, num_tokens));
    const TensorView logits = logits_of(kernels, exec, part, memory);
    run(kernels.logprob, exec,
        LogprobArgs{part.logp, part.entropy, logits, part.targets, part.params, part.num_params,
                    part.state},
        begin);
  }
}

void linear_logp_backward_by_rows(const KernelTable& kernels, Exec& exec,
                                  const LinearLogpBackwardArgs& args) {
  const LinearLogpArgs& all = args.forward;
  const std::int64_t num_tokens = all.hidden.shape(0), vocab_padded = all.head.shape(0);
  Workspace::Frame frame(exec.workspace);
  RowParts parts(exec, args, frame);
  const std::int64_t tile =
      std::max(parts.least(),
               tile_rows(kLinearLogpBytes / 8 * 5, 4 + size_of(all.hidden.dtype), vocab_padded));
  float* memory = frame.take<float>(std::min(tile, num_tokens) * all.vocab_size);
  char* d_memory = frame.take<char>(std::min(tile, num_tokens) * vocab_padded *
                                    static_cast<std::int64_t>(size_of(all.hidden.dtype)));
  std::int64_t begin = 0;
  do {  // groups close even where none of their samples has a row
    const std::int64_t end = parts.end(begin, tile);
    const LinearLogpArgs part = rows_of(all, begin, end);
    const TensorView dlogits{d_memory, all.hidden.dtype, Layout{end - begin, vocab_padded}};
    if (begin < end) {
      const TensorView logits = logits_of(kernels, exec, part, memory);
      run(kernels.logprob_backward, exec,
          LogprobBackwardArgs{dlogits, logits, part.targets, rows(args.g, begin, end),
                              some_rows(args.g_entropy, begin, end), part.params, part.num_params,
                              part.state},
          begin);
    }
    GemmBackwardWeightArgs gradient{args.dw, args.chain, dlogits, part.hidden, {}};
    parts.set(begin, end, &gradient.group_ends, &gradient.cu_seqlens);
    kernels.gemm_backward_weight(exec, gradient);
    GemmArgs product;
    product.c = rows(args.d_hidden, begin, end);
    product.a = dlogits;
    product.b = all.head;
    std::swap(product.b.layout.shape[0], product.b.layout.shape[1]);
    std::swap(product.b.layout.stride[0], product.b.layout.stride[1]);
    product.packed_b = all.packed_backward;
    product.leaf_tree = true;
    product.segments = {vocab_padded, 0, 0};
    if (begin < end) kernels.gemm(exec, product);
    begin = end;
  } while (begin < num_tokens);
}

}  // namespace rlk
