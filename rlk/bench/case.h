// What a case is made of. For rlk/bench/*.cc only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rlk/bench/bench.h"
#include "rlk/bench/peers.h"

namespace rlk::bench {

// What is timed: calls of the same work by one implementation.
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
};

// One context per route; a new set for each case, so that scratch memory is the case's own.
struct Engines {
  Engines(const KernelTable* kernels, int num_threads, const Peers& vendor, bool is_quick)
      : ours({}, all_ops(Mode::kStrict), num_threads, kernels),
        production({}, all_ops(Mode::kOff), num_threads),
        reference({}, all_ops(Mode::kStrict), 1, &reference_kernels()),
        threads(num_threads),
        peers(vendor),
        quick(is_quick) {}
  Context ours;
  Context production;
  Context reference;
  int threads;
  const Peers& peers;
  bool quick;
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
void add_gemm_cases(Cases& cases);
void add_gradient_gemm_cases(Cases& cases);
void add_row_cases(Cases& cases);
void add_step_cases(Cases& cases);
void add_attention_cases(Cases& cases);
void add_decode_cases(Cases& cases);
void add_logprob_cases(Cases& cases);
void add_linear_logp_cases(Cases& cases);
void add_demo_cases(Cases& cases, const std::string& folder);

inline constexpr const char* kProduction = "production";
inline constexpr const char* kGflops = "GFLOP/s";
inline constexpr const char* kGbytes = "GB/s";
inline constexpr const char* kTokens = "token/s";

}  // namespace rlk::bench
