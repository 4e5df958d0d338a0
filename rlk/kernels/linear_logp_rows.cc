#include "rlk/kernels/linear_logp_rows.h"

#include <algorithm>
#include <utility>

namespace rlk {
namespace {

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

ConstTensorView GroupEnds::in_rows(std::int64_t begin, std::int64_t end, std::int64_t* memory) {
  const std::int64_t count = ends_ ? ends_.shape(0) : 0;
  std::int64_t n = 0;
  for (; next_ < count; ++next_) {
    const std::int64_t group_end = *ends_.at<std::int64_t>(next_);
    if (group_end > end) break;
    memory[n++] = group_end - begin;
  }
  return view(std::as_const(memory), {n});
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
  const std::int64_t tile =
      tile_rows(kLinearLogpBytes / 8 * 5, 4 + size_of(all.hidden.dtype), vocab_padded);
  Workspace::Frame frame(exec.workspace);
  float* memory = frame.take<float>(std::min(tile, num_tokens) * all.vocab_size);
  char* d_memory = frame.take<char>(std::min(tile, num_tokens) * vocab_padded *
                                    static_cast<std::int64_t>(size_of(all.hidden.dtype)));
  GroupEnds ends(args.group_ends);
  std::int64_t* end_memory =
      frame.take<std::int64_t>(args.group_ends ? args.group_ends.shape(0) : 0);
  std::int64_t begin = 0;
  do {  // groups close even where none of their samples has a row
    const std::int64_t end = std::min(begin + tile, num_tokens);
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
    kernels.gemm_backward_weight(
        exec, {args.dw, args.chain, dlogits, part.hidden, ends.in_rows(begin, end, end_memory)});
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
