#include <algorithm>
#include <cmath>
#include <memory>

#include "rlk/bench/measure.h"

namespace rlk::bench {
namespace {

constexpr int kMostCalls = 64;  // of a graph

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return (x[(x.size() - 1) / 2] + x[x.size() / 2]) / 2;
}

// What a stream takes for some work, by the device's clock. The first time of it is not counted: it
// brings what the work needs to the device, and while it runs the host gives the second, so that no
// time of the host's is in it.
template <typename Work>
double seconds_of(device::Stream& stream, const Work& work) {
  device::Event start, end;
  work();
  start.record(stream);
  work();
  end.record(stream);
  return 1e-3 * static_cast<double>(end.elapsed_ms_since(start));
}

struct Recorded {
  std::unique_ptr<device::Graph> graph;
  int calls = 1;
  int runs = 1;
  std::vector<double> seconds = {};  // of a call, per run

  void run(device::Stream& stream) {
    seconds.push_back(seconds_of(stream, [&] { graph->launch(stream); }) / calls);
  }
};

Recorded record(const Contender& c, int turns, const Budget& budget, device::Stream& stream) {
  for (int i = 0; i < std::max(turns, 2); ++i) c.call();
  stream.synchronize();
  const double call_s = std::max(1e-7, seconds_of(stream, c.call));
  Recorded r;
  const int wanted =
      static_cast<int>(std::min<double>(kMostCalls, std::ceil(budget.run_s / call_s)));
  r.calls = std::max(wanted, turns);
  r.runs = std::clamp(static_cast<int>(budget.contender_s / (r.calls * call_s)), 3, budget.runs);
  r.graph = std::make_unique<device::Graph>(stream, [&] {
    for (int i = 0; i < r.calls; ++i) c.call();
  });
  return r;
}

}  // namespace

std::vector<Time> measure_on_device(const std::vector<const Contender*>& contenders, int turns,
                                    const Budget& budget, device::Stream& stream) {
  std::vector<Recorded> all(contenders.size());
  std::vector<Time> times(contenders.size());
  // An error of one contender ends that one's part alone.
  const auto try_one = [&](std::size_t i, const auto& part) {
    if (times[i].error) return;
    try {
      part();
    } catch (const Error& e) {
      times[i].error = e;
    }
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    try_one(i, [&] { all[i] = record(*contenders[i], turns, budget, stream); });
  }
  for (int run = 0; run < budget.runs; ++run) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (run < all[i].runs) try_one(i, [&] { all[i].run(stream); });
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!times[i].error) times[i].seconds = median(all[i].seconds);
  }
  return times;
}

}  // namespace rlk::bench
