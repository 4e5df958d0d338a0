#include "rlk/rollout/page_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/io/error_matchers.h"

namespace rlk {
namespace {

const std::vector<std::int32_t> kTokens{5, 6, 7, 8};
const std::vector<std::int32_t> kOther{5, 6, 7, 9};

// A cached page without an owner, under the root.
std::int32_t cached(PagePool& pool, const std::vector<std::int32_t>& tokens) {
  const std::int32_t page = pool.allocate();
  pool.insert(pool.root(), tokens.data(), page);
  pool.release(page);
  return page;
}

TEST(PagePool, GivesEveryPageOnceAndThenNone) {
  PagePool pool(3, 4, true);
  std::set<std::int32_t> pages{pool.allocate(), pool.allocate(), pool.allocate()};
  EXPECT_EQ(pages, (std::set<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(pool.allocate(), -1);
  pool.release(1);
  EXPECT_EQ(pool.num_free_pages(), 1);
  EXPECT_EQ(pool.allocate(), 1);
}

TEST(PagePool, FindsAPageByItsTokensAndItsPrefix) {
  PagePool pool(4, 4, true);
  const std::int32_t first = pool.allocate(), second = pool.allocate();
  const std::uint64_t node = pool.insert(pool.root(), kTokens.data(), first);
  const std::uint64_t child = pool.insert(node, kTokens.data(), second);
  EXPECT_EQ(pool.find(pool.root(), kOther.data()).page, -1);
  const PagePool::Hit hit = pool.find(pool.root(), kTokens.data());
  EXPECT_EQ(hit.page, first);
  EXPECT_EQ(hit.node, node);
  EXPECT_EQ(pool.find(node, kTokens.data()).page, second);  // the same tokens, another position
  EXPECT_EQ(pool.find(child, kTokens.data()).page, -1);
  EXPECT_EQ(pool.num_hits(), 2);
}

TEST(PagePool, ASharedPageIsFreeOnlyWhenItsLastOwnerLeaves) {
  PagePool pool(1, 4, true);
  const std::int32_t page = pool.allocate();
  pool.insert(pool.root(), kTokens.data(), page);
  EXPECT_EQ(pool.find(pool.root(), kTokens.data()).page, page);
  pool.release(page);
  EXPECT_EQ(pool.num_free_pages(), 0);
  pool.release(page);
  EXPECT_EQ(pool.num_free_pages(), 1);
  EXPECT_EQ(pool.find(pool.root(), kTokens.data()).page, page);  // still findable
  EXPECT_EQ(pool.num_free_pages(), 0);
}

TEST(PagePool, TakesTheLeastRecentlyUsedCachedPageFirst) {
  PagePool pool(3, 4, true);
  const std::vector<std::int32_t> a{1, 1, 1, 1}, b{2, 2, 2, 2}, c{3, 3, 3, 3};
  // All three have an owner at once, else the first page would be reused for the second.
  std::vector<std::int32_t> pages;
  for (const auto& tokens : {a, b, c}) {
    pages.push_back(pool.allocate());
    pool.insert(pool.root(), tokens.data(), pages.back());
  }
  for (std::int32_t page : pages) pool.release(page);
  pool.release(pool.find(pool.root(), a.data()).page);  // a was used last
  EXPECT_EQ(pool.allocate(), pages[1]);
  EXPECT_EQ(pool.find(pool.root(), b.data()).page, -1);
  EXPECT_EQ(pool.find(pool.root(), a.data()).page, pages[0]);
  EXPECT_EQ(pool.allocate(), pages[2]);
  EXPECT_EQ(pool.find(pool.root(), c.data()).page, -1);
  EXPECT_EQ(pool.allocate(), -1);
}

TEST(PagePool, UnusedPagesGoBeforeCachedOnes) {
  PagePool pool(2, 4, true);
  const std::int32_t page = cached(pool, kTokens);
  EXPECT_NE(pool.allocate(), page);
  EXPECT_EQ(pool.find(pool.root(), kTokens.data()).page, page);
}

TEST(PagePool, ASecondPageWithTheSameTokensDoesNotReplaceTheFirst) {
  PagePool pool(2, 4, true);
  const std::int32_t first = pool.allocate(), second = pool.allocate();
  const std::uint64_t node = pool.insert(pool.root(), kTokens.data(), first);
  EXPECT_EQ(pool.insert(pool.root(), kTokens.data(), second), node);
  EXPECT_EQ(pool.find(pool.root(), kTokens.data()).page, first);
  pool.release(second);
  EXPECT_EQ(pool.allocate(), second);  // it was never cached
}

TEST(PagePool, NoPageSurvivesANewWeightVersion) {
  PagePool pool(2, 4, true);
  cached(pool, kTokens);
  const std::uint64_t old_root = pool.root();
  const std::uint64_t node = pool.find(old_root, kTokens.data()).node;
  pool.release(0);
  pool.start_weight_version();
  EXPECT_NE(pool.root(), old_root);
  EXPECT_NE(pool.root(), node);
  EXPECT_EQ(pool.find(pool.root(), kTokens.data()).page, -1);
  EXPECT_EQ(pool.find(old_root, kTokens.data()).page, -1);
  EXPECT_EQ(pool.num_free_pages(), 2);
  cached(pool, kTokens);
  EXPECT_GE(pool.find(pool.root(), kTokens.data()).page, 0);
}

TEST(PagePool, WithoutPrefixCacheNothingIsEverFound) {
  PagePool pool(2, 4, false);
  cached(pool, kTokens);
  EXPECT_EQ(pool.find(pool.root(), kTokens.data()).page, -1);
  EXPECT_EQ(pool.num_free_pages(), 2);
}

TEST(PagePool, RefusesSizesThatAreNone) {
  expect_error(ErrorCode::kInvalidArgument, {"page_size 12"}, [] { PagePool(2, 12, true); });
  expect_error(ErrorCode::kInvalidArgument, {"page_size 0"}, [] { PagePool(2, 0, true); });
  expect_error(ErrorCode::kInvalidArgument, {"num_pages 0"}, [] { PagePool(0, 16, true); });
}

}  // namespace
}  // namespace rlk
