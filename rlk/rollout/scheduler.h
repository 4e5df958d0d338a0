// Continuous batching: which tokens of which sequences run in the next step.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "rlk/rollout/page_pool.h"
#include "rlk/rollout/sequence.h"

namespace rlk {

// The next num_tokens uncomputed tokens of a sequence; its pages reach far enough.
struct ScheduledSequence {
  Sequence* sequence;
  std::int64_t num_tokens;
};

// Policy, in vLLM's words: running sequences first, in order of arrival, each with as many tokens
// as the budget still allows (one in decode, a chunk in prefill); where pages run out, the youngest
// running sequence is preempted: it gives its pages back and is computed again later. Then waiting
// sequences are admitted while budget, seats and pages last, with cached full pages as their start.
// Nothing of this can reach a bit of a result.
class Scheduler {
 public:
  Scheduler(PagePool& pool, std::int64_t max_num_seqs, std::int64_t max_num_batched_tokens)
      : pool_(pool),
        max_num_seqs_(max_num_seqs),
        max_num_batched_tokens_(max_num_batched_tokens) {}

  void add(std::unique_ptr<Sequence> sequence);
  bool idle() const { return waiting_.empty() && running_.empty(); }
  std::int64_t num_running() const { return static_cast<std::int64_t>(running_.size()); }

  // Never empty unless idle().
  std::vector<ScheduledSequence> schedule();

  // Takes a finished sequence out and gives its pages back.
  std::unique_ptr<Sequence> finish(Sequence* sequence);

  // Sends every running sequence back to wait, without its pages: their KV belongs to old weights.
  void preempt_all();

  std::int64_t num_preemptions() const { return num_preemptions_; }

 private:
  bool extend_pages(Sequence& sequence, std::int64_t num_tokens);
  void take_cached_pages(Sequence& sequence);
  void publish_full_pages(Sequence& sequence, std::int64_t num_tokens);
  void release_pages(Sequence& sequence);
  void preempt_last();

  PagePool& pool_;
  std::int64_t max_num_seqs_;
  std::int64_t max_num_batched_tokens_;
  std::int64_t num_arrivals_ = 0;
  std::int64_t num_preemptions_ = 0;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
};

}  // namespace rlk
