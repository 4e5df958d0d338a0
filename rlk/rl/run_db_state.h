// What run.db's writers and readers share: the state, and column lists in the structs' order.
#pragma once

#include <memory>
#include <string>

#include "rlk/core/error.h"
#include "rlk/rl/run_db.h"
#include "rlk/rl/sqlite.h"

namespace rlk {

inline constexpr const char* kStepColumns =
    "step, weight_version, reward_mean, reward_std, loss, kl, entropy, grad_norm, clip_fraction, "
    "learning_rate, compared, mismatch_count, max_abs_diff, mean_abs_diff, mismatch_kl, "
    "prompt_tokens, response_tokens, rollout_s, record_s, score_s, backward_s, optimizer_s, "
    "sync_s, total_s";
inline constexpr const char* kSampleColumns =
    "step, sample, prompt_index, \"group\", grad_slot, seed, request, temperature, top_k, top_p, "
    "min_p, reward, advantage, finish_reason, prompt_text, response_text, prompt_token_ids";
inline constexpr const char* kTokenColumns =
    "step, sample, position, token_id, weight_version, rollout_logprob, rollout_logprob_raw, "
    "trainer_logprob, active";

struct RunDb::State {
  State(const std::string& path, SqliteOpen how) : db(path, how) {}

  SqliteDb db;
  // Prepared once: they run for every row of every step.
  std::unique_ptr<SqliteStatement> insert_step;
  std::unique_ptr<SqliteStatement> insert_sample;
  std::unique_ptr<SqliteStatement> insert_token;
  std::unique_ptr<SqliteStatement> insert_metric;
  std::unique_ptr<SqliteStatement> insert_provenance;

  void prepare();

  void check_version() {
    const std::int64_t version = db.integer("PRAGMA user_version");
    if (version != kRunDbVersion) {
      fail(ErrorCode::kFormat, "{}: user_version is {}, expected {} (not a run database?)",
           db.path(), version, kRunDbVersion);
    }
  }

  // WAL keeps readers out of the writer's way. synchronous=NORMAL is safe against a killed
  // process; flush() adds what a power cut needs.
  void start_writing() {
    db.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON");
    prepare();
  }

  void write(std::int64_t step, const StepRow& row);
  void write(std::int64_t step, const SampleRow& row);
  void write(std::int64_t step, const TokenRow& row);
  void write(std::int64_t step, const MetricRow& row) {
    insert_metric->bind(step).bind(std::string_view(row.name)).bind(row.value).run();
  }
  void write(std::int64_t step, const ProvenanceRow& row);
};

}  // namespace rlk
