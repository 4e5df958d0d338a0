// Weights: names, files, initial values and digests.
#include <cmath>
#include <map>

#include "rlk/io/files.h"
#include "rlk/io/safetensors.h"
#include "rlk/model/hf_model.h"
#include "tests/io/error_matchers.h"
#include "tests/io/temporary_folder.h"
#include "tests/model/tiny_model.h"

namespace rlk::test {
namespace {

constexpr std::int64_t kPadded = 64;

// What the file of a model holds; tests change it before they write it.
struct File {
  std::map<std::string, Tensor> tensors;

  explicit File(const ModelConfig& config) {
    Parameters p = tiny_weights(config, tiny_contract());
    for (const HfTensor& t : hf_tensors(config, p)) {
      Tensor copy(DType::kBF16,
                  std::vector<std::int64_t>(t.view.layout.shape.begin(),
                                            t.view.layout.shape.begin() + t.view.layout.rank));
      std::memcpy(copy.data<bf16>(), t.view.data, copy.size_bytes());
      tensors[t.name] = std::move(copy);
    }
  }
  void write(const TemporaryFolder& folder) const {
    std::vector<NamedTensor> named;
    for (const auto& [name, tensor] : tensors) named.push_back({name, tensor});
    write_safetensors(folder.file("model.safetensors"), named);
  }
};

const std::string kDown = "model.layers.2.mlp.down_proj.weight";

TEST(Parameters, ComeBackFromAFolderForEveryFamily) {
  for (const char* model_type : {"qwen3", "qwen2", "llama"}) {
    for (bool tied : {false, true}) {
      ModelConfig config = tiny_config(model_type, tied);
      if (config.model_type == "llama") config.mlp_bias = config.attention_output_bias = true;
      TemporaryFolder folder;
      Parameters p = tiny_weights(config, tiny_contract());
      save_parameters(folder.file("model.safetensors"), config, p);
      Parameters back = load_parameters(folder.path(), config, kPadded);
      EXPECT_TRUE(same_bits(p, back));
      EXPECT_EQ(model_digest(config, p), model_digest(config, back));
    }
  }
}

TEST(Parameters, RowsOfFusedMatricesAreTheTensorsOfHuggingFace) {
  const ModelConfig config = tiny_config("qwen2", false);
  Parameters p = make_parameters(config, kPadded, DType::kBF16);
  std::map<std::string, TensorView> views;
  for (const HfTensor& t : hf_tensors(config, p)) views[t.name] = t.view;
  const std::string at = "model.layers.1.";
  EXPECT_EQ(views.at(at + "self_attn.q_proj.weight").layout.to_string(), "[64, 64]");
  EXPECT_EQ(views.at(at + "self_attn.v_proj.weight").data,
            p.layers[1].qkv_proj.view().at<bf16>(64 + 32));
  EXPECT_EQ(views.at(at + "self_attn.k_proj.bias").data, p.layers[1].qkv_bias.data<bf16>() + 64);
  EXPECT_EQ(views.at(at + "mlp.up_proj.weight").data, p.layers[1].gate_up_proj.view().at<bf16>(96));
  EXPECT_EQ(views.at("lm_head.weight").layout.to_string(), "[53, 64]");
  EXPECT_FALSE(views.contains(at + "self_attn.q_norm.weight"));
  EXPECT_FALSE(views.contains(at + "self_attn.o_proj.bias"));
}

TEST(Parameters, OtherTypesAreRoundedOnce) {
  const ModelConfig config = tiny_config();
  File file(config);
  Tensor f32(DType::kF32, {64, 96}), f16(DType::kF16, {64});
  for (std::int64_t i = 0; i < f32.size(); ++i) {
    f32.data<float>()[i] = 1.0f + static_cast<float>(i) * 0x1p-12f;
  }
  f32.data<float>()[1] = 1.0f + 0x1.8p-7f;  // a tie: to the even neighbour above
  auto* half = f16.data<std::uint16_t>();
  half[0] = 0x3c01;  // 1 + 2^-10
  half[1] = 0x0001;  // the smallest subnormal, 2^-24
  half[2] = 0xc000;  // -2
  half[3] = 0x8000;  // -0
  file.tensors[kDown] = f32;
  file.tensors["model.norm.weight"] = f16;
  TemporaryFolder folder;
  file.write(folder);
  Parameters p = load_parameters(folder.path(), config, kPadded);
  for (std::int64_t i = 0; i < f32.size(); ++i) {
    ASSERT_EQ(p.layers[2].down_proj.data<bf16>()[i].bits,
              numerics::to_bf16(f32.data<float>()[i]).bits);
  }
  EXPECT_EQ(p.layers[2].down_proj.data<bf16>()[1].bits, 0x3f82);
  const float expected[] = {1.0f, 0x1p-24f, -2.0f, -0.0f};
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(p.norm.data<bf16>()[i].bits, numerics::to_bf16(expected[i]).bits);
}

TEST(Parameters, NameFileTensorAndShapesWhenTheyDoNotFit) {
  const ModelConfig config = tiny_config();
  const auto refused = [&](ErrorCode code, auto change, std::vector<std::string> named) {
    File file(config);
    change(file.tensors);
    TemporaryFolder folder;
    file.write(folder);
    named.push_back(folder.path());
    expect_error(code, named, [&] { load_parameters(folder.path(), config, kPadded); });
  };
  using Tensors = std::map<std::string, Tensor>;
  refused(ErrorCode::kFormat, [](Tensors& t) { t.erase(kDown); }, {kDown, "missing", "[64, 96]"});
  refused(ErrorCode::kShape,
          [](Tensors& t) {
            t[kDown] = Tensor(DType::kBF16, {96, 64});
          },
          {kDown, "[96, 64]", "[64, 96]"});
  refused(ErrorCode::kShape, [](Tensors& t) { t[kDown] = Tensor(DType::kBF16, {64 * 96}); },
          {kDown, "[6144]"});
  refused(ErrorCode::kDtype,
          [](Tensors& t) {
            t[kDown] = Tensor(DType::kI32, {64, 96});
          },
          {kDown, "I32", "BF16"});
  refused(
      ErrorCode::kFormat,
      [](Tensors& t) { t["model.layers.3.input_layernorm.weight"] = Tensor(DType::kBF16, {64}); },
      {"model.layers.3.input_layernorm.weight", "qwen3"});
  refused(ErrorCode::kNonFinite,
          [](Tensors& t) { t[kDown].data<bf16>()[70] = numerics::to_bf16(INFINITY); },
          {kDown, "element 70"});
  refused(ErrorCode::kNonFinite,
          [](Tensors& t) {
            t[kDown] = Tensor(DType::kF32, {64, 96});
            t[kDown].data<float>()[3] = 3.4e38f;  // finite, but not as BF16
          },
          {kDown, "element 3"});
}

TEST(Parameters, AStoredHeadOfATiedModelIsNotRead) {
  const ModelConfig config = tiny_config();
  File file(config);
  file.tensors["lm_head.weight"] = Tensor(DType::kBF16, {53, 64});
  file.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = Tensor(DType::kF32, {8});
  TemporaryFolder folder;
  file.write(folder);
  Parameters p = load_parameters(folder.path(), config, kPadded);
  Parameters wanted = tiny_weights(config, tiny_contract());
  EXPECT_TRUE(same_bits(p, wanted));
}

TEST(Parameters, InitialValuesComeFromTheSeedAlone) {
  const ModelConfig config = tiny_config("qwen2", false);
  Parameters a = init_parameters(config, kPadded, 0.02, 1),
             b = init_parameters(config, kPadded, 0.02, 1);
  Parameters c = init_parameters(config, kPadded, 0.02, 2);
  EXPECT_TRUE(same_bits(a, b));
  EXPECT_FALSE(same_bits(a, c));
  EXPECT_NE(model_digest(config, a), model_digest(config, c));
  double sum = 0, squares = 0;
  const Tensor& w = a.layers[1].gate_up_proj;
  for (double x : values(w)) {
    sum += x;
    squares += x * x;
  }
  const auto n = static_cast<double>(w.size());
  EXPECT_NEAR(sum / n, 0, 4 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.001);
  EXPECT_NE(value(a.layers[0].gate_up_proj, 0), value(w, 0));  // every tensor has its own numbers
  EXPECT_EQ(value(a.norm, 5), 1);
  EXPECT_EQ(value(a.layers[2].qkv_bias, 5), 0);
  for (std::int64_t i = 53 * 64; i < a.lm_head.size(); ++i) ASSERT_EQ(value(a.lm_head, i), 0);
}

TEST(Parameters, TheDigestDoesNotSeeThePaddingButSeesTheConfig) {
  ModelConfig config = tiny_config();
  Parameters narrow = tiny_weights(config, tiny_contract());
  Contract contract = tiny_contract();
  contract.leaves = 16;  // a vocabulary of 256 rows
  Parameters wide = tiny_weights(config, contract);
  EXPECT_EQ(model_digest(config, narrow), model_digest(config, wide));
  ModelConfig other = config;
  other.rope_theta = 5e5;
  EXPECT_NE(model_digest(config, narrow), model_digest(other, narrow));
}

TEST(HfModel, AFolderWithoutTokenizerOrWithAnotherVocabularyIsRefused) {
  TemporaryFolder folder;
  const ModelConfig config = tiny_config();
  Parameters p = tiny_weights(config, tiny_contract());
  save_hf_model(folder.path(), config, p, folder.path());
  expect_error(ErrorCode::kIo, {"tokenizer.json"},
               [&] { load_hf_model(folder.path(), tiny_contract()); });
  EXPECT_TRUE(file_exists(folder.file("config.json")));
  Parameters back = load_parameters(folder.path(), load_model_config(folder.path()), kPadded);
  EXPECT_TRUE(same_bits(p, back));
}

}  // namespace
}  // namespace rlk::test
