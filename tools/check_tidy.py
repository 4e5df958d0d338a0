#!/usr/bin/env python3
"""Checks the rules of the code base that no compiler checks.

    check_tidy.py [ROOT]

Prints `file:line: [rule] what is wrong` for every violation; exit code 1 if there is one.

    layer      a layer includes or links only layers before it; rollout and trainer never each other
    kernels    rlk/kernels/{reference,cpu,gpu,production}/ stay inside rlk/kernels; of rlk/kernels, layers
               above ops see the argument structs only
    gpu        CUDA and HIP headers and launches only in rlk/device and rlk/kernels/gpu; the kernels there
               use only the names of gpu.h
    isa        files compiled for one instruction set include no baseline code and no library
    fast-math  no flag or pragma that lets the compiler change a result
    libm       no exp, log, sin, pow, ... of the C library where a number can reach a result
    order      no float atomics and no std::reduce: neither has an order
    heavy      json.hpp, CLI11 and spdlog only in .cc files
    pragma     headers start with #pragma once (instruction-set bodies are included several times)
    format     no tabs, no C++ line beyond 100 columns
    path       no path of one machine
    word       no word that postpones work
    unlisted   every source is listed, once, in a CMakeLists.txt; nothing is globbed
"""
import argparse
import os
import re
import sys
from pathlib import Path

FOLDERS = [".ci", "cli", "cmake", "docs", "examples", "rlk", "tests", "tools"]
TEXT_SUFFIXES = {".cc", ".cu", ".h", ".py", ".md", ".cmake", ".in", ".txt", ".sh", ""}
# Bytes of other programs, and the two files that have to spell what they forbid.
SKIPPED = ("tests/goldens/",)
SPELLS_RULES = {"tools/check_tidy.py", "tests/tidy/check_tidy_test.py"}

# What each layer may include, besides itself.
LAYERS = {"core": set()}
for layer, direct in [
    ("device", ["core"]),
    ("contract", ["core"]),
    ("numerics", ["contract"]),
    ("kernels", ["numerics", "device"]),
    ("ops", ["kernels"]),
    ("io", ["core"]),
    ("compare", ["io", "numerics"]),
    ("model", ["ops", "io"]),
    ("rollout", ["model"]),
    ("trainer", ["model"]),
    ("rl", ["rollout", "trainer", "compare"]),
    ("verify", ["rl"]),
    ("bench", ["verify"]),
    ("cli", ["bench"]),
]:
    LAYERS[layer] = set(direct).union(*(LAYERS[d] for d in direct))

BACKENDS = ("reference", "cpu", "gpu", "production")
NOT_ARGUMENTS = {"rlk/kernels/kernel_table.h", "rlk/kernels/exec.h"}
ISA_HEADERS = {"immintrin.h", "cstdint"}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
FAST_MATH = re.compile(
    r"-ffast-math|-Ofast|-funsafe-math-optimizations|-fassociative-math|-freciprocal-math"
    r"|-ffinite-math-only|-ffp-contract=(?!off)|\bFP_CONTRACT\s+ON|\bfp\s+contract\s*\(\s*fast")
NAMES = ("exp|exp2|exp10|expm1|log|log2|log10|log1p|sin|cos|tan|asin|acos|atan|atan2|sinh|cosh|tanh"
         "|asinh|acosh|atanh|pow|cbrt|hypot|erf|erfc|tgamma|lgamma|sincos")
# std::exp, __builtin_expf, expf(x); a bare exp(x) too, unless it is a member or in a namespace.
LIBM = re.compile(rf"\bstd::(?:{NAMES})[fl]?\s*\(|\b__builtin_(?:{NAMES})[fl]?\s*\("
                  rf"|(?<![\w.:>])(?:{NAMES})[fl]\s*\((?!\s*\))")
BARE_LIBM = re.compile(rf"(?<![\w.:>])(?:{NAMES})\s*\((?!\s*\))")
# numerics and the instruction-set bodies define functions with these names.
DEFINES_MATH = ("rlk/numerics/", "rlk/kernels/cpu/isa/", "rlk/kernels/production/isa/")
# The production route is what other engines do; verify draws axes, bench takes means.
MAY_CALL_LIBM = ("rlk/kernels/production/", "rlk/verify/", "rlk/bench/", "tests/")
ORDER = re.compile(r"\batomic(?:_ref)?\s*<\s*(?:float|double|long double|bf16)\b|\batomicAdd\s*\("
                   r"|\bstd::(?:transform_)?reduce\b|\bomp\b.*\breduction\b")
GPU_HEADER = re.compile(r"cuda|cublas|cudnn|nccl|hip/|rocblas|rccl")
MAY_INCLUDE_GPU = ("rlk/device/", "rlk/kernels/gpu/")
# What gpu.h gives kernels names for; the vendors' own.
GPU_NAME = re.compile(r"<<<|\b(?:threadIdx|blockIdx|blockDim|gridDim|__syncthreads\w*|__shfl\w*"
                      r"|__ballot\w*|__global__|__device__|__shared__|cuda[A-Z]\w*|hip[A-Z]\w*"
                      r"|atomic[A-Z]\w*)")
NAMES_GPU = ("rlk/kernels/gpu/gpu.h", "rlk/device/gpu_runtime.h", "rlk/core/host_device.h",
             "rlk/kernels/gpu/sm90/")  # that folder is for one chip
HEAVY = re.compile(r"nlohmann/json\.hpp|CLI/|spdlog/")
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:root|home/\w+|tmp/build[\w-]*)(?![\w.])")
WORD = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
NO_CODE = re.compile(
    r'R"(?P<raw>[^()\s]*)\(.*?\)(?P=raw)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.S)


def without_text(source):
    """The code alone: comments and literals become blanks, line numbers stay."""
    return NO_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)


def layer_of(path):
    parts = path.split("/")
    if parts[0] == "rlk":
        return parts[1] if len(parts) > 2 else None
    return "cli" if parts[0] == "cli" else None


def backend_of(path):
    match = re.match(r"rlk/kernels/([a-z]+)/", path)
    return match.group(1) if match else None


class Tidy:
    def __init__(self, root):
        self.root = Path(root)
        self.found = []
        self.texts = {}
        for path in self.files():
            try:
                self.texts[path] = (self.root / path).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                self.report(path, 1, "format", "is not UTF-8")

    def report(self, path, line, rule, text):
        self.found.append((path, line, rule, text))

    def files(self):
        names = [p.name for p in self.root.iterdir() if p.is_file()]
        for folder in FOLDERS:
            for here, folders, files in os.walk(self.root / folder):
                folders[:] = sorted(f for f in folders if f != "__pycache__")
                names += [str((Path(here) / f).relative_to(self.root)) for f in files]
        return sorted(n for n in names if Path(n).suffix in TEXT_SUFFIXES
                      and not n.startswith(SKIPPED) and Path(n).name != "LICENSE")

    def run(self):
        for path, text in self.texts.items():
            self.check_text(path, text)
            if path.endswith((".cc", ".cu", ".h")):
                self.check_cpp(path, text)
            elif path.endswith(("CMakeLists.txt", ".cmake")) or path == "Makefile":
                self.check_build(path, text)
        self.check_listed()
        return sorted(set(self.found))

    def check_text(self, path, text):
        if path in SPELLS_RULES:
            return
        for number, line in enumerate(text.splitlines(), 1):
            if "\t" in line and path != "Makefile":
                self.report(path, number, "format", "tab")
            if match := MACHINE_PATH.search(line):
                self.report(path, number, "path", f"{match.group()} is a path of one machine")
            if match := WORD.search(line):
                self.report(path, number, "word", match.group())

    def check_cpp(self, path, text):
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > 100:
                self.report(path, number, "format", f"{len(line)} columns, at most 100")
            if match := INCLUDE.match(line):
                self.check_include(path, number, match.group(1))
        if path.endswith(".h") and "#pragma once" not in text and "/isa/" not in path:
            self.report(path, 1, "pragma", "no #pragma once")
        may_call_libm = path.startswith(MAY_CALL_LIBM)
        for number, line in enumerate(without_text(text).splitlines(), 1):
            if match := FAST_MATH.search(line):
                self.report(path, number, "fast-math", match.group())
            if path.startswith("rlk/") and not path.startswith(NAMES_GPU):
                if match := GPU_NAME.search(line):
                    self.report(path, number, "gpu", f"{match.group()} outside gpu.h")
            # gpu.h has atomics of integers only.
            if not path.startswith(NAMES_GPU) and (match := ORDER.search(line)):
                self.report(path, number, "order", f"{match.group()} adds in no fixed order")
            if may_call_libm:
                continue
            match = LIBM.search(line)
            if not match and not path.startswith(DEFINES_MATH):
                match = BARE_LIBM.search(line)
            if match:
                self.report(path, number, "libm",
                            f"{match.group().rstrip('( ')} of the C library; use numerics/")

    def check_include(self, path, number, target):
        if path.endswith(".h") and HEAVY.match(target):
            self.report(path, number, "heavy", f"{target} in a header")
        if "/isa/" in path and target not in ISA_HEADERS and "/isa/" not in target \
                and not target.endswith("_isa.h"):
            self.report(path, number, "isa", f"{target} would be compiled for an instruction set")
        if GPU_HEADER.match(target) and not path.startswith(MAY_INCLUDE_GPU):
            self.report(path, number, "gpu", f"{target} outside rlk/device and rlk/kernels/gpu")
        layer, other = layer_of(path), layer_of(target)
        if layer is None:
            return
        if target.startswith("tests/"):
            self.report(path, number, "layer", f"{layer} includes {target}")
        if other is None or other == layer:
            self.check_backend(path, number, target)
            return
        if other not in LAYERS.get(layer, set()):
            self.report(path, number, "layer", f"{layer} may not include {other}")
        elif other == "kernels":
            if backend_of(target):
                self.report(path, number, "kernels", f"{target} is internal to rlk/kernels")
            elif layer != "ops" and target in NOT_ARGUMENTS:
                self.report(path, number, "kernels", f"only ops includes {target}")

    def check_backend(self, path, number, target):
        mine, other = backend_of(path), backend_of(target)
        if mine in BACKENDS and other in BACKENDS and \
                BACKENDS.index(other) > BACKENDS.index(mine):
            self.report(path, number, "kernels", f"backend {mine} may not include {other}")

    def check_build(self, path, text):
        layer = layer_of(path) if path.endswith("CMakeLists.txt") else None
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split("#", 1)[0]
            if match := FAST_MATH.search(line):
                self.report(path, number, "fast-math", match.group())
            if re.search(r"\bfile\s*\(\s*GLOB", line, re.I):
                self.report(path, number, "unlisted", "sources are listed, not globbed")
            for other in re.findall(r"\brlk_([a-z]+)\b", line):
                if layer in LAYERS and other in LAYERS and other != layer \
                        and other not in LAYERS[layer]:
                    self.report(path, number, "layer", f"{layer} may not link {other}")

    def check_listed(self):
        commands = {}  # folder: the sources named in each command of its CMakeLists.txt
        for path, text in self.texts.items():
            if path.endswith("CMakeLists.txt"):
                text = re.sub(r"#[^\n]*", "", text)
                commands[os.path.dirname(path)] = [re.findall(r"[^\s()\"]+\.c[cu]\b", command)
                                                   for command in text.split(")")]
        for path in self.texts:
            if not path.endswith((".cc", ".cu")):
                continue
            folder, count = os.path.dirname(path), 0
            while True:
                name = os.path.relpath(path, folder or ".")
                count = max((c.count(name) for c in commands.get(folder, [])), default=0)
                if count or not folder:
                    break
                folder = os.path.dirname(folder)
            if count != 1:
                self.report(path, 1, "unlisted", "in no CMakeLists.txt" if count == 0 else
                            f"{count} times in one command of {folder}/CMakeLists.txt")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", default=Path(__file__).resolve().parent.parent)
    tidy = Tidy(parser.parse_args().root)
    found = tidy.run()
    for path, line, rule, text in found:
        print(f"{path}:{line}: [{rule}] {text}")
    print(f"{len(tidy.texts)} files, {len(found)} violations")
    return 1 if found or not tidy.texts else 0


if __name__ == "__main__":
    sys.exit(main())
