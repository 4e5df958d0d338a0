// The parameters of a model as tensors: weights, masters, moments and gradients share this shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rlk/contract/contract.h"
#include "rlk/core/tensor.h"
#include "rlk/model/config.h"

namespace rlk {

// Products that read the same input are one matrix: rows of q, then k, then v; of gate, then up.
// Fusing is a layout; each output column is its own chain. Absent parameters are empty tensors.
struct LayerParameters {
  Tensor input_layernorm;           // [hidden_size]
  Tensor qkv_proj;                  // [(H + 2 Hk) d, hidden_size]
  Tensor qkv_bias;                  // [(H + 2 Hk) d]
  Tensor q_norm;                    // [d]
  Tensor k_norm;                    // [d]
  Tensor o_proj;                    // [hidden_size, H d]
  Tensor o_bias;                    // [hidden_size]
  Tensor post_attention_layernorm;  // [hidden_size]
  Tensor gate_up_proj;              // [2 intermediate_size, hidden_size]
  Tensor gate_up_bias;              // [2 intermediate_size]
  Tensor down_proj;                 // [hidden_size, intermediate_size]
  Tensor down_bias;                 // [hidden_size]
};

struct Parameters {
  Tensor embed_tokens;  // [vocab_padded, hidden_size]; rows past the vocabulary stay +0
  std::vector<LayerParameters> layers;
  Tensor norm;     // [hidden_size]
  Tensor lm_head;  // [vocab_padded, hidden_size]; empty when tied
};

// All zero. with_head: an lm_head tensor even where the model ties it, for gradients, which keep
// head and embedding apart until the end of a step.
Parameters make_parameters(const ModelConfig& config, std::int64_t vocab_padded, DType dtype,
                           bool with_head = false, Memory& memory = host_memory());

// All numbers of a tensor as one row.
inline TensorView as_row(Tensor& t) { return {t.view().data, t.dtype(), Layout{1, t.size()}}; }

// Copies every byte; the two have the same shapes.
void copy(Parameters& to, const Parameters& from);
Parameters copy_of(const Parameters& parameters, Memory& memory);

// One tensor of a Parameters, as the optimizer sees it.
struct ParameterRef {
  std::string name;  // "layers.3.qkv_proj"
  Tensor* tensor;
  bool decay;  // weight decay applies: matrices, not norms and biases
};

// Every non-empty tensor, always in the same order.
std::vector<ParameterRef> list(Parameters& parameters);

// The Hugging Face tensors inside: "model.layers.3.self_attn.q_proj.weight" is a row range of
// qkv_proj. Views share memory with `parameters`.
struct HfTensor {
  std::string name;
  TensorView view;
};
std::vector<HfTensor> hf_tensors(const ModelConfig& config, Parameters& parameters);

// Reads model.safetensors (or shards) of a Hugging Face folder into BF16 parameters. F32 and F16
// tensors are rounded to BF16.
// Errors  kFormat, naming file and tensor: missing, unknown, or of another shape.
Parameters load_parameters(const std::string& folder, const ModelConfig& config,
                           std::int64_t vocab_padded);

// Writes them as model.safetensors under Hugging Face names.
void save_parameters(const std::string& path, const ModelConfig& config, Parameters& parameters);

// Fresh weights: normal with standard deviation `initializer_range` (and a counter-based generator
// keyed by seed and tensor name), norms 1, biases 0.
Parameters init_parameters(const ModelConfig& config, std::int64_t vocab_padded,
                           double initializer_range, std::uint64_t seed);

// SHA-256 of the config and of every Hugging Face tensor's name, shape and bytes.
std::string model_digest(const ModelConfig& config, Parameters& parameters);

}  // namespace rlk
