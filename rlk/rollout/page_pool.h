// Pages of the KV cache: allocation, sharing by prefix, and the weight version they belong to.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

namespace rlk {

// Bookkeeping only; the bytes lie in KvCache. A page is page_size positions of one sequence, or of
// several that share the tokens up to its end. Full pages stay findable after their last owner has
// left, until their space is needed, least recently used first.
//
// A cached page is a node under the node of the page before it; every weight version has
// its own root. So a hit means equal tokens from position 0 on, computed by the same weights.
class PagePool {
 public:
  // Errors  kInvalidArgument: page_size is not a power of two, num_pages is not positive.
  PagePool(std::int64_t num_pages, std::int64_t page_size, bool prefix_cache);

  std::int64_t page_size() const { return page_size_; }
  std::int64_t num_pages() const { return static_cast<std::int64_t>(pages_.size()); }
  std::int64_t num_free_pages() const;  // unused, and cached without an owner

  // New weights: forgets every cached page and starts under another root. No page may have an
  // owner.
  void start_weight_version();
  std::uint64_t root() const { return root_; }

  // A page for one owner, or -1 when all are in use.
  std::int32_t allocate();
  void release(std::int32_t page);

  // The cached page under `parent` with these tokens, now owned once more, and its node; -1: none.
  struct Hit {
    std::int32_t page = -1;
    std::uint64_t node = 0;
  };
  Hit find(std::uint64_t parent, const std::int32_t* tokens);

  // Makes a full page findable and returns its node. Where another page already holds the same
  // tokens that one stays the findable one, and its node is returned.
  std::uint64_t insert(std::uint64_t parent, const std::int32_t* tokens, std::int32_t page);

  std::int64_t num_hits() const { return num_hits_; }

 private:
  struct Page {
    std::int64_t owners = 0;
    std::uint64_t node = 0;  // 0: not cached
    std::uint64_t parent = 0;
    std::uint64_t hash = 0;
    std::vector<std::int32_t> tokens;
    std::list<std::int32_t>::iterator idle;  // position in idle_ while cached without an owner
  };
  std::uint64_t hash(std::uint64_t parent, const std::int32_t* tokens) const;
  std::int32_t lookup(std::uint64_t key, std::uint64_t parent, const std::int32_t* tokens) const;
  void forget(std::int32_t page);

  std::int64_t page_size_;
  bool prefix_cache_;
  std::vector<Page> pages_;
  std::vector<std::int32_t> unused_;
  std::list<std::int32_t> idle_;  // cached pages without an owner, least recently used first
  std::unordered_multimap<std::uint64_t, std::int32_t> by_hash_;
  std::uint64_t root_ = 1;
  std::uint64_t last_node_ = 1;
  std::int64_t num_hits_ = 0;
};

}  // namespace rlk
