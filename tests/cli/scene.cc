#include "tests/cli/scene.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/io/files.h"
#include "rlk/rl/sqlite.h"

namespace rlk {
namespace {

constexpr const char* kModel = R"({
  "model_type": "qwen3", "vocab_size": 16, "hidden_size": 32, "intermediate_size": 48,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "initializer_range": 0.2,
  "eos_token_id": 14, "pad_token_id": 15,
  "tokenizer": {"characters": "0123456789+-*=", "special_tokens": ["<eos>", "<pad>"]}
})";

constexpr const char* kConfig = R"({
  "model": {"path": "model"}, "seed": 1, "steps": 8,
  "data": {"train": "train.jsonl", "heldout": "heldout.jsonl", "verifier": "share"},
  "rollout": {"prompts_per_step": 4, "samples_per_prompt": 4, "max_new_tokens": 8,
              "max_num_seqs": 16, "max_num_batched_tokens": 64, "page_size": 4, "threads": 2},
  "trainer": {"micro_batch_tokens": 128, "learning_rate": 3e-3, "warmup_steps": 2, "threads": 2},
  "checkpoint": {"every": 3, "keep": 2},
  "sft": {"steps": 40, "batch_samples": 16, "learning_rate": 5e-3}
})";

// Copy some digits: from three to eighteen of them, so that prompts end inside and at the end of a
// page.
std::string prompts(int count, int first) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    std::string digits;
    for (int k = 0; k < 3 + (5 * i) % 16; ++k) {
      digits += static_cast<char>('0' + (first + 7 * i + 3 * k * k) % 10);
    }
    lines += R"({"prompt": ")" + digits + R"(=", "answer": ")" + digits + "\"}\n";
  }
  return lines;
}

// Grades a response by its length. Arguments: at which score, the mark that it was done, the deed.
constexpr const char* kGrader = R"(
while read -r line; do
  id=${line#*\"id\":}
  id=${id%%,*}
  if [ "$id" = "$1" ] && [ ! -e "$2" ]; then
    : > "$2"
    eval "$3"
  fi
  response=${line##*\"response\":\"}
  response=${response%\"*}
  echo "{\"id\": $id, \"score\": 0.${#response}}"
done
)";

}  // namespace

Scene::Scene() {
  write("model.json", kModel);
  write("rl.json", kConfig);
  write("train.jsonl", prompts(24, 1));
  write("heldout.jsonl", prompts(4, 5));
  write("grader.sh", kGrader);
  const Outcome init = run_program(
      {"init", "--config", file("model.json"), "--seed", "3", "--out", model(), "--json"});
  EXPECT_EQ(init.exit_code, 0) << init.err;
  if (init.exit_code == 0) model_digest_ = init.json().at("model_digest");
}

Arguments Scene::rl_arguments(const std::string& out, const Overrides& overrides,
                              const Arguments& more) const {
  Arguments a = {"rl", "--config", file("rl.json"), "--out", file(out)};
  for (const std::string& o : overrides) a.insert(a.end(), {"--set", o});
  a.insert(a.end(), more.begin(), more.end());
  return a;
}

Outcome Scene::rl(const std::string& out, const Overrides& overrides, const Arguments& more) const {
  return run_program(rl_arguments(out, overrides, more));
}

Outcome Scene::compare(const std::string& a, const std::string& b) const {
  Arguments arguments = {"compare", file(a)};
  if (!b.empty()) arguments.push_back(file(b));
  return run_program(arguments);
}

void Scene::write(const std::string& name, const std::string& text) const {
  write_file(file(name), text);
}

nlohmann::json Scene::summary(const std::string& out) const {
  return nlohmann::json::parse(read_file(file(out + "/summary.json")));
}

std::int64_t Scene::query(const std::string& out, const std::string& sql) const {
  return SqliteDb(file(out + "/run.db"), SqliteOpen::kRead).integer(sql.c_str());
}

void Scene::execute(const std::string& out, const std::string& sql) const {
  SqliteDb(file(out + "/run.db"), SqliteOpen::kWrite).execute(sql.c_str());
}

std::string Scene::last_trainer_state(const std::string& out) const {
  const std::int64_t steps = query(out, "SELECT max(step) FROM steps");
  return file(fmt::format("{}/checkpoints/step-{:06}/trainer.safetensors", out, steps));
}

Overrides Scene::grader_that_once(int at, const std::string& deed) const {
  const nlohmann::json command = {"/bin/sh", file("grader.sh"), std::to_string(at),
                                  file("done-" + std::to_string(at)), deed};
  return {"data.verifier=command", "data.command=" + command.dump()};
}

void expect_equal_runs(const Scene& scene, const std::string& a, const std::string& b) {
  const Outcome compared = scene.compare(a, b);
  EXPECT_EQ(compared.exit_code, 0) << compared.out << compared.err;
  EXPECT_EQ(scene.summary(a).at("weights_digest"), scene.summary(b).at("weights_digest"));
  EXPECT_EQ(read_file(scene.last_trainer_state(a)), read_file(scene.last_trainer_state(b)));
}

}  // namespace rlk
