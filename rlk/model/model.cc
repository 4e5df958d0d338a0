#include "rlk/model/model.h"

#include <utility>

#include "rlk/numerics/rope_table.h"
#include "rlk/ops/gemm.h"

namespace rlk {

Model::Model(const ModelConfig& config, const Contract& contract, std::int64_t max_model_len,
             bool for_backward, Memory& memory)
    : config_(config),
      vocab_padded_(rlk::vocab_padded(contract, config.vocab_size)),
      max_model_len_(max_model_len),
      for_backward_(for_backward),
      parameters_(make_parameters(config, vocab_padded_, DType::kBF16, false, memory)),
      packed_layers_(static_cast<std::size_t>(config.num_hidden_layers)) {
  if (max_model_len < 1 || max_model_len > config.max_position_embeddings) {
    fail(ErrorCode::kInvalidArgument,
         "model: max_model_len {} must be at least 1 and at most max_position_embeddings {}",
         max_model_len, config.max_position_embeddings);
  }
  constexpr std::int64_t kMaxPositions = std::int64_t{1} << 22;  // of numerics/rope_table.h
  if (max_model_len > kMaxPositions) {
    fail(ErrorCode::kUnsupported, "model: max_model_len {} is above {} positions", max_model_len,
         kMaxPositions);
  }
  const std::int64_t half = config.head_dim / 2;
  cos_ = Tensor(DType::kF32, {max_model_len, half}, memory);
  sin_ = Tensor(DType::kF32, {max_model_len, half}, memory);
  numerics::rope_table(config.rope_theta, config.head_dim, 0, max_model_len, cos_.data<float>(),
                       sin_.data<float>());
}

void Model::pack(Context& ctx, const Tensor& weight, std::int64_t forward_rows, Packed& packed) {
  pack_weight(ctx, {&packed.forward, rows(weight.view(), 0, forward_rows)});
  if (for_backward_) pack_weight(ctx, {&packed.backward, transposed(weight.view())});
}

void Model::load(Context& ctx, Parameters& source, std::int64_t weight_version) {
  if (weight_version <= weight_version_) {
    fail(ErrorCode::kContract, "model: weight version {} does not follow {}", weight_version,
         weight_version_);
  }
  copy(parameters_, source);
  for (std::size_t i = 0; i < packed_layers_.size(); ++i) {
    const LayerParameters& l = parameters_.layers[i];
    PackedLayer& packed = packed_layers_[i];
    pack(ctx, l.qkv_proj, l.qkv_proj.shape(0), packed.qkv_proj);
    pack(ctx, l.o_proj, l.o_proj.shape(0), packed.o_proj);
    pack(ctx, l.gate_up_proj, l.gate_up_proj.shape(0), packed.gate_up_proj);
    pack(ctx, l.down_proj, l.down_proj.shape(0), packed.down_proj);
  }
  pack(ctx, head(), config_.vocab_size, packed_head_);
  weight_version_ = weight_version;
}

}  // namespace rlk
