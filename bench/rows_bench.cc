// Row by row operators against memcpy, and nanoseconds per logit of logprob and sample.
//
// Method: random data; one case per shape, instruction set and thread count. Google Benchmark
// repeats until the time is stable. GB/s counts every byte read and written once, for memcpy too.
//   rows/<op>/<isa>/<rows>x<n>/threads:<t>
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "rlk/kernels/kernel_table.h"
#include "rlk/numerics/bf16.h"

namespace {

using rlk::DType;
using rlk::Isa;
using rlk::KernelTable;
using rlk::Tensor;

struct Shape {
  std::int64_t rows, n;
};

// A large stream in memory, one that fits the caches, heads of QK-norm, and the demo's stream.
constexpr Shape kShapes[] = {{4096, 4096}, {64, 4096}, {4096, 128}, {1024, 64}};
constexpr Shape kLogits[] = {{64, 151936}, {1, 151936}, {4096, 16}, {64, 16}};

Tensor random_tensor(DType dtype, std::initializer_list<std::int64_t> sizes, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Tensor t(dtype, sizes);
  for (std::int64_t i = 0; i < t.size(); ++i) {
    const float x = normal(engine);
    if (dtype == DType::kBF16) {
      t.data<rlk::bf16>()[i] = rlk::numerics::to_bf16(x);
    } else {
      t.data<float>()[i] = 4.0f * x;
    }
  }
  return t;
}

struct Setting {
  Isa isa;
  int threads;
  Shape shape;
};

// Everything a kernel needs besides its arguments.
struct Machine {
  rlk::ThreadPool pool;
  rlk::Workspace workspace;
  rlk::Contract contract;
  rlk::Fault fault;
  rlk::Exec exec{pool, workspace, contract, fault};
  const KernelTable& kernels;

  explicit Machine(const Setting& s) : pool(s.threads), kernels(rlk::cpu_kernels(s.isa)) {}
};

void set_rate(benchmark::State& state, const Shape& s, double bytes_per_element) {
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * bytes_per_element * static_cast<double>(s.rows * s.n),
                         benchmark::Counter::kIsIterationInvariantRate);
}

void run_memcpy(benchmark::State& state, const Setting& s) {
  const Tensor x = random_tensor(DType::kBF16, {s.shape.rows, s.shape.n}, 1);
  Tensor y(DType::kBF16, {s.shape.rows, s.shape.n});
  Machine machine(s);
  for (auto _ : state) {
    machine.pool.parallel_for(
        s.shape.rows, 1 + 65536 / s.shape.n, [&](std::int64_t begin, std::int64_t end, int) {
          std::memcpy(y.data<rlk::bf16>() + begin * s.shape.n,
                      x.data<rlk::bf16>() + begin * s.shape.n,
                      static_cast<std::size_t>((end - begin) * s.shape.n) * 2);
        });
    benchmark::ClobberMemory();
  }
  set_rate(state, s.shape, 4);
}

void run_rms_norm(benchmark::State& state, const Setting& s) {
  const Tensor x = random_tensor(DType::kBF16, {s.shape.rows, 1, s.shape.n}, 1);
  const Tensor w = random_tensor(DType::kBF16, {s.shape.n}, 2);
  Tensor y(DType::kBF16, {s.shape.rows, 1, s.shape.n});
  Machine machine(s);
  for (auto _ : state) machine.kernels.rms_norm(machine.exec, {y, {}, x, w, 1e-6f});
  set_rate(state, s.shape, 4);
}

void run_rms_norm_backward(benchmark::State& state, const Setting& s) {
  const Tensor x = random_tensor(DType::kBF16, {s.shape.rows, 1, s.shape.n}, 1);
  const Tensor dy = random_tensor(DType::kBF16, {s.shape.rows, 1, s.shape.n}, 3);
  const Tensor w = random_tensor(DType::kBF16, {s.shape.n}, 2);
  const Tensor q = random_tensor(DType::kF32, {s.shape.rows, 1}, 4);
  Tensor dx(DType::kBF16, {s.shape.rows, 1, s.shape.n});
  Tensor dw(DType::kF32, {1, s.shape.n});
  Tensor cu(DType::kI32, {2});
  cu.data<std::int32_t>()[1] = static_cast<std::int32_t>(s.shape.rows);
  Machine machine(s);
  for (auto _ : state) {
    machine.kernels.rms_norm_backward(machine.exec, {dx, dy, x, w, q});
    machine.kernels.rms_norm_backward_weight(machine.exec, {dw, dy, x, q, cu});
  }
  set_rate(state, s.shape, 10);
}

void run_rope(benchmark::State& state, const Setting& s) {
  const std::int64_t d = std::min<std::int64_t>(s.shape.n, 128), heads = s.shape.n / d;
  const Tensor x = random_tensor(DType::kBF16, {s.shape.rows, heads, d}, 1);
  const Tensor cos = random_tensor(DType::kF32, {s.shape.rows, d / 2}, 2);
  const Tensor sin = random_tensor(DType::kF32, {s.shape.rows, d / 2}, 3);
  Tensor positions(DType::kI32, {s.shape.rows});
  for (std::int64_t t = 0; t < s.shape.rows; ++t) {
    positions.data<std::int32_t>()[t] = static_cast<std::int32_t>(t);
  }
  Tensor y(DType::kBF16, {s.shape.rows, heads, d});
  Machine machine(s);
  for (auto _ : state) machine.kernels.rope(machine.exec, {y, x, cos, sin, positions});
  set_rate(state, s.shape, 4);
}

void run_residual_add(benchmark::State& state, const Setting& s) {
  const Tensor a = random_tensor(DType::kBF16, {s.shape.rows, s.shape.n}, 1);
  const Tensor b = random_tensor(DType::kBF16, {s.shape.rows, s.shape.n}, 2);
  Tensor y(DType::kBF16, {s.shape.rows, s.shape.n});
  Machine machine(s);
  for (auto _ : state) machine.kernels.residual_add(machine.exec, {y, a, b});
  set_rate(state, s.shape, 6);
}

void run_swiglu(benchmark::State& state, const Setting& s) {
  const Tensor g = random_tensor(DType::kBF16, {s.shape.rows, s.shape.n}, 1);
  const Tensor u = random_tensor(DType::kBF16, {s.shape.rows, s.shape.n}, 2);
  Tensor y(DType::kBF16, {s.shape.rows, s.shape.n});
  Machine machine(s);
  for (auto _ : state) machine.kernels.swiglu(machine.exec, {y, g, u});
  set_rate(state, s.shape, 6);
}

void run_swiglu_backward(benchmark::State& state, const Setting& s) {
  const Tensor g = random_tensor(DType::kBF16, {s.shape.rows, s.shape.n}, 1);
  const Tensor u = random_tensor(DType::kBF16, {s.shape.rows, s.shape.n}, 2);
  const Tensor dy = random_tensor(DType::kBF16, {s.shape.rows, s.shape.n}, 3);
  Tensor dg(DType::kBF16, {s.shape.rows, s.shape.n});
  Tensor du(DType::kBF16, {s.shape.rows, s.shape.n});
  Machine machine(s);
  for (auto _ : state) machine.kernels.swiglu_backward(machine.exec, {dg, du, dy, g, u});
  set_rate(state, s.shape, 10);
}

void run_adamw(benchmark::State& state, const Setting& s) {
  const std::int64_t n = s.shape.rows * s.shape.n;
  Tensor w(DType::kBF16, {n}), m(DType::kF32, {n}), v(DType::kF32, {n});
  Tensor master = random_tensor(DType::kF32, {n}, 1);
  const Tensor dw = random_tensor(DType::kF32, {n}, 2);
  Machine machine(s);
  rlk::AdamwArgs args;
  args.w = w;
  args.master = master;
  args.m = m;
  args.v = v;
  args.dw = dw;
  args.lr = 1e-3f;
  args.b1 = 0.9f, args.b2 = 0.95f, args.f1 = 0.1f, args.f2 = 0.05f, args.h1 = 0.1f, args.h2 = 0.05f;
  args.eps = 1e-8f;
  for (auto _ : state) machine.kernels.adamw(machine.exec, args);
  set_rate(state, s.shape, 30);
}

void run_grad_norm(benchmark::State& state, const Setting& s) {
  const Tensor dw = random_tensor(DType::kF32, {s.shape.rows, s.shape.n}, 2);
  const rlk::ConstTensorView grads[] = {dw};
  float norm = 0;
  Machine machine(s);
  for (auto _ : state) machine.kernels.grad_norm(machine.exec, {&norm, grads, 1});
  set_rate(state, s.shape, 4);
}

enum class LogitOp { kLogprob, kEntropy, kBackward, kSample };

void run_logits(benchmark::State& state, const Setting& s, LogitOp op) {
  const Tensor logits = random_tensor(DType::kF32, {s.shape.rows, s.shape.n}, 1);
  const Tensor g = random_tensor(DType::kF32, {s.shape.rows}, 2);
  const Tensor targets(DType::kI32, {s.shape.rows});
  Tensor logp(DType::kF32, {s.shape.rows}), entropy(DType::kF32, {s.shape.rows});
  Tensor ids(DType::kI32, {s.shape.rows});
  Tensor dlogits(DType::kBF16, {op == LogitOp::kBackward ? s.shape.rows : 1, s.shape.n});
  const std::vector<rlk::SamplingParams> params(static_cast<std::size_t>(s.shape.rows));
  const std::vector<rlk::SampleKey> keys(params.size());
  Machine machine(s);
  for (auto _ : state) {
    switch (op) {
      case LogitOp::kLogprob:
        machine.kernels.logprob(machine.exec, {logp, {}, logits, targets, params.data(), 1});
        break;
      case LogitOp::kEntropy:
        machine.kernels.logprob(machine.exec, {logp, entropy, logits, targets, params.data(), 1});
        break;
      case LogitOp::kBackward:
        machine.kernels.logprob_backward(machine.exec,
                                         {dlogits, logits, targets, g, {}, params.data(), 1});
        break;
      case LogitOp::kSample:
        machine.kernels.sample(machine.exec, {ids, logits, params.data(), keys.data()});
    }
  }
  // Seconds per logit, so that the unit prefix of the output reads "ns".
  state.counters["s/logit"] = benchmark::Counter(
      static_cast<double>(s.shape.rows * s.shape.n),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void add(const char* op, const Setting& s, auto function) {
  const std::string name = std::string("rows/") + op + "/" + rlk::to_string(s.isa) + "/" +
                           std::to_string(s.shape.rows) + "x" + std::to_string(s.shape.n) +
                           "/threads:" + std::to_string(s.threads);
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    function(state, s);
  })->UseRealTime();
}

void add_all(Isa isa, int threads) {
  for (const Shape& shape : kShapes) {
    const Setting s{isa, threads, shape};
    add("memcpy", s, run_memcpy);
    add("residual_add", s, run_residual_add);
    add("rms_norm", s, run_rms_norm);
    add("rms_norm_backward", s, run_rms_norm_backward);
    add("rope", s, run_rope);
    add("swiglu", s, run_swiglu);
    add("swiglu_backward", s, run_swiglu_backward);
    add("adamw", s, run_adamw);
    add("grad_norm", s, run_grad_norm);
  }
  for (const Shape& shape : kLogits) {
    const Setting s{isa, threads, shape};
    for (const auto& [name, op] : {std::pair{"logprob", LogitOp::kLogprob},
                                   {"logprob_entropy", LogitOp::kEntropy},
                                   {"logprob_backward", LogitOp::kBackward},
                                   {"sample", LogitOp::kSample}}) {
      add(name, s, [op = op](benchmark::State& state, const Setting& setting) {
        run_logits(state, setting, op);
      });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (const int threads : {1, 2}) {
    for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
      if (rlk::available(isa)) add_all(isa, threads);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
