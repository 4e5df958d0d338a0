#!/usr/bin/env python3
"""Checks that the GPU code computes what its source says.

    check_ptx.py FILE.ptx...

Every float operation must name its rounding (`mul.rn.f32`): the assembler may fuse a bare `mul.f32`
with an addition, but never one with `.rn`. No approximate operation, no flushing of subnormals, no
atomic operation on floats. The kernels residual_add of f32 have no product at all, so an `fma` in
one would be one that nobody wrote.
"""
import re
import sys
from pathlib import Path

RULES = [
    ("no rounding is named",
     re.compile(r"^(?:add|sub|mul|div|fma|sqrt|rcp)\.(?!(?:\S*\.)?rn\.)\S*f(?:16|32|64)\b")),
    ("mad rounds as the chip likes", re.compile(r"^mad\.\S*f(?:16|32|64)\b")),
    ("approximate", re.compile(r"^(?:rsqrt|ex2|lg2|sin|cos|tanh)\.|\.approx\b|^div\.full\b")),
    ("flushes subnormals", re.compile(r"\.ftz\b")),
    ("adds floats in no order", re.compile(r"^(?:red|atom)\.\S*f(?:16|16x2|32|64)\b")),
]

NO_PRODUCT = "residual_add_kernelIf"  # in the name of a kernel
UNWRITTEN = [("an fma that nobody wrote", re.compile(r"^fma\."))]


def instructions(text):
    """Line number, kernel and opcode of each."""
    kernel = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("//", 1)[0].strip()
        entry = re.search(r"\.entry\s+(\w+)", line)
        if entry:
            kernel = entry.group(1)
        line = re.sub(r"^@!?%\w+\s+", "", line)  # a predicate
        if line and not line.startswith((".", "{", "}", "$")):
            yield number, kernel, line.split()[0].rstrip(";")


def main():
    found = checked = 0
    for name in sys.argv[1:]:
        for number, kernel, instruction in instructions(Path(name).read_text(encoding="utf-8")):
            checked += 1
            for what, pattern in RULES + (UNWRITTEN if NO_PRODUCT in kernel else []):
                if pattern.search(instruction):
                    print(f"{name}:{number}: {instruction}: {what}")
                    found += 1
    print(f"{len(sys.argv) - 1} files, {checked} instructions, {found} violations")
    return 1 if found or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
