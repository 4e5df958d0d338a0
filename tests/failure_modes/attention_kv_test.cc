// Failures of attention and of the KV cache, fm21 to fm25.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "rlk/ops/attention.h"
#include "tests/failure_modes/each_backend.h"
#include "tests/rollout/rollout_data.h"

namespace rlk::test {
namespace {

// One sequence of n tokens.
struct Sequence {
  std::int64_t n, heads, kv_heads, d;
  Tensor q, k, v;

  Sequence(std::int64_t n, std::int64_t heads, std::int64_t kv_heads, std::int64_t d)
      : n(n),
        heads(heads),
        kv_heads(kv_heads),
        d(d),
        q(random_tensor(DType::kBF16, {n, heads, d}, 1, Kind::kNormal, 2)),
        k(random_tensor(DType::kBF16, {n, kv_heads, d}, 2)),
        v(random_tensor(DType::kBF16, {n, kv_heads, d}, 3, Kind::kWide)) {}
};

// Small blocks and splits, so that short sequences cross them.
Contract small_blocks() {
  Contract c;
  c.kv_block = 16;
  c.kv_split = 48;
  return c;
}

// Queries [begin, n) in one call; keys and values packed.
Tensor packed(Context& ctx, const Sequence& s, std::int64_t begin = 0) {
  Tensor y(DType::kBF16, {s.n - begin, s.heads, s.d});
  const Tensor start = i32_tensor({0}), kv_lens = i32_tensor({static_cast<std::int32_t>(s.n)});
  const Tensor cu = i32_tensor({0, static_cast<std::int32_t>(s.n - begin)});
  attention(ctx, {y, {}, rows(s.q.view(), begin, s.n), {s.k, s.v, {}, start, 0}, cu, kv_lens});
  return y;
}

// Pages in falling order behind one that is not used; what is not written holds large numbers.
struct Paged {
  std::int64_t page_size;
  Tensor k, v, table;

  Paged(const Sequence& s, std::int64_t page_size, std::int64_t spare_columns = 0)
      : page_size(page_size) {
    const std::int64_t pages = (s.n + page_size - 1) / page_size;
    const std::int64_t row = s.kv_heads * s.d;
    k = random_tensor(DType::kBF16, {(pages + 1) * page_size, s.kv_heads, s.d}, 8, Kind::kNormal,
                      1e6);
    v = k;
    table = Tensor(DType::kI32, {1, pages + spare_columns});
    std::int32_t* page = table.data<std::int32_t>();
    std::fill_n(page, table.size(), -1);
    for (std::int64_t i = 0; i < pages; ++i) page[i] = static_cast<std::int32_t>(pages - i);
    for (std::int64_t p = 0; p < s.n; ++p) {
      const std::int64_t slot = page[p / page_size] * page_size + p % page_size;
      std::copy_n(s.k.data<bf16>() + p * row, row, k.data<bf16>() + slot * row);
      std::copy_n(s.v.data<bf16>() + p * row, row, v.data<bf16>() + slot * row);
    }
  }

  // Queries [begin, end), given the keys before `end`.
  void run(Context& ctx, const Sequence& s, std::int64_t begin, std::int64_t end,
           const Tensor& y) const {
    TensorView out{const_cast<void*>(y.view().data), DType::kBF16, y.layout()};
    const Tensor cu = i32_tensor({0, static_cast<std::int32_t>(end - begin)});
    const Tensor kv_lens = i32_tensor({static_cast<std::int32_t>(end)});
    attention(ctx, {rows(out, begin, end),
                    {},
                    rows(s.q.view(), begin, end),
                    {k, v, table, {}, page_size},
                    cu,
                    kv_lens});
  }
  Tensor whole(Context& ctx, const Sequence& s, std::int64_t chunk) const {
    Tensor y(DType::kBF16, {s.n, s.heads, s.d});
    for (std::int64_t begin = 0; begin < s.n; begin += chunk) {
      run(ctx, s, begin, std::min(s.n, begin + chunk), y);
    }
    return y;
  }
};

// A prefix-cache hit differs from a cold run when the prefix is exactly a page, or no multiple of
// the split.
TEST(FailureModes, fm21_APrefixHitGivesTheBitsOfAColdRunAroundPagesBlocksAndSplits) {
  for (const std::int64_t prompt_len : {15, 16, 17, 32, 33, 49, 64, 65}) {
    RolloutSetup cold;
    cold.options.prefix_cache = false;
    Request first = request(1, prompt_len, 6), second = request(2, prompt_len, 20);
    second.prompt_token_ids = first.prompt_token_ids;
    const std::vector<Completion> wanted = generate(cold, {first, second});
    TestEngine warm{{}};
    EXPECT_TRUE(same_completion(warm.engine.generate({first})[0], wanted[0]));
    EXPECT_TRUE(same_completion(warm.engine.generate({second})[0], wanted[1])) << prompt_len;
    EXPECT_EQ(warm.engine.stats().num_prefix_hits, (prompt_len - 1) / 16) << prompt_len;
  }
  // In the operator: the prefix's keys were computed before, the rest are the only queries.
  each_backend(
      [](Context& ctx) {
        const Sequence s(100, 4, 2, 16);
        const Tensor whole = packed(ctx, s);
        for (const std::int64_t prefix : {15, 16, 17, 32, 47, 48, 49, 99}) {
          const Tensor rest = packed(ctx, s, prefix);
          EXPECT_EQ(
              std::memcmp(rest.data<bf16>(), whole.data<bf16>() + prefix * 64, rest.size_bytes()),
              0)
              << prefix;
        }
      },
      small_blocks());
}

// Prefill and decode choose other tiles.
TEST(FailureModes, fm22_PrefillChunksAndDecodeGiveTheSameBits) {
  const Sequence s(100, 4, 2, 16);
  Tensor expected;
  each_backend(
      [&](Context& ctx) {
        if (expected.empty()) expected = packed(ctx, s);
        EXPECT_TRUE(same_bits(packed(ctx, s), expected));
        for (const std::int64_t page_size : {1, 8, 16, 64}) {
          for (const std::int64_t chunk : {1, 7, 16, 64, 100}) {
            EXPECT_TRUE(same_bits(Paged(s, page_size).whole(ctx, s, chunk), expected))
                << "pages of " << page_size << ", chunks of " << chunk;
          }
        }
      },
      small_blocks());
  // Blocks or splits that followed the call would show.
  for (const auto& [block, split] : {std::pair{32, 96}, {16, 96}, {16, 16}}) {
    Contract other = small_blocks();
    other.kv_block = block;
    other.kv_split = split;
    each_backend([&](Context& ctx) { EXPECT_FALSE(same_bits(packed(ctx, s), expected)); }, other);
  }
}

// The KV layout is guessed from sizes: two KV heads are taken for the axis of keys and values.
TEST(FailureModes, fm23_TwoKvHeadsAreHeadsWhateverElseIsTwo) {
  each_backend([](Context& ctx) {
    for (const std::int64_t d : {2, 16}) {
      for (const std::int64_t n : {2, 4, 50}) {
        const Sequence both(n, 4, 2, d);
        const Tensor expected = packed(ctx, both);
        for (const std::int64_t page_size : {1, 2, 16}) {
          EXPECT_TRUE(same_bits(Paged(both, page_size).whole(ctx, both, n), expected));
        }
        // Each KV head with its two query heads alone.
        for (std::int64_t h = 0; h < 2; ++h) {
          Sequence one(n, 2, 1, d);
          for (std::int64_t t = 0; t < n; ++t) {
            std::copy_n(both.q.view().at<bf16>(t, 2 * h), 2 * d, one.q.view().at<bf16>(t));
            std::copy_n(both.k.view().at<bf16>(t, h), d, one.k.view().at<bf16>(t));
            std::copy_n(both.v.view().at<bf16>(t, h), d, one.v.view().at<bf16>(t));
          }
          const Tensor y = packed(ctx, one);
          for (std::int64_t t = 0; t < n; ++t) {
            EXPECT_EQ(std::memcmp(y.view().at<bf16>(t), expected.view().at<bf16>(t, 2 * h),
                                  static_cast<std::size_t>(2 * d) * sizeof(bf16)),
                      0);
          }
        }
        // The second head's keys taken for the first head's values are something else.
        Sequence wrong = both;
        for (std::int64_t t = 0; t < n; ++t) {
          std::copy_n(both.k.view().at<bf16>(t, 1), d, wrong.v.view().at<bf16>(t, 0));
        }
        EXPECT_FALSE(same_bits(packed(ctx, wrong), expected));
      }
    }
  });
}

// A padding mask changes the width of the reduction.
TEST(FailureModes, fm24_InvisibleKeysTakeNoPart) {
  each_backend(
      [](Context& ctx) {
        for (const std::int64_t n : {1, 15, 17, 48, 50}) {
          const Sequence s(n, 4, 2, 16);
          const Tensor expected = packed(ctx, s);
          // A wider table, and behind the last position a cache full of large numbers.
          EXPECT_TRUE(same_bits(Paged(s, 32, 40).whole(ctx, s, n), expected)) << n;
          // Longer neighbours in the same call.
          const Sequence longer(130, 4, 2, 16);
          const auto rows_of = [&](const Tensor& a, const Tensor& b) {
            Tensor out(DType::kBF16, {n + 130, a.shape(1), 16});
            std::copy_n(a.data<bf16>(), a.size(), out.data<bf16>());
            std::copy_n(b.data<bf16>(), b.size(), out.data<bf16>() + a.size());
            return out;
          };
          const Tensor q = rows_of(s.q, longer.q), k = rows_of(s.k, longer.k);
          const Tensor v = rows_of(s.v, longer.v);
          Tensor y(DType::kBF16, {n + 130, 4, 16});
          const std::vector<std::int32_t> lengths{static_cast<std::int32_t>(n), 130};
          const Tensor cu = cu_seqlens(lengths), kv_lens = i32_tensor(lengths);
          attention(ctx, {y, {}, q, {k, v, {}, rows(cu.view(), 0, 2), 0}, cu, kv_lens});
          EXPECT_EQ(std::memcmp(y.data<bf16>(), expected.data<bf16>(), expected.size_bytes()), 0);
        }
        // Zero keys that are visible are keys: padding a sequence with them shows.
        Sequence s(40, 4, 2, 16), padded(44, 4, 2, 16);
        std::copy_n(s.q.data<bf16>(), s.q.size(), padded.q.data<bf16>() + 4 * 64);
        for (auto [from, to] : {std::pair{&s.k, &padded.k}, {&s.v, &padded.v}}) {
          to->fill_zero();
          std::copy_n(from->data<bf16>(), from->size(), to->data<bf16>() + 4 * 32);
        }
        EXPECT_FALSE(same_bits(packed(ctx, padded, 4), packed(ctx, s)));
      },
      small_blocks());
}

// A cache with gaps, page ids out of range: a read out of bounds.
TEST(FailureModes, fm25_BadPagesAndGapsAreErrorsBeforeAnyRead) {
  each_backend([](Context& ctx) {
    const Sequence s(40, 4, 2, 16);
    const std::int64_t n = 40;
    Tensor y(DType::kBF16, {n, 4, 16});
    Paged good(s, 8);
    good.run(ctx, s, 0, n, y);
    const Tensor expected = y;
    for (const std::int32_t page : {-1, 6, 7, std::numeric_limits<std::int32_t>::max(),
                                    std::numeric_limits<std::int32_t>::min()}) {
      for (const std::int64_t column : {0, 2, 4}) {
        Paged bad = good;
        bad.table.data<std::int32_t>()[column] = page;
        expect_error(ErrorCode::kInvalidArgument, {"attention", "page " + std::to_string(page)},
                     [&] { bad.run(ctx, s, 0, n, y); });
      }
    }
    EXPECT_TRUE(same_bits(y, expected));  // refused before any write
    const Tensor cu = i32_tensor({0, 40}), kv_lens = i32_tensor({40}), start = i32_tensor({0});
    const auto refused = [&](ErrorCode code, const KvView& kv, const std::string& named) {
      expect_error(code, {"attention", named}, [&] {
        attention(ctx, {y, {}, s.q, kv, cu, kv_lens});
      });
    };
    KvView kv{good.k, good.v, columns(good.table.view(), 0, 4), {}, 8};
    refused(ErrorCode::kInvalidArgument, kv, "5 pages");  // too few for 40 keys
    kv = {good.k, good.v, good.table, {}, 8};
    kv.k.layout.stride[2] = 2;
    refused(ErrorCode::kShape, kv, "stride 2");
    kv = {s.k, s.v, {}, start, 0};
    const Tensor late = i32_tensor({1});
    kv.kv_start = late;
    refused(ErrorCode::kInvalidArgument, kv, "[1, 41)");

    for (const std::int64_t d : {0, 1, 15, 258}) {  // heads that the kernels have no room for
      Tensor any(DType::kBF16, {n, 4, d});
      expect_error(ErrorCode::kUnsupported, {"attention", "head size " + std::to_string(d)},
                   [&] { attention(ctx, {any, {}, any, {any, any, {}, start, 0}, cu, kv_lens}); });
    }

    // Rows with gaps between them are no error, and no other bits.
    Tensor wide_k(DType::kBF16, {n, 3, 16}), wide_v(DType::kBF16, {n, 3, 16});
    for (std::int64_t t = 0; t < n; ++t) {
      std::copy_n(s.k.view().at<bf16>(t), 32, wide_k.view().at<bf16>(t));
      std::copy_n(s.v.view().at<bf16>(t), 32, wide_v.view().at<bf16>(t));
    }
    kv = {wide_k, wide_v, {}, start, 0};
    kv.k.layout.shape[1] = kv.v.layout.shape[1] = 2;
    attention(ctx, {y, {}, s.q, kv, cu, kv_lens});
    EXPECT_TRUE(same_bits(y, expected));
  });
  // The model refuses to write keys outside its cache.
  const RolloutSetup setup;
  Context ctx(setup.contract, setup.modes, 1);
  Parameters weights = tiny_weights(setup.config, setup.contract);
  Model model(setup.config, setup.contract, 64, false);
  model.load(ctx, weights, 0);
  KvCache cache(setup.config, 16);
  Activations activations(setup.config, false);
  const Tensor one = i32_tensor({1}), zero = i32_tensor({0}), cu = i32_tensor({0, 1});
  for (const std::int64_t slot : {std::int64_t{-1}, std::int64_t{16}, std::int64_t{1} << 40}) {
    const ForwardBatch b{
        one, zero, cu, one, view(&slot, {1}), view(zero.data<std::int32_t>(), {1, 1}), 16};
    expect_error(ErrorCode::kInvalidArgument, {"KV row " + std::to_string(slot)},
                 [&] { forward(ctx, model, b, &cache, activations); });
  }
}

}  // namespace
}  // namespace rlk::test
