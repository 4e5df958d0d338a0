#include "rlk/rollout/scheduler.h"

#include <algorithm>
#include <utility>

#include "rlk/core/error.h"

namespace rlk {
namespace {

std::int64_t num_uncomputed(const Sequence& s) {
  return static_cast<std::int64_t>(s.tokens.size()) - s.num_computed_tokens;
}

}  // namespace

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  sequence->arrival = num_arrivals_++;
  waiting_.push_back(std::move(sequence));
}

std::vector<ScheduledSequence> Scheduler::schedule() {
  std::vector<ScheduledSequence> out;
  std::int64_t budget = max_num_batched_tokens_;
  const std::int64_t preemptions_before = num_preemptions_;

  for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& s = *running_[i];
    const std::int64_t n = std::min(num_uncomputed(s), budget);
    while (!extend_pages(s, n) && running_.size() > i + 1) preempt_last();
    if (!extend_pages(s, n)) {
      // The youngest of all lacks pages: it waits until an older one finishes.
      preempt_last();
      break;
    }
    publish_full_pages(s, n);
    out.push_back({&s, n});
    budget -= n;
  }

  // A preempted sequence just gave pages back for others; admitting now would take them again.
  const bool admit = num_preemptions_ == preemptions_before;
  while (admit && !waiting_.empty() && budget > 0 && num_running() < max_num_seqs_) {
    Sequence& s = *waiting_.front();
    take_cached_pages(s);
    const std::int64_t n = std::min(num_uncomputed(s), budget);
    if (!extend_pages(s, n)) {
      release_pages(s);
      break;
    }
    publish_full_pages(s, n);
    out.push_back({&s, n});
    budget -= n;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  RLK_ASSERT(!out.empty() || idle());
  return out;
}

std::unique_ptr<Sequence> Scheduler::finish(Sequence* sequence) {
  const auto it = std::find_if(running_.begin(), running_.end(),
                               [&](const auto& s) { return s.get() == sequence; });
  RLK_ASSERT(it != running_.end());
  release_pages(*sequence);
  std::unique_ptr<Sequence> out = std::move(*it);
  running_.erase(it);
  return out;
}

void Scheduler::preempt_all() {
  while (!running_.empty()) preempt_last();
}

// Pages for the next num_tokens tokens; false, with what was there before, when there are too few.
bool Scheduler::extend_pages(Sequence& s, std::int64_t num_tokens) {
  const std::int64_t end = s.num_computed_tokens + num_tokens;
  const std::int64_t need = (end + pool_.page_size() - 1) / pool_.page_size();
  if (need - static_cast<std::int64_t>(s.pages.size()) > pool_.num_free_pages()) return false;
  while (static_cast<std::int64_t>(s.pages.size()) < need) s.pages.push_back(pool_.allocate());
  return true;
}

// Starts a sequence with the cached pages of its tokens. The last token is always computed: its
// logits are needed.
void Scheduler::take_cached_pages(Sequence& s) {
  RLK_ASSERT(s.pages.empty() && s.num_computed_tokens == 0);
  s.last_page_node = pool_.root();
  s.num_hashed_pages = 0;
  const std::int64_t page_size = pool_.page_size();
  const auto num_tokens = static_cast<std::int64_t>(s.tokens.size());
  while ((s.num_hashed_pages + 1) * page_size < num_tokens) {
    const PagePool::Hit hit =
        pool_.find(s.last_page_node, s.tokens.data() + s.num_hashed_pages * page_size);
    if (hit.page < 0) break;
    s.pages.push_back(hit.page);
    s.last_page_node = hit.node;
    ++s.num_hashed_pages;
  }
  s.num_computed_tokens = s.num_hashed_pages * page_size;
}

// Pages that the coming step fills. They are findable from now on: within a step every key is
// written before any is read, so a sequence of the same step may share them already.
void Scheduler::publish_full_pages(Sequence& s, std::int64_t num_tokens) {
  const std::int64_t page_size = pool_.page_size();
  while ((s.num_hashed_pages + 1) * page_size <= s.num_computed_tokens + num_tokens) {
    s.last_page_node =
        pool_.insert(s.last_page_node, s.tokens.data() + s.num_hashed_pages * page_size,
                     s.pages[s.num_hashed_pages]);
    ++s.num_hashed_pages;
  }
}

void Scheduler::release_pages(Sequence& s) {
  // Last page first: the least recently used page of a prefix is then its end, never its start.
  while (!s.pages.empty()) {
    pool_.release(s.pages.back());
    s.pages.pop_back();
  }
  s.num_computed_tokens = 0;
}

void Scheduler::preempt_last() {
  Sequence& s = *running_.back();
  release_pages(s);
  ++s.num_preemptions;
  ++num_preemptions_;
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
}

}  // namespace rlk
