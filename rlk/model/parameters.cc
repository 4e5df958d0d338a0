#include "rlk/model/parameters.h"

#include <cmath>
#include <cstring>
#include <set>

#include "rlk/core/digest.h"
#include "rlk/io/safetensors.h"
#include "rlk/numerics/bf16.h"
#include "rlk/numerics/philox.h"

namespace rlk {
namespace {

// F16 to F32, exact.
float from_f16(std::uint16_t h) {
  const int exponent = (h >> 10) & 0x1f;
  const int mantissa = h & 0x3ff;
  float magnitude;
  if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else if (exponent == 31) {
    magnitude = mantissa ? NAN : INFINITY;
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa | 0x400), exponent - 25);
  }
  return h & 0x8000 ? -magnitude : magnitude;
}

void copy_as_bf16(const TensorView& to, const ConstTensorView& from, const std::string& path,
                  const std::string& name) {
  const std::int64_t n = from.layout.size();
  bf16* out = to.at<bf16>();
  switch (from.dtype) {
    case DType::kBF16: std::memcpy(out, from.data, static_cast<std::size_t>(n) * 2); return;
    case DType::kF32:
      for (std::int64_t i = 0; i < n; ++i) out[i] = numerics::to_bf16(from.at<float>()[i]);
      return;
    case DType::kF16:
      for (std::int64_t i = 0; i < n; ++i) {
        out[i] = numerics::to_bf16(from_f16(from.at<std::uint16_t>()[i]));
      }
      return;
    default:
      fail(ErrorCode::kDtype, "{}: tensor {} is {}, expected BF16, F16 or F32", path, name,
           to_string(from.dtype));
  }
}

void check_finite(const TensorView& t, const std::string& path, const std::string& name) {
  for (std::int64_t i = 0; i < t.layout.size(); ++i) {
    if ((t.at<bf16>()[i].bits & 0x7f80) == 0x7f80) {
      fail(ErrorCode::kNonFinite, "{}: tensor {}: element {} is not finite in BF16", path, name, i);
    }
  }
}

std::string layout_text(const ConstTensorView& t) { return t.layout.to_string(); }

}  // namespace

Parameters make_parameters(const ModelConfig& c, std::int64_t vocab_padded, DType dtype,
                           bool with_head, Memory& memory) {
  const std::int64_t h = c.hidden_size, inter = c.intermediate_size, d = c.head_dim;
  const std::int64_t q = c.num_attention_heads * d, kv = c.num_key_value_heads * d;
  const auto zeros = [&](std::initializer_list<std::int64_t> sizes) {
    return Tensor(dtype, sizes, memory);
  };
  Parameters p;
  p.embed_tokens = zeros({vocab_padded, h});
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    LayerParameters& l = p.layers.emplace_back();
    l.input_layernorm = zeros({h});
    l.qkv_proj = zeros({q + 2 * kv, h});
    if (c.attention_bias) l.qkv_bias = zeros({q + 2 * kv});
    if (c.qk_norm) {
      l.q_norm = zeros({d});
      l.k_norm = zeros({d});
    }
    l.o_proj = zeros({h, q});
    if (c.attention_output_bias) l.o_bias = zeros({h});
    l.post_attention_layernorm = zeros({h});
    l.gate_up_proj = zeros({2 * inter, h});
    l.down_proj = zeros({h, inter});
    if (c.mlp_bias) {
      l.gate_up_bias = zeros({2 * inter});
      l.down_bias = zeros({h});
    }
  }
  p.norm = zeros({h});
  if (with_head || !c.tie_word_embeddings) p.lm_head = zeros({vocab_padded, h});
  return p;
}

std::vector<ParameterRef> list(Parameters& p) {
  std::vector<ParameterRef> out;
  const auto add = [&](std::string name, Tensor& tensor, bool decay) {
    if (!tensor.empty()) out.push_back({std::move(name), &tensor, decay});
  };
  add("embed_tokens", p.embed_tokens, true);
  for (std::size_t i = 0; i < p.layers.size(); ++i) {
    LayerParameters& l = p.layers[i];
    const std::string at = fmt::format("layers.{}.", i);
    add(at + "input_layernorm", l.input_layernorm, false);
    add(at + "qkv_proj", l.qkv_proj, true);
    add(at + "qkv_bias", l.qkv_bias, false);
    add(at + "q_norm", l.q_norm, false);
    add(at + "k_norm", l.k_norm, false);
    add(at + "o_proj", l.o_proj, true);
    add(at + "o_bias", l.o_bias, false);
    add(at + "post_attention_layernorm", l.post_attention_layernorm, false);
    add(at + "gate_up_proj", l.gate_up_proj, true);
    add(at + "gate_up_bias", l.gate_up_bias, false);
    add(at + "down_proj", l.down_proj, true);
    add(at + "down_bias", l.down_bias, false);
  }
  add("norm", p.norm, false);
  add("lm_head", p.lm_head, true);
  return out;
}

namespace {

// visit(tensor of a, the same of b), empty ones too.
template <typename Visit>
void for_each_pair(Parameters& a, const Parameters& b, const Visit& visit) {
  RLK_ASSERT(a.layers.size() == b.layers.size());
  visit(a.embed_tokens, b.embed_tokens);
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    for (Tensor LayerParameters::*t :
         {&LayerParameters::input_layernorm, &LayerParameters::qkv_proj, &LayerParameters::qkv_bias,
          &LayerParameters::q_norm, &LayerParameters::k_norm, &LayerParameters::o_proj,
          &LayerParameters::o_bias, &LayerParameters::post_attention_layernorm,
          &LayerParameters::gate_up_proj, &LayerParameters::gate_up_bias,
          &LayerParameters::down_proj, &LayerParameters::down_bias}) {
      visit(a.layers[i].*t, b.layers[i].*t);
    }
  }
  visit(a.norm, b.norm);
  visit(a.lm_head, b.lm_head);
}

}  // namespace

void copy(Parameters& to, const Parameters& from) {
  for_each_pair(to, from, [](Tensor& t, const Tensor& f) { t.copy_from(f); });
}

Parameters copy_of(const Parameters& parameters, Memory& memory) {
  Parameters out;
  out.layers.resize(parameters.layers.size());
  for_each_pair(out, parameters, [&](Tensor& to, const Tensor& from) {
    if (from.empty()) return;
    const auto shape = from.layout().shape.begin();
    to = Tensor(from.dtype(), std::vector<std::int64_t>(shape, shape + from.layout().rank), memory);
    to.copy_from(from);
  });
  return out;
}

std::vector<HfTensor> hf_tensors(const ModelConfig& c, Parameters& p) {
  std::vector<HfTensor> out;
  const auto add = [&](const std::string& name, Tensor& tensor, std::int64_t begin,
                       std::int64_t size) {
    if (!tensor.empty()) out.push_back({name, rows(tensor.view(), begin, begin + size)});
  };
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim;
  const std::int64_t h = c.hidden_size, inter = c.intermediate_size;
  add("model.embed_tokens.weight", p.embed_tokens, 0, c.vocab_size);
  for (std::size_t i = 0; i < p.layers.size(); ++i) {
    LayerParameters& l = p.layers[i];
    const std::string at = fmt::format("model.layers.{}.", i);
    add(at + "input_layernorm.weight", l.input_layernorm, 0, h);
    add(at + "self_attn.q_proj.weight", l.qkv_proj, 0, q);
    add(at + "self_attn.k_proj.weight", l.qkv_proj, q, kv);
    add(at + "self_attn.v_proj.weight", l.qkv_proj, q + kv, kv);
    add(at + "self_attn.q_proj.bias", l.qkv_bias, 0, q);
    add(at + "self_attn.k_proj.bias", l.qkv_bias, q, kv);
    add(at + "self_attn.v_proj.bias", l.qkv_bias, q + kv, kv);
    add(at + "self_attn.q_norm.weight", l.q_norm, 0, c.head_dim);
    add(at + "self_attn.k_norm.weight", l.k_norm, 0, c.head_dim);
    add(at + "self_attn.o_proj.weight", l.o_proj, 0, h);
    add(at + "self_attn.o_proj.bias", l.o_bias, 0, h);
    add(at + "post_attention_layernorm.weight", l.post_attention_layernorm, 0, h);
    add(at + "mlp.gate_proj.weight", l.gate_up_proj, 0, inter);
    add(at + "mlp.up_proj.weight", l.gate_up_proj, inter, inter);
    add(at + "mlp.gate_proj.bias", l.gate_up_bias, 0, inter);
    add(at + "mlp.up_proj.bias", l.gate_up_bias, inter, inter);
    add(at + "mlp.down_proj.weight", l.down_proj, 0, h);
    add(at + "mlp.down_proj.bias", l.down_bias, 0, h);
  }
  add("model.norm.weight", p.norm, 0, h);
  add("lm_head.weight", p.lm_head, 0, c.vocab_size);
  return out;
}

Parameters load_parameters(const std::string& folder, const ModelConfig& config,
                           std::int64_t vocab_padded) {
  const Checkpoint checkpoint(folder);
  Parameters p = make_parameters(config, vocab_padded, DType::kBF16);
  std::set<std::string> known;
  for (const HfTensor& t : hf_tensors(config, p)) {
    known.insert(t.name);
    if (!checkpoint.contains(t.name)) {
      fail(ErrorCode::kFormat, "{}: tensor {} {} is missing", folder, t.name, layout_text(t.view));
    }
    const ConstTensorView found = checkpoint.tensor(t.name);
    const std::string& path = checkpoint.path_of(t.name);
    if (found.layout.rank != t.view.layout.rank || found.layout.shape != t.view.layout.shape) {
      fail(ErrorCode::kShape, "{}: tensor {} has shape {}, the config expects {}", path, t.name,
           layout_text(found), layout_text(t.view));
    }
    copy_as_bf16(t.view, found, path, t.name);
    check_finite(t.view, path, t.name);
  }
  for (const std::string& name : checkpoint.names()) {
    // A tied head is often stored too; buffers of old exports carry no weights.
    const bool harmless = (config.tie_word_embeddings && name == "lm_head.weight") ||
                          name.ends_with(".rotary_emb.inv_freq");
    if (!known.count(name) && !harmless) {
      fail(ErrorCode::kFormat, "{}: tensor {} is not part of a {} with this config",
           checkpoint.path_of(name), name, config.model_type);
    }
  }
  return p;
}

void save_parameters(const std::string& path, const ModelConfig& config, Parameters& parameters) {
  std::vector<NamedTensor> tensors;
  for (const HfTensor& t : hf_tensors(config, parameters)) tensors.push_back({t.name, t.view});
  write_safetensors(path, tensors, {{"format", "pt"}});
}

Parameters init_parameters(const ModelConfig& config, std::int64_t vocab_padded,
                           double initializer_range, std::uint64_t seed) {
  Parameters p = make_parameters(config, vocab_padded, DType::kBF16);
  std::uint64_t tensor_index = 0;
  for (const HfTensor& t : hf_tensors(config, p)) {
    ++tensor_index;
    bf16* out = t.view.at<bf16>();
    const std::int64_t n = t.view.layout.size();
    if (t.view.rank() == 1) {
      const float value = t.name.ends_with(".bias") ? 0.0f : 1.0f;
      for (std::int64_t i = 0; i < n; ++i) out[i] = numerics::to_bf16(value);
      continue;
    }
    // Irwin-Hall: the sum of twelve uniforms has variance 1 and needs no logarithm, so the same
    // seed gives the same weights on every machine.
    for (std::int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (std::uint32_t block = 0; block < 3; ++block) {
        for (std::uint32_t word : numerics::philox4x32_10(
                 {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32),
                  static_cast<std::uint32_t>(tensor_index), block},
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)})) {
          sum += (static_cast<double>(word) + 0.5) * 0x1p-32;
        }
      }
      out[i] = numerics::to_bf16(static_cast<float>(initializer_range * (sum - 6.0)));
    }
  }
  return p;
}

std::string model_digest(const ModelConfig& config, Parameters& parameters) {
  Sha256 digest;
  digest.update(to_json(config));
  for (const HfTensor& t : hf_tensors(config, parameters)) {
    digest.update(fmt::format("{}{}{}\n", t.name, to_string(t.view.dtype), layout_text(t.view)));
    digest.update(t.view.data,
                  static_cast<std::size_t>(t.view.layout.size()) * size_of(t.view.dtype));
  }
  return digest.hex();
}

}  // namespace rlk
