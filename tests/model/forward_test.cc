// model forward: the same hidden states however a sequence is cut and wherever its keys lie, and
// errors that name layer and node.
#include <numeric>

#include "rlk/model/backward.h"
#include "tests/io/error_matchers.h"
#include "tests/model/tiny_model.h"

namespace rlk::test {
namespace {

constexpr std::int64_t kTokens = 150, kPageSize = 8;

class Forward : public testing::Test {
 protected:
  Forward()
      : ctx_(contract_, all_ops(Mode::kStrict), 1),
        config_(tiny_config()),
        weights_(tiny_weights(config_, contract_)),
        model_(config_, contract_, 256, false),
        activations_(config_, false),
        tokens_(random_tokens(kTokens, 5)),
        positions_(kTokens) {
    model_.load(ctx_, weights_, 0);
    std::iota(positions_.begin(), positions_.end(), 0);
  }

  // A sequence that starts at position 0, its keys beside it.
  Tensor packed(std::int64_t num_tokens = kTokens) {
    const std::vector<std::int32_t> cu{0, static_cast<std::int32_t>(num_tokens)};
    ForwardBatch b;
    b.token_ids = view(std::as_const(tokens_).data(), {num_tokens});
    b.positions = view(std::as_const(positions_).data(), {num_tokens});
    b.cu_seqlens = view(cu.data(), {2});
    b.kv_lens = view(cu.data() + 1, {1});
    return copy(forward(ctx_, model_, b, nullptr, activations_));
  }

  // The same through pages, `chunk` tokens at a time.
  Tensor paged(const std::vector<std::int32_t>& pages, std::int64_t chunk, KvCache& cache) {
    Tensor out(DType::kBF16, {kTokens, config_.hidden_size});
    for (std::int64_t begin = 0; begin < kTokens; begin += chunk) {
      const std::int64_t end = std::min(begin + chunk, kTokens);
      const std::vector<std::int32_t> cu{0, static_cast<std::int32_t>(end - begin)};
      const std::vector<std::int32_t> kv_lens{static_cast<std::int32_t>(end)};
      std::vector<std::int64_t> slots;
      for (std::int64_t p = begin; p < end; ++p) {
        slots.push_back(pages[p / kPageSize] * kPageSize + p % kPageSize);
      }
      ForwardBatch b;
      b.token_ids = view(std::as_const(tokens_).data() + begin, {end - begin});
      b.positions = view(std::as_const(positions_).data() + begin, {end - begin});
      b.cu_seqlens = view(cu.data(), {2});
      b.kv_lens = view(kv_lens.data(), {1});
      b.slot_mapping = view(std::as_const(slots).data(), {end - begin});
      b.block_table = view(pages.data(), {1, static_cast<std::int64_t>(pages.size())});
      b.page_size = kPageSize;
      const ConstTensorView hidden = forward(ctx_, model_, b, &cache, activations_);
      std::copy_n(hidden.at<bf16>(), hidden.layout.size(), out.view().at<bf16>(begin));
    }
    return out;
  }

  static Tensor copy(const ConstTensorView& t) {
    Tensor out(DType::kBF16, {t.shape(0), t.shape(1)});
    std::copy_n(t.at<bf16>(), t.layout.size(), out.data<bf16>());
    return out;
  }

  static std::vector<std::int32_t> pages_in_order() {
    std::vector<std::int32_t> pages(20);
    std::iota(pages.begin(), pages.end(), 0);
    return pages;
  }

  Contract contract_ = tiny_contract();
  Context ctx_;
  ModelConfig config_;
  Parameters weights_;
  Model model_;
  Activations activations_;
  std::vector<std::int32_t> tokens_, positions_;
};

class ForwardInvariance : public Forward {};
class ForwardTwin : public Forward {};

TEST_F(ForwardInvariance, PagedInAnyChunksEqualsPacked) {
  const Tensor wanted = packed();
  for (std::int64_t chunk : {1, 13, 32, 64, 149, 150}) {
    KvCache cache(config_, 20 * kPageSize);
    EXPECT_TRUE(same_bits(paged(pages_in_order(), chunk, cache), wanted)) << chunk;
  }
}

TEST_F(ForwardInvariance, PageOrderAndWhatLiesInUnwrittenSlotsDoNotMatter) {
  std::vector<std::int32_t> pages = pages_in_order();
  std::reverse(pages.begin(), pages.end());
  std::swap(pages[3], pages[17]);
  KvCache cache(config_, 20 * kPageSize);
  for (KvCache::Layer& l : cache.layers) {
    for (std::int64_t i = 0; i < l.k.size(); ++i) {
      l.k.data<bf16>()[i] = numerics::to_bf16(0x1p50f);
      l.v.data<bf16>()[i] = numerics::to_bf16(-0x1p50f);
    }
  }
  EXPECT_TRUE(same_bits(paged(pages, 37, cache), packed()));
}

TEST_F(ForwardInvariance, ASequencesLengthDoesNotReachItsEarlierTokens) {
  const Tensor whole = packed();
  for (std::int64_t n : {1, 16, 33, 64, 100}) {
    Tensor start(DType::kBF16, {n, config_.hidden_size});
    std::copy_n(whole.data<bf16>(), start.size(), start.data<bf16>());
    EXPECT_TRUE(same_bits(packed(n), start)) << n;
  }
}

TEST_F(ForwardTwin, AKvCacheThatIsWrongInOnePlaceGivesOtherBytes) {
  const Tensor wanted = packed();
  KvCache cache(config_, 20 * kPageSize);
  paged(pages_in_order(), 100, cache);
  std::vector<std::int32_t> pages = pages_in_order();
  pages[2] = pages[7];
  // The last chunk alone, with eight keys of another place.
  Tensor out = wanted;
  const std::vector<std::int32_t> cu{0, 50}, kv_lens{150};
  std::vector<std::int64_t> slots(50);
  std::iota(slots.begin(), slots.end(), 100);
  ForwardBatch b;
  b.token_ids = view(std::as_const(tokens_).data() + 100, {50});
  b.positions = view(std::as_const(positions_).data() + 100, {50});
  b.cu_seqlens = view(cu.data(), {2});
  b.kv_lens = view(kv_lens.data(), {1});
  b.slot_mapping = view(std::as_const(slots).data(), {50});
  b.block_table = view(std::as_const(pages).data(), {1, 20});
  b.page_size = kPageSize;
  const ConstTensorView hidden = forward(ctx_, model_, b, &cache, activations_);
  std::copy_n(hidden.at<bf16>(), hidden.layout.size(), out.view().at<bf16>(100));
  EXPECT_FALSE(same_bits(out, wanted));
}

TEST_F(Forward, EveryBackendHasTheSameBits) {
  const Tensor wanted = packed();
  for (const KernelTable* kernels : backends()) {
    Context ctx(contract_, all_ops(Mode::kStrict), 3, kernels);
    Model model(config_, contract_, 256, true);
    model.load(ctx, weights_, 0);
    const std::vector<std::int32_t> cu{0, kTokens};
    ForwardBatch b;
    b.token_ids = view(std::as_const(tokens_).data(), {kTokens});
    b.positions = view(std::as_const(positions_).data(), {kTokens});
    b.cu_seqlens = view(cu.data(), {2});
    b.kv_lens = view(cu.data() + 1, {1});
    EXPECT_TRUE(same_bits(copy(forward(ctx, model, b, nullptr, activations_)), wanted))
        << kernels->backend;
  }
}

TEST_F(Forward, NamesTheTokenOutsideTheVocabulary) {
  tokens_[77] = 53;
  expect_error(ErrorCode::kInvalidArgument, {"embed_tokens", "token 77", "53"}, [&] { packed(); });
}

TEST_F(Forward, NamesLayerAndNodeOfANumberThatIsNotFinite) {
  std::int64_t version = 1;
  const auto expect_node = [&](auto change, const std::vector<std::string>& named) {
    Parameters bad = weights_;
    change(bad);
    model_.load(ctx_, bad, version++);
    expect_error(ErrorCode::kNonFinite, named, [&] { packed(); });
  };
  const auto fill = [](Tensor& t, float x) {
    for (std::int64_t i = 0; i < t.size(); ++i) t.data<bf16>()[i] = numerics::to_bf16(x);
  };
  expect_node([&](Parameters& p) { fill(p.layers[1].q_norm, 0x1p60f); }, {"layer 1 rope"});
  expect_node([&](Parameters& p) { fill(p.layers[2].qkv_proj, 0x1p60f); }, {"layer 2"});
  expect_node([&](Parameters& p) { fill(p.layers[0].down_proj, 0x1p100f); },
              {"layer 1 input_layernorm"});
  expect_node([&](Parameters& p) { p.layers[0].o_proj.data<bf16>()[0] = numerics::to_bf16(NAN); },
              {"layer 0 post_attention_layernorm"});
  expect_node(
      [&](Parameters& p) {
        Tensor& w = p.layers[2].qkv_proj;  // rows of v only
        for (std::int64_t i = w.size() / 2 + w.size() / 4; i < w.size(); ++i) {
          w.data<bf16>()[i] = numerics::to_bf16(0x1p60f);
        }
      },
      {"layer 2 attention", "2^56"});
}

TEST_F(Forward, RefusesASlotOutsideTheCache) {
  KvCache cache(config_, 18 * kPageSize);
  expect_error(ErrorCode::kInvalidArgument, {"token 144", "144"},
               [&] { paged(pages_in_order(), 150, cache); });
}

TEST_F(Forward, RefusesAPositionBehindTheTable) {
  positions_[9] = 256;
  expect_error(ErrorCode::kInvalidArgument, {"layer 0 rope", "token 9", "256"}, [&] { packed(); });
}

TEST(Model, RefusesAContextThatTheConfigDoesNotHave) {
  for (std::int64_t length : {0, -1, 513}) {
    expect_error(ErrorCode::kInvalidArgument, {"max_model_len", std::to_string(length), "512"},
                 [&] { Model(tiny_config(), tiny_contract(), length, false); });
  }
}

}  // namespace
}  // namespace rlk::test
