#!/usr/bin/env python3
"""Writes tests/goldens/oracle: tiny models, exact float64 results, and the bounds tests use.

Needs Python 3 with numpy and torch (Debian: python3-torch). Running it again gives the same files;
`--check` writes nothing and fails if a file would change by more than rounding of the last place.
docs/correctness.md describes the files.
"""

import argparse
import json
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "oracle"))

import cases  # noqa: E402
import decoder  # noqa: E402
import scalar_goldens  # noqa: E402
import sensitivity  # noqa: E402
import tensor_file  # noqa: E402

# The bound is this many times the largest deviation that BF16 rounding alone caused in that many
# runs of the emulation.
BOUND_FACTOR = 2.0
EMULATION_RUNS = 16


def evaluate(config, weights, batch, rounding):
    """Returns every output and gradient of a case as float64 tensors, by golden name."""
    weights = {name: w.double().requires_grad_(True) for name, w in weights.items()}
    outputs = decoder.forward(config, weights, batch["tokens"], batch["cu_seqlens"], rounding)
    results = {name: value.detach() for name, value in outputs.items()}
    for loss in cases.LOSSES:
        value, logprobs, entropy = cases.compute_loss(outputs["logits"], batch, loss)
        gradients = torch.autograd.grad(value, list(weights.values()), retain_graph=True)
        # The plain loss has temperature 1, so its scores are the model's own.
        prefix = "" if loss == "policy" else loss + "."
        results[prefix + "logprobs"] = logprobs.detach()
        results[prefix + "entropy"] = entropy.detach()
        results[loss + ".loss"] = value.detach().reshape(1)
        results.update({f"{loss}.grad.{name}": gradient
                        for name, gradient in zip(weights, gradients)})
    return results


def deviations(exact, emulated):
    """Returns {(kind, name): deviation} of one result from the exact one."""
    result = {}
    for name in exact:
        difference = emulated[name] - exact[name]
        if ".grad." not in name:
            result["max_abs", name] = difference.abs().max().item()
        if not name.endswith(".loss"):
            result["relative_frobenius", name] = (difference.norm() / exact[name].norm()).item()
    return result


def measure(config, weights, batch, exact):
    """Runs the BF16 emulation and returns its largest deviations with the bounds they give."""
    runs = [deviations(exact, evaluate(config, weights, batch, decoder.Bf16Emulation(seed)))
            for seed in range(EMULATION_RUNS)]
    bounds = {"factor": BOUND_FACTOR, "runs": EMULATION_RUNS, "max_abs": {},
              "relative_frobenius": {}}
    for kind, name in runs[0]:
        largest = max(run[kind, name] for run in runs)
        bounds[kind][name] = {"measured": float(f"{largest:.4g}"),
                              "bound": float(f"{BOUND_FACTOR * largest:.4g}")}
    return bounds


def build(case, config):
    """Returns (weights, batch, exact results, bounds) of one case."""
    weights = cases.make_weights(case, config)
    batch = cases.make_batch(case, config)
    exact = evaluate(config, weights, batch, decoder.Exact())
    bounds = measure(config, weights, batch, exact)
    return weights, batch, exact, bounds


def _write_json(path, value):
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def write_case(folder, case, config):
    """Writes config.json, model.safetensors, golden.safetensors and bounds.json of one case."""
    weights, batch, exact, bounds = build(case, config)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    _write_json(folder / "bounds.json", bounds)
    tensor_file.write_tensors(folder / "model.safetensors", weights)
    golden = {name: value.float() for name, value in exact.items()}
    temperature = cases.LOSSES["policy_entropy"]["temperature"]
    golden["policy_entropy.temperature"] = torch.tensor([temperature])
    golden.update(batch)
    tensor_file.write_tensors(folder / "golden.safetensors", golden)
    largest, relative = bounds["max_abs"], bounds["relative_frobenius"]
    gradients = [value["measured"] for name, value in relative.items() if ".grad." in name]
    print(f"{case} | {largest['logits']['measured']:.3f} | {largest['logprobs']['measured']:.3f} | "
          f"{relative['logits']['measured']:.4f} | {relative['logprobs']['measured']:.4f} | "
          f"{min(gradients):.4f} to {max(gradients):.4f}")


def check_case(folder, case, config):
    """Compares the stored files of one case with fresh results; returns the worst differences."""
    weights, batch, exact, _ = build(case, config)
    stored = tensor_file.read_tensors(folder / "model.safetensors")
    golden = tensor_file.read_tensors(folder / "golden.safetensors")
    same = (json.loads((folder / "config.json").read_text()) == config
            and stored.keys() == weights.keys()
            and all(torch.equal(stored[name], weights[name]) for name in weights)
            and all(torch.equal(golden[name], batch[name]) for name in batch))
    worst = max(((golden[name].double() - value).norm() / value.norm().clamp_min(1e-30)).item()
                for name, value in exact.items())
    ok = same and worst < 1e-6
    print(f"{case:13s} inputs {'same' if same else 'DIFFER'}, results within {worst:.2g} relative")
    return ok


def print_sensitivity():
    """Prints by how many bounds each mistake is caught; returns whether all are."""
    caught = True
    print("case | mistake | forward, in bounds | gradients, in bounds")
    for case, config in cases.configs().items():
        weights, batch, exact, bounds = build(case, config)
        for line in sensitivity.report(case, config, weights, batch, exact, bounds):
            print("{} | {} | {:.1f} | {:.1f}".format(*line))
            caught &= max(line[2:]) > 1.0
    return caught


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/goldens/oracle",
                        help="folder of the goldens (default: %(default)s)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="compare with the stored files only")
    mode.add_argument("--sensitivity", action="store_true",
                      help="print which mistakes the bounds catch; writes nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)  # sums in a fixed order
    if args.sensitivity:
        return 0 if print_sensitivity() else 1
    if args.check:
        results = [check_case(args.out / case, case, config)
                   for case, config in cases.configs().items()]
        return 0 if all(results) else 1
    print("case | logits max_abs | logprobs max_abs | logits relative | logprobs relative | "
          "gradients relative")
    for case, config in cases.configs().items():
        write_case(args.out / case, case, config)
    _write_json(args.out / "policy_loss.json", scalar_goldens.loss_goldens())
    _write_json(args.out / "adamw.json", scalar_goldens.adamw_goldens())
    _write_json(args.out / "group_advantages.json", scalar_goldens.advantage_goldens())
    return 0


if __name__ == "__main__":
    sys.exit(main())
