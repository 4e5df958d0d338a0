// What each operator reads, beside outputs.h: with both, a call can be moved to other memory.
#pragma once

#include "rlk/kernels/kernel_table.h"
#include "rlk/kernels/outputs.h"

namespace rlk {

// The name of an input. An index array (ids, offsets, targets, block tables) is made by the host
// for the call, which reads it to check it.
struct InputName {
  InputName(const char* text, bool is_index = false) : text(text), is_index(is_index) {}  // NOLINT
  operator const char*() const { return text; }                                           // NOLINT
  const char* text;
  bool is_index;
};
inline InputName index_array(const char* name) { return {name, true}; }

// Calls visit(name, view) for every tensor that the call reads and does not write, absent ones
// included; visit may point the view elsewhere. Arrays that are no tensors (SamplingParams,
// SampleKey) are not visited. The list of gradients of GradNormArgs must be writable.
template <typename Visit>
void for_each_input(EmbeddingArgs& a, const Visit& visit) {
  visit("table", a.table);
  visit(index_array("ids"), a.ids);
}
template <typename Visit>
void for_each_input(EmbeddingBackwardArgs& a, const Visit& visit) {
  visit("dy", a.dy);
  visit(index_array("ids"), a.ids);
}
template <typename Visit>
void for_each_input(CopyRowsArgs& a, const Visit& visit) {
  visit("x", a.x);
  visit(index_array("from"), a.from);
  visit(index_array("to"), a.to);
}
template <typename Visit>
void for_each_input(ResidualAddArgs& a, const Visit& visit) {
  visit("a", a.a);
  visit("b", a.b);
}
template <typename Visit>
void for_each_input(RmsNormArgs& a, const Visit& visit) {
  visit("x", a.x);
  visit("w", a.w);
  visit("residual", a.residual);
}
template <typename Visit>
void for_each_input(RmsNormBackwardArgs& a, const Visit& visit) {
  visit("dy", a.dy);
  visit("x", a.x);
  visit("w", a.w);
  visit("q", a.q);
}
template <typename Visit>
void for_each_input(RmsNormBackwardWeightArgs& a, const Visit& visit) {
  visit("dy", a.dy);
  visit("x", a.x);
  visit("q", a.q);
  visit(index_array("cu_seqlens"), a.cu_seqlens);
}
template <typename Visit>
void for_each_input(MergeHeadsArgs& a, const Visit& visit) {
  visit("partial", a.partial);
}
template <typename Visit>
void for_each_input(RopeArgs& a, const Visit& visit) {
  visit("x", a.x);
  visit("cos", a.cos);
  visit("sin", a.sin);
  visit(index_array("positions"), a.positions);
}
template <typename Visit>
void for_each_input(PackWeightArgs& a, const Visit& visit) {
  visit("w", a.w);
}
template <typename Visit>
void for_each_input(GemmArgs& a, const Visit& visit) {
  visit("a", a.a);
  visit("b", a.b);
  visit("bias", a.bias);
}
template <typename Visit>
void for_each_input(GemmBackwardWeightArgs& a, const Visit& visit) {
  visit("dy", a.dy);
  visit("x", a.x);
  visit(index_array("group_ends"), a.group_ends);
  visit(index_array("cu_seqlens"), a.cu_seqlens);
}
template <typename Visit>
void for_each_input(BiasBackwardArgs& a, const Visit& visit) {
  visit("dy", a.dy);
  visit(index_array("cu_seqlens"), a.cu_seqlens);
}
template <typename Visit>
void for_each_input(SwigluArgs& a, const Visit& visit) {
  visit("g", a.g);
  visit("u", a.u);
}
template <typename Visit>
void for_each_input(SwigluBackwardArgs& a, const Visit& visit) {
  visit("dy", a.dy);
  visit("g", a.g);
  visit("u", a.u);
}
template <typename Visit>
void for_each_input(AttentionArgs& a, const Visit& visit) {
  visit("q", a.q);
  visit("k", a.kv.k);
  visit("v", a.kv.v);
  visit(index_array("block_table"), a.kv.block_table);
  visit(index_array("kv_start"), a.kv.kv_start);
  visit(index_array("cu_seqlens_q"), a.cu_seqlens_q);
  visit(index_array("kv_lens"), a.kv_lens);
}
template <typename Visit>
void for_each_input(AttentionBackwardArgs& a, const Visit& visit) {
  visit("dy", a.dy);
  visit("y", a.y);
  visit("q", a.q);
  visit("k", a.k);
  visit("v", a.v);
  visit("lse", a.lse);
  visit(index_array("cu_seqlens"), a.cu_seqlens);
}
template <typename Visit>
void for_each_input(LogprobArgs& a, const Visit& visit) {
  visit("logits", a.logits);
  visit(index_array("targets"), a.targets);
}
template <typename Visit>
void for_each_input(LogprobBackwardArgs& a, const Visit& visit) {
  visit("logits", a.logits);
  visit(index_array("targets"), a.targets);
  visit("g", a.g);
  visit("g_entropy", a.g_entropy);
  visit("state", a.state);
}
template <typename Visit>
void for_each_input(LogSoftmaxArgs& a, const Visit& visit) {
  visit("logits", a.logits);
}
template <typename Visit>
void for_each_input(LogSoftmaxBackwardArgs& a, const Visit& visit) {
  visit("logits", a.logits);
  visit("dy", a.dy);
}
template <typename Visit>
void for_each_input(LinearLogpArgs& a, const Visit& visit) {
  visit("hidden", a.hidden);
  visit("head", a.head);
  visit(index_array("targets"), a.targets);
}
template <typename Visit>
void for_each_input(LinearLogpBackwardArgs& a, const Visit& visit) {
  for_each_input(a.forward, visit);
  visit("g", a.g);
  visit("g_entropy", a.g_entropy);
  visit(index_array("group_ends"), a.group_ends);
  visit(index_array("cu_seqlens"), a.cu_seqlens);
}
template <typename Visit>
void for_each_input(SampleArgs& a, const Visit& visit) {
  visit("logits", a.logits);
}
template <typename Visit>
void for_each_input(GroupAdvantagesArgs& a, const Visit& visit) {
  visit("rewards", a.rewards);
}
template <typename Visit>
void for_each_input(RatioArgs& a, const Visit& visit) {
  visit("logp", a.logp);
  visit("old", a.old);
  visit("weight", a.weight);
}
template <typename Visit>
void for_each_input(KlArgs& a, const Visit& visit) {
  visit("logp", a.logp);
  visit("ref", a.ref);
  visit("weight", a.weight);
}
template <typename Visit>
void for_each_input(GrpoLossArgs& a, const Visit& visit) {
  visit("logp", a.logp);
  visit("old", a.old);
  visit("ref", a.ref);
  visit("advantage", a.advantage);
  visit("weight", a.weight);
}
template <typename Visit>
void for_each_input(PpoLossArgs& a, const Visit& visit) {
  for_each_input(a.policy, visit);
  visit("value", a.value);
  visit("old_value", a.old_value);
  visit("returns", a.returns);
}
template <typename Visit>
void for_each_input(GradNormArgs& a, const Visit& visit) {
  for (std::int64_t i = 0; i < a.num_grads; ++i) {
    visit("grads", const_cast<ConstTensorView&>(a.grads[i]));
  }
}
template <typename Visit>
void for_each_input(AdamwArgs& a, const Visit& visit) {
  visit("dw", a.dw);
}

}  // namespace rlk
