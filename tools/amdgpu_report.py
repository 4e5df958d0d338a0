"""What kernels of AMD code objects occupy: registers, LDS, waves."""
import re
from collections import defaultdict
from dataclasses import dataclass


@dataclass
class Chip:
    name: str
    registers: int  # 32-bit ones of a lane in a SIMD
    granule: int    # in which a wave gets them
    waves: int      # most of a SIMD
    simds: int      # that share the LDS below
    lds: int


CHIPS = {
    "gfx90a": Chip("MI210, MI250", 512, 8, 8, 4, 64 << 10),
    "gfx942": Chip("MI300X", 512, 8, 8, 4, 64 << 10),
    "gfx950": Chip("MI355X", 512, 8, 8, 4, 160 << 10),
    "gfx1100": Chip("Radeon RX 7900", 1536, 24, 16, 4, 128 << 10),
    "gfx1030": Chip("Radeon RX 6800, 6900", 1024, 16, 16, 4, 128 << 10),
}


def occupancy(kernel):
    """Waves of a SIMD that registers and static LDS leave room for, with the largest blocks."""
    chip = CHIPS[kernel.target]
    of = kernel.resources
    taken = -(-max(of["vgpr_count"], 1) // chip.granule) * chip.granule  # AGPRs are counted in it
    waves = min(chip.waves, chip.registers // taken)
    waves_of_block = -(-of["max_flat_workgroup_size"] // of["wavefront_size"])
    if of["group_segment_fixed_size"]:
        blocks = chip.lds // of["group_segment_fixed_size"]
        waves = min(waves, blocks * waves_of_block // chip.simds or 1)
    return waves


def cell(kernel):
    of = kernel.resources
    agpr = of.get("agpr_count", 0)
    vgpr = f"{of['vgpr_count'] - agpr}+{agpr}" if agpr else str(of["vgpr_count"])
    return (f"{vgpr} / {of['sgpr_count']} / {of['group_segment_fixed_size']} / "
            f"{of['private_segment_fixed_size']} / {occupancy(kernel)}")


def natural(text):
    """Orders kernel<16> behind kernel<4>."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def rows(objects):
    """({object: {kernel: {target: cell}}}, targets)"""
    found = defaultdict(lambda: defaultdict(dict))
    targets = []
    for obj in objects:
        if obj.target not in targets:
            targets.append(obj.target)
        for kernel in obj.kernels:
            found[obj.name][kernel.short][obj.target] = cell(kernel)
    return found, [t for t in CHIPS if t in targets]


def table(objects):
    found, targets = rows(objects)
    lines = []
    for name, kernels in sorted(found.items()):
        lines.append(name)
        for kernel, cells in sorted(kernels.items(), key=lambda item: natural(item[0])):
            lines.append(f"  {kernel}")
            lines += [f"    {t:<8} {cells[t]}" for t in targets if t in cells]
    return "\n".join(lines)


HEAD = """# What the HIP kernels occupy

Made by `make hip-kernels-doc`, which reads the code objects; not to be edited. Of each kernel and target:
VGPRs (+ AGPRs) / SGPRs / bytes of LDS / bytes of private memory / waves of a SIMD. LDS that a launch
asks for is not counted, neither in the bytes nor in the waves, and waves are those of the largest block
that the kernel allows.

"""


def page(objects):
    found, targets = rows(objects)
    lines = [HEAD]
    for t in targets:
        chip = CHIPS[t]
        lines.append(f"- `{t}` ({chip.name}): {chip.registers} registers of a lane, at most "
                     f"{chip.waves} waves a SIMD, {chip.lds >> 10} KiB LDS for {chip.simds} SIMDs\n")
    for name, kernels in sorted(found.items()):
        shown = [t for t in targets if any(t in cells for cells in kernels.values())]
        lines.append(f"\n## {name}\n\n| kernel | {' | '.join(shown)} |\n")
        lines.append("|---" * (len(shown) + 1) + "|\n")
        for kernel, cells in sorted(kernels.items(), key=lambda item: natural(item[0])):
            lines.append(f"| `{kernel}` | {' | '.join(cells.get(t, '') for t in shown)} |\n")
    return "".join(lines)
