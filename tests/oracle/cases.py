"""The tiny models, token sequences and losses that the golden files are made of.

Everything is drawn from numpy's RandomState, whose streams are frozen, so the same inputs come out
on every machine. Weights are stored as BF16 and every computation starts from exactly those values.
"""

import zlib

import numpy as np
import torch

SEQUENCE_LENGTHS = (1, 17, 40)
PROMPT_LENGTHS = (1, 5, 9)
IGNORE_INDEX = -100

# The second loss also checks temperature and entropy; the first is the plain policy gradient.
LOSSES = {
    "policy": {"temperature": 1.0, "with_entropy": False},
    "policy_entropy": {"temperature": 0.8, "with_entropy": True},
}


def _config(model_type, architecture, **changes):
    config = {
        "architectures": [architecture],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "max_position_embeddings": 256,
        "model_type": model_type,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 48,
    }
    config.update(changes)
    return config


def _qwen_window(config):
    """Adds the sliding-window fields of real Qwen configs, switched off."""
    config.update({"max_window_layers": 2, "sliding_window": None, "use_sliding_window": False})
    return config


def configs():
    """Returns {case name: Hugging Face config}; together they cover every architectural switch."""
    qwen2 = _qwen_window(_config("qwen2", "Qwen2ForCausalLM", rope_theta=1000000.0,
                                 tie_word_embeddings=True))
    del qwen2["attention_bias"]  # Qwen2 has no such field: q, k and v always carry a bias
    return {
        # head_dim 32 differs from hidden_size / num_attention_heads = 16
        "qwen3": _qwen_window(_config("qwen3", "Qwen3ForCausalLM", head_dim=32,
                                      rope_theta=1000000.0, tie_word_embeddings=True)),
        "qwen3_untied": _qwen_window(_config("qwen3", "Qwen3ForCausalLM", head_dim=16,
                                             rope_theta=1000000.0)),
        "qwen2": qwen2,
        "llama": _config("llama", "LlamaForCausalLM", num_key_value_heads=4, rms_norm_eps=1e-5,
                         mlp_bias=False, pretraining_tp=1),
        "llama_bias": _config("llama", "LlamaForCausalLM", attention_bias=True, mlp_bias=False,
                              pretraining_tp=1, rope_theta=500000.0),
    }


def head_dim(config):
    """Size of one attention head; the field is optional in Qwen2 and Llama configs."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def biased_projections(config):
    """Names of the projections of a layer that have a bias, by the rules of each family."""
    if config["model_type"] == "qwen2":
        return {"q_proj", "k_proj", "v_proj"}
    return {"q_proj", "k_proj", "v_proj", "o_proj"} if config["attention_bias"] else set()


def _shapes(config):
    """Returns {parameter name: shape} in the Hugging Face naming."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    size = head_dim(config)
    q_size = config["num_attention_heads"] * size
    kv_size = config["num_key_value_heads"] * size
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden),
              "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        attention = {"q_proj": (q_size, hidden), "k_proj": (kv_size, hidden),
                     "v_proj": (kv_size, hidden), "o_proj": (hidden, q_size)}
        for name, shape in attention.items():
            shapes[f"{layer}self_attn.{name}.weight"] = shape
            if name in biased_projections(config):
                shapes[f"{layer}self_attn.{name}.bias"] = shape[:1]
        if config["model_type"] == "qwen3":
            shapes[layer + "self_attn.q_norm.weight"] = (size,)
            shapes[layer + "self_attn.k_norm.weight"] = (size,)
        shapes[layer + "mlp.gate_proj.weight"] = (inner, hidden)
        shapes[layer + "mlp.up_proj.weight"] = (inner, hidden)
        shapes[layer + "mlp.down_proj.weight"] = (hidden, inner)
        shapes[layer + "input_layernorm.weight"] = (hidden,)
        shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
    return shapes


def _random_state(*names):
    return np.random.RandomState(zlib.crc32("/".join(names).encode()))


def make_weights(case, config):
    """Draws BF16 weights: norm weights around 1, all others around 0, biases clearly not 0."""
    weights = {}
    for name, shape in _shapes(config).items():
        values = _random_state(case, name).standard_normal(shape)
        if "norm" in name:
            values = 1.0 + 0.2 * values
        elif name.endswith(".bias") or "embed" in name or "lm_head" in name:
            values = 0.2 * values
        else:
            values = 0.15 * values
        weights[name] = torch.from_numpy(np.asarray(values, np.float32)).to(torch.bfloat16)
    return weights


def make_batch(case, config):
    """Draws the packed batch and the loss weights of a case.

    Returns tensors: tokens, cu_seqlens, targets (the next token, or -100 where the sequence ends),
    loss_weights (0 for prompt tokens and for a fifth of the others, as masking does) and
    entropy_weights (0 where there is no target).
    """
    random = _random_state(case, "batch")
    tokens, targets, loss_weights, entropy_weights = [], [], [], []
    active_tokens = sum(SEQUENCE_LENGTHS) - sum(PROMPT_LENGTHS)
    for length, prompt in zip(SEQUENCE_LENGTHS, PROMPT_LENGTHS):
        sequence = random.randint(0, config["vocab_size"], length)
        tokens += list(sequence)
        targets += list(sequence[1:]) + [IGNORE_INDEX]
        advantage = random.standard_normal()
        ratio = random.uniform(0.8, 1.25, length)
        kept = random.uniform(size=length) > 0.2
        position = np.arange(length)
        active = (position >= prompt - 1) & (position < length - 1)
        loss_weights += list(np.where(active & kept, -advantage * ratio / active_tokens, 0.0))
        entropy = random.uniform(-0.5, 0.5, length) / active_tokens
        entropy_weights += list(np.where(active, entropy, 0.0))
    return {
        "tokens": torch.tensor(tokens, dtype=torch.int32),
        "cu_seqlens": torch.tensor(np.cumsum((0,) + SEQUENCE_LENGTHS), dtype=torch.int32),
        "targets": torch.tensor(targets, dtype=torch.int32),
        "loss_weights": torch.tensor(loss_weights, dtype=torch.float32),
        "entropy_weights": torch.tensor(entropy_weights, dtype=torch.float32),
    }


def score(logits, targets, temperature):
    """Log-probability of the target and entropy of every row, 0 where the target is ignored."""
    inverse = 1.0 / float(np.float32(temperature))
    log_softmax = torch.log_softmax(logits * inverse, dim=-1)
    has_target = targets != IGNORE_INDEX
    column = torch.where(has_target, targets, torch.zeros_like(targets)).long()
    logprobs = log_softmax.gather(1, column[:, None])[:, 0] * has_target
    entropy = -(log_softmax.exp() * log_softmax).sum(-1) * has_target
    return logprobs, entropy


def compute_loss(logits, batch, name):
    """Returns (loss, logprobs, entropy): loss = sum_t w_t logp_t [+ sum_t v_t H_t]."""
    logprobs, entropy = score(logits, batch["targets"], LOSSES[name]["temperature"])
    loss = (batch["loss_weights"].to(logits.dtype) * logprobs).sum()
    if LOSSES[name]["with_entropy"]:
        loss = loss + (batch["entropy_weights"].to(logits.dtype) * entropy).sum()
    return loss, logprobs, entropy
