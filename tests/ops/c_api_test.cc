// rlk.h against the C++ operators: the same bytes, and an error instead of a crash for any
// argument.
#include "tests/ops/c_api_test.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "rlk/device/device.h"
#include "rlk/kernels/outputs.h"
#include "rlk/numerics/adamw.h"
#include "rlk/numerics/rope_table.h"
#include "rlk/ops/adamw.h"
#include "rlk/ops/attention.h"
#include "rlk/ops/audit.h"
#include "rlk/ops/copy_rows.h"
#include "rlk/ops/embedding.h"
#include "rlk/ops/gemm.h"
#include "rlk/ops/group_advantages.h"
#include "rlk/ops/grpo_loss.h"
#include "rlk/ops/kl.h"
#include "rlk/ops/logprob.h"
#include "rlk/ops/ppo_loss.h"
#include "rlk/ops/ratio.h"
#include "rlk/ops/residual_add.h"
#include "rlk/ops/rms_norm.h"
#include "rlk/ops/rope.h"
#include "rlk/ops/swiglu.h"
#include "tests/kernels/test_data.h"
#include "tests/ops/c_api_calls.h"

namespace rlk::test {
namespace {

class CApi : public testing::Test {
 protected:
  CApi() : cpp_({}, all_ops(Mode::kStrict), 1) {
    rlk_context_options options{};
    options.struct_size = sizeof(options);
    options.num_threads = 2;
    EXPECT_EQ(rlk_context_create(&options, &c_), RLK_OK) << rlk_last_error(nullptr);
  }
  ~CApi() override { rlk_context_destroy(c_); }

  // Both functions on the same inputs, each with its own outputs.
  template <typename Args, typename CArgs>
  void same(void (*cpp)(Context&, const Args&), rlk_status (*c)(rlk_context*, const CArgs*),
            const Args& args, const std::set<std::string>& optional = {}) {
    std::vector<Tensor> copies;
    Args args_for_c = args;
    for_each_output(args_for_c, [&](const char*, TensorView& out) {
      if (!out) return;
      copies.push_back(gather(out));
      out = copies.back();
    });
    const auto call = to_c(args_for_c);
    cpp(cpp_, args);
    EXPECT_EQ(c(c_, &call.args), RLK_OK) << rlk_last_error(c_);
    std::size_t i = 0;
    Args results = args;
    for_each_output(results, [&](const char* name, TensorView& out) {
      if (!out) return;
      const Tensor& copy = copies[i++];
      const Tensor result = gather(out);
      EXPECT_EQ(std::memcmp(result.view().data, copy.view().data, copy.size_bytes()), 0) << name;
    });
    survives([&](const CArgs& changed) { return c(c_, &changed); }, call, optional);
  }

  // Whatever one tensor says, the call returns, and names what it refuses.
  template <typename CArgs, typename Run>
  void survives(const Run& run, const Call<CArgs>& call, const std::set<std::string>& optional) {
    const auto with = [&](const auto& tensor, const auto& change) {
      CArgs changed = call.args;
      change(call.at(tensor, changed));
      return run(changed);
    };
    const auto refused = [&](const auto& tensor, rlk_status code, const auto& change) {
      EXPECT_EQ(with(tensor, change), code) << tensor.name;
      const std::string last = tensor.name.substr(tensor.name.find('.') + 1);
      EXPECT_NE(std::string(rlk_last_error(c_)).find(last), std::string::npos)
          << rlk_last_error(c_);
    };
    for (const auto& tensor : call.tensors) {
      for (int dtype : {-1, 6, 1 << 20}) {
        refused(tensor, RLK_ERROR_DTYPE, [&](rlk_tensor& t) { t.dtype = dtype; });
      }
      for (int rank : {-1, 5, 1 << 20}) {
        refused(tensor, RLK_ERROR_SHAPE, [&](rlk_tensor& t) { t.rank = rank; });
      }
      CArgs args = call.args;
      const rlk_tensor original = call.at(tensor, args);
      if (!original.data) continue;
      const rlk_status absent = with(tensor, [](rlk_tensor& t) { t.data = nullptr; });
      const bool may_be_absent = optional.contains(tensor.name);
      EXPECT_EQ(absent == RLK_OK, may_be_absent) << tensor.name << ": " << rlk_last_error(c_);
      with(tensor, [](rlk_tensor& t) { t.dtype = RLK_F16; });
      with(tensor, [](rlk_tensor& t) { t.rank -= 1; });
      with(tensor, [](rlk_tensor& t) { t = {}; });
      for (int d = 0; d < original.rank; ++d) {
        refused(tensor, RLK_ERROR_SHAPE, [&](rlk_tensor& t) { t.shape[d] = -1; });
        refused(tensor, RLK_ERROR_SHAPE, [&](rlk_tensor& t) { t.shape[d] = INT64_MAX; });
        if (original.shape[d] > 1) {
          refused(tensor, RLK_ERROR_SHAPE, [&](rlk_tensor& t) { t.stride[d] = INT64_MIN; });
        }
        with(tensor, [&](rlk_tensor& t) { t.shape[d] = 0; });
        with(tensor, [&](rlk_tensor& t) { t.shape[d] -= 1; });
      }
    }
    CArgs changed = call.args;
    changed.struct_size -= 1;
    EXPECT_EQ(run(changed), RLK_ERROR_INVALID_ARGUMENT);
  }

  static Tensor bf(std::initializer_list<std::int64_t> sizes, std::uint64_t seed) {
    return random_tensor(DType::kBF16, sizes, seed);
  }
  static Tensor f32(std::initializer_list<std::int64_t> sizes, std::uint64_t seed) {
    return random_tensor(DType::kF32, sizes, seed);
  }

  Context cpp_;
  rlk_context* c_ = nullptr;
};

TEST(CHeader, HasTheSameStructsInCAndCpp) {
  std::size_t i = 0;
#define SAME(name, type) EXPECT_EQ(kSizesInC[i++], sizeof(type)) << #name;
  C_API_STRUCTS(SAME)
#undef SAME
}

// No padding at the end, where a later field could lie without changing the size.
TEST(CHeader, HasNoPaddingThatALaterFieldWouldHideIn) {
#define ENDS_WITH(type, field) \
  EXPECT_EQ(offsetof(type, field) + sizeof(type::field), sizeof(type)) << #type;
  ENDS_WITH(rlk_context_options, backend)
  ENDS_WITH(rlk_copy_rows_args, reserved)
  ENDS_WITH(rlk_rms_norm_args, residual_out)
  ENDS_WITH(rlk_gemm_args, segments)
  ENDS_WITH(rlk_kv_view, page_size)
  ENDS_WITH(rlk_logprob_args, state)
  ENDS_WITH(rlk_sample_args, keys)
  ENDS_WITH(rlk_linear_logp_args, state)
  ENDS_WITH(rlk_group_advantages_args, ddof)
  ENDS_WITH(rlk_kl_args, reserved)
  ENDS_WITH(rlk_grpo_loss_args, kl_type)
  ENDS_WITH(rlk_ppo_loss_args, reserved)
  ENDS_WITH(rlk_grad_norm_args, num_grads)
  ENDS_WITH(rlk_adamw_args, wd)
#undef ENDS_WITH
}

TEST_F(CApi, CoversEveryOperator) {
  std::set<std::string> names;
#define NAME(name, type) names.insert(#name);
  C_API_OPS(NAME)
#undef NAME
  for (int i = 0; i < kNumOps; ++i) {
    EXPECT_TRUE(names.contains(to_string(static_cast<Op>(i)))) << to_string(static_cast<Op>(i));
  }
}

TEST_F(CApi, AnswersNullWithAnError) {
  EXPECT_EQ(wrong_answers_to_null(c_), 0);
  EXPECT_NE(std::string(rlk_last_error(nullptr)).find("context is NULL"), std::string::npos);
  EXPECT_EQ(rlk_context_create(nullptr, nullptr), RLK_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rlk_packed_weight_create(c_, nullptr), RLK_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rlk_contract_digest(nullptr, RLK_DIGEST_FORWARD), nullptr);
  EXPECT_EQ(rlk_contract_digest(c_, 2), nullptr);
  rlk_context_destroy(nullptr);
  rlk_packed_weight_destroy(nullptr);
}

TEST_F(CApi, MakesAContextAndSaysWhyNot) {
  rlk_context_options options{};
  options.struct_size = sizeof(options);
  rlk_context* context = c_;
  const auto refused = [&](rlk_status code, const char* named) {
    EXPECT_EQ(rlk_context_create(&options, &context), code);
    EXPECT_EQ(context, nullptr);
    EXPECT_NE(std::string(rlk_last_error(nullptr)).find(named), std::string::npos)
        << rlk_last_error(nullptr);
  };
  options.mode = "fast";
  refused(RLK_ERROR_INVALID_ARGUMENT, "strict, audit, auto or off");
  options.mode = "off";
  options.contract_json = R"({"kv_blok": 64})";
  refused(RLK_ERROR_FORMAT, "kv_blok");
  options.contract_json = R"({"profile": "sm70"})";
  refused(RLK_ERROR_INVALID_ARGUMENT, "sm70");
  options.contract_json = nullptr;
  options.num_threads = -1;
  refused(RLK_ERROR_INVALID_ARGUMENT, "num_threads");
  options.num_threads = 1;
  options.reserved = 1;
  refused(RLK_ERROR_INVALID_ARGUMENT, "reserved");

  options.reserved = 0;
  options.contract_json = R"({"kv_block": 64})";
  ASSERT_EQ(rlk_context_create(&options, &context), RLK_OK) << rlk_last_error(nullptr);
  Contract contract;
  contract.kv_block = 64;
  EXPECT_EQ(rlk_contract_digest(context, RLK_DIGEST_FORWARD), forward_digest(contract));
  EXPECT_EQ(rlk_contract_digest(context, RLK_DIGEST_BACKWARD), backward_digest(contract));
  EXPECT_EQ(rlk_contract_json(context), canonical_json(contract));
  EXPECT_STREQ(rlk_last_error(context), "");
  rlk_context_destroy(context);
}

TEST_F(CApi, RunsTheBackendThatTheCallerNames) {
  rlk_context_options options{};
  options.struct_size = sizeof(options);
  rlk_context* context = nullptr;
  Tensor x = bf({2, 1, 8}, 1), w = bf({8}, 2), mine = bf({2, 1, 8}, 3), theirs = bf({2, 1, 8}, 4);
  auto call = to_c(RmsNormArgs{mine, {}, x, w, 1e-6f});
  EXPECT_EQ(rlk_rms_norm(c_, &call.args), RLK_OK);
  EXPECT_STREQ(rlk_backend_name(c_), cpu_kernels().backend);
  for (const char* name : {"cpu.scalar", "reference"}) {
    options.backend = name;
    ASSERT_EQ(rlk_context_create(&options, &context), RLK_OK) << rlk_last_error(nullptr);
    EXPECT_STREQ(rlk_backend_name(context), name);
    call.args.y = to_c(theirs);
    EXPECT_EQ(rlk_rms_norm(context, &call.args), RLK_OK) << rlk_last_error(context);
    EXPECT_TRUE(same_bits(mine, theirs)) << name;
    rlk_context_destroy(context);
  }
  options.struct_size = offsetof(rlk_context_options, backend);  // a caller who does not know it
  ASSERT_EQ(rlk_context_create(&options, &context), RLK_OK) << rlk_last_error(nullptr);
  EXPECT_STREQ(rlk_backend_name(context), cpu_kernels().backend);
  rlk_context_destroy(context);
}

TEST_F(CApi, SaysWhyABackendDoesNotRun) {
  rlk_context_options options{};
  options.struct_size = sizeof(options);
  rlk_context* context = c_;
  const auto refused = [&](const char* backend, rlk_status code, const char* named) {
    options.backend = backend;
    EXPECT_EQ(rlk_context_create(&options, &context), code) << backend;
    EXPECT_EQ(context, nullptr);
    EXPECT_NE(std::string(rlk_last_error(nullptr)).find(named), std::string::npos)
        << rlk_last_error(nullptr);
  };
  refused("cudda", RLK_ERROR_INVALID_ARGUMENT, "cuda.sm90");
  // Whoever names them runs the same trial.
  refused("production", RLK_ERROR_NOT_ADMITTED, "production was refused: vector");
  options.mode = "audit";
  refused("production", RLK_ERROR_INVALID_ARGUMENT, "against itself");
  options.mode = nullptr;
  if (!device::list().empty()) return;
  for (const char* name : {"cuda", "cuda.portable", "cuda.sm90", "hip", "hip.cdna3"}) {
    refused(name, RLK_ERROR_NOT_AVAILABLE, "GPU");
  }
}

TEST_F(CApi, GivesMemoryThatGoesWithItsContext) {
  for (const int which : {RLK_MEMORY_TENSORS, RLK_MEMORY_SMALL}) {
    void* data = nullptr;
    ASSERT_EQ(rlk_memory_allocate(c_, which, 1000, &data), RLK_OK) << rlk_last_error(c_);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
    EXPECT_EQ(std::count(static_cast<char*>(data), static_cast<char*>(data) + 1000, 0), 1000);
    EXPECT_EQ(rlk_memory_free(c_, data), RLK_OK) << rlk_last_error(c_);
    EXPECT_EQ(rlk_memory_free(c_, data), RLK_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(rlk_last_error(c_)).find("no memory of this context"), std::string::npos);
    ASSERT_EQ(rlk_memory_allocate(c_, which, 1000, &data), RLK_OK);  // not given back
    ASSERT_EQ(rlk_memory_allocate(c_, which, 0, &data), RLK_OK);
    EXPECT_EQ(data, nullptr);
  }
  void* data = this;
  EXPECT_EQ(rlk_memory_allocate(c_, 2, 1, &data), RLK_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(data, nullptr);
  EXPECT_EQ(rlk_memory_allocate(c_, RLK_MEMORY_SMALL, 1, nullptr), RLK_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rlk_memory_allocate(nullptr, RLK_MEMORY_SMALL, 1, &data), RLK_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rlk_memory_free(nullptr, nullptr), RLK_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rlk_memory_free(c_, nullptr), RLK_OK);
  EXPECT_EQ(rlk_synchronize(nullptr), RLK_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rlk_synchronize(c_), RLK_OK);
  EXPECT_EQ(rlk_backend_name(nullptr), nullptr);
}

TEST_F(CApi, LetsStructsGrow) {
  struct Later {
    rlk_residual_add_args known;
    std::int64_t added;
  } later{};
  Tensor a = bf({2, 8}, 1), y = bf({2, 8}, 2);
  later.known = to_c(ResidualAddArgs{y, a, a}).args;
  later.known.struct_size = sizeof(later);
  EXPECT_EQ(rlk_residual_add(c_, &later.known), RLK_OK) << rlk_last_error(c_);
  later.added = 1;
  EXPECT_EQ(rlk_residual_add(c_, &later.known), RLK_ERROR_UNSUPPORTED);
  later.known.struct_size = SIZE_MAX;
  EXPECT_EQ(rlk_residual_add(c_, &later.known), RLK_ERROR_INVALID_ARGUMENT);
}

TEST_F(CApi, KnowsTheFirstVersionOfAStructThatGrew) {
  Tensor x = bf({2, 1, 8}, 1), w = bf({8}, 2), now = bf({2, 1, 8}, 3), before = bf({2, 1, 8}, 4);
  auto call = to_c(RmsNormArgs{now, {}, x, w, 1e-6f});
  EXPECT_EQ(rlk_rms_norm(c_, &call.args), RLK_OK) << rlk_last_error(c_);
  call.args.y = to_c(before);
  call.args.struct_size = offsetof(rlk_rms_norm_args, residual);
  std::memset(&call.args.residual, 0xff, 2 * sizeof(rlk_tensor));  // not there for this caller
  EXPECT_EQ(rlk_rms_norm(c_, &call.args), RLK_OK) << rlk_last_error(c_);
  EXPECT_TRUE(same_bits(now, before));
}

TEST_F(CApi, KeepsTheMessageOfEachContextApart) {
  Tensor x = bf({4, 2, 16}, 1), y = bf({4, 2, 16}, 2), w = bf({16}, 3);
  x.data<bf16>()[16 * 3] = numerics::to_bf16(INFINITY);
  const auto call = to_c(RmsNormArgs{y, {}, x, w, 1e-6f});
  EXPECT_EQ(rlk_rms_norm(c_, &call.args), RLK_ERROR_NON_FINITE);
  EXPECT_STREQ(rlk_status_name(RLK_ERROR_NON_FINITE), "non_finite");
  EXPECT_NE(std::string(rlk_last_error(c_)).find("row 3"), std::string::npos) << rlk_last_error(c_);
  rlk_context* other = nullptr;
  ASSERT_EQ(rlk_context_create(nullptr, &other), RLK_OK);
  EXPECT_STREQ(rlk_last_error(other), "");
  rlk_context_destroy(other);
}

TEST_F(CApi, EmbeddingIsTheCppOne) {
  Tensor y = bf({3, 8}, 1), table = bf({10, 8}, 2), d = f32({10, 8}, 3);
  const Tensor ids = i32_tensor({0, 9, 9});
  same(embedding, rlk_embedding, EmbeddingArgs{y, table, ids});
  same(embedding_backward, rlk_embedding_backward, EmbeddingBackwardArgs{d, y, ids});
}

TEST_F(CApi, CopyRowsIsTheCppOne) {
  Tensor y = bf({5, 9}, 1), x = bf({3, 9}, 2);
  const std::vector<std::int64_t> from{2, -1, 2}, to{0, 4, 1};
  same(copy_rows, rlk_copy_rows,
       CopyRowsArgs{y, x, view(from.data(), {3}), view(to.data(), {3}), true}, {"y", "from", "to"});
}

TEST_F(CApi, ResidualAddIsTheCppOne) {
  Tensor y = bf({3, 9}, 1), a = bf({3, 9}, 2), b = bf({3, 18}, 3);
  same(residual_add, rlk_residual_add, ResidualAddArgs{y, a, columns(b.view(), 0, 9)});
}

TEST_F(CApi, RmsNormIsTheCppOne) {
  Tensor y = bf({4, 2, 16}, 1), x = bf({4, 2, 16}, 2), w = bf({16}, 3), q = f32({4, 2}, 4);
  same(rms_norm, rlk_rms_norm, RmsNormArgs{y, q, x, w, 1e-6f}, {"q"});
  Tensor residual = bf({4, 2, 16}, 9), sum = bf({4, 2, 16}, 10);
  same(rms_norm, rlk_rms_norm, RmsNormArgs{y, q, x, w, 1e-6f, residual, sum}, {"q"});
  Tensor dx = bf({4, 2, 16}, 5), dy = bf({4, 2, 16}, 6), dw = f32({2, 16}, 7),
         merged = f32({16}, 8);
  same(rms_norm_backward, rlk_rms_norm_backward, RmsNormBackwardArgs{dx, dy, x, w, q});
  const Tensor cu = cu_seqlens({1, 3});
  same(rms_norm_backward_weight, rlk_rms_norm_backward_weight,
       RmsNormBackwardWeightArgs{dw, dy, x, q, cu});
  same(merge_heads, rlk_merge_heads, MergeHeadsArgs{merged, dw});
}

TEST_F(CApi, RopeIsTheCppOne) {
  Tensor y = bf({3, 2, 8}, 1), x = bf({3, 2, 8}, 2);
  Tensor cos(DType::kF32, {16, 4}), sin(DType::kF32, {16, 4}), cos_c = cos, sin_c = sin;
  numerics::rope_table(1e6, 8, 0, 16, cos.data<float>(), sin.data<float>());
  EXPECT_EQ(rlk_rope_table(c_, 1e6, 8, 0, 16, cos_c.data<float>(), sin_c.data<float>()), RLK_OK);
  EXPECT_TRUE(same_bits(cos, cos_c));
  EXPECT_TRUE(same_bits(sin, sin_c));
  for (const double theta : {1.0, 0x1p41, std::nan("")}) {
    EXPECT_EQ(rlk_rope_table(c_, theta, 8, 0, 16, cos_c.data<float>(), sin_c.data<float>()),
              RLK_ERROR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(rlk_rope_table(c_, 1e6, 7, 0, 16, cos_c.data<float>(), sin_c.data<float>()),
            RLK_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rlk_rope_table(c_, 1e6, 8, 1 << 22, 1, cos_c.data<float>(), sin_c.data<float>()),
            RLK_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rlk_rope_table(c_, 1e6, 8, 0, 16, nullptr, nullptr), RLK_ERROR_INVALID_ARGUMENT);

  const Tensor positions = i32_tensor({0, 7, 15});
  same(rope, rlk_rope, RopeArgs{y, x, cos, sin, positions});
  same(rope_backward, rlk_rope_backward, RopeArgs{y, x, cos, sin, positions});
}

TEST_F(CApi, GemmIsTheCppOne) {
  Tensor a = bf({5, 24}, 2), b = bf({7, 24}, 3), bias = bf({7}, 4);
  for (const bool leaf_tree : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Tensor c = random_tensor(dtype, {5, 7}, 1);
      same(gemm, rlk_gemm, GemmArgs{c, a, b, nullptr, bias, leaf_tree, {16, 8, 0}}, {"bias"});
    }
  }
  Tensor c = f32({5, 7}, 1);
  auto call = to_c(GemmArgs{c, a, b, nullptr, {}, false, {}});
  for (const auto& segments : {std::array<std::int64_t, 3>{-8, 32, 0},
                               {24, 24, -24},
                               {24, 1, 0},
                               {INT64_MAX, INT64_MAX, 26}}) {
    std::copy_n(segments.data(), 3, call.args.segments);
    EXPECT_EQ(rlk_gemm(c_, &call.args), RLK_ERROR_SHAPE);
  }
  call.args.leaf_tree = 2;
  EXPECT_EQ(rlk_gemm(c_, &call.args), RLK_ERROR_INVALID_ARGUMENT);

  Tensor dw = f32({7, 24}, 5), chain = f32({7, 24}, 6), dy = bf({5, 7}, 7), dbias = f32({7}, 8);
  const std::vector<std::int64_t> ends{2, 5};
  same(gemm_backward_weight, rlk_gemm_backward_weight,
       GemmBackwardWeightArgs{dw, chain, dy, a, view(ends.data(), {2})});
  const Tensor cu = cu_seqlens({2, 3});
  same(bias_backward, rlk_bias_backward, BiasBackwardArgs{dbias, dy, cu});
}

TEST_F(CApi, APackedWeightChangesNoBit) {
  Tensor plain = f32({5, 48}, 1), packed_c = f32({5, 48}, 2), a = bf({5, 64}, 3),
         b = bf({48, 64}, 4);
  rlk_packed_weight* packed = nullptr;
  ASSERT_EQ(rlk_packed_weight_create(c_, &packed), RLK_OK);
  rlk_pack_weight_args pack{sizeof(pack), packed, to_c(b)};
  ASSERT_EQ(rlk_pack_weight(c_, &pack), RLK_OK) << rlk_last_error(c_);
  auto call = to_c(GemmArgs{packed_c, a, b, nullptr, {}, false, {64, 0, 0}});
  call.args.packed_b = packed;
  ASSERT_EQ(rlk_gemm(c_, &call.args), RLK_OK) << rlk_last_error(c_);
  gemm(cpp_, {plain, a, b, nullptr, {}, false, {64, 0, 0}});
  EXPECT_TRUE(same_bits(plain, packed_c));
  pack.packed = nullptr;
  EXPECT_EQ(rlk_pack_weight(c_, &pack), RLK_ERROR_INVALID_ARGUMENT);
  pack.packed = packed;
  pack.w.data = nullptr;
  EXPECT_EQ(rlk_pack_weight(c_, &pack), RLK_ERROR_INVALID_ARGUMENT);
  rlk_packed_weight_destroy(packed);
}

TEST_F(CApi, SwigluIsTheCppOne) {
  Tensor y = bf({3, 9}, 1), g = bf({3, 9}, 2), u = bf({3, 9}, 3), dg = bf({3, 9}, 4),
         du = bf({3, 9}, 5);
  same(swiglu, rlk_swiglu, SwigluArgs{y, g, u});
  same(swiglu_backward, rlk_swiglu_backward, SwigluBackwardArgs{dg, du, y, g, u});
}

TEST_F(CApi, AttentionIsTheCppOne) {
  Tensor y = bf({5, 4, 32}, 1), q = bf({5, 4, 32}, 2), lse = f32({5, 4}, 3);
  Tensor k = bf({32, 2, 32}, 4), v = bf({32, 2, 32}, 5), table(DType::kI32, {2, 2});
  const std::int32_t pages[] = {3, 0, 1, -1};
  std::copy_n(pages, 4, table.data<std::int32_t>());
  const Tensor cu = cu_seqlens({2, 3}), kv_lens = i32_tensor({9, 3}), start = i32_tensor({20, 0});
  same(attention, rlk_attention, AttentionArgs{y, lse, q, {k, v, table, {}, 8}, cu, kv_lens},
       {"lse"});
  same(attention, rlk_attention, AttentionArgs{y, lse, q, {k, v, {}, start, 0}, cu, kv_lens},
       {"lse"});

  const Tensor zero = i32_tensor({0, 2}), lens = i32_tensor({2, 3});
  const TensorView k5 = rows(k.view(), 0, 5), v5 = rows(v.view(), 0, 5);
  attention(cpp_, {y, lse, q, {k5, v5, {}, zero, 0}, cu, lens});
  Tensor dq = bf({5, 4, 32}, 6), dk = bf({5, 2, 32}, 7), dv = bf({5, 2, 32}, 8),
         dy = bf({5, 4, 32}, 9);
  same(attention_backward, rlk_attention_backward,
       AttentionBackwardArgs{dq, dk, dv, dy, y, q, k5, v5, lse, cu});
}

TEST_F(CApi, LogprobIsTheCppOne) {
  Tensor logp = f32({3}, 1), entropy = f32({3}, 2), logits = f32({3, 37}, 3);
  Tensor dlogits = bf({3, 128}, 4), g = f32({3}, 5), g_entropy = f32({3}, 6);
  const Tensor targets = i32_tensor({36, kIgnoreIndex, 0});
  const std::vector<SamplingParams> params{{0.7f, 0, 1, 0}, {1, 0, 1, 0}, {0, 0, 1, 0}};
  same(logprob, rlk_logprob, LogprobArgs{logp, entropy, logits, targets, params.data(), 3},
       {"entropy"});
  same(logprob_backward, rlk_logprob_backward,
       LogprobBackwardArgs{dlogits, logits, targets, g, g_entropy, params.data(), 3},
       {"g_entropy"});

  Tensor y = f32({3, 37}, 7), dy = f32({3, 37}, 8);
  same(log_softmax, rlk_log_softmax, LogSoftmaxArgs{y, logits, params.data(), 3});
  same(log_softmax_backward, rlk_log_softmax_backward,
       LogSoftmaxBackwardArgs{dlogits, logits, dy, params.data(), 3});

  Tensor ids(DType::kI32, {3});
  const std::vector<SampleKey> keys{{1, 2, 3}, {1, 2, 4}, {7, 0, 0}};
  const SampleArgs draw{ids, logits, params.data(), keys.data()};
  same(sample, rlk_sample, draw);
  auto call = to_c(draw);
  call.args.keys = nullptr;
  EXPECT_EQ(rlk_sample(c_, &call.args), RLK_ERROR_INVALID_ARGUMENT);
  call = to_c(draw);
  call.args.params = nullptr;
  EXPECT_EQ(rlk_sample(c_, &call.args), RLK_ERROR_INVALID_ARGUMENT);
}

TEST_F(CApi, LinearLogpIsTheCppOne) {
  Tensor logp = f32({5}, 1), entropy = f32({5}, 2), hidden = bf({5, 24}, 3),
         head = bf({128, 24}, 4);
  Tensor logp_c = logp, entropy_c = entropy;
  const Tensor targets = i32_tensor({36, kIgnoreIndex, 0, 5, 6});
  const SamplingParams params{0.7f, 0, 1, 0};
  LinearLogpArgs args{logp, entropy, hidden, head, 37, nullptr, nullptr, targets, &params, 1};
  linear_logp(cpp_, args);
  args.logp = logp_c;
  args.entropy = entropy_c;
  auto call = to_c(args);
  ASSERT_EQ(rlk_linear_logp(c_, &call.args), RLK_OK) << rlk_last_error(c_);
  EXPECT_TRUE(same_bits(logp, logp_c));
  EXPECT_TRUE(same_bits(entropy, entropy_c));
  survives([&](const rlk_linear_logp_args& a) { return rlk_linear_logp(c_, &a); }, call,
           {"entropy"});

  Tensor d_hidden = bf({5, 24}, 5), dw = f32({128, 24}, 6), chain = f32({128, 24}, 7);
  Tensor d_hidden_c = d_hidden, dw_c = dw, chain_c = chain, g = f32({5}, 8),
         g_entropy = f32({5}, 9);
  const std::vector<std::int64_t> ends{2};
  const Tensor cu = cu_seqlens({2, 3});
  LinearLogpBackwardArgs back{args, d_hidden, dw, chain, view(ends.data(), {1}), g, g_entropy, cu};
  linear_logp_backward(cpp_, back);
  back.d_hidden = d_hidden_c;
  back.dw = dw_c;
  back.chain = chain_c;
  auto back_call = to_c(back);
  back_call.args.forward = &call.args;
  ASSERT_EQ(rlk_linear_logp_backward(c_, &back_call.args), RLK_OK) << rlk_last_error(c_);
  EXPECT_TRUE(same_bits(d_hidden, d_hidden_c));
  EXPECT_TRUE(same_bits(dw, dw_c));
  EXPECT_TRUE(same_bits(chain, chain_c));
  survives([&](const rlk_linear_logp_backward_args& a) { return rlk_linear_logp_backward(c_, &a); },
           back_call, {"g_entropy", "cu_seqlens"});
  rlk_packed_weight* packed = nullptr;  // of the head, not of its transpose
  ASSERT_EQ(rlk_packed_weight_create(c_, &packed), RLK_OK);
  rlk_pack_weight_args pack{sizeof(pack), packed, to_c(head)};
  ASSERT_EQ(rlk_pack_weight(c_, &pack), RLK_OK);
  call.args.packed_backward = packed;
  const Tensor before = dw_c;
  if (rlk_linear_logp_backward(c_, &back_call.args) != RLK_OK) {
    EXPECT_NE(std::string(rlk_last_error(c_)).find("packed_backward"), std::string::npos);
    EXPECT_TRUE(same_bits(before, dw_c));
  }  // the backend of this machine may pack nothing
  call.args.packed_backward = nullptr;
  rlk_packed_weight_destroy(packed);
  for (const std::int64_t vocab_size :
       {INT64_MIN, std::int64_t{-1}, std::int64_t{129}, INT64_MAX}) {
    call.args.vocab_size = vocab_size;
    EXPECT_EQ(rlk_linear_logp(c_, &call.args), RLK_ERROR_SHAPE);
    EXPECT_EQ(rlk_linear_logp_backward(c_, &back_call.args), RLK_ERROR_SHAPE);
  }
}

TEST_F(CApi, GroupAdvantagesAreTheCppOnes) {
  Tensor advantages = f32({6}, 1), rewards(DType::kF64, {6});
  for (int i = 0; i < 6; ++i) rewards.data<double>()[i] = 0.1 * i * i;
  const GroupAdvantagesArgs args{advantages, rewards, 3, 1e-6, 1};
  same(group_advantages, rlk_group_advantages, args);
  auto call = to_c(args);
  call.args.group_size = 0;
  EXPECT_EQ(rlk_group_advantages(c_, &call.args), RLK_ERROR_SHAPE);
}

TEST_F(CApi, TheLossesAreTheCppOnes) {
  Tensor g = f32({4}, 1), pg_loss = f32({4}, 2), kl_value = f32({4}, 3), r = f32({4}, 4);
  Tensor logp = f32({4}, 5), old = f32({4}, 6), ref = f32({4}, 7), advantage = f32({4}, 8);
  const Tensor weight = f32_tensor({0.25f, 0, 0.25f, 0.5f});
  same(ratio, rlk_ratio, RatioArgs{r, logp, old, weight}, {"weight"});
  const KlArgs kl_args{kl_value, g, logp, ref, weight, Kl::kK3};
  same(kl, rlk_kl, kl_args, {"slope", "weight"});
  auto kl_call = to_c(kl_args);
  kl_call.args.kl_type = RLK_KL_NONE;
  EXPECT_EQ(rlk_kl(c_, &kl_call.args), RLK_ERROR_INVALID_ARGUMENT);

  const GrpoLossArgs args{g,         pg_loss, kl_value, r,    logp,  old,    ref,
                          advantage, weight,  0.8f,     1.2f, 0.01f, Kl::kK3};
  same(grpo_loss, rlk_grpo_loss, args, {"pg_loss", "kl", "ratio"});
  auto call = to_c(args);
  call.args.kl_type = 4;
  EXPECT_EQ(rlk_grpo_loss(c_, &call.args), RLK_ERROR_INVALID_ARGUMENT);

  Tensor g_value = f32({4}, 9), v_loss = f32({4}, 10), g_entropy = f32({4}, 11);
  Tensor value = f32({4}, 12), old_value = f32({4}, 13), returns = f32({4}, 14);
  PpoLossArgs ppo{args, g_value, v_loss, g_entropy, value, old_value, returns, 0.2f, 0.5f, 0.01f};
  same(ppo_loss, rlk_ppo_loss, ppo, {"pg_loss", "kl", "ratio", "v_loss", "g_entropy"});
  ppo.value_clip = -1;
  const auto ppo_call = to_c(ppo);
  EXPECT_EQ(rlk_ppo_loss(c_, &ppo_call.args), RLK_ERROR_INVALID_ARGUMENT);
}

TEST_F(CApi, TheOptimizerIsTheCppOne) {
  Tensor g1 = f32({3, 4}, 1), g2 = f32({5}, 2);
  const std::vector<ConstTensorView> grads{g1, g2};
  float norm = 0, norm_c = 0;
  grad_norm(cpp_, {&norm, grads.data(), 2});
  const std::vector<rlk_tensor> grads_c{to_c(g1), to_c(g2)};
  rlk_grad_norm_args call{sizeof(call), &norm_c, grads_c.data(), 2};
  ASSERT_EQ(rlk_grad_norm(c_, &call), RLK_OK) << rlk_last_error(c_);
  EXPECT_EQ(std::memcmp(&norm, &norm_c, sizeof(norm)), 0);
  call.norm = nullptr;
  EXPECT_EQ(rlk_grad_norm(c_, &call), RLK_ERROR_INVALID_ARGUMENT);
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{-1}, INT64_MAX}) {
    call = {sizeof(call), &norm_c, nullptr, n};
    EXPECT_EQ(rlk_grad_norm(c_, &call), RLK_ERROR_INVALID_ARGUMENT);
  }

  Tensor w = bf({9}, 3), master = f32({9}, 4), m = f32({9}, 5), v = f32({9}, 6), dw = f32({9}, 7);
  for (std::int64_t i = 0; i < 9; ++i) v.data<float>()[i] = std::fabs(v.data<float>()[i]);
  const auto k = numerics::adamw_constants(0.9, 0.999, 1e-8, 1e-3, 0.1, 17);
  const AdamwArgs args{w,    master, m,    v,    dw,   0.5f,  k.lr,          k.b1,
                       k.b2, k.f1,   k.f2, k.h1, k.h2, k.eps, k.weight_decay};
  auto expected = to_c(args).args, made = expected;
  made.lr = made.b1 = made.b2 = made.f1 = made.f2 = made.h1 = made.h2 = made.eps = made.wd = -1;
  EXPECT_EQ(rlk_adamw_constants(c_, &made, 0.9, 0.999, 1e-8, 1e-3, 0.1, 17), RLK_OK);
  EXPECT_EQ(std::memcmp(&made, &expected, sizeof(made)), 0);
  EXPECT_EQ(rlk_adamw_constants(c_, &made, 0.9, 0.999, 1e-8, 1e-3, 0.1, 0),
            RLK_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rlk_adamw_constants(c_, nullptr, 0.9, 0.999, 1e-8, 1e-3, 0.1, 1),
            RLK_ERROR_INVALID_ARGUMENT);
  same(adamw, rlk_adamw, args);
}

}  // namespace
}  // namespace rlk::test
