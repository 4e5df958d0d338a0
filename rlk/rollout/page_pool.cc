#include "rlk/rollout/page_pool.h"

#include <algorithm>

#include <xxhash.h>

#include "rlk/core/error.h"

namespace rlk {

PagePool::PagePool(std::int64_t num_pages, std::int64_t page_size, bool prefix_cache)
    : page_size_(page_size), prefix_cache_(prefix_cache) {
  if (page_size < 1 || (page_size & (page_size - 1)) != 0) {
    fail(ErrorCode::kInvalidArgument, "page_size {} is not a power of two", page_size);
  }
  if (num_pages < 1) fail(ErrorCode::kInvalidArgument, "num_pages {} is not positive", num_pages);
  pages_.resize(static_cast<std::size_t>(num_pages));
  for (std::int64_t i = num_pages; i-- > 0;) unused_.push_back(static_cast<std::int32_t>(i));
}

std::int64_t PagePool::num_free_pages() const {
  return static_cast<std::int64_t>(unused_.size() + idle_.size());
}

void PagePool::start_weight_version() {
  RLK_ASSERT(num_free_pages() == num_pages());
  while (!idle_.empty()) {
    const std::int32_t page = idle_.front();
    forget(page);
    unused_.push_back(page);
  }
  root_ = ++last_node_;  // never the root, nor any node, of an earlier version
}

std::int32_t PagePool::allocate() {
  std::int32_t page;
  if (!unused_.empty()) {
    page = unused_.back();
    unused_.pop_back();
  } else if (!idle_.empty()) {
    page = idle_.front();
    forget(page);
  } else {
    return -1;
  }
  pages_[page].owners = 1;
  return page;
}

void PagePool::release(std::int32_t page) {
  Page& p = pages_[page];
  RLK_ASSERT(p.owners > 0);
  if (--p.owners > 0) return;
  if (p.node != 0) {
    p.idle = idle_.insert(idle_.end(), page);
  } else {
    unused_.push_back(page);
  }
}

PagePool::Hit PagePool::find(std::uint64_t parent, const std::int32_t* tokens) {
  if (!prefix_cache_) return {};
  const std::int32_t page = lookup(hash(parent, tokens), parent, tokens);
  if (page < 0) return {};
  Page& p = pages_[page];
  if (p.owners++ == 0) idle_.erase(p.idle);
  ++num_hits_;
  return {page, p.node};
}

std::uint64_t PagePool::insert(std::uint64_t parent, const std::int32_t* tokens,
                               std::int32_t page) {
  if (!prefix_cache_) return 0;
  const std::uint64_t key = hash(parent, tokens);
  const std::int32_t known = lookup(key, parent, tokens);
  if (known >= 0) return pages_[known].node;
  Page& p = pages_[page];
  RLK_ASSERT(p.node == 0 && p.owners > 0);
  p.node = ++last_node_;
  p.parent = parent;
  p.hash = key;
  p.tokens.assign(tokens, tokens + page_size_);
  by_hash_.emplace(key, page);
  return p.node;
}

std::uint64_t PagePool::hash(std::uint64_t parent, const std::int32_t* tokens) const {
  return XXH64(tokens, static_cast<std::size_t>(page_size_) * sizeof(*tokens), parent);
}

// Equal hashes are not equal tokens, so both are compared.
std::int32_t PagePool::lookup(std::uint64_t key, std::uint64_t parent,
                              const std::int32_t* tokens) const {
  const auto [begin, end] = by_hash_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    const Page& p = pages_[it->second];
    if (p.parent == parent && std::equal(p.tokens.begin(), p.tokens.end(), tokens)) {
      return it->second;
    }
  }
  return -1;
}

// Takes an idle page out of the cache.
void PagePool::forget(std::int32_t page) {
  Page& p = pages_[page];
  const auto [begin, end] = by_hash_.equal_range(p.hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second == page) {
      by_hash_.erase(it);
      break;
    }
  }
  idle_.erase(p.idle);
  p.node = 0;
}

}  // namespace rlk
