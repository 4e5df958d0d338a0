// The readers of run.db.
#include <cstring>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "rlk/rl/run_db_state.h"

namespace rlk {

namespace {

float float_blob(SqliteStatement& row, const std::string& path, const TokenRow& token,
                 const char* column) {
  const std::string_view blob = row.blob();
  if (blob.size() != sizeof(float)) {
    fail(ErrorCode::kFormat, "{}: tokens.{} at step {}, sample {}, position {} has {} bytes, not 4",
         path, column, token.step, token.sample, token.position, blob.size());
  }
  float value;
  std::memcpy(&value, blob.data(), sizeof value);
  return value;
}

}  // namespace

std::int64_t RunDb::last_complete_step() const {
  return state_->db.integer("SELECT coalesce(max(step), 0) FROM steps");
}

std::int64_t RunDb::num_samples() const {
  return state_->db.integer("SELECT count(*) FROM samples");
}

std::map<std::string, std::string> RunDb::config() const {
  SqliteStatement row(state_->db, "SELECT key, value FROM config");
  std::map<std::string, std::string> result;
  while (row.next()) {
    std::string key = row.text();
    result[std::move(key)] = row.text();
  }
  return result;
}

std::optional<std::string> RunDb::config_json(const std::string& key) const {
  SqliteStatement row(state_->db, "SELECT value FROM config WHERE key = ?");
  row.bind(std::string_view(key));
  if (!row.next()) return std::nullopt;
  return row.text();
}

std::string RunDb::config_string(const std::string& key) const {
  const std::optional<std::string> text = config_json(key);
  if (!text) return "";
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  return json.is_string() ? json.get<std::string>() : *text;
}

std::vector<StepRow> RunDb::steps() const {
  const std::string sql = fmt::format("SELECT {} FROM steps ORDER BY step", kStepColumns);
  SqliteStatement row(state_->db, sql.c_str());
  std::vector<StepRow> result;
  while (row.next()) {
    StepRow& s = result.emplace_back();
    s.step = row.integer();
    s.weight_version = row.integer();
    for (double* value : {&s.reward_mean, &s.reward_std, &s.loss, &s.kl, &s.entropy, &s.grad_norm,
                          &s.clip_fraction, &s.learning_rate}) {
      *value = row.number();
    }
    s.compared = row.integer();
    s.mismatch_count = row.integer();
    s.max_abs_diff = row.number();
    s.mean_abs_diff = row.number();
    s.mismatch_kl = row.number();
    s.prompt_tokens = row.integer();
    s.response_tokens = row.integer();
    for (double* value : {&s.rollout_s, &s.record_s, &s.score_s, &s.backward_s, &s.optimizer_s,
                          &s.sync_s, &s.total_s}) {
      *value = row.number();
    }
  }
  return result;
}

std::vector<SampleRow> RunDb::samples(std::int64_t step) const {
  const std::string sql =
      fmt::format("SELECT {} FROM samples WHERE step = ? ORDER BY sample", kSampleColumns);
  SqliteStatement row(state_->db, sql.c_str());
  row.bind(step);
  std::vector<SampleRow> result;
  while (row.next()) {
    SampleRow& s = result.emplace_back();
    s.step = row.integer();
    s.sample = row.integer();
    s.prompt_index = row.integer();
    s.group = row.integer();
    s.grad_slot = row.integer();
    s.seed = static_cast<std::uint64_t>(row.integer());
    s.request = row.integer();
    s.temperature = row.number();
    s.top_k = row.integer();
    s.top_p = row.number();
    s.min_p = row.number();
    s.reward = row.number();
    s.advantage = static_cast<float>(row.number());
    s.finish_reason = row.text();
    s.prompt_text = row.text();
    s.response_text = row.text();
    const std::string_view ids = row.blob();
    if (ids.size() % sizeof(std::int32_t) != 0) {
      fail(ErrorCode::kFormat,
           "{}: samples.prompt_token_ids at step {}, sample {} has {} bytes, not a multiple of 4",
           path(), s.step, s.sample, ids.size());
    }
    s.prompt_token_ids.resize(ids.size() / sizeof(std::int32_t));
    if (!ids.empty()) std::memcpy(s.prompt_token_ids.data(), ids.data(), ids.size());
  }
  return result;
}

std::vector<TokenRow> RunDb::tokens(std::int64_t step) const {
  const std::string sql =
      fmt::format("SELECT {} FROM tokens WHERE step = ? ORDER BY sample, position", kTokenColumns);
  SqliteStatement row(state_->db, sql.c_str());
  row.bind(step);
  std::vector<TokenRow> result;
  while (row.next()) {
    TokenRow& t = result.emplace_back();
    t.step = row.integer();
    t.sample = row.integer();
    t.position = row.integer();
    t.token_id = static_cast<std::int32_t>(row.integer());
    t.weight_version = row.integer();
    t.rollout_logprob = float_blob(row, path(), t, "rollout_logprob");
    t.rollout_logprob_raw = float_blob(row, path(), t, "rollout_logprob_raw");
    t.trainer_logprob = float_blob(row, path(), t, "trainer_logprob");
    t.active = row.integer() != 0;
  }
  return result;
}

namespace {

std::vector<MetricRow> read_metrics(SqliteStatement& row) {
  std::vector<MetricRow> result;
  while (row.next()) {
    MetricRow& m = result.emplace_back();
    m.step = row.integer();
    m.name = row.text();
    m.value = row.number();
  }
  return result;
}

}  // namespace

std::vector<MetricRow> RunDb::metrics() const {
  SqliteStatement row(state_->db, "SELECT step, name, value FROM metrics ORDER BY step, name");
  return read_metrics(row);
}

std::vector<MetricRow> RunDb::metrics(const std::string& name) const {
  SqliteStatement row(state_->db,
                      "SELECT step, name, value FROM metrics WHERE name = ? ORDER BY step");
  row.bind(std::string_view(name));
  return read_metrics(row);
}

std::vector<ProvenanceRow> RunDb::provenance_totals() const {
  SqliteStatement row(state_->db,
                      "SELECT engine, op, implementation, mode, shape_class, sum(count), "
                      "sum(time_us), sum(audit_compared), sum(audit_mismatches), "
                      "max(fallback_reason) FROM provenance GROUP BY 1, 2, 3, 4, 5 "
                      "ORDER BY 1, 2, 3, 4, 5");
  std::vector<ProvenanceRow> result;
  while (row.next()) {
    ProvenanceRow& p = result.emplace_back();
    p.engine = row.text();
    p.op = row.text();
    p.implementation = row.text();
    p.mode = row.text();
    p.shape_class = row.text();
    p.count = row.integer();
    p.time_us = row.integer();
    p.audit_compared = row.integer();
    p.audit_mismatches = row.integer();
    p.fallback_reason = row.text();
  }
  return result;
}

std::vector<EventRow> RunDb::events() const {
  SqliteStatement row(state_->db, "SELECT step, time, kind, text FROM events ORDER BY id");
  std::vector<EventRow> result;
  while (row.next()) {
    EventRow& e = result.emplace_back();
    e.step = row.integer();
    e.time = row.text();
    e.kind = row.text();
    e.text = row.text();
  }
  return result;
}

std::string run_db_path(const std::string& path) {
  namespace fs = std::filesystem;
  if (fs::is_directory(path)) {
    const std::string file = (fs::path(path) / "run.db").string();
    if (!fs::exists(file)) fail(ErrorCode::kIo, "{}: this folder has no run.db", path);
    return file;
  }
  if (!fs::exists(path)) fail(ErrorCode::kIo, "{}: no such file or folder", path);
  return path;
}

}  // namespace rlk
