// gemm against OpenBLAS sgemm, which has no promise about its bits.
//
// Method: random data; ours has bf16 operands and a packed weight, OpenBLAS the same numbers in f32
// with the weight as it lies ([N, K]); one thread pool, OpenBLAS set to the same number of threads.
// Google Benchmark repeats until the time is stable; the rate counts 2 M N K operations.
//   gemm/<isa>/<form>/<M>x<N>x<K>/threads:<t>    form: chain, or tree with 8 leaves
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "rlk/kernels/kernel_table.h"
#include "rlk/numerics/bf16.h"

extern "C" char* openblas_get_corename();

namespace {

using rlk::Isa;

struct Shape {
  std::int64_t m, n, k;
};

constexpr Shape kLarge[] = {{1024, 1024, 1024},
                            {2048, 2048, 2048},
                            {512, 4096, 1024},
                            {512, 1024, 4096},
                            {128, 1024, 4096}};
constexpr Shape kDecode[] = {{1, 4096, 1024}, {2, 4096, 1024},  {4, 4096, 1024},
                             {8, 4096, 1024}, {16, 4096, 1024}, {32, 4096, 1024}};
constexpr Shape kDemo[] = {
    {1, 192, 64}, {8, 192, 64}, {64, 192, 64}, {1024, 192, 64}, {1024, 64, 192}};

rlk::Tensor random_bf16(std::int64_t rows, std::int64_t cols, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  rlk::Tensor t(rlk::DType::kBF16, {rows, cols});
  for (std::int64_t i = 0; i < t.size(); ++i) {
    t.data<rlk::bf16>()[i] = rlk::numerics::to_bf16(normal(engine));
  }
  return t;
}

std::vector<float> widened(const rlk::Tensor& t) {
  std::vector<float> wide(static_cast<std::size_t>(t.size()));
  for (std::int64_t i = 0; i < t.size(); ++i) {
    wide[static_cast<std::size_t>(i)] = rlk::numerics::to_f32(t.data<rlk::bf16>()[i]);
  }
  return wide;
}

void set_rate(benchmark::State& state, const Shape& s) {
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(s.m * s.n * s.k),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

// Bits first, then time: 64 elements against the literal chain. (Tests compare all of them, and
// trees.)
bool samples_are_chains(const rlk::Tensor& a, const rlk::Tensor& b, const rlk::Tensor& c) {
  const std::int64_t m_size = a.shape(0), n_size = b.shape(0), k_size = a.shape(1);
  for (std::int64_t i = 0; i < 64; ++i) {
    const std::int64_t m = i * 37 % m_size;
    const std::int64_t n = i * 101 % n_size;
    float acc = 0.0f;
    for (std::int64_t k = 0; k < k_size; ++k) {
      acc = std::fma(rlk::numerics::to_f32(a.data<rlk::bf16>()[m * k_size + k]),
                     rlk::numerics::to_f32(b.data<rlk::bf16>()[n * k_size + k]), acc);
    }
    if (c.data<rlk::bf16>()[m * n_size + n].bits != rlk::numerics::to_bf16(acc + 0.0f).bits) {
      return false;
    }
  }
  return true;
}

enum class Form { kChain, kTree, kUnpacked };

void run_ours(benchmark::State& state, Isa isa, Form form, Shape s, int threads) {
  const rlk::Tensor a = random_bf16(s.m, s.k, 1);
  const rlk::Tensor b = random_bf16(s.n, s.k, 2);
  rlk::Tensor c(rlk::DType::kBF16, {s.m, s.n});
  rlk::ThreadPool pool(threads);
  rlk::Workspace workspace;
  rlk::Contract contract;
  rlk::Fault fault;
  rlk::Exec exec{pool, workspace, contract, fault};
  const rlk::KernelTable& kernels = rlk::cpu_kernels(isa);
  rlk::PackedWeight packed;
  kernels.pack_weight(exec, {&packed, b});
  rlk::GemmArgs args;
  args.c = c;
  args.a = a;
  args.b = b;
  if (form != Form::kUnpacked) args.packed_b = &packed;
  args.leaf_tree = form == Form::kTree;
  args.segments = {s.k, 0, 0};
  kernels.gemm(exec, args);
  if (form != Form::kTree && !samples_are_chains(a, b, c)) {
    state.SkipWithError("a sampled element is not the chain over K");
    return;
  }
  for (auto _ : state) kernels.gemm(exec, args);
  set_rate(state, s);
}

void run_weight_gradient(benchmark::State& state, Isa isa, Shape s, int threads) {
  const rlk::Tensor dy = random_bf16(s.m, s.n, 1);
  const rlk::Tensor x = random_bf16(s.m, s.k, 2);
  rlk::Tensor dw(rlk::DType::kF32, {s.n, s.k});
  rlk::Tensor chain(rlk::DType::kF32, {s.n, s.k});
  rlk::ThreadPool pool(threads);
  rlk::Workspace workspace;
  rlk::Contract contract;
  rlk::Fault fault;
  rlk::Exec exec{pool, workspace, contract, fault};
  const rlk::KernelTable& kernels = rlk::cpu_kernels(isa);
  rlk::GemmBackwardWeightArgs args;
  args.dw = dw;
  args.chain = chain;
  args.dy = dy;
  args.x = x;
  for (auto _ : state) kernels.gemm_backward_weight(exec, args);
  set_rate(state, s);
}

void run_openblas(benchmark::State& state, Shape s, int threads) {
  const std::vector<float> a = widened(random_bf16(s.m, s.k, 1));
  const std::vector<float> b = widened(random_bf16(s.n, s.k, 2));
  std::vector<float> c(static_cast<std::size_t>(s.m * s.n));
  openblas_set_num_threads(threads);
  const auto m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
  for (auto _ : state) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, a.data(), k, b.data(), k,
                0.0f, c.data(), n);
  }
  set_rate(state, s);
}

void add(const std::string& name, const Shape& s, int threads, auto function) {
  const std::string shape =
      std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k);
  auto* bench = benchmark::RegisterBenchmark(
      ("gemm/" + name + "/" + shape + "/threads:" + std::to_string(threads)).c_str(), function);
  if (threads > 1) bench->UseRealTime();  // else the time of the one thread: a quieter clock
}

void add_shape(const Shape& s, int threads) {
  add("openblas", s, threads, [=](benchmark::State& state) { run_openblas(state, s, threads); });
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    if (!rlk::available(isa)) continue;
    const std::string name = rlk::to_string(isa);
    for (auto [form, form_name] : {std::pair{Form::kChain, "/chain"},
                                   {Form::kTree, "/tree"},
                                   {Form::kUnpacked, "/unpacked"}}) {
      add(name + form_name, s, threads,
          [=, form = form](benchmark::State& state) { run_ours(state, isa, form, s, threads); });
    }
    add(name + "/weight_gradient", s, threads,
        [=](benchmark::State& state) { run_weight_gradient(state, isa, s, threads); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::printf("OpenBLAS core: %s\n", openblas_get_corename());
  for (int threads : {1, 2}) {
    for (const Shape& s : kLarge) add_shape(s, threads);
    for (const Shape& s : kDecode) add_shape(s, threads);
    for (const Shape& s : kDemo) add_shape(s, threads);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
