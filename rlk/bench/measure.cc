#include "rlk/bench/measure.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <mutex>
#include <string>
#include <thread>

namespace rlk::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Keeps the time per call of every run.
class Collector : public benchmark::BenchmarkReporter {
 public:
  explicit Collector(std::size_t contenders) : seconds_(contenders) {}
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      seconds_[std::stoul(run.run_name.function_name)].push_back(
          run.real_accumulated_time / static_cast<double>(run.iterations));
    }
  }
  double median(std::size_t contender) {
    std::vector<double>& s = seconds_[contender];
    std::sort(s.begin(), s.end());
    const std::size_t n = s.size();
    return n == 0 ? 0 : (s[(n - 1) / 2] + s[n / 2]) / 2;
  }

 private:
  std::vector<std::vector<double>> seconds_;
};

double process_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Threads of a library look for work for a while before they sleep, up to 100 ms.
void wait_for_idle_threads() {
  for (int i = 0; i < 100; ++i) {
    const double before = process_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (process_seconds() - before < 2e-4) return;
  }
}

double seconds_of(const Contender& c) {
  struct Entered {
    explicit Entered(const Contender& what) : c(what) { c.enter(); }
    ~Entered() { c.leave(); }
    const Contender& c;
  };
  const Entered entered(c);
  c.call();
  double best = 1e30;
  for (double total = 0; total < 2e-3;) {
    const auto start = Clock::now();
    c.call();
    const double s = std::chrono::duration<double>(Clock::now() - start).count();
    total += s;
    best = std::min(best, s);
  }
  return best;
}

void initialize_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::string name = "rlk", interleave = "--benchmark_enable_random_interleaving=true";
    char* argv[] = {name.data(), interleave.data(), nullptr};
    int argc = 2;
    benchmark::Initialize(&argc, argv);
  });
}

}  // namespace

std::vector<Time> measure(const std::vector<const Contender*>& contenders, const Budget& budget) {
  initialize_once();
  benchmark::ClearRegisteredBenchmarks();
  std::vector<Time> times(contenders.size());
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const Contender& c = *contenders[i];
    double call_s = 0;
    try {
      call_s = seconds_of(c);
    } catch (const Error& e) {
      times[i].error = e;
      continue;
    }
    const double calls = std::max(1.0, std::ceil(budget.run_s / call_s));
    const bool warm = call_s < budget.run_s;
    const auto body = [&c, warm](benchmark::State& state) {
      wait_for_idle_threads();
      c.enter();
      if (warm) c.call();
      for (auto _ : state) c.call();
      c.leave();
    };
    benchmark::RegisterBenchmark(std::to_string(i).c_str(), body)
        ->UseRealTime()
        ->Iterations(static_cast<benchmark::IterationCount>(calls))
        ->Repetitions(
            std::clamp(static_cast<int>(budget.contender_s / (calls * call_s)), 3, budget.runs));
  }
  Collector collector(contenders.size());
  benchmark::RunSpecifiedBenchmarks(&collector);
  benchmark::ClearRegisteredBenchmarks();
  for (std::size_t i = 0; i < times.size(); ++i) times[i].seconds = collector.median(i);
  return times;
}

}  // namespace rlk::bench
