// Model: the weights of one engine, ready to run. Rollout and trainer each hold one and both call
// model forward; that is why their log-probabilities are the same bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rlk/kernels/gemm.h"
#include "rlk/model/config.h"
#include "rlk/model/parameters.h"
#include "rlk/ops/context.h"

namespace rlk {

class Model {
 public:
  // max_model_len: the RoPE tables hold positions [0, max_model_len). for_backward: also packs the
  // transposed weights that the input gradients need. memory: of the context that will run it.
  // Errors  kInvalidArgument when max_model_len exceeds max_position_embeddings.
  Model(const ModelConfig& config, const Contract& contract, std::int64_t max_model_len,
        bool for_backward, Memory& memory = host_memory());

  // Takes new weights: copies every byte, packs again, and raises the version. Everything derived
  // from the old weights (KV, packed panels) is stale from here on.
  void load(Context& ctx, Parameters& source, std::int64_t weight_version);

  const ModelConfig& config() const { return config_; }
  std::int64_t vocab_padded() const { return vocab_padded_; }
  std::int64_t max_model_len() const { return max_model_len_; }
  std::int64_t weight_version() const { return weight_version_; }  // -1: none loaded
  Parameters& parameters() { return parameters_; }

  // The LM head: lm_head, or embed_tokens when tied. [vocab_padded, hidden_size]
  const Tensor& head() const {
    return config_.tie_word_embeddings ? parameters_.embed_tokens : parameters_.lm_head;
  }
  ConstTensorView cos() const { return cos_; }
  ConstTensorView sin() const { return sin_; }

  // A weight with its packed forms; `forward` multiplies [N, K], `backward` its transpose.
  struct Packed {
    PackedWeight forward;
    PackedWeight backward;
  };
  struct PackedLayer {
    Packed qkv_proj, o_proj, gate_up_proj, down_proj;
  };
  const std::vector<PackedLayer>& packed_layers() const { return packed_layers_; }
  const Packed& packed_head() const { return packed_head_; }
  const LayerParameters& layer(int i) const { return parameters_.layers[i]; }
  const Parameters& parameters() const { return parameters_; }

 private:
  void pack(Context& ctx, const Tensor& weight, std::int64_t forward_rows, Packed& packed);

  ModelConfig config_;
  std::int64_t vocab_padded_;
  std::int64_t max_model_len_;
  bool for_backward_;
  std::int64_t weight_version_ = -1;
  Parameters parameters_;
  std::vector<PackedLayer> packed_layers_;
  Packed packed_head_;
  Tensor cos_;
  Tensor sin_;
};

}  // namespace rlk
