// model backward: gradients of every parameter in the contract's canonical order.
#pragma once

#include <cstdint>
#include <vector>

#include "rlk/model/forward.h"

namespace rlk {

// The gradient of one slot while its samples pass by. Weight gradients are chains over groups of
// samples; the group that is open lives in `chain` until it closes, so any cut into micro-batches
// gives the same bits.
class GradientAccumulator {
 public:
  // Sums live in `memory`, offsets in `small_memory` (Context).
  GradientAccumulator(const ModelConfig& config, std::int64_t vocab_padded,
                      Memory& memory = host_memory(), Memory& small_memory = host_memory());

  // Everything back to +0, no group open.
  void reset();

  // Names the samples of the next micro-batch, in canonical order, whole samples only, and finds
  // the token offsets at which a group closes. grad_group as in the contract.
  void begin_micro_batch(const ConstTensorView& cu_seqlens, std::int64_t grad_group);

  // Closes the open group and merges the heads of the QK-norms. The result holds head and embedding
  // gradients apart (lm_head is there even when the model ties it). The accumulator keeps what
  // memory `gradient` had, and has to be reset.
  void finish(Context& ctx, Parameters& gradient);

  // For backward():
  Parameters& dw() { return dw_; }
  Parameters& chain() { return chain_; }
  ConstTensorView group_ends() const {
    return view(group_ends_.data(), {static_cast<std::int64_t>(group_ends_.size())});
  }
  struct HeadPartials {
    Tensor q_norm;  // f32 [H, d]
    Tensor k_norm;  // f32 [Hk, d]
  };
  HeadPartials& heads(int layer) { return heads_[layer]; }

 private:
  ModelConfig config_;
  Parameters dw_;
  Parameters chain_;
  std::vector<HeadPartials> heads_;
  Array<std::int64_t> group_ends_;
  std::int64_t open_tokens_ = 0;  // padded tokens in the open group
};

// Buffers of a backward call, reused as long as they are large enough.
class BackwardBuffers {
 public:
  explicit BackwardBuffers(const ModelConfig& config, Memory& memory = host_memory())
      : config_(config), memory_(memory) {}
  void reserve(std::int64_t num_tokens);

  Tensor d_stream;  // gradient of the residual stream
  Tensor d_norm;    // of a norm's output, then of its input
  Tensor d_qkv, d_qk, d_attention;
  Tensor d_gate_up, d_act;

 private:
  ModelConfig config_;
  Memory& memory_;
  std::int64_t capacity_ = 0;
};

// From the gradient of the final hidden states (bf16 [num_tokens, hidden_size], as forward returned
// them) to `grads`, through the activations that forward kept. The batch is packed; its samples
// have been announced with begin_micro_batch.
void backward(Context& ctx, const Model& model, const ForwardBatch& batch, Activations& activations,
              const ConstTensorView& d_hidden, BackwardBuffers& buffers,
              GradientAccumulator& grads);

}  // namespace rlk
