// attention forward, decode and backward.
//
// Method: random data; Google Benchmark repeats until the time is stable. Rates count useful work:
// 4 d operations per visible pair of query and key forward, 10 d backward, and for decode the bytes
// of K and V that are read once per KV head.
//   attention/prefill/<isa>/d:<d>/S:<length>/threads:<t>      one sequence, 16 heads on 8 KV heads
//   attention/backward/<isa>/...                              the same
//   attention/decode/<isa>/d:128/S:<length>/threads:<t>       8 sequences, 32 heads on 8 KV heads
//   attention/demo/<isa>, attention/demo_backward/<isa>       512 sequences of 10 tokens, d 16
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "rlk/kernels/kernel_table.h"
#include "rlk/numerics/bf16.h"

namespace {

using rlk::Isa;
using rlk::Tensor;

struct Shape {
  std::int64_t sequences, length, heads, kv_heads, d;
};

Tensor random_bf16(std::initializer_list<std::int64_t> sizes, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Tensor t(rlk::DType::kBF16, sizes);
  for (std::int64_t i = 0; i < t.size(); ++i) {
    t.data<rlk::bf16>()[i] = rlk::numerics::to_bf16(normal(engine));
  }
  return t;
}

Tensor offsets(std::int64_t count, std::int64_t step) {
  Tensor t(rlk::DType::kI32, {count});
  for (std::int64_t i = 0; i < count; ++i) {
    t.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * step);
  }
  return t;
}

// Inputs and outputs of `queries` last positions of every sequence.
struct Problem {
  Problem(const Shape& s, std::int64_t queries, int threads)
      : pool(threads),
        q(random_bf16({s.sequences * queries, s.heads, s.d}, 1)),
        k(random_bf16({s.sequences * s.length, s.kv_heads, s.d}, 2)),
        v(random_bf16({s.sequences * s.length, s.kv_heads, s.d}, 3)),
        dy(random_bf16({s.sequences * queries, s.heads, s.d}, 4)),
        y(rlk::DType::kBF16, {s.sequences * queries, s.heads, s.d}),
        lse(rlk::DType::kF32, {s.sequences * queries, s.heads}),
        dq(y),
        dk(k),
        dv(v),
        kv_start(offsets(s.sequences, s.length)),
        cu_seqlens(offsets(s.sequences + 1, queries)),
        kv_lens(rlk::DType::kI32, {s.sequences}) {
    for (std::int64_t i = 0; i < s.sequences; ++i) {
      kv_lens.data<std::int32_t>()[i] = static_cast<std::int32_t>(s.length);
    }
  }

  void forward(const rlk::KernelTable& kernels) {
    kernels.attention(exec, {y, lse, q, {k, v, {}, kv_start, 0}, cu_seqlens, kv_lens});
  }
  void backward(const rlk::KernelTable& kernels) {
    kernels.attention_backward(exec, {dq, dk, dv, dy, y, q, k, v, lse, cu_seqlens});
  }

  rlk::ThreadPool pool;
  rlk::Workspace workspace;
  rlk::Contract contract;
  rlk::Fault fault;
  rlk::Exec exec{pool, workspace, contract, fault};
  Tensor q, k, v, dy, y, lse, dq, dk, dv, kv_start, cu_seqlens, kv_lens;
};

void set_rate(benchmark::State& state, const char* unit, double per_call) {
  state.counters[unit] =
      benchmark::Counter(per_call, benchmark::Counter::kIsIterationInvariantRate);
}

double visible_pairs(const Shape& s) {
  return 0.5 * static_cast<double>(s.sequences * s.heads * s.length * (s.length + 1));
}

void run_prefill(benchmark::State& state, Isa isa, Shape s, int threads) {
  Problem problem(s, s.length, threads);
  const rlk::KernelTable& kernels = rlk::cpu_kernels(isa);
  for (auto _ : state) problem.forward(kernels);
  set_rate(state, "GFLOP/s", 4e-9 * static_cast<double>(s.d) * visible_pairs(s));
  set_rate(state, "tokens/s", static_cast<double>(s.sequences * s.length));
}

void run_backward(benchmark::State& state, Isa isa, Shape s, int threads) {
  Problem problem(s, s.length, threads);
  const rlk::KernelTable& kernels = rlk::cpu_kernels(isa);
  problem.forward(kernels);
  for (auto _ : state) problem.backward(kernels);
  set_rate(state, "GFLOP/s", 10e-9 * static_cast<double>(s.d) * visible_pairs(s));
  set_rate(state, "tokens/s", static_cast<double>(s.sequences * s.length));
}

void run_decode(benchmark::State& state, Isa isa, Shape s, int threads) {
  Problem problem(s, 1, threads);
  const rlk::KernelTable& kernels = rlk::cpu_kernels(isa);
  for (auto _ : state) problem.forward(kernels);
  set_rate(state, "GB/s", 4e-9 * static_cast<double>(s.sequences * s.length * s.kv_heads * s.d));
}

void add(const std::string& name, const Shape& s, int threads, auto function) {
  const std::string full = "attention/" + name + "/d:" + std::to_string(s.d) +
                           "/S:" + std::to_string(s.length) + "/threads:" + std::to_string(threads);
  benchmark::RegisterBenchmark(full.c_str(), function)->UseRealTime();
}

void add_all(Isa isa, int threads) {
  const std::string name = rlk::to_string(isa);
  for (const std::int64_t d : {64, 128}) {
    for (const std::int64_t length : {512, 1024, 2048, 4096}) {
      const Shape s{1, length, 16, 8, d};
      add("prefill/" + name, s, threads,
          [=](benchmark::State& state) { run_prefill(state, isa, s, threads); });
      if (length > 1024) continue;
      add("backward/" + name, s, threads,
          [=](benchmark::State& state) { run_backward(state, isa, s, threads); });
    }
  }
  for (const std::int64_t length : {512, 4096}) {
    const Shape s{8, length, 32, 8, 128};
    add("decode/" + name, s, threads,
        [=](benchmark::State& state) { run_decode(state, isa, s, threads); });
  }
  const Shape demo{512, 10, 4, 2, 16};
  add("demo/" + name, demo, threads,
      [=](benchmark::State& state) { run_prefill(state, isa, demo, threads); });
  add("demo_backward/" + name, demo, threads,
      [=](benchmark::State& state) { run_backward(state, isa, demo, threads); });
}

}  // namespace

int main(int argc, char** argv) {
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    for (const int threads : {1, 2}) {
      if (rlk::available(isa)) add_all(isa, threads);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
