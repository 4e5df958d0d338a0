// Decode steps as graphs: on a GPU what a step gives to the device is mostly the same launches
// again, and one launch of a graph takes the place of them all.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>

#include "rlk/ops/context.h"

namespace rlk {

class DecodeGraphs {
 public:
  // What the launches of a step depend on: two steps with the same key make the same ones. Kernels
  // read everything else when they run.
  struct Key {
    std::int64_t num_seqs = 0;
    std::int64_t max_pages = 0;    // width of the block table
    const void* hidden = nullptr;  // where the step has its scratch: hidden states and logits of
    const void* logits = nullptr;  // the rows that are sampled
    bool operator==(const Key&) const = default;
  };
  static constexpr std::size_t kMaxGraphs = 64;  // of the keys used last

  // The number of sequences that a graph for `num_seqs` has, so that few serve all numbers: exact
  // up to 16, then at most an eighth more. At most kMaxPadding are added.
  static constexpr std::int64_t kMaxPadding = 15;
  static std::int64_t padded(std::int64_t num_seqs);

  // ctx outlives it. Where `enabled` is false, or the context cannot record, there are no graphs.
  DecodeGraphs(Context& ctx, bool enabled) : ctx_(ctx), enabled_(enabled && ctx.can_record()) {}

  bool enabled() const { return enabled_; }

  // Makes the calls of `work`: one by one the first time that it sees the key, so that workspaces
  // grow and kernels are loaded, and by a graph of them from the second time on.
  // Errors  those of `work` and Context::record; the next call tries again.
  void run(const Key& key, const std::function<void()>& work);

  std::int64_t num_replays() const { return num_replays_; }
  std::size_t num_graphs() const;

 private:
  struct Entry {
    Key key;
    std::optional<Context::Recording> recording;  // absent: seen once
  };

  Context& ctx_;
  bool enabled_;
  std::list<Entry> entries_;  // used last first
  std::int64_t num_replays_ = 0;
};

}  // namespace rlk
