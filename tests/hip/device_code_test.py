#!/usr/bin/env python3
"""Checks the code objects of a HIP build: all are there, whole, and found by the program.

    device_code_test.py --folder KERNELS --targets "gfx90a;gfx942" --objects LIST --host LIST
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from amdgpu_objects import Elf, name_of  # noqa: E402

MATRIX_TARGETS = {"gfx90a", "gfx942"}


def kernels_of(path):
    elf = Elf(Path(path).read_bytes())
    symbols = {name: index for name, index, *_ in elf.symbols() if name}
    undefined = [name for name, index in symbols.items() if index == 0]
    return {name.removesuffix(".kd") for name in symbols if name.endswith(".kd")}, undefined


def main():
    parser = argparse.ArgumentParser()
    for option in ("folder", "targets", "objects", "host"):
        parser.add_argument(f"--{option}", required=True)
    args = parser.parse_args()
    wanted = set(args.targets.split(";"))
    objects = Path(args.objects).read_text(encoding="utf-8").split()
    hosts = {name_of(p.removesuffix(".o")): Path(p).read_bytes()
             for p in Path(args.host).read_text(encoding="utf-8").split()}
    problems = []
    found = {}
    for path in objects:
        stem, target = path.removesuffix(".co").rsplit(".", 1)
        name = name_of(stem)
        found.setdefault(name, set()).add(target)
        kernels, undefined = kernels_of(path)
        problems += [f"{path}: undefined symbol {symbol}" for symbol in undefined]
        if not kernels:
            problems.append(f"{path}: no kernel")
        if name in hosts:
            # The name by which the host's part asks the runtime for a kernel.
            problems += [f"{path}: the program does not know {kernel}" for kernel in kernels
                         if b"\0" + kernel.encode() + b"\0" not in hosts[name]]
    for source in sorted(Path(args.folder).glob("*.cu")):
        if found.get(source.stem) != wanted:
            problems.append(f"{source.name}: compiled for {sorted(found.get(source.stem, []))}")
    for source in sorted(Path(args.folder).glob("cdna/*.cu")):
        if found.get(f"cdna/{source.stem}", set()) != MATRIX_TARGETS & wanted:
            problems.append(f"cdna/{source.name}: compiled for "
                            f"{sorted(found.get(f'cdna/{source.stem}', []))}")
    print("\n".join(problems))
    print(f"{len(objects)} code objects, {len(hosts)} host objects, {len(problems)} problems")
    return 1 if problems or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
