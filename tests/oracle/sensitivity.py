"""Shows that the bounds catch real mistakes.

Each mistake changes the inputs of the exact float64 decoder the way a faulty engine would compute.
If the result still lay within the bounds, the comparison would be worthless.
"""

import torch

import cases
import decoder

_EXACT = decoder.Exact()


def _regroup_heads(config, weights):
    """Query head h reads KV head h mod Hk instead of h div group."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    order = torch.arange(heads).reshape(kv_heads, heads // kv_heads).T.reshape(-1)
    size = cases.head_dim(config)
    rows = (order[:, None] * size + torch.arange(size)).reshape(-1)
    for name in list(weights):
        if ".q_proj." in name:
            weights[name] = weights[name][rows]
        elif ".o_proj.weight" in name:
            weights[name] = weights[name][:, rows]


def _swap_gate_and_up(_, weights):
    for name in list(weights):
        if "gate_proj" in name:
            up = name.replace("gate_proj", "up_proj")
            weights[name], weights[up] = weights[up], weights[name]


def _fill(fragment, value):
    def change(_, weights):
        for name in weights:
            if fragment in name:
                weights[name] = torch.full_like(weights[name], value)
    return change


def _mistakes(config):
    """Returns {name: function(config, weights) that changes its arguments}."""
    mistakes = {
        "rope_theta is ten times too large": lambda c, _: c.update(
            rope_theta=10.0 * c["rope_theta"]),
        "gate and up swapped": _swap_gate_and_up,
        "input norm weights left out": _fill("input_layernorm", 1.0),
        "final norm weight left out": _fill("model.norm", 1.0),
        "norm eps is 1e-2": lambda c, _: c.update(rms_norm_eps=1e-2),
    }
    if config["num_attention_heads"] != config["num_key_value_heads"]:
        mistakes["query heads read the wrong KV head"] = _regroup_heads
    if config["model_type"] == "qwen3":
        mistakes["q norm weights left out"] = _fill("q_norm", 1.0)
        mistakes["k norm weights left out"] = _fill("k_norm", 1.0)
    for projection in sorted(cases.biased_projections(config)):
        mistakes[projection + " bias left out"] = _fill(projection + ".bias", 0.0)
    return mistakes


def _evaluate(config, weights, batch, cu_seqlens, loss, change_logits=lambda logits: logits):
    weights = {name: w.clone().requires_grad_(True) for name, w in weights.items()}
    logits = decoder.forward(config, weights, batch["tokens"], cu_seqlens, _EXACT)["logits"]
    value, logprobs, _ = cases.compute_loss(change_logits(logits), batch, loss)
    value.backward()
    result = {"logits": logits, "logprobs": logprobs}
    result.update({f"{loss}.grad.{name}": w.grad for name, w in weights.items()})
    return result


def _only_gradients(result):
    return {name: value for name, value in result.items() if ".grad." in name}


def _excess(result, golden, bounds):
    """Largest ratio of deviation to bound: (over logits and logprobs, over gradients)."""
    forward, gradients = 0.0, 0.0
    for name, value in result.items():
        difference = value.detach() - golden[name]
        relative = difference.norm() / golden[name].norm()
        excess = relative.item() / bounds["relative_frobenius"][name]["bound"]
        if ".grad." in name:
            gradients = max(gradients, excess)
        else:
            largest = difference.abs().max().item() / bounds["max_abs"][name]["bound"]
            forward = max(forward, excess, largest)
    return forward, gradients


def report(case, config, weights, batch, golden, bounds):
    """Returns lines `case, mistake, forward excess, gradient excess`; below 1 means not caught."""
    lines = []
    weights = {name: w.double() for name, w in weights.items()}

    def add(name, result):
        lines.append((case, name) + _excess(result, golden, bounds))

    for name, change in _mistakes(config).items():
        changed_config, changed_weights = dict(config), dict(weights)
        change(changed_config, changed_weights)
        add(name, _evaluate(changed_config, changed_weights, batch, batch["cu_seqlens"],
                            "policy"))
    merged = batch["cu_seqlens"][[0, -1]]
    add("sequences see each other", _evaluate(config, weights, batch, merged, "policy"))
    no_entropy = dict(batch, entropy_weights=torch.zeros_like(batch["entropy_weights"]))
    result = _evaluate(config, weights, no_entropy, batch["cu_seqlens"], "policy_entropy")
    add("entropy gradient left out", _only_gradients(result))
    # z * T has the gradient (1/T) dz * T: the inverse temperature missing on the way back only.
    temperature = cases.LOSSES["policy_entropy"]["temperature"]
    result = _evaluate(config, weights, batch, batch["cu_seqlens"], "policy_entropy",
                       lambda z: z * temperature + (z * (1 - temperature)).detach())
    add("temperature missing in backward", _only_gradients(result))
    return lines
