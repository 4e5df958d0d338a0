"""Reads AMD code objects: kernels, their instructions, loops and resources."""
import os
import re
import struct
import subprocess
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Instruction:
    address: int
    text: str       # "v_add_f32_e32 v0, 1.0, v0"
    name: str       # "v_add_f32_e32"
    operands: list  # ["v0", "1.0", "v0"]
    target: int     # of a branch; -1: none


@dataclass
class Kernel:
    name: str   # demangled
    short: str  # without namespaces and parameters
    target: str
    float_mode: int
    resources: dict  # of the metadata: vgpr_count, agpr_count, ...
    code: list = field(default_factory=list)

    def loops(self):
        """(first, last) of the instructions between a backward branch and its target."""
        addresses = [i.address for i in self.code]
        found = {}
        for index, instruction in enumerate(self.code):
            if 0 <= instruction.target <= instruction.address:
                begin = bisect_left(addresses, instruction.target)
                found[begin] = max(index, found.get(begin, 0))
        return sorted(found.items())

    def innermost_loops(self):
        loops = self.loops()
        return [(b, e) for b, e in loops
                if not any((b2, e2) != (b, e) and b <= b2 and e2 <= e for b2, e2 in loops)]


@dataclass
class CodeObject:
    path: str
    name: str    # "cdna/gemm_any"
    target: str  # "gfx942"
    undefined: list
    kernels: list


class Elf:
    """The sections and symbols of a 64-bit little-endian file."""

    def __init__(self, data):
        self.data = data
        if data[:5] != b"\x7fELF\x02":
            raise ValueError("not a 64-bit ELF file")
        offset, = struct.unpack_from("<Q", data, 0x28)
        size, count, self.names = struct.unpack_from("<HHH", data, 0x3A)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size)
                         for i in range(count)]

    def text_at(self, table, offset):
        begin = self.sections[table][4] + offset
        return self.data[begin:self.data.index(b"\0", begin)].decode()

    def symbols(self):
        """(name, section, value, size) of all of them."""
        for section in self.sections:
            if section[1] not in (2, 11):  # SYMTAB, DYNSYM
                continue
            for at in range(section[4], section[4] + section[5], 24):
                name, _, _, index, value, size = struct.unpack_from("<IBBHQQ", self.data, at)
                yield self.text_at(section[6], name), index, value, size

    def bytes_of(self, index, value, size):
        section = self.sections[index]
        begin = section[4] + value - section[3]
        return self.data[begin:begin + size]


def run(tools, name, *arguments, text=None):
    command = [os.path.join(tools, name) if tools else name, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, input=text).stdout


LINE = re.compile(r"^\t(\S+)\s*(.*?)\s*// ([0-9A-F]{12}):[^<]*(?:<(\S+?)(?:\+0x([0-9a-f]+))?>)?$")


def disassemble(path, tools):
    """{symbol: instructions}"""
    functions = {}
    starts = {}
    for line in run(tools, "llvm-objdump", "-d", path).splitlines():
        if line.endswith(">:"):
            address, symbol = line[:-2].split(" <", 1)
            starts[symbol] = int(address, 16)
            functions[symbol] = []
            current = functions[symbol]
        elif line.startswith("\t") and line.strip() != "...":
            match = LINE.match(line)
            if not match:
                raise ValueError(f"{path}: cannot read {line!r}")
            name, operands, address, symbol, offset = match.groups()
            target = -1
            if symbol and "branch" in name:
                target = starts.get(symbol, 1 << 60) + int(offset or "0", 16)
            current.append(Instruction(int(address, 16), f"{name} {operands}".strip(), name,
                                       split_operands(operands), target))
    return functions


def split_operands(text):
    return [o.strip() for o in re.split(r",(?![^\[(]*[\])])", text)] if text else []


def read_notes(path, tools):
    """[{name: value}] of the kernels in the metadata."""
    kernels = []
    for line in run(tools, "llvm-readelf", "--notes", path).splitlines():
        match = re.match(r"^  ([- ]) \.(\w+):\s*(.*)$", line)
        if not match:
            continue
        if match.group(1) == "-":
            kernels.append({})
        if kernels and match.group(3):
            value = match.group(3).strip("'\"")
            kernels[-1][match.group(2)] = int(value) if value.isdigit() else value
    return kernels


def short_name(name):
    """gemm_kernel<float, Tile<16, 32>> of void a::(anonymous namespace)::gemm_kernel<...>(...)."""
    name = name.replace("(anonymous namespace)::", "")
    name = re.sub(r"\b(?:\w+::)+", "", name)
    name = re.sub(r"^void ", "", name)
    depth = 0
    for i, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            return name[:i]
    return name


def read_object(path, tools=""):
    elf = Elf(Path(path).read_bytes())
    symbols = list(elf.symbols())
    functions = disassemble(path, tools)
    notes = read_notes(path, tools)
    mangled = [n["name"] for n in notes]
    names = run(tools, "llvm-cxxfilt", text="\n".join(mangled)).splitlines() if mangled else []
    where = {name: place for name, *place in symbols}
    stem, target = re.fullmatch(r"(.*)\.(gfx\w+)\.co", str(path)).groups()
    obj = CodeObject(str(path), name_of(stem), target,
                     sorted({n for n, index, *_ in symbols if index == 0 and n}), [])
    for note, symbol, name in zip(notes, mangled, names):
        descriptor = elf.bytes_of(*where[symbol + ".kd"])
        rsrc1, = struct.unpack_from("<I", descriptor, 48)
        obj.kernels.append(Kernel(name, short_name(name), target, rsrc1 >> 12 & 0xFF, note,
                                  functions[symbol]))
    return obj


def name_of(stem):
    """What follows the folder hip/ of a build: cdna/gemm_any."""
    return stem.rsplit("/hip/", 1)[-1] if "/hip/" in stem else os.path.basename(stem)
