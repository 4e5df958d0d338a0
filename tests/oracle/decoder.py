"""A dense decoder in float64, written from the published definitions of Qwen3, Qwen2 and Llama.

It favours plain formulas over speed, processes the packed batch with one explicit mask, and leaves
every gradient to autograd. The `rounding` argument says what happens to values between operators:
`Exact` leaves them alone; `Bf16Emulation` rounds them where the numerical contract rounds, which
shows how far BF16 activations may take a correct engine away from the exact result.
"""

import math

import numpy as np
import torch

from cases import head_dim


class Exact:
    """No rounding: float64 throughout."""

    def tensor(self, x):
        return x

    def gradient(self, x):
        return x

    def attention(self, q, k, v, visible):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1) @ v


def _bf16(x):
    return x.to(torch.float32).to(torch.bfloat16).to(x.dtype)


class _RoundBoth(torch.autograd.Function):
    """Rounds the value on the way forward and its gradient on the way back."""

    @staticmethod
    def forward(ctx, x, round_to_bf16):
        ctx.round_to_bf16 = round_to_bf16
        return round_to_bf16(x)

    @staticmethod
    def backward(ctx, dy):
        return ctx.round_to_bf16(dy), None


class _RoundGradient(torch.autograd.Function):
    """Leaves the value alone and rounds its gradient."""

    @staticmethod
    def forward(ctx, x, round_to_bf16):
        ctx.round_to_bf16 = round_to_bf16
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return ctx.round_to_bf16(dy), None


class _Bf16Attention(torch.autograd.Function):
    """Attention with BF16 probabilities in both products and BF16 score gradients."""

    @staticmethod
    def forward(ctx, q, k, v, visible, round_to_bf16):
        ctx.round_to_bf16 = round_to_bf16
        scale = 1.0 / math.sqrt(q.shape[-1])
        scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~visible, -math.inf)
        e = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
        total = e.sum(-1, keepdim=True)
        y = round_to_bf16(e) @ v / total
        ctx.save_for_backward(q, k, v, e / total, _bf16(y))
        return y

    @staticmethod
    def backward(ctx, dy):
        q, k, v, p, y = ctx.saved_tensors
        scale = 1.0 / math.sqrt(q.shape[-1])
        dp = dy @ v.transpose(-1, -2)
        ds = ctx.round_to_bf16(p * (dp - (dy * y).sum(-1, keepdim=True)))
        dv = ctx.round_to_bf16(p).transpose(-1, -2) @ dy
        return scale * (ds @ k), scale * (ds.transpose(-1, -2) @ q), dv, None, None


class Bf16Emulation:
    """Rounds to BF16 at the contract's rounding points; sums stay in float64.

    Before every rounding the value is changed by a random 2^-21 or so, the size of the float32
    errors that another order of summation makes. Some values then round the other way, so a few
    seeds show how far correct engines may spread.
    """

    def __init__(self, seed):
        self._random = np.random.RandomState(seed)

    def _round(self, x):
        noise = self._random.standard_normal(x.shape) * 2.0 ** -21
        return _bf16(x * (1.0 + torch.from_numpy(noise)))

    def tensor(self, x):
        return _RoundBoth.apply(x, self._round)

    def gradient(self, x):
        return _RoundGradient.apply(x, self._round)

    def attention(self, q, k, v, visible):
        return _Bf16Attention.apply(q, k, v, visible, self._round)


def _rms_norm(x, weight, eps, rounding):
    x = rounding.gradient(x)
    return rounding.tensor(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight)


def _linear(x, weights, name, rounding):
    y = x @ weights[name + ".weight"].T
    bias = weights.get(name + ".bias")
    return rounding.tensor(y if bias is None else y + bias)


def _rope(x, positions, theta, rounding):
    """Rotates pairs (i, i + d/2) of x [tokens, heads, d] by positions * theta^(-2i/d)."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.double()[:, None, None] * frequency
    x1, x2 = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return rounding.tensor(torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1))


def _self_attention(x, weights, name, config, positions, visible, rounding):
    size = head_dim(config)
    query_heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    q = _linear(x, weights, name + "q_proj", rounding).reshape(-1, query_heads, size)
    k = _linear(x, weights, name + "k_proj", rounding).reshape(-1, kv_heads, size)
    v = _linear(x, weights, name + "v_proj", rounding).reshape(-1, kv_heads, size)
    if name + "q_norm.weight" in weights:
        q = _rms_norm(q, weights[name + "q_norm.weight"], config["rms_norm_eps"], rounding)
        k = _rms_norm(k, weights[name + "k_norm.weight"], config["rms_norm_eps"], rounding)
    q = _rope(q, positions, config["rope_theta"], rounding)
    k = _rope(k, positions, config["rope_theta"], rounding)
    group = query_heads // kv_heads  # query head h reads KV head h // group
    k, v = (t.repeat_interleave(group, dim=1).transpose(0, 1) for t in (k, v))
    y = rounding.attention(q.transpose(0, 1), k, v, visible)
    y = rounding.tensor(y.transpose(0, 1).reshape(-1, query_heads * size))
    return _linear(y, weights, name + "o_proj", rounding)


def _mlp(x, weights, name, rounding):
    gate = _linear(x, weights, name + "gate_proj", rounding)
    up = _linear(x, weights, name + "up_proj", rounding)
    return _linear(rounding.tensor(gate * torch.sigmoid(gate) * up), weights, name + "down_proj",
                   rounding)


def forward(config, weights, tokens, cu_seqlens, rounding):
    """Runs the decoder over a packed batch.

    weights: {Hugging Face name: float64 tensor}; tokens [T]; cu_seqlens [sequences + 1].
    Returns {"hidden.0": embeddings, "hidden.<i>": residual stream after i layers,
    "final_norm": ..., "logits": [T, vocab_size]}.
    """
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
    positions = torch.cat([torch.arange(n) for n in lengths])
    sequence = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    visible = (sequence[:, None] == sequence) & (positions[:, None] >= positions)
    eps = config["rms_norm_eps"]

    stream = rounding.tensor(weights["model.embed_tokens.weight"][tokens.long()])
    outputs = {"hidden.0": stream}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        x = _rms_norm(stream, weights[layer + "input_layernorm.weight"], eps, rounding)
        stream = rounding.tensor(stream + _self_attention(
            x, weights, layer + "self_attn.", config, positions, visible, rounding))
        x = _rms_norm(stream, weights[layer + "post_attention_layernorm.weight"], eps, rounding)
        stream = rounding.tensor(stream + _mlp(x, weights, layer + "mlp.", rounding))
        outputs[f"hidden.{i + 1}"] = stream
    final = _rms_norm(stream, weights["model.norm.weight"], eps, rounding)
    head = weights["model.embed_tokens.weight" if config["tie_word_embeddings"]
                   else "lm_head.weight"]
    outputs["final_norm"] = final
    outputs["logits"] = rounding.gradient(final @ head.T)
    return outputs
