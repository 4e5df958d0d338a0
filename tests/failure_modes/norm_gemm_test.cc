// Failures of norms, RoPE and matrix products, fm14 to fm20.
#include <cmath>
#include <set>

#include "rlk/model/forward.h"
#include "rlk/numerics/math.h"
#include "rlk/numerics/rope_table.h"
#include "rlk/numerics/sums.h"
#include "rlk/ops/attention.h"
#include "rlk/ops/gemm.h"
#include "rlk/ops/residual_add.h"
#include "rlk/ops/rms_norm.h"
#include "rlk/ops/rope.h"
#include "rlk/ops/swiglu.h"
#include "tests/failure_modes/each_backend.h"
#include "tests/trainer/trainer_data.h"

namespace rlk::test {
namespace {

using numerics::round_bf16;
using numerics::to_bf16;
using numerics::to_f32;

float truncate_bf16(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffff0000u);
}

Tensor as_bf16(const std::vector<float>& values, std::initializer_list<std::int64_t> sizes) {
  Tensor t(DType::kBF16, sizes);
  for (std::size_t i = 0; i < values.size(); ++i) t.data<bf16>()[i] = to_bf16(values[i]);
  return t;
}

Tensor norm(Context& ctx, const Tensor& x, const Tensor& w) {
  const std::int64_t tokens = x.shape(0), n = x.shape(1);
  Tensor y(DType::kBF16, {tokens, n});
  rms_norm(ctx, {split_heads(y.view(), 1), {}, split_heads(x.view(), 1), w, 1e-6f});
  return y;
}

// The formula, with the roundings as parameters.
Tensor plain_norm(const std::vector<float>& x, std::int64_t n, const Tensor& w, int lanes,
                  bool round_before_weight) {
  const auto tokens = static_cast<std::int64_t>(x.size()) / n;
  Tensor y(DType::kBF16, {tokens, n});
  for (std::int64_t t = 0; t < tokens; ++t) {
    const numerics::Strided<float> row{x.data() + t * n};
    const float s = numerics::lane_sum(row, row, n, lanes);
    const float q = numerics::rsqrt(s / static_cast<float>(n) + 1e-6f);
    for (std::int64_t k = 0; k < n; ++k) {
      const float scaled = row(k) * q;
      y.data<bf16>()[t * n + k] =
          to_bf16((round_before_weight ? round_bf16(scaled) : scaled) * value(w, k));
    }
  }
  return y;
}

// One build takes the variance of the f32 sum, another of the rounded stream.
TEST(FailureModes, fm14_TheNormReadsTheRoundedResidual) {
  const Tensor a = random_tensor(DType::kBF16, {6, 192}, 1);
  const Tensor b = random_tensor(DType::kBF16, {6, 192}, 2);
  const Tensor w = random_tensor(DType::kBF16, {192}, 3);
  std::vector<float> unrounded, rounded;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    unrounded.push_back(value(a, i) + value(b, i));
    rounded.push_back(round_bf16(unrounded.back()));
  }
  const Contract contract;
  const Tensor expected = plain_norm(rounded, 192, w, contract.norm_lanes, false);
  EXPECT_FALSE(same_bits(plain_norm(unrounded, 192, w, contract.norm_lanes, false), expected));
  each_backend([&](Context& ctx) {
    Tensor stream(DType::kBF16, {6, 192});
    residual_add(ctx, {stream, a, b});
    EXPECT_TRUE(same_bits(stream, as_bf16(rounded, {6, 192})));
    EXPECT_TRUE(same_bits(norm(ctx, stream, w), expected));
  });

  // In the model, what each norm reads is the BF16 stream that the next layer reads, too.
  const TrainerSetup setup;
  TestTrainer t(setup);
  PackedBatch batch;
  const std::vector<TrainSample> samples{train_sample(5, 9, 1, 1)};
  batch.pack(samples);
  Activations acts(setup.config, true);
  forward(t.ctx, t.trainer.model(), batch.forward_batch(), nullptr, acts);
  for (int layer = 0; layer < 3; ++layer) {
    LayerActivations& l = acts.layer(layer);
    Tensor x(DType::kBF16, {14, 64}), post(DType::kBF16, {14, 64});
    std::memcpy(x.data<char>(), l.x_mid.data<char>(), x.size_bytes());
    std::memcpy(post.data<char>(), l.post_norm.data<char>(), post.size_bytes());
    const Tensor& weight = t.trainer.model().layer(layer).post_attention_layernorm;
    EXPECT_TRUE(same_bits(norm(t.ctx, x, weight), post)) << layer;
  }
}

// Hugging Face rounds before the multiplication by the weight, others after it.
TEST(FailureModes, fm15_TheNormWeightIsMultipliedBeforeTheOneRounding) {
  for (std::int64_t n : {1, 37, 192, 1030}) {
    const Tensor x = random_tensor(DType::kBF16, {9, n}, 10 + n, Kind::kMixed);
    const Tensor w = random_tensor(DType::kBF16, {n}, 11 + n);
    std::vector<float> values;
    for (std::int64_t i = 0; i < x.size(); ++i) values.push_back(value(x, i));
    const Tensor expected = plain_norm(values, n, w, Contract().norm_lanes, false);
    if (n > 1) {
      EXPECT_FALSE(same_bits(plain_norm(values, n, w, Contract().norm_lanes, true), expected));
    }
    each_backend([&](Context& ctx) { EXPECT_TRUE(same_bits(norm(ctx, x, w), expected)) << n; });
  }
}

// Truncation in place of rounding: a residual stream shrinks layer by layer.
TEST(FailureModes, fm16_Bf16IsRoundedNeverTruncated) {
  const auto bits = [](float x) { return to_bf16(x).bits; };
  EXPECT_EQ(bits(1.0f + 0x1p-8f), 0x3f80);            // a tie goes to even
  EXPECT_EQ(bits(1.0f + 0x1p-7f + 0x1p-8f), 0x3f82);  // upwards, too
  EXPECT_EQ(bits(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);

  each_backend([](Context& ctx) {
    const std::int64_t n = 512, layers = 72;
    Tensor stream(DType::kBF16, {1, n});
    for (std::int64_t i = 0; i < n; ++i) {
      stream.data<bf16>()[i] = to_bf16(i % 2 ? -1.25f - 0x1p-9f * static_cast<float>(i) : 1.5f);
    }
    std::vector<double> exact = values(stream);
    std::vector<float> truncated(exact.begin(), exact.end());
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const Tensor delta = random_tensor(DType::kBF16, {1, n}, 100 + layer, Kind::kNormal, 0.02);
      residual_add(ctx, {stream, stream, delta});
      for (std::int64_t i = 0; i < n; ++i) {
        exact[i] += value(delta, i);
        truncated[i] = truncate_bf16(truncated[i] + value(delta, i));
      }
    }
    double size = 0, rounded_size = 0, truncated_size = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      size += std::fabs(exact[i]);
      rounded_size += std::fabs(value(stream, i));
      truncated_size += std::fabs(truncated[i]);
    }
    EXPECT_NEAR(rounded_size / size, 1.0, 0.005);
    EXPECT_LT(truncated_size / size, 0.95);

    // Every operator that stores BF16 rounds its f32 the same way.
    const Tensor a = random_tensor(DType::kBF16, {7, 75}, 1);
    const Tensor b = random_tensor(DType::kBF16, {33, 75}, 2);
    Tensor f32(DType::kF32, {7, 33}), out(DType::kBF16, {7, 33}), cut(DType::kBF16, {7, 33});
    GemmArgs args;
    args.c = f32;
    args.a = a;
    args.b = b;
    args.segments = {75, 0, 0};
    gemm(ctx, args);
    args.c = out;
    gemm(ctx, args);
    Tensor rounded(DType::kBF16, {7, 33});
    for (std::int64_t i = 0; i < f32.size(); ++i) {
      rounded.data<bf16>()[i] = to_bf16(value(f32, i));
      cut.data<bf16>()[i] = to_bf16(truncate_bf16(value(f32, i)));
    }
    EXPECT_TRUE(same_bits(out, rounded));
    EXPECT_FALSE(same_bits(out, cut));
  });
}

// y and lse of attention over keys of width 16 that differ in their first number only: score j is
// scores[j]. One split; written out from the contract.
float plain_lse(const std::vector<float>& scores, const Contract& contract, bool contracted) {
  const auto n = static_cast<std::int64_t>(scores.size());
  const auto c = static_cast<float>(1.4426950408889634 / 4.0);
  std::vector<float> lane(static_cast<std::size_t>(contract.softmax_lanes), 0.0f);
  float m = -numerics::kInfinity;
  for (std::int64_t begin = 0; begin < n; begin += contract.kv_block) {
    const std::int64_t end = std::min<std::int64_t>(n, begin + contract.kv_block);
    float largest = -numerics::kInfinity;
    for (std::int64_t j = begin; j < end; ++j) largest = std::max(largest, scores[j]);
    const float next = std::max(m, c * largest);
    const float a = numerics::exp2p(m - next);
    m = next;
    for (std::int64_t i = 0; i < contract.softmax_lanes; ++i) {
      float first = 1.0f;
      if (!contracted) lane[i] = lane[i] * a;
      for (std::int64_t j = begin + i; j < end; j += contract.softmax_lanes) {
        const float e = numerics::exp2p(std::fma(scores[j], c, -m));
        lane[i] = contracted && first == 1.0f ? std::fma(lane[i], a, e) : lane[i] + e;
        first = 0.0f;
      }
      if (contracted && first == 1.0f) lane[i] = lane[i] * a;
    }
  }
  const float l = numerics::neighbour_tree(lane.data(), contract.softmax_lanes);
  return std::fma(numerics::log(l), numerics::kLog2E, m);
}

// The exponential of the hardware on one side, of a library on the other; a contracted rescale.
TEST(FailureModes, fm17_OneExponentialAndNoContraction) {
  std::int64_t library_differs = 0;
  const Tensor g = random_tensor(DType::kBF16, {40, 100}, 1, Kind::kNormal, 3);
  const Tensor u = random_tensor(DType::kBF16, {40, 100}, 2);
  Tensor expected(DType::kBF16, {40, 100});
  for (std::int64_t i = 0; i < g.size(); ++i) {
    expected.data<bf16>()[i] = to_bf16(numerics::silu(value(g, i)) * value(u, i));
    library_differs += numerics::exp(value(g, i)) != std::exp(value(g, i));
  }
  EXPECT_GT(library_differs, 40);  // of 4,000: a library would be noticed

  Contract contract;
  contract.kv_block = 16;
  contract.softmax_lanes = 16;
  bool contraction_differs = false;
  each_backend(
      [&](Context& ctx) {
        Tensor y(DType::kBF16, {40, 100});
        swiglu(ctx, {y, g, u});
        EXPECT_TRUE(same_bits(y, expected));
        for (std::uint64_t seed = 0; seed < 60; ++seed) {
          const std::int64_t n = 70 + static_cast<std::int64_t>(seed);
          Tensor q(DType::kBF16, {1, 1, 16}), k(DType::kBF16, {n, 1, 16});
          q.data<bf16>()[0] = to_bf16(1);
          Rng rng(seed);
          std::vector<float> scores;  // that rise to 0, so that every block rescales
          for (std::int64_t j = 0; j < n; ++j) {
            const double x = 0.5 * static_cast<double>(j + 1 - n) * (0.9 + 0.2 * rng.uniform());
            k.data<bf16>()[j * 16] = to_bf16(static_cast<float>(x));
            scores.push_back(value(k, j * 16));
          }
          Tensor out(DType::kBF16, {1, 1, 16}), lse(DType::kF32, {1, 1});
          const Tensor start = i32_tensor({0}), cu = i32_tensor({0, 1});
          const Tensor kv_lens = i32_tensor({static_cast<std::int32_t>(n)});
          attention(ctx, {out, lse, q, {k, k, {}, start, 0}, cu, kv_lens});
          EXPECT_EQ(value(lse, 0), plain_lse(scores, contract, false));
          contraction_differs |= value(lse, 0) != plain_lse(scores, contract, true);
        }
      },
      contract);
  EXPECT_TRUE(contraction_differs);
}

struct Product {
  bool leaf_tree = false;
  bool packed = false;
  DType dtype = DType::kF32;
};

Tensor product(Context& ctx, const ConstTensorView& a, const ConstTensorView& b,
               const Product& p = {}) {
  Tensor c(p.dtype, {a.shape(0), b.shape(0)});
  PackedWeight packed;
  GemmArgs args;
  args.c = c;
  args.a = a;
  args.b = b;
  if (p.packed) {
    pack_weight(ctx, {&packed, b});
    args.packed_b = &packed;
  }
  args.leaf_tree = p.leaf_tree;
  args.segments = {a.shape(1), 0, 0};
  gemm(ctx, args);
  return c;
}

// The schedule is chosen from the number of rows, so bits change with the batch size.
TEST(FailureModes, fm18_ARowHasTheSameBitsForEveryNumberOfRows) {
  const std::int64_t k = 330, n = 70;
  const Tensor a = random_tensor(DType::kBF16, {129, k}, 1, Kind::kCancelling);
  const Tensor b = random_tensor(DType::kBF16, {n, k}, 2, Kind::kWide);
  for (const bool leaf_tree : {false, true}) {
    Context reference({}, all_ops(Mode::kStrict), 1, &reference_kernels());
    const Tensor expected = product(reference, a, b, {.leaf_tree = leaf_tree});
    each_backend([&](Context& ctx) {
      for (const bool packed : {false, true}) {
        for (std::int64_t m : {1, 2, 7, 8, 9, 16, 17, 64, 128, 129}) {
          for (std::int64_t begin : {std::int64_t{0}, 129 - m}) {
            const Tensor c = product(ctx, rows(a.view(), begin, begin + m), b,
                                     {.leaf_tree = leaf_tree, .packed = packed});
            EXPECT_EQ(
                std::memcmp(c.data<float>(), expected.data<float>() + begin * n, c.size_bytes()), 0)
                << m << " rows from " << begin << ", packed " << packed;
          }
        }
      }
    });
  }
  // Two halves of K added, as a schedule for few rows would do it, show.
  each_backend([&](Context& ctx) {
    const Tensor whole = product(ctx, a, b);
    const Tensor left = product(ctx, columns(a.view(), 0, k / 2), columns(b.view(), 0, k / 2));
    Tensor sum = product(ctx, columns(a.view(), k / 2, k), columns(b.view(), k / 2, k));
    for (std::int64_t i = 0; i < sum.size(); ++i) sum.data<float>()[i] += value(left, i);
    EXPECT_FALSE(same_bits(sum, whole));
  });
}

std::string qwen3_json(const std::string& rope) {
  return R"({"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","vocab_size":53,)"
         R"("hidden_size":64,"intermediate_size":96,"num_hidden_layers":1,"head_dim":16,)"
         R"("num_attention_heads":4,"num_key_value_heads":2)" +
         rope + "}";
}

// A table in BF16 on one side; a base frequency read from the wrong key.
TEST(FailureModes, fm19_TheRopeTableIsF32AndItsBaseIsTheConfigs) {
  const std::int64_t positions = 300, d = 16;
  Tensor cos(DType::kF32, {positions, d / 2}), sin(DType::kF32, {positions, d / 2});
  numerics::rope_table(1e6, d, 0, positions, cos.data<float>(), sin.data<float>());
  Tensor cos_bf16 = cos, sin_bf16 = sin;
  for (Tensor* t : {&cos_bf16, &sin_bf16}) {
    for (std::int64_t i = 0; i < t->size(); ++i) {
      t->data<float>()[i] = round_bf16(t->data<float>()[i]);
    }
  }
  for (std::int64_t i = 0; i < cos.size(); ++i) {
    const double angle = static_cast<double>(i / (d / 2)) *
                         std::pow(1e6, -2.0 * static_cast<double>(i % (d / 2)) / d);
    EXPECT_NEAR(value(cos, i), std::cos(angle), 6e-8);
    EXPECT_NEAR(value(sin, i), std::sin(angle), 6e-8);
  }
  const Tensor x = random_tensor(DType::kBF16, {positions, 2, d}, 1);
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < positions; ++i) ids.push_back(i);
  const Tensor position_ids = i32_tensor(ids);
  each_backend([&](Context& ctx) {
    Tensor y(DType::kBF16, {positions, 2, d}), other(DType::kBF16, {positions, 2, d});
    rope(ctx, {y, x, cos, sin, position_ids});
    for (std::int64_t i = 0; i < positions * 2 * d; ++i) {
      const std::int64_t half = i % d < d / 2 ? d / 2 : -d / 2;
      const std::int64_t at = i / (2 * d) * (d / 2) + i % (d / 2);
      const float c = value(cos, at), s = value(sin, at);
      const float wanted = half > 0 ? std::fma(value(x, i), c, -(value(x, i + half) * s))
                                    : std::fma(value(x, i), c, value(x, i + half) * s);
      ASSERT_EQ(value(y, i), round_bf16(wanted));
    }
    rope(ctx, {other, x, cos_bf16, sin_bf16, position_ids});
    EXPECT_FALSE(same_bits(other, y));
  });

  const auto theta = [](const std::string& rope) {
    return parse_model_config(qwen3_json(rope), "config.json").rope_theta;
  };
  EXPECT_EQ(theta(R"(,"rope_theta":1000000)"), 1e6);
  EXPECT_EQ(theta(R"(,"rope_parameters":{"rope_theta":500000.0,"rope_type":"default"})"), 5e5);
  EXPECT_EQ(theta(R"(,"rope_theta":5e5,"rope_parameters":{"rope_theta":5e5})"), 5e5);
  EXPECT_EQ(theta(""), 1e4);
  expect_error(ErrorCode::kFormat, {"config.json", "rope_theta"},
               [&] { theta(R"(,"rope_theta":1e4,"rope_parameters":{"rope_theta":1e6})"); });
  for (const char* bad : {"0", "1.5", "-1e4", "1e13", "1e300"}) {
    expect_error(ErrorCode::kInvalidArgument, {"config.json", "rope_theta"},
                 [&] { theta(R"(,"rope_theta":)" + std::string(bad)); });
  }
  // And the model's table is the one of its config.
  ModelConfig config = tiny_config();
  config.rope_theta = 1e6;
  const Model model(config, tiny_contract(), positions, false);
  EXPECT_EQ(std::memcmp(model.cos().data, cos.data<float>(), cos.size_bytes()), 0);
  EXPECT_NE(std::memcmp(Model(tiny_config(), tiny_contract(), positions, false).cos().data,
                        cos.data<float>(), cos.size_bytes()),
            0);
}

// (1 + 2^-8) + 2^-8 is 1 in BF16, 1 + (2^-8 + 2^-8) is not: partial sums in BF16, folded in another
// order on another number of ranks.
TEST(FailureModes, fm20_PartialSumsStayF32AndMeetInTheNeighbourTree) {
  const float small = 0x1p-8f;
  EXPECT_EQ(round_bf16(round_bf16(1.0f + small) + small), 1.0f);
  EXPECT_NE(round_bf16(1.0f + round_bf16(small + small)), 1.0f);

  const std::int64_t k = 328, n = 40, m = 9;
  const Tensor a = random_tensor(DType::kBF16, {m, k}, 3, Kind::kCancelling);
  const Tensor b = random_tensor(DType::kBF16, {n, k}, 4);
  each_backend([&](Context& ctx) {
    // Eight leaves of 16: 1, 2^-8, 2^-8 and zeros.
    std::vector<float> x(128, 0.0f);
    x[0] = 1.0f;
    x[16] = x[32] = small;
    const Tensor row = as_bf16(x, {1, 128});
    const Tensor ones = as_bf16(std::vector<float>(128, 1.0f), {1, 128});
    EXPECT_EQ(value(product(ctx, row, ones, {.leaf_tree = true, .dtype = DType::kBF16}), 0),
              1.0f + 0x1p-7f);

    // 1, 2, 4 or 8 ranks, each with its own leaves, and the tree over what they send.
    const Tensor expected = product(ctx, a, b, {.leaf_tree = true});
    for (const bool round_parts : {false, true}) {
      std::vector<Tensor> leaves;
      for (int i = 0; i < 8; ++i) {
        const std::int64_t begin = numerics::leaf_bound(k, 8, i);
        const std::int64_t end = numerics::leaf_bound(k, 8, i + 1);
        leaves.push_back(
            product(ctx, columns(a.view(), begin, end), columns(b.view(), begin, end)));
      }
      for (int ranks : {1, 2, 4, 8}) {
        Tensor sum(DType::kF32, {m, n});
        for (std::int64_t e = 0; e < sum.size(); ++e) {
          std::vector<float> parts;
          for (int rank = 0; rank < ranks; ++rank) {
            std::vector<float> own;
            for (int i = rank * 8 / ranks; i < (rank + 1) * 8 / ranks; ++i) {
              own.push_back(value(leaves[i], e));
            }
            const float part = numerics::neighbour_tree(own.data(), 8 / ranks);
            parts.push_back(round_parts ? round_bf16(part) : part);
          }
          sum.data<float>()[e] = numerics::neighbour_tree(parts.data(), ranks);
        }
        EXPECT_EQ(static_cast<bool>(same_bits(sum, expected)), !round_parts) << ranks;
      }
    }
  });
}

}  // namespace
}  // namespace rlk::test
