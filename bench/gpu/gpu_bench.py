#!/usr/bin/env python3
"""Times the GPU operators beside the vendor's, in one process, through PyTorch.

    gpu_bench.py [--library librlk_gpu_bench.so] [--json FILE] [--filter REGEX] [--quick]

Method: random normal data; every call of a case and of its peers is captured in a graph (weights and
caches rotate, so that they come from memory, not from L2); graphs are replayed in turn and the median of
the repeats counts. The ratio is the peer's time over ours; for operators bound by memory the peer is a
copy of the same bytes. Before a case is timed, its bits are compared with another kernel's on
some of its rows (that all kernels equal the reference on the CPU is what rlk_gpu_conform shows).

Prints one JSON row per case {op, shape, profile, bits_equal, ms, rate, unit, peer, peer_ms, ratio, target}
and last "N passed, N failed", where a case passes with equal bits and a ratio that meets its target.
"""
import argparse
import ctypes
import json
import re
import statistics
import sys
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

REPEATS = 20
BF16, F32 = torch.bfloat16, torch.float32


class Table:
    """The operators of one profile, on a stream of their own."""

    def __init__(self, library, profile):
        self.library = library
        self.session = library.rlk_gpu_open(profile.encode())
        if not self.session:
            sys.exit(3)
        self.profile = profile
        self.stream = torch.cuda.ExternalStream(
            library.rlk_gpu_stream(ctypes.c_void_p(self.session)))

    def call(self, name, *arguments):
        def converted(x):
            if x is None:
                return ctypes.c_void_p()
            if isinstance(x, torch.Tensor):
                return ctypes.c_void_p(x.data_ptr())
            return ctypes.c_longlong(x)

        if getattr(self.library, "rlk_gpu_" + name)(
                ctypes.c_void_p(self.session), *map(converted, arguments)):
            raise RuntimeError(name)

    def gemm(self, a, b, tree, out=None, dtype=BF16):
        c = torch.empty(a.shape[0], b.shape[0], dtype=dtype, device="cuda") if out is None else out
        self.call("gemm", c, int(c.dtype == F32), a, b, a.shape[0], b.shape[0], a.shape[1], tree)
        return c

    def attention(self, q, k, v, cu_seqlens, kv_lens, kv_start=None, block_table=None, page_size=0,
                  out=None, lse=None):
        y = torch.empty_like(q) if out is None else out
        lse = torch.empty(q.shape[:2], device="cuda") if lse is None else lse
        pages = 0 if block_table is None else block_table.shape[1]
        self.call("attention", y, lse, q, k, v, q.shape[0], q.shape[1], k.shape[1], q.shape[2],
                  k.shape[0], kv_lens.shape[0], cu_seqlens, kv_lens, kv_start, block_table, pages,
                  page_size)
        return y


def random(*shape, dtype=BF16):
    return torch.randn(*shape, device="cuda").to(dtype)


def ints(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def same_bits(x, y):
    kind = torch.int32 if x.dtype == F32 else torch.int16
    return bool((x.contiguous().view(kind) == y.contiguous().view(kind)).all())


def times_ms(stream, functions, calls):
    """Median time of one call of each function(i), i counting the calls of a graph."""
    graphs = []
    for function in functions:
        with torch.cuda.stream(stream):
            for i in range(3):
                function(i)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(calls):
                function(i)
        graphs.append(graph)
    samples = [[] for _ in functions]
    with torch.cuda.stream(stream):
        for _ in range(REPEATS):
            for graph, sample in zip(graphs, samples):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                graph.replay()
                end.record()
                end.synchronize()
                sample.append(start.elapsed_time(end) / calls)
    return [statistics.median(sample) for sample in samples]


class Bench:
    def __init__(self, pattern):
        self.pattern = re.compile(pattern)
        self.rows = []

    def case(self, table, op, shape, check, ours, peers, work, unit, target=None, calls=4):
        """peers: {name: function}; the fastest counts. work: FLOP or bytes of a call."""
        if not self.pattern.search(f"{table.profile} {op} {shape}"):
            return
        torch.cuda.synchronize()  # the data is there
        with torch.cuda.stream(table.stream):
            equal = check()
        row = {"op": op, "shape": shape, "profile": table.profile, "bits_equal": equal}
        if equal:
            ms = times_ms(table.stream, [ours, *peers.values()], calls)
            peer = min(range(1, len(ms)), key=lambda i: ms[i])
            scale = 1e-9 if unit == "TFLOP/s" else 1e-6
            row.update(ms=round(ms[0], 5), rate=round(work * scale / ms[0], 1), unit=unit,
                       peer=list(peers)[peer - 1], peer_ms=round(ms[peer], 5),
                       ratio=round(ms[peer] / ms[0], 3), target=target)
        row["met"] = equal and (target is None or row["ratio"] >= target)
        self.rows.append(row)
        print(json.dumps(row), flush=True)


def gemm_cases(bench, table, quick):
    shapes = [("qkv", 6144, 4096, 0), ("o", 4096, 4096, 1), ("gate_up", 24576, 4096, 0),
              ("down", 4096, 12288, 1)]
    for name, n, k, tree in shapes:
        for m in [2048] if quick else [512, 2048, 4096, 16384]:
            a, b = random(m, k), random(n, k)
            c = torch.empty(m, n, dtype=BF16, device="cuda")

            def check():
                return same_bits(table.gemm(a, b, tree, c)[-40:], table.gemm(a[-40:].clone(), b, tree))

            target = None if m < 2048 else 0.85 if tree else 0.90
            bench.case(table, "gemm", f"{name} {m}x{n}x{k}{' leaves 8' if tree else ''}", check,
                       lambda i: table.gemm(a, b, tree, c),
                       {"cublas": lambda i: torch.matmul(a, b.t(), out=c)}, 2 * m * n * k, "TFLOP/s",
                       target)
        copies = max(2, 300_000_000 // (n * k * 2))
        weights = [random(n, k) for _ in range(copies)]
        for m in [1, 16] if quick else [1, 2, 4, 8, 16, 24, 32, 48, 64]:
            a = random(m, k)
            c = torch.empty(m, n, dtype=BF16, device="cuda")

            def check():
                alone = table.gemm(a[:1].clone(), weights[0], tree)
                more = table.gemm(torch.cat([a, random(100, k)]), weights[0], tree)
                whole = table.gemm(a, weights[0], tree, c)
                return same_bits(whole[:1], alone) and same_bits(whole, more[:m])

            bench.case(table, "gemm", f"{name} {m}x{n}x{k}{' leaves 8' if tree else ''}", check,
                       lambda i: table.gemm(a, weights[i % copies], tree, c),
                       {"cublas": lambda i: torch.matmul(a, weights[i % copies].t(), out=c)},
                       n * k * 2, "GB/s", calls=copies)


def f32_gemm_cases(bench, table):
    m = n = k = 4096
    a, b = random(m, k), random(n, k)
    a32, b32 = a.float(), b.float()
    c, c32 = torch.empty(m, n, dtype=BF16, device="cuda"), torch.empty(m, n, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = False

    def check():
        return same_bits(table.gemm(a, b, 0, c)[:40], table.gemm(a[:40].clone(), b, 0))

    bench.case(table, "gemm", f"{m}x{n}x{k}", check, lambda i: table.gemm(a, b, 0, c),
               {"cublas f32": lambda i: torch.matmul(a32, b32.t(), out=c32)}, 2 * m * n * k,
               "TFLOP/s")


def row_cases(bench, table):
    tokens, n, heads, d, vocab = 8192, 4096, 32, 128, 151936
    copies = 4

    def copy_of(size_bytes):  # reads and writes size_bytes in all
        x = torch.empty(copies, size_bytes // 4, dtype=BF16, device="cuda")
        y = torch.empty_like(x)
        return {"copy": lambda i: y[i % copies].copy_(x[i % copies])}

    x, y = random(copies, tokens, n), torch.empty(copies, tokens, n, dtype=BF16, device="cuda")
    w = random(n)
    size = tokens * n * 2

    def rows_alone(name, other):
        def check():
            table.call(name, y[0], x[0], other, tokens, n)
            alone = torch.empty(3, n, dtype=BF16, device="cuda")
            own = other[5:8].clone() if other.dim() == 2 else other
            table.call(name, alone, x[0][5:8].clone(), own, 3, n)
            return same_bits(alone, y[0][5:8])
        return check

    bench.case(table, "rms_norm", f"{tokens}x{n}", rows_alone("rms_norm", w),
               lambda i: table.call("rms_norm", y[i % copies], x[i % copies], w, tokens, n),
               copy_of(2 * size), 2 * size, "GB/s", 0.85)
    g = random(copies, tokens, n)
    bench.case(table, "swiglu", f"{tokens}x{n}", rows_alone("swiglu", g[0]),
               lambda i: table.call("swiglu", y[i % copies], x[i % copies], g[i % copies], tokens, n),
               copy_of(3 * size), 3 * size, "GB/s", 0.85)
    cos, sin = random(tokens, d // 2, dtype=F32), random(tokens, d // 2, dtype=F32)
    positions = torch.arange(tokens, dtype=torch.int32, device="cuda")

    def rope_alone():
        table.call("rope", y[0], x[0], cos, sin, positions, tokens, heads, d, tokens)
        alone = torch.empty(3, n, dtype=BF16, device="cuda")
        table.call("rope", alone, x[0][5:8].clone(), cos, sin, ints([5, 6, 7]), 3, heads, d, tokens)
        return same_bits(alone, y[0][5:8])

    bench.case(table, "rope", f"{tokens}x{heads}x{d}",
               rope_alone,
               lambda i: table.call("rope", y[i % copies], x[i % copies], cos, sin, positions, tokens,
                                    heads, d, tokens),
               copy_of(2 * size), 2 * size, "GB/s", 0.85)
    rows = 1024
    logits = random(copies, rows, vocab, dtype=F32)
    targets = ints([i * 97 % vocab for i in range(rows)])
    logp = torch.empty(rows, device="cuda")

    def check():
        table.call("logprob", logp, logits[0], targets, rows, vocab)
        alone = torch.empty(3, device="cuda")
        table.call("logprob", alone, logits[0][7:10].clone(), targets[7:10].clone(), 3, vocab)
        return same_bits(alone, logp[7:10])

    bench.case(table, "logprob", f"{rows}x{vocab}", check,
               lambda i: table.call("logprob", logp, logits[i % copies], targets, rows, vocab),
               copy_of(rows * vocab * 4), rows * vocab * 4, "GB/s", 0.85)


def attention_cases(bench, table, quick):
    heads, kv_heads, d = 32, 8, 128
    for s in [4096] if quick else [2048, 4096, 8192, 16384]:
        q, k, v = random(s, heads, d), random(s, kv_heads, d), random(s, kv_heads, d)
        y, lse = torch.empty_like(q), torch.empty(s, heads, device="cuda")
        one, length, start = ints([0, s]), ints([s]), ints([0])

        def check():
            whole = table.attention(q, k, v, one, length, start, out=y, lse=lse)
            last = table.attention(q[-3:].clone(), k, v, ints([0, 3]), length, start)
            return same_bits(whole[-3:], last)

        def sdpa(backend):
            def run(i):
                with sdpa_kernel(backend):
                    torch.nn.functional.scaled_dot_product_attention(
                        *(x[None].transpose(1, 2) for x in (q, k, v)), is_causal=True,
                        enable_gqa=True)
            return run

        bench.case(table, "attention", f"causal {s}, {heads}/{kv_heads} heads, d {d}", check,
                   lambda i: table.attention(q, k, v, one, length, start, out=y, lse=lse),
                   {"cudnn": sdpa(SDPBackend.CUDNN_ATTENTION), "flash": sdpa(SDPBackend.FLASH_ATTENTION)},
                   2 * s * s * heads * d, "TFLOP/s", 0.85 if s == 8192 else None)
    for batch, s in [(32, 4096), (1, 32768)]:
        q = random(batch, heads, d)
        y, lse = torch.empty_like(q), torch.empty(batch, heads, device="cuda")
        k, v = random(batch * s, kv_heads, d), random(batch * s, kv_heads, d)
        cu, lens = ints(list(range(batch + 1))), ints([s] * batch)
        scattered = {}
        for page in (16, 128):
            pages = batch * s // page
            order = torch.randperm(pages, device="cuda")
            paged = []
            for x in (k, v):
                to = torch.empty(pages, page, kv_heads, d, dtype=BF16, device="cuda")
                to[order] = x.view(pages, page, kv_heads, d)
                paged.append(to.view(-1, kv_heads, d))
            scattered[page] = (*paged, order.to(torch.int32).view(batch, -1).contiguous())
        size = 2 * batch * s * kv_heads * d * 2
        source = torch.empty(size // 4, dtype=BF16, device="cuda")
        target = torch.empty_like(source)

        def decode(page, **out):
            pk, pv, blocks = scattered[page]
            return table.attention(q, pk, pv, cu, lens, None, blocks, page, **out)

        packed = lambda: table.attention(q, k, v, cu, lens, ints([s * i for i in range(batch)]))
        for page in (16, 128):
            bench.case(table, "attention", f"decode batch {batch}, {s} keys, page {page}",
                       lambda: same_bits(decode(page), packed()),
                       lambda i: decode(page, out=y, lse=lse),
                       {"copy": lambda i: target.copy_(source)}, size, "GB/s",
                       0.75 if batch > 1 else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", default=Path(__file__).parent / "librlk_gpu_bench.so")
    parser.add_argument("--json", help="also write the rows to this file")
    parser.add_argument("--filter", default="", help="regular expression over 'profile op shape'")
    parser.add_argument("--quick", action="store_true", help="fewer shapes")
    options = parser.parse_args()
    library = ctypes.CDLL(str(options.library))
    library.rlk_gpu_open.restype = library.rlk_gpu_stream.restype = ctypes.c_void_p
    torch.manual_seed(0)
    bench = Bench(options.filter)
    portable, sm90 = Table(library, "portable"), Table(library, "sm90")
    gemm_cases(bench, sm90, options.quick)
    attention_cases(bench, sm90, options.quick)
    row_cases(bench, portable)
    f32_gemm_cases(bench, portable)
    if options.json:
        Path(options.json).write_text(json.dumps({
            "device": torch.cuda.get_device_name(), "torch": torch.__version__,
            "cases": bench.rows}, indent=1) + "\n")
    met = sum(row["met"] for row in bench.rows)
    print(f"{met} passed, {len(bench.rows) - met} failed")
    return 0 if met == len(bench.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
