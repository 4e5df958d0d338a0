"""Float64 goldens of the scalar parts: policy loss with KL, AdamW with clipping, advantages.

Inputs are exact float32 values. Every bound is the input's size times 2^-20 (16 float32 roundings),
except for advantages, which are computed in float64 and rounded to float32 once.
"""

import numpy as np
import torch

_BOUND = 2.0 ** -20


def _f32(values):
    return np.asarray(values, np.float32).astype(np.float64)


def _loss_samples():
    random = np.random.RandomState(20240)
    samples = []
    for length, advantage in ((7, 1.25), (12, -0.75), (1, 0.5), (9, 0.0), (5, -1.5), (4, 2.0)):
        logp = _f32(-random.exponential(1.5, length))
        old = _f32(logp + 0.3 * random.standard_normal(length))
        old[::4] = logp[::4]  # exactly on policy: ratio 1
        samples.append({
            "advantage": advantage,
            "logp": logp.tolist(),
            "old": old.tolist(),
            "ref": _f32(logp + 0.5 * random.standard_normal(length)).tolist(),
            "mask": (random.uniform(size=length) > 0.3).astype(int).tolist(),
        })
    samples[2]["mask"] = [1]
    samples[4]["mask"] = [0] * 5  # a sample without active tokens does not count
    # Masked tokens whose exponentials overflow: they must not be looked at.
    samples[0]["mask"][2] = 0
    samples[0]["old"][2] = samples[0]["ref"][2] = -1000.0
    samples[1]["mask"][5] = 0
    samples[1]["logp"][5] = -3000.0
    return samples


def _token_weight(samples, averaging):
    active = [sum(sample["mask"]) for sample in samples]
    if averaging == "token":
        return [1.0 / sum(active)] * len(samples)
    counted = sum(n > 0 for n in active)
    return [1.0 / (counted * n) if n else 0.0 for n in active]


def _kl_term(kind, b):
    return {"k1": b, "k2": 0.5 * b * b, "k3": torch.exp(-b) - 1.0 + b}[kind]


def _loss_case(samples, kl, beta, averaging, ratio_low, ratio_high):
    result = {"kl": kl, "beta": beta, "averaging": averaging, "ratio_low": ratio_low,
              "ratio_high": ratio_high, "policy_term": [], "kl_term": [], "dloss_dlogp": [],
              "dloss_dlogp_bound": []}
    loss = 0.0
    for sample, weight in zip(samples, _token_weight(samples, averaging)):
        mask = torch.tensor(sample["mask"]).bool()
        logp, old, ref = (torch.tensor(sample[key], dtype=torch.float64)
                          for key in ("logp", "old", "ref"))
        logp.requires_grad_(True)
        advantage = sample["advantage"]
        ratio = torch.exp(logp[mask] - old[mask])
        policy = -torch.minimum(ratio * advantage,
                                ratio.clamp(ratio_low, ratio_high) * advantage)
        b = logp[mask] - ref[mask]
        kl_term = _kl_term(kl, b)
        sample_loss = weight * (policy + beta * kl_term).sum()
        if mask.any():
            sample_loss.backward()
        loss += sample_loss.item()
        size = weight * (abs(advantage) * ratio + beta * (1.0 + b.abs() + torch.exp(-b)))
        gradient = logp.grad if logp.grad is not None else torch.zeros_like(logp)
        result["dloss_dlogp"].append(gradient.tolist())
        for key, values in (("policy_term", policy), ("kl_term", kl_term),
                            ("dloss_dlogp_bound", _BOUND * size)):
            full = torch.zeros_like(logp.detach())
            full[mask] = values.detach()
            result[key].append(full.tolist())
    result["loss"] = loss
    result["loss_bound"] = sum(sum(bounds) for bounds in result["dloss_dlogp_bound"])
    return result


def loss_goldens():
    """Policy loss sum_t w_t (policy_term + beta * kl_term) and its gradient by autograd."""
    samples = _loss_samples()
    cases = [_loss_case(samples, kl, beta, averaging, low, high)
             for kl, beta in (("k1", 0.05), ("k2", 0.1), ("k3", 0.04), ("k3", 0.0))
             for averaging in ("token", "sample")
             for low, high in ((0.8, 1.2), (0.8, 1.28))]
    return {"samples": samples, "cases": cases}


def _adamw_case(weight_decay, betas, lr, steps=5):
    random = np.random.RandomState(7)
    start = _f32(random.standard_normal(16))
    gradients = _f32(random.standard_normal((steps, 16)) * 10.0 ** random.uniform(-3, 1, 16))
    gradients[:, 0] = 0.0
    gradients[:, 1] = _f32(1e-12)  # far below eps: eps must be added outside the root
    weight = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=lr, betas=betas, eps=1e-8,
                                  weight_decay=weight_decay)
    expected = []
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        state = optimizer.state[weight]
        expected.append({"w": weight.tolist(), "m": state["exp_avg"].tolist(),
                         "v": state["exp_avg_sq"].tolist()})
    size = np.abs(gradients).max(axis=0)
    return {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": 1e-8,
            "weight_decay": weight_decay, "w": start.tolist(), "gradients": gradients.tolist(),
            "steps": expected, "w_bound": (_BOUND * (np.abs(start) + 10 * lr)).tolist(),
            "m_bound": (_BOUND * size).tolist(), "v_bound": (_BOUND * size * size).tolist()}


def _clip_case(max_norm):
    random = np.random.RandomState(11)
    tensors = [_f32(scale * random.standard_normal(n)) for n, scale in ((5, 1e-6), (33, 0.5),
                                                                        (17, 20.0))]
    parameters = [torch.zeros(len(t), dtype=torch.float64, requires_grad=True) for t in tensors]
    for parameter, tensor in zip(parameters, tensors):
        parameter.grad = torch.tensor(tensor)
    norm = float(np.sqrt(sum((tensor * tensor).sum() for tensor in tensors)))
    if norm > max_norm:
        for parameter in parameters:
            parameter.grad.mul_(max_norm / norm)
    return {"max_norm": max_norm, "gradients": [t.tolist() for t in tensors], "norm": norm,
            "clipped": [p.grad.tolist() for p in parameters], "relative_bound": _BOUND}


def adamw_goldens():
    """torch.optim.AdamW in float64 (decoupled decay) and clipping by the global norm."""
    return {"adamw": [_adamw_case(0.1, (0.9, 0.95), 1e-2), _adamw_case(0.01, (0.9, 0.999), 1e-3),
                      _adamw_case(0.0, (0.9, 0.999), 1e-3)],
            "clip": [_clip_case(1.0), _clip_case(1000.0)]}


def advantage_goldens():
    """Group advantages (R - mean) / (std + eps), 0 where all rewards of the group are equal."""
    groups = [[1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0], [0.25, -3.5, 10.0, 0.1],
              [1.0, 1.0, 1.0, 1.0], [0.0, 0.0], [0.1, 0.1, 0.1], [2.0], [-1.0, 1.0],
              [1000.0, 1000.5, 999.25]]
    groups = [_f32(group).tolist() for group in groups]
    cases = []
    for ddof in (0, 1):
        for eps in (1e-4, 1e-6):
            advantages = []
            for rewards in groups:
                values = np.asarray(rewards)
                equal = bool((values == values[0]).all())
                result = np.zeros_like(values) if equal else (
                    (values - values.mean()) / (values.std(ddof=ddof) + eps))
                advantages.append(result.tolist())
            cases.append({"ddof": ddof, "eps": eps, "advantages": advantages})
    return {"rewards": groups, "cases": cases, "relative_bound": 2.0 ** -23}
