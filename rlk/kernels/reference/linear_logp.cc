#include "rlk/kernels/linear_logp.h"

#include <utility>

#include "rlk/kernels/reference/table.h"

namespace rlk::reference {
namespace {

// All logits of the call: bits first, memory second.
ConstTensorView logits_of(Exec& exec, const LinearLogpArgs& args, Workspace::Frame& frame) {
  const std::int64_t num_tokens = args.hidden.shape(0);
  GemmArgs product;
  product.c = view(frame.take<float>(num_tokens * args.vocab_size), {num_tokens, args.vocab_size});
  product.a = args.hidden;
  product.b = rows(args.head, 0, args.vocab_size);
  product.segments = {args.hidden.shape(1), 0, 0};
  gemm(exec, product);
  return product.c;
}

}  // namespace

void linear_logp(Exec& exec, const LinearLogpArgs& args) {
  Workspace::Frame frame(exec.workspace);
  logprob(exec, {args.logp, args.entropy, logits_of(exec, args, frame), args.targets, args.params,
                 args.num_params, args.state});
}

void linear_logp_backward(Exec& exec, const LinearLogpBackwardArgs& args) {
  const LinearLogpArgs& forward = args.forward;
  const std::int64_t num_tokens = forward.hidden.shape(0), vocab_padded = forward.head.shape(0);
  Workspace::Frame frame(exec.workspace);
  const ConstTensorView logits = logits_of(exec, forward, frame);
  TensorView dlogits =
      view(frame.take<float>(num_tokens * vocab_padded), {num_tokens, vocab_padded});
  dlogits.dtype = forward.hidden.dtype;
  logprob_backward(exec, {dlogits,
                          logits,
                          forward.targets,
                          args.g,
                          args.g_entropy,
                          forward.params,
                          forward.num_params,
                          {}});
  gemm_backward_weight(exec, {args.dw, args.chain, dlogits, forward.hidden, args.group_ends,
                              args.cu_seqlens});

  GemmArgs product;
  product.c = args.d_hidden;
  product.a = dlogits;
  product.b = forward.head;
  std::swap(product.b.layout.shape[0], product.b.layout.shape[1]);
  std::swap(product.b.layout.stride[0], product.b.layout.stride[1]);
  product.leaf_tree = true;
  product.segments = {vocab_padded, 0, 0};
  gemm(exec, product);
}

}  // namespace rlk::reference
