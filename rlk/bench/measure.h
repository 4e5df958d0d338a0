// Timing: on a CPU by Google Benchmark, on a GPU by its events. For rlk/bench/*.cc only.
#pragma once

#include <optional>
#include <vector>

#include "rlk/bench/case.h"
#include "rlk/core/error.h"

namespace rlk::bench {

struct Budget {
  double run_s;        // a run of calls lasts this long at least
  int runs;            // of each contender
  double contender_s;  // fewer runs, but not below 3, where they would last longer than this
};

struct Time {
  double seconds = 0;          // of one call: the median
  std::optional<Error> error;  // of the contender, which then has no time
};

// One time per contender. Runs of all contenders alternate at random, and each begins when no
// thread of this process works any more.
std::vector<Time> measure(const std::vector<const Contender*>& contenders, const Budget& budget);

// The same for calls that only give work to `stream`: a run is a graph of calls that was recorded
// once, behind calls that have touched all data of `turns`. Graphs of all contenders alternate,
// each behind one more run of its own, so that the device is at work when the time begins.
std::vector<Time> measure_on_device(const std::vector<const Contender*>& contenders, int turns,
                                    const Budget& budget, device::Stream& stream);

}  // namespace rlk::bench
