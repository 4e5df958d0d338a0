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
  bench::add_gemm_cases(cases);
  bench::add_gradient_gemm_cases(cases);
  bench::add_row_cases(cases);
  bench::add_attention_cases(cases);
  bench::add_decode_cases(cases);
  bench::add_logprob_cases(cases);
  bench::add_linear_logp_cases(cases);
  bench::add_step_cases(cases);
  bench::add_demo_cases(cases, options.demo);
  if (options.quick) std::erase_if(cases, [](const Case& c) { return !c.quick; });
  return cases;
}

std::vector<int> thread_counts(const BenchOptions& options) {
  if (!options.threads.empty()) return options.threads;
  return std::thread::hardware_concurrency() > 1 ? std::vector<int>{1, 2} : std::vector<int>{1};
}

std::string full_name(const Case& c, int threads) {
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

struct Selected {
  Case what;
  int threads;
};

std::vector<Selected> selected(const BenchOptions& options) {
  const std::regex filter = filter_of(options);
  std::vector<Selected> out;
  for (const Case& c : all_cases(options)) {
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

void time_case(const Case& what, const Prepared& prepared, const bench::Budget& budget,
               BenchCase& c) {
  std::vector<const Contender*> contenders{&prepared.ours};
  for (const Contender& peer : prepared.peers) contenders.push_back(&peer);
  const std::vector<double> seconds = bench::measure(contenders, budget);
  const double scale = what.unit == bench::kTokens ? 1.0 : 1e-9;
  c.ms = 1e3 * seconds[0];
  c.rate = scale * prepared.ours.work / seconds[0];
  for (std::size_t i = 1; i < contenders.size(); ++i) {
    const Contender& p = *contenders[i];
    const bool judged = p.judged && (what.against.empty() || what.against == p.name);
    c.peers.push_back({p.name, 1e3 * seconds[i], scale * p.work / seconds[i], judged});
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
  if (!s.what.group.empty()) c.group = fmt::format("{}, threads {}", s.what.group, s.threads);
  const bench::Budget budget =
      options.quick ? bench::Budget{0.015, 5, 0.2} : bench::Budget{0.04, 9, 1.0};
  try {
    bench::Engines engines(options.kernels, s.threads, peers, options.quick);
    const Prepared prepared = s.what.prepare(engines);
    c.note = prepared.check();
    c.ran = true;
    c.bits_equal = c.note.empty();
    if (!c.bits_equal) return c;
    if (prepared.ours.call) time_case(s.what, prepared, budget, c);
    prepared.finish(c);
  } catch (const Error& e) {
    // A type or size that the kernels do not have is no case; any other error is one that failed.
    c.ran = e.code() != ErrorCode::kDtype && e.code() != ErrorCode::kUnsupported &&
            e.code() != ErrorCode::kNotAvailable;
    c.bits_equal = false;
    c.note = e.what();
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

}  // namespace

bool BenchReport::bits_equal() const {
  return std::all_of(cases.begin(), cases.end(),
                     [](const BenchCase& c) { return !c.ran || c.bits_equal; });
}

BenchReport run_bench(const BenchOptions& options) {
  const std::vector<Selected> all = selected(options);
  const bench::Peers peers = bench::open_peers();
  BenchReport report;
  report.date = fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
  report.kernels = (options.kernels ? *options.kernels : cpu_kernels()).backend;
  report.quick = options.quick;
  for (const bench::Peer& peer : peers) report.libraries.push_back(peer.library);
  for (const Selected& s : all) {
    if (options.interrupted()) fail(ErrorCode::kInterrupted, "bench: interrupted");
    options.progress(full_name(s.what, s.threads));
    report.cases.push_back(run_case(s, options, peers));
  }
  report.groups = groups_of(report.cases, all);
  return report;
}

std::vector<std::string> bench_names(const BenchOptions& options) {
  std::vector<std::string> names;
  for (const Selected& s : selected(options)) names.push_back(full_name(s.what, s.threads));
  return names;
}

}  // namespace rlk
