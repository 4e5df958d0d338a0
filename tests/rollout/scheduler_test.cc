#include "rlk/rollout/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace rlk {
namespace {

// A scheduler and what an engine would do between its steps.
struct Simulation {
  PagePool pool;
  Scheduler scheduler;
  std::map<std::uint64_t, std::int64_t> wanted;  // request id: tokens to sample
  std::vector<std::uint64_t> finished;

  Simulation(std::int64_t num_pages, std::int64_t max_num_seqs, std::int64_t budget,
             bool prefix_cache = false)
      : pool(num_pages, 4, prefix_cache), scheduler(pool, max_num_seqs, budget) {}

  void add(std::uint64_t id, std::int64_t prompt_len, std::int64_t max_new_tokens,
           std::int32_t token = 0) {
    auto s = std::make_unique<Sequence>();
    s->request.id = id;
    s->tokens.assign(static_cast<std::size_t>(prompt_len), token);
    wanted[id] = max_new_tokens;
    scheduler.add(std::move(s));
  }

  // One step as (id, number of tokens); samples a token where a sequence is complete.
  std::vector<std::pair<std::uint64_t, std::int64_t>> step() {
    std::vector<std::pair<std::uint64_t, std::int64_t>> out;
    std::vector<Sequence*> complete;
    for (const ScheduledSequence& item : scheduler.schedule()) {
      Sequence& s = *item.sequence;
      out.emplace_back(s.request.id, item.num_tokens);
      EXPECT_GT(item.num_tokens, 0);
      s.num_computed_tokens += item.num_tokens;
      EXPECT_LE(s.num_computed_tokens, static_cast<std::int64_t>(s.pages.size()) * 4);
      if (s.num_computed_tokens == static_cast<std::int64_t>(s.tokens.size())) {
        complete.push_back(&s);
      }
    }
    for (Sequence* s : complete) {
      s->tokens.push_back(1);
      if (--wanted[s->request.id] > 0) continue;
      finished.push_back(s->request.id);
      scheduler.finish(s);
    }
    return out;
  }
};

using Step = std::vector<std::pair<std::uint64_t, std::int64_t>>;

TEST(Scheduler, SharesTheBudgetInOrderOfArrivalDecodesFirst) {
  Simulation s(64, 8, 10);
  s.add(1, 6, 3);
  s.add(2, 9, 2);
  s.add(3, 2, 1);
  EXPECT_EQ(s.step(), (Step{{1, 6}, {2, 4}}));          // a chunk of 2
  EXPECT_EQ(s.step(), (Step{{1, 1}, {2, 5}, {3, 2}}));  // decode, rest of the chunk, a new one
  EXPECT_EQ(s.step(), (Step{{1, 1}, {2, 1}}));
  EXPECT_EQ(s.finished, (std::vector<std::uint64_t>{3, 1, 2}));
  EXPECT_TRUE(s.scheduler.idle());
  EXPECT_EQ(s.pool.num_free_pages(), 64);
}

TEST(Scheduler, HasNoMoreRunningSequencesThanSeats) {
  Simulation s(64, 2, 100);
  for (std::uint64_t id = 1; id <= 3; ++id) s.add(id, 5, 2);
  EXPECT_EQ(s.step(), (Step{{1, 5}, {2, 5}}));
  EXPECT_EQ(s.scheduler.num_running(), 2);
  EXPECT_EQ(s.step(), (Step{{1, 1}, {2, 1}}));
  EXPECT_EQ(s.step(), (Step{{3, 5}}));
}

TEST(Scheduler, PreemptsTheYoungestAndAdmitsItFirstAgain) {
  Simulation s(3, 8, 100);
  s.add(1, 4, 6);  // grows to 9 tokens: 3 pages
  s.add(2, 4, 6);
  s.add(3, 4, 1);
  EXPECT_EQ(s.step(), (Step{{1, 4}, {2, 4}, {3, 4}}));  // 3 finishes: one page is free
  EXPECT_EQ(s.step(), (Step{{1, 1}}));                  // 2 gives its page up for a second of 1
  EXPECT_EQ(s.scheduler.num_preemptions(), 1);
  std::vector<Step> steps;
  while (!s.scheduler.idle()) steps.push_back(s.step());
  EXPECT_EQ(s.finished, (std::vector<std::uint64_t>{3, 1, 2}));
}

TEST(Scheduler, PreemptionKeepsTheOrderOfArrival) {
  Simulation s(64, 8, 100);
  for (std::uint64_t id = 1; id <= 4; ++id) s.add(id, 5, 3);
  s.step();
  s.scheduler.preempt_all();
  EXPECT_EQ(s.pool.num_free_pages(), 64);
  s.add(5, 2, 1);
  EXPECT_EQ(s.step(), (Step{{1, 6}, {2, 6}, {3, 6}, {4, 6}, {5, 2}}));  // with the sampled token
}

TEST(Scheduler, FinishesEveryRequestHoweverFewThePages) {
  for (std::int64_t num_pages : {5, 6, 9}) {
    for (std::int64_t budget : {1, 3, 50}) {
      for (bool prefix_cache : {false, true}) {
        Simulation s(num_pages, 4, budget, prefix_cache);
        for (std::uint64_t id = 1; id <= 6; ++id) {
          s.add(id, 1 + 3 * static_cast<std::int64_t>(id % 4), 11);  // up to 20 of 20 positions
        }
        int steps = 0;
        while (!s.scheduler.idle() && ++steps < 5000) s.step();
        EXPECT_EQ(s.finished.size(), 6u) << num_pages << " pages, budget " << budget;
        EXPECT_EQ(s.finished.front(), 1u);  // the oldest never waits for others
        EXPECT_EQ(s.pool.num_free_pages(), num_pages);
      }
    }
  }
}

TEST(Scheduler, StartsASequenceWithCachedPagesButComputesItsLastToken) {
  Simulation s(64, 8, 100, true);
  s.add(1, 9, 1, 7);
  EXPECT_EQ(s.step(), (Step{{1, 9}}));
  s.add(2, 8, 1, 7);  // two full pages are cached, but the last token's logits are needed
  s.add(3, 9, 1, 7);
  s.add(4, 20, 1, 7);  // shares with 3 what 3 has cached, and computes the rest
  s.add(5, 9, 1, 8);
  EXPECT_EQ(s.step(), (Step{{2, 4}, {3, 1}, {4, 12}, {5, 9}}));
}

}  // namespace
}  // namespace rlk
