// The production route against the contract's CPU kernels, operator by operator.
//
// Method: random data, weights packed, one thread pool; both tables run the same call. Google
// Benchmark repeats; "_min" is the fastest repetition, which a busy machine disturbs least.
//   <op>/<backend>/<shape>/threads:<t>
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "rlk/kernels/kernel_table.h"
#include "rlk/numerics/bf16.h"

namespace {

using rlk::DType;
using rlk::KernelTable;
using rlk::Tensor;

struct Runner {
  rlk::ThreadPool pool;
  rlk::Workspace workspace;
  rlk::Contract contract;
  rlk::Fault fault;
  rlk::Exec exec{pool, workspace, contract, fault};
  explicit Runner(int threads) : pool(threads) {}
};

// Uniform in [-1, 1).
Tensor random_tensor(DType dtype, std::initializer_list<std::int64_t> sizes, std::uint32_t seed) {
  Tensor t(dtype, sizes);
  for (std::int64_t i = 0; i < t.size(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    const float x = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
    if (dtype == DType::kBF16) {
      t.data<rlk::bf16>()[i] = rlk::numerics::to_bf16(x);
    } else {
      t.data<float>()[i] = x;
    }
  }
  return t;
}

Tensor offsets(std::int64_t count, std::int64_t step) {
  Tensor t(DType::kI32, {count});
  for (std::int64_t i = 0; i < count; ++i) {
    t.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * step);
  }
  return t;
}

Tensor filled(std::int64_t count, std::int64_t value) {
  Tensor t(DType::kI32, {count});
  std::fill_n(t.data<std::int32_t>(), count, static_cast<std::int32_t>(value));
  return t;
}

// make(kernels, runner) prepares the data of a case and returns the call that is timed.
using Make = std::function<std::function<void()>(const KernelTable&, Runner&)>;

void add(const std::string& op, const std::string& shape, const Make& make) {
  for (const KernelTable* kernels : {&rlk::cpu_kernels(), &rlk::production_kernels()}) {
    for (const int threads : {1, 2}) {
      const std::string name =
          fmt::format("{}/{}/{}/threads:{}", op, kernels->backend, shape, threads);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [=](benchmark::State& state) {
                                     Runner runner(threads);
                                     const auto call = make(*kernels, runner);
                                     call();
                                     for (auto _ : state) call();
                                   })
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime()
          ->MinTime(0.005)
          ->Repetitions(9)
          ->ReportAggregatesOnly()
          ->ComputeStatistics("min", [](const std::vector<double>& v) {
            return *std::min_element(v.begin(), v.end());
          });
    }
  }
}

std::string name_of(std::initializer_list<std::int64_t> sizes) {
  std::string name;
  for (const std::int64_t size : sizes) {
    if (!name.empty()) name += 'x';
    name += std::to_string(size);
  }
  return name;
}

void add_gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  add("gemm", name_of({m, n, k}), [=](const KernelTable& kernels, Runner& r) {
    auto a = std::make_shared<Tensor>(random_tensor(DType::kBF16, {m, k}, 1));
    auto b = std::make_shared<Tensor>(random_tensor(DType::kBF16, {n, k}, 2));
    auto c = std::make_shared<Tensor>(DType::kBF16, std::initializer_list<std::int64_t>{m, n});
    auto packed = std::make_shared<rlk::PackedWeight>();
    kernels.pack_weight(r.exec, {packed.get(), *b});
    return [=, &kernels, &r] {
      rlk::GemmArgs args;
      args.c = *c;
      args.a = *a;
      args.b = *b;
      args.packed_b = packed.get();
      args.segments = {k, 0, 0};
      kernels.gemm(r.exec, args);
    };
  });
}

void add_weight_gradient(std::int64_t tokens, std::int64_t n, std::int64_t k) {
  add("gemm_backward_weight", name_of({tokens, n, k}), [=](const KernelTable& kernels, Runner& r) {
    auto dy = std::make_shared<Tensor>(random_tensor(DType::kBF16, {tokens, n}, 1));
    auto x = std::make_shared<Tensor>(random_tensor(DType::kBF16, {tokens, k}, 2));
    auto dw = std::make_shared<Tensor>(DType::kF32, std::initializer_list<std::int64_t>{n, k});
    auto chain = std::make_shared<Tensor>(DType::kF32, std::initializer_list<std::int64_t>{n, k});
    return [=, &kernels, &r] { kernels.gemm_backward_weight(r.exec, {*dw, *chain, *dy, *x, {}}); };
  });
}

void add_pack(std::int64_t n, std::int64_t k) {
  add("pack_weight", name_of({n, k}), [=](const KernelTable& kernels, Runner& r) {
    auto w = std::make_shared<Tensor>(random_tensor(DType::kBF16, {n, k}, 2));
    auto packed = std::make_shared<rlk::PackedWeight>();
    return [=, &kernels, &r] { kernels.pack_weight(r.exec, {packed.get(), *w}); };
  });
}

struct Heads {
  std::int64_t q, kv, d;
};

// Whole sequences, forward and backward.
void add_packed_attention(std::int64_t seqs, std::int64_t length, Heads h) {
  for (const bool backward : {false, true}) {
    add(backward ? "attention_backward" : "attention", name_of({seqs, length, h.q, h.kv, h.d}),
        [=](const KernelTable& kernels, Runner& r) {
          const std::int64_t n = seqs * length;
          auto q = std::make_shared<Tensor>(random_tensor(DType::kBF16, {n, h.q, h.d}, 1));
          auto k = std::make_shared<Tensor>(random_tensor(DType::kBF16, {n, h.kv, h.d}, 2));
          auto v = std::make_shared<Tensor>(random_tensor(DType::kBF16, {n, h.kv, h.d}, 3));
          auto dy = std::make_shared<Tensor>(random_tensor(DType::kBF16, {n, h.q, h.d}, 4));
          auto y = std::make_shared<Tensor>(*q);
          auto dq = std::make_shared<Tensor>(*q);
          auto dk = std::make_shared<Tensor>(*k);
          auto dv = std::make_shared<Tensor>(*v);
          auto lse =
              std::make_shared<Tensor>(DType::kF32, std::initializer_list<std::int64_t>{n, h.q});
          auto cu = std::make_shared<Tensor>(offsets(seqs + 1, length));
          auto lens = std::make_shared<Tensor>(filled(seqs, length));
          const auto forward = [=, &kernels, &r] {
            kernels.attention(
                r.exec, {*y, *lse, *q, {*k, *v, {}, rows(cu->view(), 0, seqs), 0}, *cu, *lens});
          };
          forward();
          std::function<void()> call = forward;
          if (backward) {
            call = [=, &kernels, &r] {
              kernels.attention_backward(r.exec, {*dq, *dk, *dv, *dy, *y, *q, *k, *v, *lse, *cu});
            };
          }
          return call;
        });
  }
}

// One query per sequence over pages of 16.
void add_decode(std::int64_t seqs, std::int64_t length, Heads h) {
  add("attention_decode", name_of({seqs, length, h.q, h.kv, h.d}),
      [=](const KernelTable& kernels, Runner& r) {
        const std::int64_t pages = (length + 15) / 16;
        auto q = std::make_shared<Tensor>(random_tensor(DType::kBF16, {seqs, h.q, h.d}, 1));
        auto k = std::make_shared<Tensor>(
            random_tensor(DType::kBF16, {seqs * pages * 16, h.kv, h.d}, 2));
        auto v = std::make_shared<Tensor>(
            random_tensor(DType::kBF16, {seqs * pages * 16, h.kv, h.d}, 3));
        auto table =
            std::make_shared<Tensor>(DType::kI32, std::initializer_list<std::int64_t>{seqs, pages});
        for (std::int64_t i = 0; i < table->size(); ++i) {
          table->data<std::int32_t>()[i] = static_cast<std::int32_t>(table->size() - 1 - i);
        }
        auto y = std::make_shared<Tensor>(*q);
        auto cu = std::make_shared<Tensor>(offsets(seqs + 1, 1));
        auto lens = std::make_shared<Tensor>(filled(seqs, length));
        return [=, &kernels, &r] {
          kernels.attention(r.exec, {*y, {}, *q, {*k, *v, *table, {}, 16}, *cu, *lens});
        };
      });
}

void add_norm(std::int64_t tokens, std::int64_t heads, std::int64_t n) {
  for (const bool backward : {false, true}) {
    add(backward ? "rms_norm_backward" : "rms_norm", name_of({tokens, heads, n}),
        [=](const KernelTable& kernels, Runner& r) {
          auto x = std::make_shared<Tensor>(random_tensor(DType::kBF16, {tokens, heads, n}, 1));
          auto w = std::make_shared<Tensor>(random_tensor(DType::kBF16, {n}, 2));
          auto y = std::make_shared<Tensor>(*x);
          auto dx = std::make_shared<Tensor>(*x);
          auto q = std::make_shared<Tensor>(DType::kF32,
                                            std::initializer_list<std::int64_t>{tokens, heads});
          const auto forward = [=, &kernels, &r] {
            kernels.rms_norm(r.exec, {*y, *q, *x, *w, 1e-6f});
          };
          forward();
          std::function<void()> call = forward;
          if (backward) {
            call = [=, &kernels, &r] { kernels.rms_norm_backward(r.exec, {*dx, *y, *x, *w, *q}); };
          }
          return call;
        });
  }
  add("rms_norm_backward_weight", name_of({tokens, heads, n}),
      [=](const KernelTable& kernels, Runner& r) {
        auto x = std::make_shared<Tensor>(random_tensor(DType::kBF16, {tokens, heads, n}, 1));
        auto dw =
            std::make_shared<Tensor>(DType::kF32, std::initializer_list<std::int64_t>{heads, n});
        auto q = std::make_shared<Tensor>(random_tensor(DType::kF32, {tokens, heads}, 3));
        auto cu = std::make_shared<Tensor>(offsets(17, tokens / 16));
        return [=, &kernels, &r] {
          kernels.rms_norm_backward_weight(r.exec, {*dw, *x, *x, *q, *cu});
        };
      });
}

void add_logprob(std::int64_t tokens, std::int64_t vocab) {
  for (const bool backward : {false, true}) {
    add(backward ? "logprob_backward" : "logprob", name_of({tokens, vocab}),
        [=](const KernelTable& kernels, Runner& r) {
          auto logits = std::make_shared<Tensor>(random_tensor(DType::kF32, {tokens, vocab}, 1));
          auto targets = std::make_shared<Tensor>(filled(tokens, 3));
          auto g = std::make_shared<Tensor>(random_tensor(DType::kF32, {tokens}, 2));
          auto out = std::make_shared<Tensor>(*g);
          auto dz = std::make_shared<Tensor>(random_tensor(DType::kBF16, {tokens, vocab}, 1));
          auto params = std::make_shared<rlk::SamplingParams>();
          std::function<void()> call = [=, &kernels, &r] {
            kernels.logprob(r.exec, {*out, {}, *logits, *targets, params.get(), 1});
          };
          if (backward) {
            call = [=, &kernels, &r] {
              kernels.logprob_backward(r.exec, {*dz, *logits, *targets, *g, {}, params.get(), 1});
            };
          }
          return call;
        });
  }
}

void add_grad_norm(std::int64_t n) {
  add("grad_norm", name_of({n}), [=](const KernelTable& kernels, Runner& r) {
    auto grad = std::make_shared<Tensor>(random_tensor(DType::kF32, {n}, 1));
    return [=, &kernels, &r] {
      float norm;
      const rlk::ConstTensorView view = *grad;
      kernels.grad_norm(r.exec, {&norm, &view, 1});
      benchmark::DoNotOptimize(norm);
    };
  });
}

}  // namespace

int main(int argc, char** argv) {
  for (std::int64_t m : {1, 4, 8, 12, 16, 24, 32, 64, 100, 256, 1000, 3000}) add_gemm(m, 192, 64);
  for (std::int64_t m : {8, 32, 1000}) add_gemm(m, 16, 64);
  for (std::int64_t m : {8, 32, 1000}) add_gemm(m, 64, 192);
  for (std::int64_t m : {1, 8, 12, 16, 32, 64}) add_gemm(m, 4096, 1024);
  add_gemm(512, 1024, 1024);
  add_gemm(512, 4096, 1024);
  for (std::int64_t t : {100, 1000, 3000}) add_weight_gradient(t, 192, 64);
  add_weight_gradient(2048, 1024, 1024);
  add_pack(192, 64);
  add_pack(1024, 1024);
  for (std::int64_t length : {12, 24, 64}) add_packed_attention(64, length, {4, 2, 16});
  add_packed_attention(4, 512, {16, 8, 128});
  for (std::int64_t length : {12, 24, 64}) add_decode(128, length, {4, 2, 16});
  add_decode(16, 1024, {16, 8, 128});
  add_norm(1000, 1, 64);
  add_norm(1000, 4, 16);
  add_norm(512, 1, 1024);
  add_logprob(1000, 16);
  add_logprob(64, 32000);
  add_grad_norm(200000);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
