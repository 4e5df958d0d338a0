// What each operator writes. Audits, conformance and traces treat all operators alike through this
// list.
#pragma once

#include <string_view>

#include "rlk/kernels/kernel_table.h"

namespace rlk {

// The output of that name is the state of a sum that goes on, not a result: a zero in it may have
// either sign.
inline bool is_open_sum(std::string_view name) { return name == "chain"; }

// Calls visit(name, view) for every tensor that the call writes, absent ones included; visit may
// point the view elsewhere. In-out tensors hold their old content before the call.
template <typename Visit>
void for_each_output(EmbeddingArgs& a, const Visit& visit) {
  visit("y", a.y);
}
template <typename Visit>
void for_each_output(EmbeddingBackwardArgs& a, const Visit& visit) {
  visit("dtable", a.dtable);
}
template <typename Visit>
void for_each_output(CopyRowsArgs& a, const Visit& visit) {
  visit("y", a.y);
}
template <typename Visit>
void for_each_output(ResidualAddArgs& a, const Visit& visit) {
  visit("y", a.y);
}
template <typename Visit>
void for_each_output(RmsNormArgs& a, const Visit& visit) {
  visit("y", a.y);
  visit("q", a.q);
  visit("residual_out", a.residual_out);
}
template <typename Visit>
void for_each_output(RmsNormBackwardArgs& a, const Visit& visit) {
  visit("dx", a.dx);
}
template <typename Visit>
void for_each_output(RmsNormBackwardWeightArgs& a, const Visit& visit) {
  visit("dw", a.dw);
}
template <typename Visit>
void for_each_output(MergeHeadsArgs& a, const Visit& visit) {
  visit("dw", a.dw);
}
template <typename Visit>
void for_each_output(RopeArgs& a, const Visit& visit) {
  visit("y", a.y);
}
template <typename Visit>
void for_each_output(GemmArgs& a, const Visit& visit) {
  visit("c", a.c);
}
template <typename Visit>
void for_each_output(GemmBackwardWeightArgs& a, const Visit& visit) {
  visit("dw", a.dw);
  visit("chain", a.chain);
}
template <typename Visit>
void for_each_output(BiasBackwardArgs& a, const Visit& visit) {
  visit("dbias", a.dbias);
}
// A packed layout is a plan of its backend, not a result.
template <typename Visit>
void for_each_output(PackWeightArgs&, const Visit&) {}
template <typename Visit>
void for_each_output(SwigluArgs& a, const Visit& visit) {
  visit("y", a.y);
}
template <typename Visit>
void for_each_output(SwigluBackwardArgs& a, const Visit& visit) {
  visit("dg", a.dg);
  visit("du", a.du);
}
template <typename Visit>
void for_each_output(AttentionArgs& a, const Visit& visit) {
  visit("y", a.y);
  visit("lse", a.lse);
}
template <typename Visit>
void for_each_output(AttentionBackwardArgs& a, const Visit& visit) {
  visit("dq", a.dq);
  visit("dk", a.dk);
  visit("dv", a.dv);
}
// `state` is a plan of its backend, here and in linear_logp.
template <typename Visit>
void for_each_output(LogprobArgs& a, const Visit& visit) {
  visit("logp", a.logp);
  visit("entropy", a.entropy);
}
template <typename Visit>
void for_each_output(LogprobBackwardArgs& a, const Visit& visit) {
  visit("dlogits", a.dlogits);
}
template <typename Visit>
void for_each_output(LogSoftmaxArgs& a, const Visit& visit) {
  visit("y", a.y);
}
template <typename Visit>
void for_each_output(LogSoftmaxBackwardArgs& a, const Visit& visit) {
  visit("dlogits", a.dlogits);
}
template <typename Visit>
void for_each_output(SampleArgs& a, const Visit& visit) {
  visit("token_ids", a.token_ids);
}
template <typename Visit>
void for_each_output(LinearLogpArgs& a, const Visit& visit) {
  visit("logp", a.logp);
  visit("entropy", a.entropy);
}
template <typename Visit>
void for_each_output(LinearLogpBackwardArgs& a, const Visit& visit) {
  visit("d_hidden", a.d_hidden);
  visit("dw", a.dw);
  visit("chain", a.chain);
}
template <typename Visit>
void for_each_output(GroupAdvantagesArgs& a, const Visit& visit) {
  visit("advantages", a.advantages);
}
template <typename Visit>
void for_each_output(RatioArgs& a, const Visit& visit) {
  visit("ratio", a.ratio);
}
template <typename Visit>
void for_each_output(KlArgs& a, const Visit& visit) {
  visit("kl", a.kl);
  visit("slope", a.slope);
}
template <typename Visit>
void for_each_output(GrpoLossArgs& a, const Visit& visit) {
  visit("g", a.g);
  visit("pg_loss", a.pg_loss);
  visit("kl", a.kl);
  visit("ratio", a.ratio);
}
template <typename Visit>
void for_each_output(PpoLossArgs& a, const Visit& visit) {
  for_each_output(a.policy, visit);
  visit("g_value", a.g_value);
  visit("v_loss", a.v_loss);
  visit("g_entropy", a.g_entropy);
}
template <typename Visit>
void for_each_output(GradNormArgs& a, const Visit& visit) {
  TensorView norm = view(a.norm, {1});
  visit("norm", norm);
  a.norm = norm.at<float>();
}
template <typename Visit>
void for_each_output(AdamwArgs& a, const Visit& visit) {
  visit("w", a.w);
  visit("master", a.master);
  visit("m", a.m);
  visit("v", a.v);
}

}  // namespace rlk
