#include "rlk/model/backward.h"

#include <algorithm>
#include <utility>

#include "rlk/ops/attention.h"
#include "rlk/ops/embedding.h"
#include "rlk/ops/gemm.h"
#include "rlk/ops/residual_add.h"
#include "rlk/ops/rms_norm.h"
#include "rlk/ops/rope.h"
#include "rlk/ops/swiglu.h"

namespace rlk {
namespace {

class LayerBackward {
 public:
  LayerBackward(Context& ctx, const Model& model, const ForwardBatch& batch,
                Activations& activations, BackwardBuffers& buffers, GradientAccumulator& grads)
      : ctx_(ctx),
        model_(model),
        batch_(batch),
        acts_(activations),
        b_(buffers),
        grads_(grads),
        c_(model.config()),
        n_(batch.token_ids.shape(0)),
        q_(c_.num_attention_heads * c_.head_dim),
        kv_(c_.num_key_value_heads * c_.head_dim) {}

  // d_stream holds the gradient of the stream behind layer i, then of the stream before it.
  void run(int i) {
    layer_ = i;
    mlp();
    attention_block();
  }

 private:
  TensorView first(Tensor& t) const { return rows(t.view(), 0, n_); }
  void node(const char* name) { ctx_.set_node(layer_, name); }
  const LayerParameters& w() const { return model_.layer(layer_); }
  LayerParameters& dw() { return grads_.dw().layers[layer_]; }
  LayerParameters& chain() { return grads_.chain().layers[layer_]; }
  const Model::PackedLayer& packed() const { return model_.packed_layers()[layer_]; }

  void mlp() {
    LayerActivations& a = acts_.layer(layer_);
    const std::int64_t inter = c_.intermediate_size;
    const TensorView d_stream = first(b_.d_stream), d_norm = first(b_.d_norm);
    const TensorView d_gate_up = first(b_.d_gate_up), gate_up = first(a.gate_up);

    node("down_proj backward");
    weight_gradient(dw().down_proj, chain().down_proj, dw().down_bias, d_stream, first(a.act));
    input_gradient(first(b_.d_act), d_stream, w().down_proj, packed().down_proj,
                   {c_.hidden_size, 0, 0}, false);
    node("swiglu backward");
    swiglu_backward(
        ctx_, {columns(d_gate_up, 0, inter), columns(d_gate_up, inter, 2 * inter), first(b_.d_act),
               columns(gate_up, 0, inter), columns(gate_up, inter, 2 * inter)});
    node("gate_up_proj backward");
    weight_gradient(dw().gate_up_proj, chain().gate_up_proj, dw().gate_up_bias, d_gate_up,
                    first(a.post_norm));
    input_gradient(d_norm, d_gate_up, w().gate_up_proj, packed().gate_up_proj, {inter, inter, 0},
                   true);
    node("post_attention_layernorm backward");
    stream_norm(d_norm, first(a.x_mid), w().post_attention_layernorm, first(a.post_q),
                dw().post_attention_layernorm);
  }

  void attention_block() {
    LayerActivations& a = acts_.layer(layer_);
    const std::int64_t heads = c_.num_attention_heads, kv_heads = c_.num_key_value_heads;
    const TensorView d_stream = first(b_.d_stream), d_norm = first(b_.d_norm);
    const TensorView d_qkv = first(b_.d_qkv), d_qk = first(b_.d_qk);
    const TensorView qk = first(a.qk), qkv = first(a.qkv);

    node("o_proj backward");
    weight_gradient(dw().o_proj, chain().o_proj, dw().o_bias, d_stream, first(a.attention));
    input_gradient(first(b_.d_attention), d_stream, w().o_proj, packed().o_proj,
                   {c_.hidden_size, 0, 0}, false);

    node("attention backward");
    const TensorView dq = split_heads(columns(d_qk, 0, q_), heads);
    const TensorView dk = split_heads(columns(d_qk, q_, q_ + kv_), kv_heads);
    AttentionBackwardArgs args;
    args.dq = dq;
    args.dk = dk;
    args.dv = split_heads(columns(d_qkv, q_ + kv_, q_ + 2 * kv_), kv_heads);
    args.dy = split_heads(first(b_.d_attention), heads);
    args.y = split_heads(first(a.attention), heads);
    args.q = split_heads(columns(qk, 0, q_), heads);
    args.k = split_heads(columns(qk, q_, q_ + kv_), kv_heads);
    args.v = split_heads(columns(qkv, q_ + kv_, q_ + 2 * kv_), kv_heads);
    args.lse = first(a.lse);
    args.cu_seqlens = batch_.cu_seqlens;
    attention_backward(ctx_, args);

    node("rope backward");  // of q and k, which lie side by side
    const TensorView d_rotated = split_heads(d_qk, heads + kv_heads);
    const TensorView d_projected = split_heads(columns(d_qkv, 0, q_ + kv_), heads + kv_heads);
    rope_backward(ctx_, {c_.qk_norm ? d_rotated : d_projected, d_rotated, model_.cos(),
                         model_.sin(), batch_.positions});
    if (c_.qk_norm) {
      node("qk_norm backward");
      head_norm(dq, columns(d_qkv, 0, q_), columns(qkv, 0, q_), heads, w().q_norm,
                first(a.q_norm_q), grads_.heads(layer_).q_norm);
      head_norm(dk, columns(d_qkv, q_, q_ + kv_), columns(qkv, q_, q_ + kv_), kv_heads, w().k_norm,
                first(a.k_norm_q), grads_.heads(layer_).k_norm);
    }

    node("qkv_proj backward");
    weight_gradient(dw().qkv_proj, chain().qkv_proj, dw().qkv_bias, d_qkv, first(a.input_norm));
    input_gradient(d_norm, d_qkv, w().qkv_proj, packed().qkv_proj, {q_, kv_, kv_}, true);
    node("input_layernorm backward");
    stream_norm(d_norm, first(a.x), w().input_layernorm, first(a.input_q), dw().input_layernorm);
  }

  // A QK-norm: its weight gradient and its input gradient.
  void head_norm(const TensorView& dy, const TensorView& d_x, const ConstTensorView& x,
                 std::int64_t heads, const Tensor& weight, const ConstTensorView& q,
                 Tensor& d_weight) {
    const ConstTensorView x_heads = split_heads(x, heads);
    rms_norm_backward_weight(ctx_, {d_weight, dy, x_heads, q, batch_.cu_seqlens});
    rms_norm_backward(ctx_, {split_heads(d_x, heads), dy, x_heads, weight, q});
  }

  // A norm of the stream: its weight gradient, its input gradient, and the residual's sum.
  void stream_norm(const TensorView& d_norm, const ConstTensorView& x, const Tensor& weight,
                   const ConstTensorView& q, Tensor& d_weight) {
    const TensorView dy = split_heads(d_norm, 1);
    const ConstTensorView x3 = split_heads(x, 1);
    rms_norm_backward_weight(
        ctx_, {view(d_weight.data<float>(), {1, d_weight.size()}), dy, x3, q, batch_.cu_seqlens});
    rms_norm_backward(ctx_, {dy, dy, x3, weight, q});
    const TensorView d_stream = first(b_.d_stream);
    residual_add(ctx_, {d_stream, d_stream, d_norm});
  }

  void weight_gradient(Tensor& dw, Tensor& chain, Tensor& d_bias, const ConstTensorView& dy,
                       const ConstTensorView& x) {
    gemm_backward_weight(ctx_, {dw, chain, dy, x, grads_.group_ends(), batch_.cu_seqlens});
    if (!d_bias.empty()) bias_backward(ctx_, {d_bias, dy, batch_.cu_seqlens});
  }

  void input_gradient(const TensorView& dx, const ConstTensorView& dy, const Tensor& weight,
                      const Model::Packed& packed, std::array<std::int64_t, 3> segments,
                      bool leaf_tree) {
    GemmArgs args;
    args.c = dx;
    args.a = dy;
    args.b = transposed(weight.view());
    args.packed_b = &packed.backward;
    args.leaf_tree = leaf_tree;
    args.segments = segments;
    gemm(ctx_, args);
  }

  Context& ctx_;
  const Model& model_;
  const ForwardBatch& batch_;
  Activations& acts_;
  BackwardBuffers& b_;
  GradientAccumulator& grads_;
  const ModelConfig& c_;
  std::int64_t n_;
  std::int64_t q_;
  std::int64_t kv_;
  int layer_ = 0;
};

}  // namespace

GradientAccumulator::GradientAccumulator(const ModelConfig& config, std::int64_t vocab_padded,
                                         Memory& memory, Memory& small_memory)
    : config_(config),
      dw_(make_parameters(config, vocab_padded, DType::kF32, true, memory)),
      chain_(make_parameters(config, vocab_padded, DType::kF32, true, memory)),
      group_ends_(small_memory) {
  // Only products have chains. The embedding's gradient is a left fold, vectors are token sums.
  for (const ParameterRef& p : list(chain_)) {
    if (!p.decay || p.tensor == &chain_.embed_tokens) *p.tensor = Tensor();
  }
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    HeadPartials& h = heads_.emplace_back();
    if (!config.qk_norm) continue;
    h.q_norm = Tensor(DType::kF32, {config.num_attention_heads, config.head_dim}, memory);
    h.k_norm = Tensor(DType::kF32, {config.num_key_value_heads, config.head_dim}, memory);
  }
}

void GradientAccumulator::reset() {
  for (Parameters* p : {&dw_, &chain_}) {
    for (const ParameterRef& ref : list(*p)) ref.tensor->fill_zero();
  }
  for (HeadPartials& h : heads_) {
    h.q_norm.fill_zero();
    h.k_norm.fill_zero();
  }
  open_tokens_ = 0;
}

void GradientAccumulator::begin_micro_batch(const ConstTensorView& cu_seqlens,
                                            std::int64_t grad_group) {
  group_ends_.clear();
  for (std::int64_t s = 0; s + 1 < cu_seqlens.shape(0); ++s) {
    const std::int64_t begin = *cu_seqlens.at<std::int32_t>(s);
    const std::int64_t end = *cu_seqlens.at<std::int32_t>(s + 1);
    open_tokens_ += (end - begin + 15) / 16 * 16;
    if (open_tokens_ < grad_group) continue;
    group_ends_.push_back(end);
    open_tokens_ = 0;
  }
}

void GradientAccumulator::finish(Context& ctx, Parameters& gradient) {
  ctx.set_node(-1, "end of the groups");
  const std::vector<ParameterRef> sums = list(dw_), open = list(chain_), out = list(gradient);
  RLK_ASSERT(sums.size() == out.size());
  for (std::size_t i = 0, c = 0; i < sums.size(); ++i) {
    Tensor& sum = *sums[i].tensor;
    // Running sums are never -0, so no + (+0) is needed where no chain is added.
    if (c < open.size() && open[c].name == sums[i].name) {
      const TensorView to = as_row(sum);
      residual_add(ctx, {to, to, as_row(*open[c++].tensor)});
    }
    std::swap(sum, *out[i].tensor);
  }
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    if (!config_.qk_norm) break;
    ctx.set_node(static_cast<int>(i), "qk_norm backward");
    merge_heads(ctx, {gradient.layers[i].q_norm, heads_[i].q_norm});
    merge_heads(ctx, {gradient.layers[i].k_norm, heads_[i].k_norm});
  }
}

void BackwardBuffers::reserve(std::int64_t num_tokens) {
  if (num_tokens <= capacity_) return;
  const std::int64_t n = std::max(num_tokens, capacity_ + capacity_ / 4);
  const ModelConfig& c = config_;
  const std::int64_t q = c.num_attention_heads * c.head_dim,
                     kv = c.num_key_value_heads * c.head_dim;
  const auto bf = [&](std::int64_t width) { return Tensor(DType::kBF16, {n, width}, memory_); };
  d_stream = bf(c.hidden_size);
  d_norm = bf(c.hidden_size);
  d_qkv = bf(q + 2 * kv);
  d_qk = bf(q + kv);
  d_attention = bf(q);
  d_gate_up = bf(2 * c.intermediate_size);
  d_act = bf(c.intermediate_size);
  capacity_ = n;
}

void backward(Context& ctx, const Model& model, const ForwardBatch& batch, Activations& activations,
              const ConstTensorView& d_hidden, BackwardBuffers& buffers,
              GradientAccumulator& grads) {
  RLK_ASSERT(activations.keep_for_backward() && !batch.block_table);
  const std::int64_t n = batch.token_ids.shape(0);
  buffers.reserve(n);
  const int num_layers = static_cast<int>(model.config().num_hidden_layers);

  // The stream behind the last layer feeds the final norm alone, so its gradient is the norm's.
  ctx.set_node(-1, "norm backward");
  const TensorView d_stream = rows(buffers.d_stream.view(), 0, n);
  const ConstTensorView x = split_heads(ConstTensorView(rows(activations.x_out.view(), 0, n)), 1);
  const ConstTensorView q = rows(activations.final_q.view(), 0, n);
  Tensor& d_norm = grads.dw().norm;
  rms_norm_backward_weight(ctx, {view(d_norm.data<float>(), {1, d_norm.size()}),
                                 split_heads(d_hidden, 1), x, q, batch.cu_seqlens});
  rms_norm_backward(
      ctx, {split_heads(d_stream, 1), split_heads(d_hidden, 1), x, model.parameters().norm, q});

  LayerBackward layer(ctx, model, batch, activations, buffers, grads);
  for (int i = num_layers - 1; i >= 0; --i) layer.run(i);

  ctx.set_node(-1, "embed_tokens backward");
  embedding_backward(ctx, {rows(grads.dw().embed_tokens.view(), 0, model.config().vocab_size),
                           d_stream, batch.token_ids});
}

}  // namespace rlk
