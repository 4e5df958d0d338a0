// Pages and their scheduler under random operations: no page has two owners unless they share its
// tokens, none is lost, and a hit is never stale.
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "rlk/rollout/scheduler.h"
#include "tests/properties/draw.h"

namespace rlk::test {
namespace {

using Tokens = std::vector<std::int32_t>;

// What a page pool promises, kept beside it in the plainest way.
class PoolModel {
 public:
  PoolModel(std::int64_t num_pages, bool prefix_cache)
      : pool_(num_pages, 2, prefix_cache), prefix_cache_(prefix_cache), owners_(num_pages, 0) {
    prefixes_[pool_.root()] = {};
  }

  void allocate() {
    const std::int32_t page = pool_.allocate();
    RC_ASSERT((page < 0) == (num_free() == 0));
    if (page < 0) return;
    RC_ASSERT(owners_[page] == 0);
    owners_[page] = 1;
    contents_.erase(page);
    held_.push_back(page);
    check();
  }

  void release() {
    if (held_.empty()) return;
    const std::int64_t i = draw(0, std::ssize(held_) - 1);
    --owners_[held_[i]];
    pool_.release(held_[i]);
    held_.erase(held_.begin() + i);
    check();
  }

  // A child of a random node with random tokens, of few kinds, so that equal ones meet.
  void insert() {
    if (held_.empty()) return;
    const std::int32_t page = held_[draw(0, std::ssize(held_) - 1)];
    if (contents_.count(page)) return;
    const auto [parent, tokens] = draw_key();
    Tokens prefix = prefixes_.at(parent);
    prefix.insert(prefix.end(), tokens.begin(), tokens.end());
    const std::uint64_t node = pool_.insert(parent, tokens.data(), page);
    if (!prefix_cache_) return;
    if (!prefixes_.count(node)) {
      prefixes_[node] = prefix;
      contents_[page] = node;
    }
    RC_ASSERT(prefixes_.at(node) == prefix);  // another page's node only for the same tokens
    check();
  }

  void find() {
    const auto [parent, tokens] = draw_key();
    const PagePool::Hit hit = pool_.find(parent, tokens.data());
    if (hit.page < 0) return;
    RC_ASSERT(prefix_cache_);
    Tokens prefix = prefixes_.at(parent);
    prefix.insert(prefix.end(), tokens.begin(), tokens.end());
    RC_ASSERT(contents_.count(hit.page) == 1u);
    RC_ASSERT(contents_.at(hit.page) == hit.node);
    RC_ASSERT(prefixes_.at(hit.node) == prefix);
    ++owners_[hit.page];
    held_.push_back(hit.page);
    check();
  }

  void start_weight_version() {
    while (!held_.empty()) release();
    pool_.start_weight_version();
    RC_ASSERT(prefixes_.count(pool_.root()) == 0u);  // never a node of before
    old_.insert(prefixes_.begin(), prefixes_.end());
    for (const auto& [node, prefix] : old_) {
      for (std::int32_t a = 0; a < 2; ++a) {
        const Tokens tokens{a, a};
        RC_ASSERT(pool_.find(node, tokens.data()).page == -1);
      }
    }
    prefixes_.clear();
    prefixes_[pool_.root()] = {};
    contents_.clear();
    check();
  }

 private:
  std::pair<std::uint64_t, Tokens> draw_key() const {
    auto it = prefixes_.begin();
    std::advance(it, draw(0, std::ssize(prefixes_) - 1));
    const auto first = static_cast<std::int32_t>(draw(0, 1));
    return {it->first, {first, static_cast<std::int32_t>(draw(0, 1))}};
  }
  std::int64_t num_free() const { return std::count(owners_.begin(), owners_.end(), 0); }
  void check() const { RC_ASSERT(pool_.num_free_pages() == num_free()); }

  PagePool pool_;
  bool prefix_cache_;
  std::vector<std::int64_t> owners_;
  std::vector<std::int32_t> held_;  // a page once per owner
  std::map<std::uint64_t, Tokens> prefixes_, old_;
  std::map<std::int32_t, std::uint64_t> contents_;
};

TEST(Properties, APagePoolLosesNoPageAndHitsNoStaleOne) {
  EXPECT_TRUE(rc::check("page pool", [] {
    PoolModel model(draw(1, 8), draw(0, 4) != 0);
    for (std::int64_t i = draw(1, 120); i > 0; --i) {
      switch (draw(0, 19)) {
        case 0: model.start_weight_version(); break;
        case 1:
        case 2:
        case 3:
        case 4:
        case 5: model.allocate(); break;
        case 6:
        case 7:
        case 8:
        case 9: model.release(); break;
        case 10:
        case 11:
        case 12:
        case 13:
        case 14: model.insert(); break;
        default: model.find();
      }
    }
    model.start_weight_version();
  }));
}

// A scheduler, and memory in which every slot says of which weights and tokens its keys are.
class Engine {
 public:
  Engine(std::int64_t num_pages, std::int64_t page_size)
      : pool_(num_pages, page_size, draw(0, 4) != 0),
        scheduler_(pool_, draw(1, 6), draw(1, 24)),
        slots_(static_cast<std::size_t>(num_pages * page_size)) {}

  void add(std::int64_t prompt_len, std::int64_t max_new_tokens) {
    auto s = std::make_unique<Sequence>();
    s->request.id = wanted_.size();
    wanted_.push_back(max_new_tokens);
    for (std::int64_t i = 0; i < prompt_len; ++i) {
      s->tokens.push_back(i % 5 == 4 ? static_cast<std::int32_t>(draw(0, 1)) : 0);
    }
    scheduler_.add(std::move(s));
  }

  void step() {
    if (scheduler_.idle()) return;
    const std::vector<ScheduledSequence> scheduled = scheduler_.schedule();
    RC_ASSERT(!scheduled.empty());
    std::set<const Sequence*> seen;
    for (const ScheduledSequence& item : scheduled) {  // every key is written before any is read
      RC_ASSERT(item.num_tokens > 0);
      RC_ASSERT(seen.insert(item.sequence).second);
      const std::int64_t begin = item.sequence->num_computed_tokens;
      for (std::int64_t p = begin; p < begin + item.num_tokens; ++p)
        slot(*item.sequence, p) = key(*item.sequence, p);
    }
    for (const ScheduledSequence& item : scheduled) {
      Sequence& s = *item.sequence;
      s.num_computed_tokens += item.num_tokens;
      for (std::int64_t p = 0; p < s.num_computed_tokens; ++p) {
        RC_ASSERT(slot(s, p) == key(s, p));
      }
    }
    for (const ScheduledSequence& item : scheduled) {
      Sequence& s = *item.sequence;
      if (s.num_computed_tokens < std::ssize(s.tokens)) continue;
      s.tokens.push_back(static_cast<std::int32_t>(draw(0, 1)));
      if (--wanted_[s.request.id] > 0) continue;
      scheduler_.finish(&s);
      ++num_finished_;
    }
  }

  void new_weights() {
    scheduler_.preempt_all();
    pool_.start_weight_version();
    ++weight_version_;
  }

  void run_to_the_end() {
    std::int64_t steps = 0;
    while (!scheduler_.idle()) {
      RC_ASSERT(++steps < 20000);
      step();
    }
    RC_ASSERT(num_finished_ == std::ssize(wanted_));
    RC_ASSERT(pool_.num_free_pages() == pool_.num_pages());
  }

 private:
  // The keys of position p are those of these tokens under these weights.
  struct Key {
    std::int64_t weight_version = -1;
    Tokens prefix;
    bool operator==(const Key&) const = default;
  };
  Key key(const Sequence& s, std::int64_t p) const {
    return {weight_version_, Tokens(s.tokens.begin(), s.tokens.begin() + p + 1)};
  }
  Key& slot(const Sequence& s, std::int64_t p) {
    const std::int64_t size = pool_.page_size();
    RC_ASSERT(p / size < std::ssize(s.pages));
    return slots_[static_cast<std::size_t>(s.pages[p / size] * size + p % size)];
  }

  PagePool pool_;
  Scheduler scheduler_;
  std::vector<Key> slots_;
  std::vector<std::int64_t> wanted_;  // tokens still to sample, by request
  std::int64_t num_finished_ = 0;
  std::int64_t weight_version_ = 0;
};

TEST(Properties, EveryScheduledSequenceReadsItsOwnKeysAndFinishes) {
  EXPECT_TRUE(rc::check("scheduler", [] {
    const std::int64_t page_size = std::int64_t{1} << draw(0, 3);
    const std::int64_t most = 20;  // tokens of a sequence that need a place
    const std::int64_t num_pages = (most + page_size - 1) / page_size + draw(0, 12);
    Engine engine(num_pages, page_size);
    for (std::int64_t i = draw(1, 50); i > 0; --i) {
      switch (draw(0, 14)) {
        case 0: engine.new_weights(); break;
        case 1:
        case 2:
        case 3: {
          const std::int64_t prompt_len = draw(1, most - 1);
          engine.add(prompt_len, draw(1, most - prompt_len + 1));
          break;
        }
        default: engine.step();
      }
    }
    engine.run_to_the_end();
  }));
}

}  // namespace
}  // namespace rlk::test
