#!/usr/bin/env python3
"""Times the GPU operators beside the vendor's, in one process, through PyTorch.

    gpu_bench.py [--library librlk_gpu_bench.so] [--json FILE] [--filter REGEX] [--quick]

Method: random normal data; every call of a case and of its peers is captured in a graph (weights and
caches rotate, so that they come from memory, not from L2); graphs are replayed in turn and the median of
the repeats counts. The ratio is the peer's time over ours; for operators bound by memory the peer is a
copy of the same bytes. Before a case is timed, its bits are compared with another kernel's on
some of its rows (that all kernels equal the reference on the CPU is what rlk_gpu_conform shows).

Prints one JSON row per case {operator, shape, profile, bits_equal, ms, rate, unit, peer, peer_ms, ratio, target}
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
# The standard deviation of logits: 2 to 4 in real models. The exact sums of exponentials are kept in bins
# of 16 powers of two, so what a kernel takes may depend on it.
LOGIT_SPREAD = 3.0
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

    def attention_backward(self, dy, y, q, k, v, lse, cu_seqlens, out=None):
        grads = [torch.empty_like(x) for x in (q, k, v)] if out is None else out
        self.call("attention_backward", *grads, dy, y, q, k, v, lse, q.shape[0], q.shape[1],
                  k.shape[1], q.shape[2], cu_seqlens.shape[0] - 1, cu_seqlens)
        return grads


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
        row = {"operator": op, "shape": shape, "profile": table.profile, "bits_equal": equal}
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


def unaligned(x):
    """The same numbers where the copy engine cannot read them: other kernels take them."""
    y = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view(x.shape)
    return y.copy_(x)


def sample_offsets(tokens, length):
    return ints([*range(0, tokens, length), tokens])


def weight_gradient(table, dw, chain, dy, x, ends, offsets):
    table.call("gemm_weight_gradient", dw, chain, dy, x, *dy.shape, x.shape[1], ends, ends.numel(),
               offsets, offsets.numel() - 1)


def gradient_cases(bench, table, quick):
    shapes = [("qkv", 6144, 4096, (1024, 1024)), ("o", 4096, 4096, None),
              ("gate_up", 24576, 4096, (12288, 0)), ("down", 4096, 12288, None)]
    tokens = 8192
    for name, n, k, segments in shapes[:1] if quick else shapes:
        dy, x, w = random(tokens, n), random(tokens, k), random(n, k)
        dx = torch.empty(tokens, k, dtype=BF16, device="cuda")
        dw, chain = torch.zeros(n, k, device="cuda"), torch.zeros(n, k, device="cuda")
        like = torch.empty(n, k, dtype=BF16, device="cuda")
        ends = torch.tensor([tokens], device="cuda")

        def input_gradient(dx, dy, w):
            table.call("gemm_input_gradient", dx, dy, w, dy.shape[0], n, k,
                       int(segments is not None), *(segments or (0, 0)))
            return dx

        def same_dx():
            input_gradient(dx, dy, w)
            few = torch.empty(40, k, dtype=BF16, device="cuda")
            return same_bits(dx[-40:], input_gradient(few, unaligned(dy[-40:]), w))

        bench.case(table, "gemm dx", f"{name} {tokens}x{n}x{k}{' leaves 8' if segments else ''}",
                   same_dx, lambda i: input_gradient(dx, dy, w),
                   {"cublas": lambda i: torch.matmul(dy, w, out=dx)}, 2 * tokens * n * k, "TFLOP/s")
        for length in (1000, 100):
            offsets = sample_offsets(tokens, length)

            def same_dw():
                results = []
                for convert in (lambda x: x, unaligned):
                    part = torch.zeros(2, 40, k, device="cuda")
                    weight_gradient(table, part[0], part[1], dy[:, :40].contiguous(), convert(x),
                                    ends, offsets)
                    results.append(part[0])
                dw.zero_()
                weight_gradient(table, dw, chain, dy, x, ends, offsets)
                return same_bits(*results) and same_bits(results[0], dw[:40])

            bench.case(table, "gemm dw", f"{name} {tokens}x{n}x{k}, samples of {length}", same_dw,
                       lambda i: weight_gradient(table, dw, chain, dy, x, ends, offsets),
                       {"cublas": lambda i: torch.matmul(dy.t(), x, out=like)}, 2 * tokens * n * k,
                       "TFLOP/s")


def linear_logp_cases(bench, table):
    tokens, vocab, hidden_size = 4096, 151936, 4096
    if not bench.pattern.search(f"{table.profile} linear_logp"):
        return
    hidden = random(tokens, hidden_size)
    head = random(vocab, hidden_size) * (LOGIT_SPREAD / hidden_size**0.5)
    targets = ints([i * 37 % vocab for i in range(tokens)])
    g = random(tokens, dtype=F32)
    logp, state = torch.zeros(tokens, device="cuda"), torch.zeros(tokens, 10, device="cuda").int()
    d_hidden = torch.empty_like(hidden)
    dw, chain = (torch.zeros(vocab, hidden_size, device="cuda") for _ in range(2))
    logits = torch.empty(tokens, vocab, dtype=BF16, device="cuda")
    like = torch.empty_like(head)
    ends, offsets = torch.tensor([tokens], device="cuda"), sample_offsets(tokens, 1000)

    def forward(hidden=hidden, logp=logp, state=state):
        rows = logp.numel()
        table.call("linear_logp", logp, None, hidden, head, rows, hidden_size, vocab, vocab, targets,
                   state)
        return logp

    def backward(d_hidden=d_hidden, hidden=hidden, state=state, dw=dw, chain=chain, ends=ends,
                 offsets=offsets):
        table.call("linear_logp_backward", d_hidden, dw, chain, hidden, head, d_hidden.shape[0],
                   hidden_size, vocab, vocab, targets, state, g, None, ends, ends.numel(), offsets,
                   offsets.numel() - 1)
        return d_hidden

    few = 24
    few_ends, few_offsets = torch.tensor([few], device="cuda"), ints([0, few])

    def same_forward():
        whole = forward()[:few]
        product = table.gemm(hidden[:few].clone(), head, 0, dtype=F32)
        apart = torch.empty(few, device="cuda")
        table.call("logprob", apart, product, targets, few, vocab)
        return same_bits(whole, apart)

    def same_backward():
        forward()
        results = [backward()[:few]]
        sums = []
        for convert in (lambda x: x, unaligned):
            own = torch.zeros(few, 10, device="cuda").int()
            rows = convert(hidden[:few].contiguous())
            forward(rows, torch.empty(few, device="cuda"), own)
            dw.zero_()
            chain.zero_()
            results.append(backward(torch.empty(few, hidden_size, dtype=BF16, device="cuda"), rows,
                                    own, ends=few_ends, offsets=few_offsets))
            sums.append(dw[::97].clone())
        return all(same_bits(results[0], x) for x in results[1:]) and same_bits(*sums)

    def three_products(i):
        torch.matmul(hidden, head.t(), out=logits)
        torch.matmul(logits, head, out=d_hidden)
        torch.matmul(logits.t(), hidden, out=like)

    work = 2 * tokens * vocab * hidden_size
    shape = f"{tokens} rows, vocabulary {vocab}, hidden {hidden_size}"
    bench.case(table, "linear_logp", shape, same_forward, lambda i: forward(),
               {"cublas": lambda i: torch.matmul(hidden, head.t(), out=logits)}, work, "TFLOP/s", 0.80,
               calls=1)
    bench.case(table, "linear_logp_backward", shape, same_backward, lambda i: backward(),
               {"cublas": three_products}, 3 * work, "TFLOP/s", 0.70, calls=1)


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
        words = x.view(torch.int16), y.view(torch.int16)
        return {"copy": lambda i: y[i % copies].copy_(x[i % copies]),
                # The driver copies more than 400 MB at two thirds of the rate of a kernel.
                "kernel": lambda i: torch.bitwise_not(words[0][i % copies], out=words[1][i % copies])}

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
    logits = random(copies, rows, vocab, dtype=F32) * LOGIT_SPREAD
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
    y_rows = torch.empty(rows, vocab, device="cuda")

    def softmax_check():
        table.call("log_softmax", y_rows, logits[0], rows, vocab)
        alone = torch.empty(3, vocab, device="cuda")
        table.call("log_softmax", alone, logits[0][7:10].clone(), 3, vocab)
        return same_bits(alone, y_rows[7:10])

    bench.case(table, "log_softmax", f"{rows}x{vocab}", softmax_check,
               lambda i: table.call("log_softmax", y_rows, logits[i % copies], rows, vocab),
               copy_of(2 * rows * vocab * 4), 2 * rows * vocab * 4, "GB/s", 0.85)


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


def attention_backward_cases(bench, table, quick):
    def problem(lengths, heads, kv_heads, d):
        s = sum(lengths)
        with torch.cuda.stream(table.stream):
            q, k, v = random(s, heads, d), random(s, kv_heads, d), random(s, kv_heads, d)
            cu = ints([sum(lengths[:i]) for i in range(len(lengths) + 1)])
            lse = torch.empty(s, heads, device="cuda")
            y = table.attention(q, k, v, cu, ints(lengths), cu[:-1].contiguous(), lse=lse)
            return random(s, heads, d), y, q, k, v, lse, cu

    def misaligned(x):  # the copy engine cannot read this: another kernel takes it
        moved = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view(x.shape)
        return moved.copy_(x)

    def check():
        equal = True
        for lengths, heads, kv_heads, d in [([700, 1, 64, 129, 300], 8, 2, 128), ([513], 8, 8, 128),
                                            ([63, 250, 128], 4, 4, 64), ([1000], 3, 1, 64)]:
            dy, *rest = problem(lengths, heads, kv_heads, d)
            fast = table.attention_backward(dy, *rest)
            any_ = table.attention_backward(misaligned(dy), *rest)
            equal = equal and all(same_bits(x, y) for x, y in zip(fast, any_))
        return equal

    heads, kv_heads, d = 32, 8, 128
    for s in [4096] if quick else [4096, 8192]:
        dy, *rest = problem([s], heads, kv_heads, d)
        out = [torch.empty_like(x) for x in rest[1:4]]

        def sdpa(backend):
            leaves = [x.detach()[None].transpose(1, 2).contiguous().requires_grad_()
                      for x in rest[1:4]]
            grad = dy[None].transpose(1, 2).contiguous()
            with torch.cuda.stream(table.stream), sdpa_kernel(backend):
                y = torch.nn.functional.scaled_dot_product_attention(
                    *leaves, is_causal=True, enable_gqa=True)
            return lambda i: torch.autograd.grad(y, leaves, grad, retain_graph=True)

        bench.case(table, "attention_backward", f"causal {s}, {heads}/{kv_heads} heads, d {d}", check,
                   lambda i: table.attention_backward(dy, *rest, out=out),
                   {"cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
                    "flash": sdpa(SDPBackend.FLASH_ATTENTION)},
                   5 * s * s * heads * d, "TFLOP/s", 0.70 if s == 8192 else None)


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
    gradient_cases(bench, sm90, options.quick)
    if not options.quick:
        linear_logp_cases(bench, sm90)
    attention_cases(bench, sm90, options.quick)
    attention_backward_cases(bench, sm90, options.quick)
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
