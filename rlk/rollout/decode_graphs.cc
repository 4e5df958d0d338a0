#include "rlk/rollout/decode_graphs.h"

#include <algorithm>
#include <bit>

#include "rlk/core/error.h"

namespace rlk {

std::size_t DecodeGraphs::num_graphs() const {
  return static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(),
                    [](const Entry& entry) { return entry.recording.has_value(); }));
}

std::int64_t DecodeGraphs::padded(std::int64_t num_seqs) {
  const auto size = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(num_seqs)));
  const std::int64_t step = std::clamp<std::int64_t>(size / 16, 1, kMaxPadding + 1);
  return (num_seqs + step - 1) / step * step;
}

void DecodeGraphs::run(const Key& key, const std::function<void()>& work) {
  if (!enabled_) return work();
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (found == entries_.end()) {
    work();
    entries_.push_front({key, {}});
    if (entries_.size() > kMaxGraphs) entries_.pop_back();
    return;
  }
  entries_.splice(entries_.begin(), entries_, found);
  if (!found->recording) {
    ctx_.synchronize();  // faults of earlier calls are none of the recording
    try {
      found->recording = ctx_.record(work);
    } catch (const Error& e) {
      fail(e.code(),
           "recording a decode step: {} (rollout.graphs=false or --no-graphs does without)",
           e.what());
    }
  }
  ctx_.replay(*found->recording);
  ++num_replays_;
}

}  // namespace rlk
