// bench: how fast the contract's kernels are, on a CPU or a GPU, beside vendor libraries, memory
// and the production route. Bits come before time: a case whose bytes are not the contract's is not
// timed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rlk/ops/context.h"

namespace rlk {

struct BenchOptions {
  bool gpu = false;                    // the cases of a GPU; else those of a CPU
  bool quick = false;                  // fewer and smaller cases, at most 90 s on two cores
  std::string filter;                  // regular expression, searched in names; empty: all
  std::vector<int> threads;            // of each case; empty: 1 and, where there are two cores, 2;
                                       // not of a GPU
  std::string demo = "examples/demo";  // folder of the run that the end-to-end cases step
  std::string vendor_products;         // file of the GPU's library of products; empty: the
                                       // installed one
  Contract contract = {};
  const KernelTable* kernels = nullptr;  // what is timed; null: cpu_kernels(). With `gpu` kernels
                                         // whose tensors lie in memory of a device
  std::function<void(const std::string& name)> progress = [](const std::string&) {};
  std::function<bool()> interrupted = [] { return false; };
};

// A contender of a case: a library, a memory loop, our own product, or the production route.
struct BenchPeer {
  std::string name;
  double ms = 0;        // median
  double rate = 0;      // in the unit of the case
  bool judged = false;  // its rate can be the one that `ratio` is against
};

struct BenchCase {
  std::string name;  // "gemm/bf16/tree/512x4096x1024/threads:2"
  std::string op;
  std::string shape;
  int threads = 1;          // 0: not of a GPU
  bool bits_equal = false;  // false too where a call of ours failed
  std::string note;  // the first difference, why the case failed or did not run, or why a peer is
                     // missing
  bool ran = false;
  double ms = 0;    // median over repetitions, ours
  double rate = 0;  // work by time
  std::string unit;
  std::vector<BenchPeer> peers;
  std::string peer;  // the fastest judged one
  double peer_ms = 0;
  double ratio = 0;              // our rate by the peer's; 0: no judged peer
  double target = 0;             // what `ratio` shall reach; 0: for information
  double price = 0;              // our time by the production route's; 0: not compared
  std::int64_t peak_bytes = -1;  // scratch memory that the operators took; -1: not measured
  std::string group;  // cases that are judged together by the geometric mean of their ratios

  bool met() const { return ratio >= target; }
};

// The geometric mean over the cases of a group.
struct BenchGroup {
  std::string name;
  double ratio = 0;
  double target = 0;
  std::int64_t cases = 0;
  bool met() const { return ratio >= target; }
};

struct BenchLibrary {
  std::string name;         // "openblas"
  std::string version;      // empty: not installed
  std::string core;         // the kernels it chose, where it says so
  std::string reason = {};  // why it cannot be used, where that is known
};

struct BenchReport {
  std::string date;                 // ISO, UTC
  std::string kernels;              // backend that was timed
  std::optional<device::Info> gpu;  // that they ran on
  Contract contract;
  bool quick = false;
  std::vector<BenchLibrary> libraries;
  std::vector<BenchCase> cases;
  std::vector<BenchGroup> groups;

  bool bits_equal() const;  // of every case that ran
};

// Errors  kInvalidArgument: a filter that is no regular expression, or one that no case matches;
//         kNotAvailable: no GPU, where one is asked for; kInterrupted.
BenchReport run_bench(const BenchOptions& options);

// Names of all cases, for --list.
std::vector<std::string> bench_names(const BenchOptions& options);

std::string to_json(const BenchReport& report);
std::string to_text(const BenchReport& report);      // for a terminal
std::string to_markdown(const BenchReport& report);  // the tables of docs/benchmarks.md

}  // namespace rlk
