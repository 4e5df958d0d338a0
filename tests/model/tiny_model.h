// Tiny models on which any other order or rounding shows, and the backends they run on.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "rlk/model/model.h"
#include "tests/kernels/test_data.h"

namespace rlk::test {

// Small fields, so that short sequences cross blocks, splits and groups.
inline Contract tiny_contract() {
  Contract c;
  c.leaves = 4;
  c.kv_block = 32;
  c.kv_split = 64;
  c.norm_lanes = 16;
  c.token_block = 16;
  c.grad_group = 64;
  return c;
}

inline ModelConfig tiny_config(const std::string& model_type = "qwen3", bool tied = true) {
  ModelConfig c;
  c.model_type = model_type;
  c.vocab_size = 53;
  c.hidden_size = 64;
  c.intermediate_size = 96;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 16;
  c.max_position_embeddings = 512;
  c.tie_word_embeddings = tied;
  c.qk_norm = model_type == "qwen3";
  c.attention_bias = model_type == "qwen2";
  return c;
}

// Where both halves of the inputs are the same, the second half of w's columns takes away all but
// 1/256 of what the first adds; 64 times as large, so that the rest still counts.
inline void make_cancelling(Tensor& w) {
  const std::int64_t half = w.shape(1) / 2;
  for (std::int64_t n = 0; n < w.shape(0); ++n) {
    for (std::int64_t k = 0; k < half; ++k) {
      const float x = 64.0f * numerics::to_f32(*w.view().at<bf16>(n, k));
      *w.view().at<bf16>(n, k) = numerics::to_bf16(x);
      *w.view().at<bf16>(n, half + k) = numerics::to_bf16(-(1.0f - 0x1p-8f) * x);
    }
  }
}

// Rows [begin + n, begin + 2n) become those of [begin, begin + n).
inline void duplicate_rows(Tensor& w, std::int64_t begin, std::int64_t n) {
  std::memcpy(w.view().at<bf16>(begin + n), w.view().at<bf16>(begin),
              static_cast<std::size_t>(n * w.shape(1)) * sizeof(bf16));
}

// Products behind a norm of other orders of magnitude, so that few of their sums are exact.
inline void widen(Tensor& w, Rng& rng) {
  for (std::int64_t i = 0; i < w.size(); ++i) {
    const float x = numerics::to_f32(w.data<bf16>()[i]);
    w.data<bf16>()[i] = numerics::to_bf16(std::ldexp(x, -static_cast<int>(rng.below(8))));
  }
}

// Large weights, norm weights of eight binary orders, and biases away from 0. The two halves of the
// heads are equal, and so are the halves of the MLP; what they add to the stream nearly cancels, so
// the sums over heads and over the MLP lose eight bits.
inline Parameters tiny_weights(const ModelConfig& config, const Contract& contract,
                               std::uint64_t seed = 7) {
  Parameters p = init_parameters(config, vocab_padded(contract, config.vocab_size), 0.3, seed);
  Rng rng(seed);
  for (const ParameterRef& ref : list(p)) {
    if (ref.decay) continue;  // a matrix
    for (std::int64_t i = 0; i < ref.tensor->size(); ++i) {
      bf16& x = ref.tensor->data<bf16>()[i];
      x = numerics::to_bf16(numerics::to_f32(x) + static_cast<float>(0.4 * rng.normal()));
    }
  }
  const std::int64_t q = config.num_attention_heads * config.head_dim;
  const std::int64_t kv = config.num_key_value_heads * config.head_dim;
  for (LayerParameters& l : p.layers) {
    duplicate_rows(l.qkv_proj, 0, q / 2);
    duplicate_rows(l.qkv_proj, q, kv / 2);
    duplicate_rows(l.qkv_proj, q + kv, kv / 2);
    duplicate_rows(l.gate_up_proj, 0, config.intermediate_size / 2);
    duplicate_rows(l.gate_up_proj, config.intermediate_size, config.intermediate_size / 2);
    make_cancelling(l.o_proj);
    make_cancelling(l.down_proj);
  }
  for (LayerParameters& l : p.layers) {
    widen(l.input_layernorm, rng);
    widen(l.post_attention_layernorm, rng);
  }
  widen(p.norm, rng);
  // Logits of moderate size: otherwise the same token would follow itself for ever.
  for (std::int64_t i = 0; i < p.norm.size(); ++i) {
    bf16& x = p.norm.data<bf16>()[i];
    x = numerics::to_bf16(0.5f * numerics::to_f32(x));
  }
  return p;
}

inline std::vector<std::int32_t> random_tokens(std::int64_t n, std::uint64_t seed,
                                               std::int64_t vocab_size = 53) {
  Rng rng(seed);
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < n; ++i)
    out.push_back(static_cast<std::int32_t>(rng.below(vocab_size)));
  return out;
}

// The reference, and the CPU kernels of every instruction set of this machine.
inline std::vector<const KernelTable*> backends() {
  std::vector<const KernelTable*> out{&reference_kernels()};
  for (Isa isa : kAllIsas) {
    if (available(isa)) out.push_back(&cpu_kernels(isa));
  }
  return out;
}

inline bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return !a.empty() && a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// All tensors of two sets of parameters.
inline testing::AssertionResult same_bits(Parameters& a, Parameters& b) {
  const std::vector<ParameterRef> left = list(a), right = list(b);
  if (left.size() != right.size()) return testing::AssertionFailure() << "other tensors";
  for (std::size_t i = 0; i < left.size(); ++i) {
    const testing::AssertionResult same = same_bits(*left[i].tensor, *right[i].tensor);
    if (!same) return testing::AssertionFailure() << left[i].name << ": " << same.message();
  }
  return testing::AssertionSuccess() << "all tensors agree";
}

}  // namespace rlk::test
