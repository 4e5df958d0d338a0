// What a run says of the kernels that it ran: audits, overrides, refused kernels.
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>

#include "rlk/io/files.h"
#include "rlk/model/hf_model.h"
#include "rlk/rl/run.h"
#include "rlk/rl/run_db.h"
#include "rlk/verify/report.h"
#include "tests/io/error_matchers.h"
#include "tests/io/temporary_folder.h"

namespace rlk {
namespace {

constexpr const char* kModel = R"({
  "model_type": "qwen3", "vocab_size": 16, "hidden_size": 48, "intermediate_size": 80,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "eos_token_id": 14,
  "pad_token_id": 15})";

constexpr const char* kConfig = R"({
  "model": {"path": "model"}, "seed": 1, "steps": 2,
  "data": {"train": "train.jsonl", "heldout": "train.jsonl", "verifier": "share"},
  "rollout": {"prompts_per_step": 4, "samples_per_prompt": 4, "max_new_tokens": 8, "threads": 1},
  "trainer": {"threads": 1}})";

class RunProvenance : public testing::Test {
 protected:
  RunProvenance() {
    const std::string model = folder_.file("model");
    const ModelConfig config = parse_model_config(kModel, "model");
    Parameters parameters = init_parameters(config, config.vocab_size, 0.2, 1);
    make_directories(model);
    write_file(join_path(model, "tokenizer.json"),
               make_character_tokenizer_json("0123456789+-*=", {"<eos>", "<pad>"}));
    GenerationConfig generation;
    generation.eos_token_ids = config.eos_token_ids;
    write_file(join_path(model, "generation_config.json"), to_json(generation));
    save_hf_model(model, config, parameters, model);
    std::string lines;
    for (int i = 0; i < 8; ++i) {
      lines += fmt::format("{{\"prompt\": \"{}=\", \"answer\": \"{}\"}}\n", 100 + 77 * i, i);
    }
    write_file(folder_.file("train.jsonl"), lines);
  }

  RlConfig config(const std::vector<std::string>& overrides) const {
    RlConfig config = parse_rl_config(kConfig, "config", folder_.path());
    for (const std::string& assignment : overrides) {
      apply_override(config, assignment, folder_.path());
    }
    return config;
  }

  RunResult run(const std::string& name, const std::vector<std::string>& overrides,
                const Admission& admission = Admission::own_kernels()) const {
    RunOptions options;
    options.out = folder_.file(name);
    options.admission = admission;
    return run_rl(config(overrides), options);
  }

  RunDb db(const std::string& name) const {
    return RunDb::open_read_only(run_db_path(folder_.file(name)));
  }

  TemporaryFolder folder_;
};

const ProvenanceRow& row_of(const std::vector<ProvenanceRow>& rows, const std::string& engine,
                            const std::string& op) {
  for (const ProvenanceRow& row : rows) {
    if (row.engine == engine && row.op == op) return row;
  }
  ADD_FAILURE() << engine << "." << op << " did not run";
  return rows.at(0);
}

TEST_F(RunProvenance, AnAuditCountsAndChangesNoByte) {
  const RunResult plain = run("plain", {"route=production"});
  const RunResult audited =
      run("audited", {"route=production", R"(modes.trainer={"gemm": "audit", "adamw": "audit"})",
                      R"(modes.rollout={"rms_norm": "audit"})"});
  EXPECT_EQ(plain.summary.weights_digest, audited.summary.weights_digest);
  EXPECT_TRUE(audited.summary.unadmitted_ops.empty()) << "only route strict promises anything";
  for (const std::int64_t step : {1, 2}) {
    const std::vector<TokenRow> a = db("plain").tokens(step), b = db("audited").tokens(step);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].token_id, b[i].token_id);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(a[i].rollout_logprob),
                std::bit_cast<std::uint32_t>(b[i].rollout_logprob));
      EXPECT_EQ(std::bit_cast<std::uint32_t>(a[i].trainer_logprob),
                std::bit_cast<std::uint32_t>(b[i].trainer_logprob));
    }
  }
  const std::vector<ProvenanceRow> rows = db("audited").provenance_totals();
  std::int64_t differ = 0;
  for (const ProvenanceRow& row : rows) {
    EXPECT_EQ(row.audit_compared > 0, row.mode == "audit") << row.engine << "." << row.op;
    if (row.op == "gemm") differ += row.audit_mismatches;
  }
  EXPECT_GT(differ, 0);
  EXPECT_EQ(row_of(rows, "trainer", "adamw").audit_mismatches, 0);
  EXPECT_EQ(row_of(rows, "rollout", "rms_norm").mode, "audit");
  EXPECT_NE(report_html({folder_.file("audited")}).find("Audited"), std::string::npos);
  EXPECT_EQ(report_html({folder_.file("plain")}).find("Audited"), std::string::npos);
}

TEST_F(RunProvenance, AStrictRunNamesNothing) {
  const RunResult result = run("strict", {});
  EXPECT_EQ(result.end, RunEnd::kDone);
  EXPECT_TRUE(result.summary.unadmitted_ops.empty());
  EXPECT_NE(read_file(folder_.file("strict/summary.json")).find("\"unadmitted_ops\": []"),
            std::string::npos);
  for (const ProvenanceRow& row : db("strict").provenance_totals()) {
    EXPECT_EQ(row.mode, "strict");
    EXPECT_EQ(row.implementation, cpu_kernels().backend);
  }
}

TEST_F(RunProvenance, AStrictRunNamesWhatAnOverrideLetIn) {
  // Of these, sampling has the contract's bits, so that the run gets to its end.
  const RunResult result = run(
      "override", {R"(modes.rollout={"sample": "off"})", R"(modes.trainer={"adamw": "audit"})"});
  EXPECT_EQ(result.end, RunEnd::kDone);
  EXPECT_EQ(result.summary.unadmitted_ops,
            (std::vector<std::string>{"rollout.sample", "trainer.adamw"}));
}

TEST_F(RunProvenance, ARefusedKernelStopsStrictAndMakesAutoFallBack) {
  Admission admission(admission_key({}));
  const std::string backend = cpu_kernels().backend;
  for (int i = 0; i < kNumOps; ++i) admission.add({static_cast<Op>(i), backend, true, 1, ""});
  admission.add({Op::swiglu, backend, false, 1, "y[0, 0] is 1"});
  expect_error(ErrorCode::kNotAdmitted, {"swiglu", backend, "y[0, 0] is 1"},
               [&] { run("refused", {}, admission); });
  EXPECT_FALSE(std::filesystem::exists(folder_.file("refused")));
  const std::vector<std::string> automatic = {R"(modes.rollout={"swiglu": "auto"})",
                                              R"(modes.trainer={"swiglu": "auto"})"};
  const RunResult fallback = run("fallback", automatic, admission);
  EXPECT_EQ(fallback.summary.unadmitted_ops,
            (std::vector<std::string>{"rollout.swiglu", "trainer.swiglu"}));
  const std::vector<ProvenanceRow> rows = db("fallback").provenance_totals();
  EXPECT_NE(row_of(rows, "trainer", "swiglu").fallback_reason.find("y[0, 0] is 1"),
            std::string::npos);
  EXPECT_EQ(row_of(rows, "trainer", "rope").fallback_reason, "");
  EXPECT_NE(report_html({folder_.file("fallback")}).find("Fell back because"), std::string::npos);
  // Where the kernel is admitted, auto is as good as strict.
  EXPECT_TRUE(run("auto", automatic).summary.unadmitted_ops.empty());
}

}  // namespace
}  // namespace rlk
