#include "rlk/kernels/production/table.h"

namespace rlk {
namespace {

// Products, attention, norms and log-softmax are this backend's own. What works element by element
// (embedding, residual, RoPE, SwiGLU, the loss, AdamW) and sampling, which takes a maximum, have no
// sum to order: there the CPU backend's vector kernels are the fastest we have, and run here too.
KernelTable make_table() {
  KernelTable table = cpu_kernels();
  table.backend = "production";
  table.profiles = KernelTable{}.profiles;
  table.rms_norm = production::rms_norm;
  table.rms_norm_backward = production::rms_norm_backward;
  table.rms_norm_backward_weight = production::rms_norm_backward_weight;
  table.merge_heads = production::merge_heads;
  table.pack_weight = production::pack_weight;
  table.gemm = production::gemm;
  table.gemm_backward_weight = production::gemm_backward_weight;
  table.bias_backward = production::bias_backward;
  table.attention = production::attention;
  table.attention_backward = production::attention_backward;
  table.logprob = production::logprob;
  table.logprob_backward = production::logprob_backward;
  table.log_softmax = production::log_softmax;
  table.linear_logp = production::linear_logp;
  table.linear_logp_backward = production::linear_logp_backward;
  table.grad_norm = production::grad_norm;
  return table;
}

}  // namespace

const KernelTable& production_kernels() {
  static const KernelTable kTable = make_table();
  return kTable;
}

}  // namespace rlk
