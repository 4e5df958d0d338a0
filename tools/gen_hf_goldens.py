#!/usr/bin/env python3
"""Writes tests/goldens/hf: the oracle's models as Hugging Face transformers computes them.

Loads every folder of tests/goldens/oracle with AutoModelForCausalLM (eager attention), runs each
sequence on its own and compares logits and gradients with the oracle. The stored tensors are those
of the unmodified library in float32. Needs torch >= 2.6, transformers >= 5 (pip); not needed to
build or test. docs/correctness.md describes the files.
"""

import argparse
import contextlib
import json
import pathlib
import sys

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "oracle"))

import cases  # noqa: E402
import decoder  # noqa: E402
import tensor_file  # noqa: E402


class _Float64Torch:
    """Stands for the torch module inside a model file, with float32 meaning float64."""

    float32 = torch.float64
    float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def _float64_inside(model_type):
    """Removes the library's casts to float32 (norms, softmax, RoPE), so that float64 stays."""
    module = sys.modules[f"transformers.models.{model_type}.modeling_{model_type}"]
    saved = module.torch, torch.Tensor.float
    module.torch, torch.Tensor.float = _Float64Torch(), torch.Tensor.double
    try:
        yield
    finally:
        module.torch, torch.Tensor.float = saved


def evaluate(folder, batch, dtype):
    """Returns logits and gradients of both losses by golden name, computed by transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager")
    bounds = batch["cu_seqlens"].tolist()
    logits = torch.cat([model(input_ids=batch["tokens"][None, begin:end].long(),
                              use_cache=False).logits[0]
                        for begin, end in zip(bounds[:-1], bounds[1:])])
    if dtype == torch.bfloat16:
        logits = logits.float()
    results = {"logits": logits.detach()}
    names, parameters = zip(*model.named_parameters())
    for loss in cases.LOSSES:
        value, logprobs, entropy = cases.compute_loss(logits, batch, loss)
        gradients = torch.autograd.grad(value, parameters, retain_graph=True)
        prefix = "" if loss == "policy" else loss + "."
        results[prefix + "logprobs"] = logprobs.detach()
        results[prefix + "entropy"] = entropy.detach()
        results.update({f"{loss}.grad.{name}": g for name, g in zip(names, gradients)})
    return results


def oracle(folder, batch):
    """The oracle's results in full float64 (the golden files hold them rounded to float32)."""
    config = json.loads((folder / "config.json").read_text())
    weights = {name: w.double().requires_grad_(True) for name, w in
               tensor_file.read_tensors(folder / "model.safetensors").items()}
    logits = decoder.forward(config, weights, batch["tokens"], batch["cu_seqlens"],
                             decoder.Exact())["logits"]
    results = {"logits": logits.detach()}
    for loss in cases.LOSSES:
        value = cases.compute_loss(logits, batch, loss)[0]
        gradients = torch.autograd.grad(value, list(weights.values()), retain_graph=True)
        results.update({f"{loss}.grad.{name}": g for name, g in zip(weights, gradients)})
    return results


def largest_relative(results, expected):
    """Largest relative Frobenius difference: {"logits": .., "gradients": ..}."""
    relative = {name: ((results[name].double() - value).norm() / value.norm()).item()
                for name, value in expected.items()}
    return {"logits": float(f"{relative.pop('logits'):.3g}"),
            "gradients": float(f"{max(relative.values()):.3g}")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "tests/goldens/oracle",
                        help="folder with the models and oracle goldens (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/goldens/hf",
                        help="folder of the goldens (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    args.out.mkdir(parents=True, exist_ok=True)
    report = {"torch": torch.__version__, "transformers": transformers.__version__, "cases": {}}
    ok = True
    for case, config in cases.configs().items():
        folder = args.models / case
        golden = tensor_file.read_tensors(folder / "golden.safetensors")
        batch = {name: golden[name] for name in cases.make_batch(case, config)}
        expected = oracle(folder, batch)
        plain = evaluate(folder, batch, torch.float32)
        with _float64_inside(config["model_type"]):
            double = evaluate(folder, batch, torch.float64)
        figures = {"float32": largest_relative(plain, expected),
                   "float64": largest_relative(double, expected),
                   "bfloat16": largest_relative(evaluate(folder, batch, torch.bfloat16), expected)}
        ok &= max(figures["float32"].values()) < 1e-5 and max(figures["float64"].values()) < 1e-10
        report["cases"][case] = figures
        print(case, figures)
        tensor_file.write_tensors(args.out / f"{case}.safetensors", {
            name: value.float() for name, value in plain.items()
            if not name.startswith("policy_entropy.grad.")})
    (args.out / "report.json").write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
