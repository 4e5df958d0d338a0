// model forward: token ids to final hidden states, for any mix of prefill, chunk, decode and packed
// training sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "rlk/kernels/attention.h"
#include "rlk/kernels/vendor_plans.h"
#include "rlk/model/model.h"

namespace rlk {

// The tokens of one call. Sequence s owns tokens cu_seqlens[s] .. cu_seqlens[s+1], at rising
// positions; the last stands at kv_lens[s] - 1.
struct ForwardBatch {
  ConstTensorView token_ids;   // i32 [num_tokens]
  ConstTensorView positions;   // i32 [num_tokens]
  ConstTensorView cu_seqlens;  // i32 [num_seqs + 1]
  ConstTensorView kv_lens;     // i32 [num_seqs]

  // Paged only: the cache row that each token's k and v are written to, and the pages of each
  // sequence. Absent for packed sequences that start at position 0: their keys are the tokens' own.
  ConstTensorView slot_mapping;  // i64 [num_tokens]
  ConstTensorView block_table;   // i32 [num_seqs, max_pages]
  std::int64_t page_size = 0;
};

// Keys and values of all layers, by rows: a page is page_size consecutive rows. Zero at creation,
// so that what lies in unwritten slots is finite.
struct KvCache {
  struct Layer {
    Tensor k;  // bf16 [num_rows, num_key_value_heads, head_dim], rotated
    Tensor v;
  };
  std::vector<Layer> layers;

  KvCache(const ModelConfig& config, std::int64_t num_rows, Memory& memory = host_memory());
};

// What one layer leaves behind for its backward. x is the stream at the layer's entry, x_mid behind
// attention; *_norm the outputs of the norms and *_q their factors 1 / sqrt(mean + eps).
struct LayerActivations {
  Tensor x, input_q, input_norm;
  Tensor qkv;  // products, before QK-norm and RoPE; v is final here
  Tensor q_norm_q, k_norm_q;
  Tensor qk;  // rotated q, then k: [num_tokens, H + Hk, d]
  Tensor attention, lse;
  Tensor x_mid, post_q, post_norm;
  Tensor gate_up, act;
};

// Buffers of a forward call, reused as long as they are large enough. With keep_for_backward every
// layer has its own, else all share one.
class Activations {
 public:
  Activations(const ModelConfig& config, bool keep_for_backward, Memory& memory = host_memory())
      : config_(config), keep_for_backward_(keep_for_backward), memory_(memory) {}

  // Makes room for num_tokens tokens.
  void reserve(std::int64_t num_tokens);
  bool keep_for_backward() const { return keep_for_backward_; }
  LayerActivations& layer(int i) { return layers_[keep_for_backward_ ? i : 0]; }

  Tensor x_out;       // the stream behind the last layer [num_tokens, hidden_size]
  Tensor delta;       // what a block adds to the stream
  Tensor final_q;     // of the final norm
  Tensor final_norm;  // hidden states for the LM head

 private:
  ModelConfig config_;
  bool keep_for_backward_;
  Memory& memory_;
  std::int64_t capacity_ = 0;
  std::vector<LayerActivations> layers_;
};

// Runs the model; returns the final hidden states, bf16 [num_tokens, hidden_size], a view into
// `activations`. kv_cache: required for a paged batch, else null. A device only gets the calls: the
// results are there after ctx.synchronize(), and until then the batch stays as it is.
// Errors  those of the operators, with layer and node; kContract when no weights are loaded.
ConstTensorView forward(Context& ctx, const Model& model, const ForwardBatch& batch,
                        KvCache* kv_cache, Activations& activations);

// The products of one chain without a bias: those that a library of the GPU's vendor may give
// (ops/vendor_products.h).
std::vector<VendorShape> vendor_shapes(const ModelConfig& config);

// logits = hidden x head^T in f32: [num_rows, vocab_size].
void compute_logits(Context& ctx, const Model& model, const ConstTensorView& hidden,
                    const TensorView& logits);

}  // namespace rlk
