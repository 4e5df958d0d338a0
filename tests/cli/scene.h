// A folder with all that a run needs, as small as it gets: a model, prompts, a configuration.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tests/cli/program.h"

namespace rlk {

// "rollout.page_size=8" and the like.
using Overrides = std::vector<std::string>;

class Scene {
 public:
  // `rlk init` has run. The model: one layer, hidden_size 32, 16 tokens, context 64.
  Scene();

  std::string file(const std::string& name) const { return folder_.file(name); }
  std::string model() const { return file("model"); }
  const std::string& model_digest() const { return model_digest_; }

  // 8 steps of 4 prompts by 4 samples, a checkpoint every 3 steps. `out` is a name in the folder.
  Arguments rl_arguments(const std::string& out, const Overrides& overrides = {},
                         const Arguments& more = {}) const;
  Outcome rl(const std::string& out, const Overrides& overrides = {},
             const Arguments& more = {}) const;
  Outcome resume(const std::string& out, const Overrides& overrides = {}) const {
    return rl(out, overrides, {"--resume"});
  }
  // Names in the folder. b left out: the two sides of run a.
  Outcome compare(const std::string& a, const std::string& b = "") const;

  void write(const std::string& name, const std::string& text) const;
  nlohmann::json summary(const std::string& out) const;
  // First column of the first row of a query on a run's database.
  std::int64_t query(const std::string& out, const std::string& sql) const;
  void execute(const std::string& out, const std::string& sql) const;

  // Of the checkpoint behind the last step: masters and moments, all in f32.
  std::string last_trainer_state(const std::string& out) const;

  // Overrides that grade with a program of ours, which runs the shell commands `deed` once, when it
  // is asked for score number `at` of the process (the evaluation before the first step asks for 4,
  // then every step for 16).
  Overrides grader_that_once(int at, const std::string& deed) const;

 private:
  TemporaryFolder folder_;
  std::string model_digest_;
};

// The two runs have the same bytes, step by step, and end in the same state of the optimizer.
void expect_equal_runs(const Scene& scene, const std::string& a, const std::string& b);

}  // namespace rlk
