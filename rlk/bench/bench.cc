#include "rlk/bench/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <regex>
#include <thread>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "rlk/bench/case.h"
#include "rlk/bench/measure.h"
#include "rlk/core/error.h"

namespace rlk {
namespace {

using bench::Case;
using bench::Contender;
using bench::Prepared;

bench::Cases all_cases(const BenchOptions& options) {
  bench::Cases cases;
  if (options.gpu) {
    bench::add_gpu_cases(cases, options.contract.profile);
    return cases;
  }
  bench::add_gemm_cases(cases);
  bench::add_gradient_gemm_cases(cases);
  bench::add_row_cases(cases);
  bench::add_attention_cases(cases);
  bench::add_decode_cases(cases);
  bench::add_logprob_cases(cases);
  bench::add_linear_logp_cases(cases);
  bench::add_step_cases(cases);
  bench::add_demo_cases(cases, options.demo);
  return cases;
}

// 0: not of a GPU.
std::vector<int> thread_counts(const BenchOptions& options) {
  if (options.gpu) return {0};
  if (!options.threads.empty()) return options.threads;
  return std::thread::hardware_concurrency() > 1 ? std::vector<int>{1, 2} : std::vector<int>{1};
}

std::string full_name(const Case& c, int threads) {
  if (threads == 0) return c.name;
  return fmt::format("{}/threads:{}", c.name, threads);
}

std::regex filter_of(const BenchOptions& options) {
  try {
    return std::regex(options.filter);
  } catch (const std::regex_error& e) {
    fail(ErrorCode::kInvalidArgument, "filter \"{}\" is no regular expression: {}", options.filter,
         e.what());
  }
}

const KernelTable& kernels_of(const BenchOptions& options) {
  return options.kernels ? *options.kernels : cpu_kernels();
}

struct Selected {
  Case what;
  int threads;
};

std::vector<Selected> selected(const bench::Cases& cases, const BenchOptions& options) {
  const std::regex filter = filter_of(options);
  std::vector<Selected> out;
  for (const Case& c : cases) {
    if (options.quick && !c.quick) continue;
    for (const int threads : thread_counts(options)) {
      if (std::regex_search(full_name(c, threads), filter)) out.push_back({c, threads});
    }
  }
  if (out.empty()) {
    fail(ErrorCode::kInvalidArgument, "filter \"{}\" matches no case; --list prints them{}",
         options.filter, options.quick ? "; --quick has a part of them" : "");
  }
  return out;
}

// The fastest judged peer, the ratio to it, and the price against the production route.
void judge(BenchCase& c) {
  double best_rate = 0;
  for (const BenchPeer& p : c.peers) {
    if (p.name == bench::kProduction) c.price = c.ms / p.ms;
    if (!p.judged || p.rate <= best_rate) continue;
    best_rate = p.rate;
    c.peer = p.name;
    c.peer_ms = p.ms;
  }
  if (best_rate > 0) c.ratio = c.rate / best_rate;
}

std::vector<bench::Time> measured(bench::Engines& engines, const Prepared& prepared,
                                  const std::vector<const Contender*>& contenders) {
  if (!engines.on_device()) {
    return bench::measure(
        contenders, engines.quick ? bench::Budget{0.015, 5, 0.2} : bench::Budget{0.04, 9, 1.0});
  }
  const bench::Budget budget =
      engines.quick ? bench::Budget{5e-4, 7, 0.1} : bench::Budget{1e-3, 20, 2.0};
  std::vector<bench::Time> times =
      bench::measure_on_device(contenders, prepared.turns, budget, engines.stream());
  if (!times[0].error) engines.ours.synchronize();
  return times;
}

double scale_of(const std::string& unit) {
  return unit == bench::kTokens ? 1.0 : unit == bench::kTflops ? 1e-12 : 1e-9;
}

// A peer that fails is left out; an error of ours is one of the case.
void time_case(const Case& what, const Prepared& prepared, bench::Engines& engines, BenchCase& c) {
  std::vector<const Contender*> contenders{&prepared.ours};
  for (const Contender& peer : prepared.peers) contenders.push_back(&peer);
  const std::vector<bench::Time> times = measured(engines, prepared, contenders);
  if (times[0].error) throw Error(*times[0].error);
  const double scale = scale_of(what.unit);
  c.ms = 1e3 * times[0].seconds;
  c.rate = scale * prepared.ours.work / times[0].seconds;
  for (std::size_t i = 1; i < contenders.size(); ++i) {
    const Contender& p = *contenders[i];
    if (times[i].error) {
      bench::note_missing(c.note, p.name, times[i].error->what());
      continue;
    }
    const double seconds = times[i].seconds;
    const bool judged = p.judged && (what.against.empty() || what.against == p.name);
    c.peers.push_back({p.name, 1e3 * seconds, scale * p.work / seconds, judged});
  }
  judge(c);
}

BenchCase run_case(const Selected& s, const BenchOptions& options, const bench::Peers& peers) {
  BenchCase c;
  c.name = full_name(s.what, s.threads);
  c.op = s.what.op;
  c.shape = s.what.shape;
  c.threads = s.threads;
  c.unit = s.what.unit;
  c.target = s.what.target;
  c.group = s.what.group;
  if (!c.group.empty() && s.threads > 0) c.group += fmt::format(", threads {}", s.threads);
  try {
    bench::Engines engines(options.contract, kernels_of(options), s.threads, peers, options.quick);
    const Prepared prepared = s.what.prepare(engines);
    c.note = prepared.check();
    c.ran = true;
    c.bits_equal = c.note.empty();
    if (!c.bits_equal) return c;
    c.note = prepared.note;
    if (prepared.ours.call) time_case(s.what, prepared, engines, c);
    prepared.finish(c);
  } catch (const Error& e) {
    c.note = e.what();
    // A type or size that the kernels do not have is no case, nor is one whose files are missing;
    // any other error, of a GPU too, and any behind the first call is one that failed.
    c.ran = c.ran || (e.code() != ErrorCode::kDtype && e.code() != ErrorCode::kUnsupported &&
                      (e.code() != ErrorCode::kNotAvailable || options.gpu));
    c.bits_equal = false;
  }
  return c;
}

std::vector<BenchGroup> groups_of(const std::vector<BenchCase>& cases,
                                  const std::vector<Selected>& all) {
  std::map<std::string, BenchGroup> groups;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const BenchCase& c = cases[i];
    if (c.group.empty() || c.ratio <= 0) continue;
    BenchGroup& g = groups[c.group];
    g.name = c.group;
    g.target = all[i].what.group_target;
    g.ratio += std::log(c.ratio);
    ++g.cases;
  }
  std::vector<BenchGroup> out;
  for (auto& [name, g] : groups) {
    g.ratio = std::exp(g.ratio / static_cast<double>(g.cases));
    out.push_back(g);
  }
  return out;
}

// What a case runs with, which is held against the right bits before it is timed.
Admission all_of(const KernelTable& kernels) {
  Admission admission({});
  for (int i = 0; i < kNumOps; ++i) {
    admission.add({static_cast<Op>(i), kernels.backend, true, 0, ""});
  }
  return admission;
}

}  // namespace

bench::Engines::Engines(const Contract& contract, const KernelTable& kernels, int num_threads,
                        const Peers& vendor, bool is_quick)
    : ours(contract, all_ops(Mode::kStrict), std::max(num_threads, 1), &kernels, all_of(kernels)),
      reference(contract, all_ops(Mode::kStrict), kernels.on_device ? 0 : 1,
                kernels.on_device ? &cpu_kernels() : &reference_kernels()),
      threads(num_threads),
      peers(vendor),
      quick(is_quick) {
  if (!kernels.on_device) production.emplace(contract, all_ops(Mode::kOff), num_threads);
}

bool BenchReport::bits_equal() const {
  return std::all_of(cases.begin(), cases.end(),
                     [](const BenchCase& c) { return !c.ran || c.bits_equal; });
}

BenchReport bench::run_cases(const Cases& cases, const BenchOptions& options) {
  const std::vector<Selected> all = selected(cases, options);
  BenchReport report;
  if (options.gpu) {
    report.gpu = device::selected();
  }
  const Peers peers = options.gpu ? open_gpu_peers(options.vendor_products) : open_peers();
  report.date = fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
  report.kernels = kernels_of(options).backend;
  report.contract = options.contract;
  report.quick = options.quick;
  for (const Peer& peer : peers) report.libraries.push_back(peer.library);
  for (const Selected& s : all) {
    if (options.interrupted()) fail(ErrorCode::kInterrupted, "bench: interrupted");
    options.progress(full_name(s.what, s.threads));
    report.cases.push_back(run_case(s, options, peers));
  }
  report.groups = groups_of(report.cases, all);
  return report;
}

BenchReport run_bench(const BenchOptions& options) {
  return bench::run_cases(all_cases(options), options);
}

std::vector<std::string> bench_names(const BenchOptions& options) {
  std::vector<std::string> names;
  for (const Selected& s : selected(all_cases(options), options))
    names.push_back(full_name(s.what, s.threads));
  return names;
}

}  // namespace rlk
