#include "rlk/rl/run_db.h"

#include <bit>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <random>

#include "rlk/rl/run_db_state.h"

namespace rlk {

static_assert(std::endian::native == std::endian::little, "blobs hold little-endian numbers");

namespace {

constexpr const char* kSchema = R"sql(
CREATE TABLE config(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE steps(
  step INTEGER PRIMARY KEY, weight_version INTEGER NOT NULL,
  reward_mean REAL, reward_std REAL, loss REAL, kl REAL, entropy REAL, grad_norm REAL,
  clip_fraction REAL, learning_rate REAL,
  compared INTEGER NOT NULL, mismatch_count INTEGER NOT NULL, max_abs_diff REAL,
  mean_abs_diff REAL, mismatch_kl REAL,
  prompt_tokens INTEGER NOT NULL, response_tokens INTEGER NOT NULL,
  rollout_s REAL, record_s REAL, score_s REAL, backward_s REAL, optimizer_s REAL, sync_s REAL,
  total_s REAL) STRICT;
CREATE TABLE samples(
  step INTEGER NOT NULL REFERENCES steps(step) ON DELETE CASCADE, sample INTEGER NOT NULL,
  prompt_index INTEGER NOT NULL, "group" INTEGER NOT NULL, grad_slot INTEGER NOT NULL,
  seed INTEGER NOT NULL, request INTEGER NOT NULL, temperature REAL NOT NULL,
  top_k INTEGER NOT NULL, top_p REAL NOT NULL, min_p REAL NOT NULL, reward REAL, advantage REAL,
  finish_reason TEXT NOT NULL, prompt_text TEXT NOT NULL, response_text TEXT NOT NULL,
  prompt_token_ids BLOB NOT NULL, PRIMARY KEY(step, sample)) STRICT, WITHOUT ROWID;
CREATE TABLE tokens(
  step INTEGER NOT NULL, sample INTEGER NOT NULL, position INTEGER NOT NULL,
  token_id INTEGER NOT NULL, weight_version INTEGER NOT NULL, rollout_logprob BLOB NOT NULL,
  rollout_logprob_raw BLOB NOT NULL, trainer_logprob BLOB NOT NULL, active INTEGER NOT NULL,
  PRIMARY KEY(step, sample, position),
  FOREIGN KEY(step, sample) REFERENCES samples(step, sample) ON DELETE CASCADE)
  STRICT, WITHOUT ROWID;
CREATE TABLE metrics(step INTEGER NOT NULL, name TEXT NOT NULL, value REAL,
  PRIMARY KEY(step, name)) STRICT, WITHOUT ROWID;
CREATE TABLE provenance(
  step INTEGER NOT NULL REFERENCES steps(step) ON DELETE CASCADE, engine TEXT NOT NULL,
  op TEXT NOT NULL, implementation TEXT NOT NULL, mode TEXT NOT NULL, shape_class TEXT NOT NULL,
  count INTEGER NOT NULL, time_us INTEGER NOT NULL, audit_compared INTEGER NOT NULL,
  audit_mismatches INTEGER NOT NULL, fallback_reason TEXT NOT NULL,
  PRIMARY KEY(step, engine, op, implementation, mode, shape_class)) STRICT, WITHOUT ROWID;
CREATE TABLE events(id INTEGER PRIMARY KEY, step INTEGER NOT NULL, time TEXT NOT NULL,
  kind TEXT NOT NULL, text TEXT NOT NULL) STRICT;
PRAGMA user_version = 1;
)sql";

std::string insert_sql(const char* table, const char* columns) {
  std::string marks = "?";
  for (const char* c = columns; *c; ++c) {
    if (*c == ',') marks += ",?";
  }
  return fmt::format("INSERT INTO {}({}) VALUES({})", table, columns, marks);
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string random_id() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", static_cast<std::uint32_t>(device()));
  return id;
}

}  // namespace

void RunDb::State::prepare() {
  const auto make = [this](const std::string& sql) {
    return std::make_unique<SqliteStatement>(db, sql.c_str());
  };
  insert_step = make(insert_sql("steps", kStepColumns));
  insert_sample = make(insert_sql("samples", kSampleColumns));
  insert_token = make(insert_sql("tokens", kTokenColumns));
  insert_metric = make("INSERT OR REPLACE INTO metrics(step, name, value) VALUES(?,?,?)");
  insert_provenance = make(insert_sql(
      "provenance",
      "step, engine, op, implementation, mode, shape_class, count, time_us, audit_compared, "
      "audit_mismatches, fallback_reason"));
}

void RunDb::State::write(std::int64_t step, const StepRow& row) {
  insert_step->bind(step).bind(row.weight_version);
  for (const double value : {row.reward_mean, row.reward_std, row.loss, row.kl, row.entropy,
                             row.grad_norm, row.clip_fraction, row.learning_rate}) {
    insert_step->bind(value);
  }
  insert_step->bind(row.compared).bind(row.mismatch_count);
  insert_step->bind(row.max_abs_diff).bind(row.mean_abs_diff).bind(row.mismatch_kl);
  insert_step->bind(row.prompt_tokens).bind(row.response_tokens);
  for (const double value : {row.rollout_s, row.record_s, row.score_s, row.backward_s,
                             row.optimizer_s, row.sync_s, row.total_s}) {
    insert_step->bind(value);
  }
  insert_step->run();
}

void RunDb::State::write(std::int64_t step, const SampleRow& row) {
  (*insert_sample)
      .bind(step)
      .bind(row.sample)
      .bind(row.prompt_index)
      .bind(row.group)
      .bind(row.grad_slot)
      .bind(static_cast<std::int64_t>(row.seed))
      .bind(row.request)
      .bind(row.temperature)
      .bind(row.top_k)
      .bind(row.top_p)
      .bind(row.min_p)
      .bind(row.reward)
      .bind(static_cast<double>(row.advantage))
      .bind(std::string_view(row.finish_reason))
      .bind(std::string_view(row.prompt_text))
      .bind(std::string_view(row.response_text))
      .bind_blob(row.prompt_token_ids.data(), row.prompt_token_ids.size() * sizeof(std::int32_t))
      .run();
}

void RunDb::State::write(std::int64_t step, const TokenRow& row) {
  (*insert_token)
      .bind(step)
      .bind(row.sample)
      .bind(row.position)
      .bind(static_cast<std::int64_t>(row.token_id))
      .bind(row.weight_version)
      .bind_blob(&row.rollout_logprob, sizeof(float))
      .bind_blob(&row.rollout_logprob_raw, sizeof(float))
      .bind_blob(&row.trainer_logprob, sizeof(float))
      .bind(static_cast<std::int64_t>(row.active))
      .run();
}

void RunDb::State::write(std::int64_t step, const ProvenanceRow& row) {
  (*insert_provenance)
      .bind(step)
      .bind(std::string_view(row.engine))
      .bind(std::string_view(row.op))
      .bind(std::string_view(row.implementation))
      .bind(std::string_view(row.mode))
      .bind(std::string_view(row.shape_class))
      .bind(row.count)
      .bind(row.time_us)
      .bind(row.audit_compared)
      .bind(row.audit_mismatches)
      .bind(std::string_view(row.fallback_reason))
      .run();
}

RunDb::RunDb(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunDb::RunDb(RunDb&&) noexcept = default;
RunDb& RunDb::operator=(RunDb&&) noexcept = default;
RunDb::~RunDb() = default;

// The file gets its name when it is complete, so that a process killed here leaves no half
// database behind that could neither be created nor opened.
RunDb RunDb::create(const std::string& path) {
  if (std::filesystem::exists(path)) {
    fail(ErrorCode::kIo, "{}: exists already; a run is never overwritten", path);
  }
  const std::string unfinished = path + ".new";
  std::error_code error;
  for (const char* suffix : {"", "-journal"}) std::filesystem::remove(unfinished + suffix, error);
  {
    SqliteDb db(unfinished, SqliteOpen::kCreate);
    SqliteTransaction transaction(db);
    db.execute(kSchema);
    const std::string run_id = '"' + random_id() + '"';
    SqliteStatement(db, "INSERT INTO config(key, value) VALUES(?,?)")
        .bind(std::string_view(run_key::kRunId))
        .bind(std::string_view(run_id))
        .run();
    transaction.commit();
  }
  std::filesystem::rename(unfinished, path, error);
  if (error) fail(ErrorCode::kIo, "{}: cannot rename to {}: {}", unfinished, path, error.message());
  return open(path);
}

RunDb RunDb::open(const std::string& path) {
  auto state = std::make_unique<State>(path, SqliteOpen::kWrite);
  state->check_version();
  state->start_writing();
  return RunDb(std::move(state));
}

RunDb RunDb::open_read_only(const std::string& path) {
  auto state = std::make_unique<State>(path, SqliteOpen::kRead);
  state->check_version();
  return RunDb(std::move(state));
}

const std::string& RunDb::path() const { return state_->db.path(); }

void RunDb::set_config(const std::string& key, const std::string& json) {
  SqliteStatement statement(state_->db, "INSERT OR REPLACE INTO config(key, value) VALUES(?,?)");
  statement.bind(std::string_view(key)).bind(std::string_view(json)).run();
}

void RunDb::write_step(const StepData& data) {
  const std::int64_t step = data.step.step;
  SqliteTransaction transaction(state_->db);
  state_->write(step, data.step);
  for (const SampleRow& row : data.samples) state_->write(step, row);
  for (const TokenRow& row : data.tokens) state_->write(step, row);
  for (const MetricRow& row : data.metrics) state_->write(step, row);
  for (const ProvenanceRow& row : data.provenance) state_->write(step, row);
  transaction.commit();
}

void RunDb::write_metric(std::int64_t step, const std::string& name, double value) {
  state_->write(step, MetricRow{step, name, value});
}

void RunDb::write_event(std::int64_t step, const std::string& kind, const std::string& text) {
  const std::string time = utc_now();
  SqliteStatement statement(state_->db,
                            "INSERT INTO events(step, time, kind, text) VALUES(?,?,?,?)");
  statement.bind(step)
      .bind(std::string_view(time))
      .bind(std::string_view(kind))
      .bind(std::string_view(text))
      .run();
}

void RunDb::truncate_after(std::int64_t step) {
  SqliteTransaction transaction(state_->db);
  for (const char* table : {"tokens", "samples", "provenance", "events", "steps"}) {
    const std::string sql = fmt::format("DELETE FROM {} WHERE step > ?", table);
    SqliteStatement(state_->db, sql.c_str()).bind(step).run();
  }
  SqliteStatement(state_->db, "DELETE FROM metrics WHERE step > ? AND name NOT GLOB 'sft_*'")
      .bind(step)
      .run();
  transaction.commit();
}

void RunDb::flush() { state_->db.execute("PRAGMA wal_checkpoint(FULL)"); }

}  // namespace rlk
