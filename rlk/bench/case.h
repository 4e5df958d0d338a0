// What a case is made of. For rlk/bench/*.cc only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rlk/bench/bench.h"
#include "rlk/bench/peers.h"

namespace rlk::bench {

// What is timed: calls of the same work by one implementation. On a GPU a call only gives its work
// to the stream of Engines::ours.
struct Contender {
  std::string name;
  double work = 0;  // of one call: operations, bytes or tokens, as the case's unit says
  std::function<void()> call;
  bool judged = true;
  std::function<void()> enter = [] {};  // before a run of calls, and behind it
  std::function<void()> leave = [] {};
};

// A case with its data. The functions share ownership of it.
struct Prepared {
  Contender ours;  // without a call: a case that is not timed
  std::vector<Contender> peers;
  std::function<std::string()> check;  // runs ours and the reference; the first difference, or ""
  std::function<void(BenchCase&)> finish = [](BenchCase&) {};  // after the timing
  int turns = 1;     // after so many calls the data of the first comes again
  std::string note;  // why a peer is missing
};

// One context per route; a new set for each case, so that scratch memory is the case's own.
struct Engines {
  Engines(const Contract& contract, const KernelTable& kernels, int num_threads,
          const Peers& vendor, bool is_quick);
  // A case tries its kernels itself, so that no record of admission is asked for.
  Context ours;
  // The usual fast route; there is none on a GPU.
  std::optional<Context> production;
  // Has the right bits: the reference, or beside a GPU the CPU backend, which is as right and
  // faster.
  Context reference;
  int threads;
  const Peers& peers;
  bool quick;

  bool on_device() const { return ours.on_device(); }
  device::Stream& stream() { return ours.exec().gpu->stream(); }
  // What the vendor multiplies: numbers of the call where it has the contract's products, else the
  // same numbers in f32.
  bool peers_take_f32() const {
    return !on_device() || ours.contract().profile == Profile::kPortable;
  }
};

struct Case {
  std::string name;  // without threads
  std::string op;
  std::string shape;
  std::string unit;
  double target = 0;
  bool quick = false;  // part of --quick
  std::function<Prepared(Engines&)> prepare;
  std::string group = {};
  double group_target = 0;
  std::string against = {};  // the only judged peer, where not all are
};

using Cases = std::vector<Case>;

// Runs these in place of those that `options` chooses.
BenchReport run_cases(const Cases& cases, const BenchOptions& options);

// On a CPU.
void add_gemm_cases(Cases& cases);
void add_gradient_gemm_cases(Cases& cases);
void add_row_cases(Cases& cases);
void add_step_cases(Cases& cases);
void add_attention_cases(Cases& cases);
void add_decode_cases(Cases& cases);
void add_logprob_cases(Cases& cases);
void add_linear_logp_cases(Cases& cases);
void add_demo_cases(Cases& cases, const std::string& folder);

// On a GPU: the calls of a model of these sizes, here Qwen3-8B's. Targets of what is made of
// products are those of a profile of matrix units.
struct GpuSizes {
  std::int64_t hidden_size = 4096, intermediate_size = 12288, vocab_size = 151936;
  std::int64_t heads = 32, kv_heads = 8, head_dim = 128;
  std::vector<std::int64_t> many_rows = {512, 2048, 4096, 16384};  // of products
  std::vector<std::int64_t> few_rows = {1, 2, 4, 8, 16, 24, 32, 48, 64};
  std::int64_t train_tokens = 8192;                        // of gradients and of row operators
  std::vector<std::int64_t> sample_lengths = {1000, 100};  // in weight gradients
  std::int64_t logp_rows = 4096;                           // of linear_logp
  std::int64_t logit_rows = 1024;                          // of logprob and log_softmax
  std::vector<std::int64_t> prompts = {2048, 4096, 8192, 16384};
  std::vector<std::int64_t> train_sequences = {4096, 8192};  // of attention backward
  std::int64_t decode_batch = 32, decode_keys = 4096;        // and one sequence of 8 times as many
  std::vector<std::int64_t> sampled_rows = {1, 64};          // of decode steps
  std::int64_t rotated_bytes = 300'000'000;                  // more than any level 2 cache
};
void add_gpu_cases(Cases& cases, Profile profile, const GpuSizes& sizes = {});

inline constexpr const char* kProduction = "production";
inline constexpr const char* kTflops = "TFLOP/s";
inline constexpr const char* kGflops = "GFLOP/s";
inline constexpr const char* kGbytes = "GB/s";
inline constexpr const char* kTokens = "token/s";

}  // namespace rlk::bench
