#include "rlk/model/forward.h"

#include <algorithm>

#include "rlk/ops/attention.h"
#include "rlk/ops/copy_rows.h"
#include "rlk/ops/embedding.h"
#include "rlk/ops/gemm.h"
#include "rlk/ops/rms_norm.h"
#include "rlk/ops/rope.h"
#include "rlk/ops/swiglu.h"

namespace rlk {
namespace {

struct Sizes {
  std::int64_t hidden, inter, d, heads, kv_heads, q, kv;
  explicit Sizes(const ModelConfig& c)
      : hidden(c.hidden_size),
        inter(c.intermediate_size),
        d(c.head_dim),
        heads(c.num_attention_heads),
        kv_heads(c.num_key_value_heads),
        q(heads * d),
        kv(kv_heads * d) {}
};

// One head per row.
template <typename View>
View as_norm(const View& t) {
  return split_heads(t, 1);
}

// Each cache row as one row of a matrix.
TensorView as_rows(Tensor& cache) {
  return {cache.view().data, cache.dtype(),
          Layout{cache.shape(0), cache.shape(1) * cache.shape(2)}};
}

void check_slots(const ForwardBatch& batch, const KvCache& cache) {
  const std::int64_t num_rows = cache.layers[0].k.shape(0);
  for (std::int64_t t = 0; t < batch.token_ids.shape(0); ++t) {
    const std::int64_t slot = *batch.slot_mapping.at<std::int64_t>(t);
    if (slot < 0 || slot >= num_rows) {
      fail(ErrorCode::kInvalidArgument, "forward: token {} writes KV row {}, the cache has {}", t,
           slot, num_rows);
    }
  }
}

class LayerForward {
 public:
  LayerForward(Context& ctx, const Model& model, const ForwardBatch& batch, KvCache* kv_cache,
               Activations& activations)
      : ctx_(ctx),
        model_(model),
        batch_(batch),
        kv_cache_(kv_cache),
        acts_(activations),
        s_(model.config()),
        n_(batch.token_ids.shape(0)),
        eps_(static_cast<float>(model.config().rms_norm_eps)) {}

  // What each block adds to the stream (`delta`) is added by the norm that reads the stream next:
  // layer i's x is there behind its first norm, and the stream behind the last layer behind
  // final_norm.
  void run(int i) {
    layer_ = i;
    LayerActivations& a = acts_.layer(i);
    const LayerParameters& w = model_.layer(i);
    const Model::PackedLayer& packed = model_.packed_layers()[i];
    const TensorView delta = first(acts_.delta);

    node("input_layernorm");
    const TensorView input_norm = first(a.input_norm), input_q = first(a.input_q);
    if (i == 0) {
      rms_norm(ctx_, {as_norm(input_norm), input_q, as_norm(first(a.x)), w.input_layernorm, eps_});
    } else {
      add_and_norm(input_norm, input_q, first(acts_.layer(i - 1).x_mid), first(a.x),
                   w.input_layernorm);
    }
    node("qkv_proj");
    linear(first(a.qkv), first(a.input_norm), w.qkv_proj, packed.qkv_proj, w.qkv_bias, false);
    attend(i, a, w);
    node("o_proj");
    linear(delta, first(a.attention), w.o_proj, packed.o_proj, w.o_bias, true);
    node("post_attention_layernorm");
    add_and_norm(first(a.post_norm), first(a.post_q), first(a.x), first(a.x_mid),
                 w.post_attention_layernorm);
    node("gate_up_proj");
    linear(first(a.gate_up), first(a.post_norm), w.gate_up_proj, packed.gate_up_proj,
           w.gate_up_bias, false);
    node("swiglu");
    const TensorView gate_up = first(a.gate_up);
    swiglu(ctx_,
           {first(a.act), columns(gate_up, 0, s_.inter), columns(gate_up, s_.inter, 2 * s_.inter)});
    node("down_proj");
    linear(delta, first(a.act), w.down_proj, packed.down_proj, w.down_bias, true);
  }

  TensorView final_norm(int num_layers) {
    layer_ = -1;
    node("norm");
    const TensorView hidden = first(acts_.final_norm);
    add_and_norm(hidden, first(acts_.final_q), first(acts_.layer(num_layers - 1).x_mid),
                 first(acts_.x_out), model_.parameters().norm);
    return hidden;
  }

 private:
  TensorView first(Tensor& t) const { return rows(t.view(), 0, n_); }
  void node(const char* name) { ctx_.set_node(layer_, name); }

  // stream_out = stream + delta, y = its norm.
  void add_and_norm(const TensorView& y, const TensorView& q, const ConstTensorView& stream,
                    const TensorView& stream_out, const ConstTensorView& w) {
    const ConstTensorView delta = first(acts_.delta);
    rms_norm(ctx_, {as_norm(y), q, as_norm(delta), w, eps_, as_norm(stream), as_norm(stream_out)});
  }

  void linear(const TensorView& y, const ConstTensorView& x, const Tensor& w,
              const Model::Packed& packed, const Tensor& bias, bool row_parallel) {
    GemmArgs args;
    args.c = y;
    args.a = x;
    args.b = w;
    args.packed_b = &packed.forward;
    if (!bias.empty()) args.bias = bias;
    args.leaf_tree = row_parallel;
    args.segments = {x.shape(1), 0, 0};
    gemm(ctx_, args);
  }

  // QK-norm, RoPE, cache write, attention.
  void attend(int i, LayerActivations& a, const LayerParameters& w) {
    const TensorView qkv = first(a.qkv);
    const ConstTensorView q_in = split_heads(columns(qkv, 0, s_.q), s_.heads);
    const ConstTensorView k_in = split_heads(columns(qkv, s_.q, s_.q + s_.kv), s_.kv_heads);
    const ConstTensorView v_columns = columns(qkv, s_.q + s_.kv, s_.q + 2 * s_.kv);
    const ConstTensorView v = split_heads(v_columns, s_.kv_heads);
    const TensorView qk = first(a.qk);
    const TensorView q = split_heads(columns(qk, 0, s_.q), s_.heads);
    const TensorView k = split_heads(columns(qk, s_.q, s_.q + s_.kv), s_.kv_heads);

    const bool qk_norm = model_.config().qk_norm;
    if (qk_norm) {
      node("q_norm");
      rms_norm(ctx_, {q, first(a.q_norm_q), q_in, w.q_norm, eps_});
      node("k_norm");
      rms_norm(ctx_, {k, first(a.k_norm_q), k_in, w.k_norm, eps_});
    }
    node("rope");  // of q and k, which lie side by side
    const std::int64_t qk_heads = s_.heads + s_.kv_heads;
    const TensorView rotated = split_heads(qk, qk_heads);
    const ConstTensorView projected = split_heads(columns(qkv, 0, s_.q + s_.kv), qk_heads);
    rope(ctx_, {rotated, qk_norm ? ConstTensorView(rotated) : projected, model_.cos(), model_.sin(),
                batch_.positions});

    AttentionArgs args;
    args.y = split_heads(first(a.attention), s_.heads);
    if (acts_.keep_for_backward()) args.lse = first(a.lse);
    args.q = q;
    args.cu_seqlens_q = batch_.cu_seqlens;
    args.kv_lens = batch_.kv_lens;
    // |v| < 2^56: with the same bound on q and k, nothing inside attention can be NaN.
    node("attention v");
    if (kv_cache_) {
      KvCache::Layer& cache = kv_cache_->layers[i];
      copy_rows(ctx_, {as_rows(cache.v), v_columns, {}, batch_.slot_mapping, true});
      copy_rows(ctx_, {as_rows(cache.k), columns(qk, s_.q, s_.q + s_.kv), {}, batch_.slot_mapping});
      args.kv = {cache.k, cache.v, batch_.block_table, {}, batch_.page_size};
    } else {
      copy_rows(ctx_, {{}, v_columns, {}, {}, true});
      // Sequence s starts at row cu_seqlens[s].
      args.kv = {k, v, {}, rows(batch_.cu_seqlens, 0, batch_.kv_lens.shape(0)), 0};
    }
    node("attention");
    attention(ctx_, args);
  }

  Context& ctx_;
  const Model& model_;
  const ForwardBatch& batch_;
  KvCache* kv_cache_;
  Activations& acts_;
  Sizes s_;
  std::int64_t n_;
  float eps_;
  int layer_ = 0;
};

}  // namespace

KvCache::KvCache(const ModelConfig& c, std::int64_t num_rows, Memory& memory) {
  const auto rows = [&] {
    return Tensor(DType::kBF16, {num_rows, c.num_key_value_heads, c.head_dim}, memory);
  };
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) layers.push_back({rows(), rows()});
}

void Activations::reserve(std::int64_t num_tokens) {
  if (num_tokens <= capacity_) return;
  // A little more than asked for, so that slowly growing batches do not allocate every time.
  const std::int64_t n = std::max(num_tokens, capacity_ + capacity_ / 4);
  const Sizes s(config_);
  const auto bf = [&](std::int64_t width) { return Tensor(DType::kBF16, {n, width}, memory_); };
  const auto f32 = [&](std::int64_t width) { return Tensor(DType::kF32, {n, width}, memory_); };
  layers_.clear();
  layers_.resize(keep_for_backward_ ? static_cast<std::size_t>(config_.num_hidden_layers) : 1);
  for (LayerActivations& a : layers_) {
    a.x = bf(s.hidden);
    a.input_q = f32(1);
    a.input_norm = bf(s.hidden);
    a.qkv = bf(s.q + 2 * s.kv);
    a.q_norm_q = f32(s.heads);
    a.k_norm_q = f32(s.kv_heads);
    a.qk = bf(s.q + s.kv);
    a.attention = bf(s.q);
    a.lse = f32(s.heads);
    a.x_mid = bf(s.hidden);
    a.post_q = f32(1);
    a.post_norm = bf(s.hidden);
    a.gate_up = bf(2 * s.inter);
    a.act = bf(s.inter);
  }
  x_out = bf(s.hidden);
  delta = bf(s.hidden);
  final_q = f32(1);
  final_norm = bf(s.hidden);
  capacity_ = n;
}

ConstTensorView forward(Context& ctx, const Model& model, const ForwardBatch& batch,
                        KvCache* kv_cache, Activations& activations) {
  if (model.weight_version() < 0) fail(ErrorCode::kContract, "forward: no weights are loaded");
  RLK_ASSERT(static_cast<bool>(batch.block_table) == (kv_cache != nullptr));
  const std::int64_t n = batch.token_ids.shape(0);
  const ModelConfig& config = model.config();
  activations.reserve(n);
  if (kv_cache) check_slots(batch, *kv_cache);

  ctx.set_node(-1, "embed_tokens");
  embedding(ctx,
            {rows(activations.layer(0).x.view(), 0, n),
             rows(model.parameters().embed_tokens.view(), 0, config.vocab_size), batch.token_ids});
  LayerForward layer(ctx, model, batch, kv_cache, activations);
  const int num_layers = static_cast<int>(config.num_hidden_layers);
  for (int i = 0; i < num_layers; ++i) layer.run(i);
  return layer.final_norm(num_layers);
}

std::vector<VendorShape> vendor_shapes(const ModelConfig& c) {
  const Sizes s(c);
  std::vector<VendorShape> shapes;
  if (!c.attention_bias) shapes.push_back({s.q + 2 * s.kv, s.hidden, DType::kBF16});
  if (!c.mlp_bias) shapes.push_back({2 * s.inter, s.hidden, DType::kBF16});
  shapes.push_back({c.vocab_size, s.hidden, DType::kF32});
  return shapes;
}

void compute_logits(Context& ctx, const Model& model, const ConstTensorView& hidden,
                    const TensorView& logits) {
  ctx.set_node(-1, "lm_head");
  GemmArgs args;
  args.c = logits;
  args.a = hidden;
  args.b = rows(model.head().view(), 0, model.config().vocab_size);
  args.packed_b = &model.packed_head().forward;
  args.segments = {hidden.shape(1), 0, 0};
  gemm(ctx, args);
}

}  // namespace rlk
