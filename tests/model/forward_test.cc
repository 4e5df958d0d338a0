// model forward: errors that name layer, node and token. (Its bits: invariance_test.cc.)
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

  // A sequence that starts at position 0, its keys beside it; or in pages 0, 1, .. of `cache`.
  void run(KvCache* cache = nullptr) {
    const std::vector<std::int32_t> cu{0, kTokens};
    std::vector<std::int64_t> slots(kTokens);
    std::iota(slots.begin(), slots.end(), 0);
    std::vector<std::int32_t> pages((kTokens + kPageSize - 1) / kPageSize);
    std::iota(pages.begin(), pages.end(), 0);
    ForwardBatch b;
    b.token_ids = view(std::as_const(tokens_).data(), {kTokens});
    b.positions = view(std::as_const(positions_).data(), {kTokens});
    b.cu_seqlens = view(cu.data(), {2});
    b.kv_lens = view(cu.data() + 1, {1});
    if (cache) {
      b.slot_mapping = view(std::as_const(slots).data(), {kTokens});
      b.block_table = view(std::as_const(pages).data(), {1, std::ssize(pages)});
      b.page_size = kPageSize;
    }
    forward(ctx_, model_, b, cache, activations_);
  }

  Contract contract_ = tiny_contract();
  Context ctx_;
  ModelConfig config_;
  Parameters weights_;
  Model model_;
  Activations activations_;
  std::vector<std::int32_t> tokens_, positions_;
};

TEST_F(Forward, NamesTheTokenOutsideTheVocabulary) {
  tokens_[77] = 53;
  expect_error(ErrorCode::kInvalidArgument, {"embed_tokens", "token 77", "53"}, [&] { run(); });
}

TEST_F(Forward, NamesLayerAndNodeOfANumberThatIsNotFinite) {
  std::int64_t version = 1;
  const auto expect_node = [&](auto change, const std::vector<std::string>& named) {
    Parameters bad = weights_;
    change(bad);
    model_.load(ctx_, bad, version++);
    expect_error(ErrorCode::kNonFinite, named, [&] { run(); });
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
  expect_error(ErrorCode::kInvalidArgument, {"token 144", "144"}, [&] { run(&cache); });
}

TEST_F(Forward, RefusesAPositionBehindTheTable) {
  positions_[9] = 256;
  expect_error(ErrorCode::kInvalidArgument, {"layer 0 rope", "token 9", "256"}, [&] { run(); });
}

TEST(Model, RefusesAContextThatTheConfigDoesNotHave) {
  for (std::int64_t length : {0, -1, 513}) {
    expect_error(ErrorCode::kInvalidArgument, {"max_model_len", std::to_string(length), "512"},
                 [&] { Model(tiny_config(), tiny_contract(), length, false); });
  }
}

}  // namespace
}  // namespace rlk::test
