#!/usr/bin/env python3
"""Writes train.jsonl and heldout.jsonl of examples/demo: digit strings to copy, reverse or sort.

    tools/gen_demo_data.py --out examples/demo

No held-out prompt is a training prompt. The same arguments give the same bytes.
"""
import argparse
import json
import pathlib
import random

TASKS = {
    "copy": lambda digits: digits,
    "reverse": lambda digits: digits[::-1],
    "sort": lambda digits: "".join(sorted(digits)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--task", choices=TASKS, default="copy")
    parser.add_argument("--digits", type=int, default=4, help="length of each string")
    parser.add_argument("--train", type=int, default=2000, help="number of training prompts")
    parser.add_argument("--heldout", type=int, default=200, help="number of held-out prompts")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    total = args.train + args.heldout
    if args.digits < 1 or args.train < 1 or args.heldout < 0 or total > 10**args.digits:
        parser.error(f"{total} different strings of {args.digits} digits do not exist")
    rng = random.Random(args.seed)
    strings = [str(n).zfill(args.digits) for n in rng.sample(range(10**args.digits), total)]

    args.out.mkdir(parents=True, exist_ok=True)
    parts = {"train.jsonl": strings[: args.train], "heldout.jsonl": strings[args.train :]}
    for name, digit_strings in parts.items():
        with open(args.out / name, "w", encoding="ascii", newline="\n") as file:
            for digits in digit_strings:
                line = {"prompt": digits + "=", "answer": TASKS[args.task](digits)}
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
