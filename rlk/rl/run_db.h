// run.db: everything a run did, in one SQLite file that anyone can query.
//
// A step is one transaction: a process killed at any moment leaves whole steps only. Steps count
// from 1; step 0 stands for "before the first step" (metrics and events only).
// Log-probabilities are blobs of 4 bytes, the little-endian f32, so that a query compares bytes:
//   SELECT count(*) FROM tokens WHERE rollout_logprob IS NOT trainer_logprob;
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rlk {

inline constexpr int kRunDbVersion = 1;  // PRAGMA user_version

// Keys of table `config`. Values are JSON texts; a string is stored with its quotes.
namespace run_key {
inline constexpr const char* kRunId = "run_id";   // set by RunDb::create
inline constexpr const char* kRoute = "route";    // "strict", "production"
inline constexpr const char* kConfig = "config";  // the whole run configuration, as used
inline constexpr const char* kModelConfig = "model_config";
inline constexpr const char* kContract = "contract";
inline constexpr const char* kEnvironment = "environment";
inline constexpr const char* kModelDigest = "model_digest";
inline constexpr const char* kForwardDigest = "forward_digest";
inline constexpr const char* kBackwardDigest = "backward_digest";
inline constexpr const char* kDeploymentDigest = "deployment_digest";
inline constexpr const char* kWeightsDigest = "weights_digest";  // of the last weights
inline constexpr const char* kVocabSize = "vocab_size";
}  // namespace run_key

// Names of table `metrics` that the summary and the report look for.
namespace run_metric {
inline constexpr const char* kHeldoutReward = "heldout_reward";  // step 0: before training
inline constexpr const char* kSftLoss = "sft_loss";              // step: of the warm-up
}  // namespace run_metric

// Times in seconds. A NaN is stored as NULL and read back as NaN: "not measured".
struct StepRow {
  std::int64_t step = 0;
  std::int64_t weight_version = 0;  // that sampled the step's tokens
  double reward_mean = 0;
  double reward_std = 0;
  double loss = 0;
  double kl = 0;  // mean over response tokens, to the reference model; NaN without one
  double entropy = 0;
  double grad_norm = 0;
  double clip_fraction = 0;  // share of response tokens whose ratio was clipped
  double learning_rate = 0;
  std::int64_t compared = 0;
  std::int64_t mismatch_count = 0;
  double max_abs_diff = 0;  // of rollout and trainer log-probabilities
  double mean_abs_diff = 0;
  double mismatch_kl = 0;          // between them, see mismatch_kl() in run_records.h; 0 when equal
  std::int64_t prompt_tokens = 0;  // summed over samples
  std::int64_t response_tokens = 0;
  double rollout_s = 0;
  double record_s = 0;  // verifier, advantages, writing of this file
  double score_s = 0;   // the trainer's own log-probabilities, and their comparison
  double backward_s = 0;
  double optimizer_s = 0;
  double sync_s = 0;
  double total_s = 0;
};

struct SampleRow {
  std::int64_t step = 0;
  std::int64_t sample = 0;  // from 0 within the step
  std::int64_t prompt_index = 0;
  std::int64_t group = 0;
  std::int64_t grad_slot = 0;
  std::uint64_t seed = 0;  // with `request`, the key of its random numbers
  std::int64_t request = 0;
  double temperature = 1.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double reward = 0;
  float advantage = 0;
  std::string finish_reason;  // "stop", "length"
  std::string prompt_text;
  std::string response_text;
  std::vector<std::int32_t> prompt_token_ids;  // a blob of little-endian int32
};

// A response token.
struct TokenRow {
  std::int64_t step = 0;
  std::int64_t sample = 0;
  std::int64_t position = 0;  // absolute; the first response token has the prompt's size
  std::int32_t token_id = 0;
  std::int64_t weight_version = 0;
  float rollout_logprob = 0;      // of the distribution that was sampled
  float rollout_logprob_raw = 0;  // at temperature 1, without filters
  float trainer_logprob = 0;
  bool active = true;  // takes part in loss and comparison
};

struct MetricRow {
  std::int64_t step = 0;
  std::string name;
  double value = 0;
};

// What ran: calls of one operator in one step.
struct ProvenanceRow {
  std::int64_t step = 0;
  std::string engine;          // "rollout", "trainer"
  std::string op;              // "rms_norm"
  std::string implementation;  // "cpu.avx2", "production"
  std::string mode;            // "strict", "audit", "auto", "off"
  std::string shape_class;     // "<=64x512": leading size rounded up, then the others
  std::int64_t count = 0;
  std::int64_t time_us = 0;
  std::int64_t audit_compared = 0;  // mode audit: output elements held against the contract's
  std::int64_t audit_mismatches = 0;
  std::string fallback_reason = {};  // mode auto: why production ran; else empty
};

struct EventRow {
  std::int64_t step = 0;
  std::string time;  // UTC, ISO 8601
  std::string kind;  // "start", "resume", "checkpoint", "mismatch", "end"
  std::string text;
};

// All of one step; the rows' own `step` fields are ignored, step.step holds.
struct StepData {
  StepRow step;
  std::vector<SampleRow> samples;
  std::vector<TokenRow> tokens;
  std::vector<MetricRow> metrics;
  std::vector<ProvenanceRow> provenance;
};

// Every function throws kIo with the file and SQLite's message when the disk is full, the file
// cannot be written, or is not a database; kFormat when its user_version is another.
class RunDb {
 public:
  // A new file (kIo if it exists) with a random run_id.
  static RunDb create(const std::string& path);
  // An existing file, to go on with or, read only, to look at while another process writes.
  static RunDb open(const std::string& path);
  static RunDb open_read_only(const std::string& path);

  RunDb(RunDb&&) noexcept;
  RunDb& operator=(RunDb&&) noexcept;
  ~RunDb();

  const std::string& path() const;

  // Writers, each one transaction.
  void set_config(const std::string& key, const std::string& json);
  void write_step(const StepData& data);
  void write_metric(std::int64_t step, const std::string& name, double value);
  void write_event(std::int64_t step, const std::string& kind, const std::string& text);
  // Deletes what came after `step` (resume from a checkpoint of that step). Metrics named sft_*
  // stay: they count the steps of the warm-up.
  void truncate_after(std::int64_t step);
  // Returns when all that was written is on the disk. A killed process needs no flush, a power
  // cut does: call it before a checkpoint is published, so that no checkpoint is ahead of run.db.
  void flush();

  // Readers, in rising order of their keys.
  std::int64_t last_complete_step() const;  // 0: none
  std::map<std::string, std::string> config() const;
  std::optional<std::string> config_json(const std::string& key) const;
  std::string config_string(const std::string& key) const;  // unquoted; empty when absent
  std::vector<StepRow> steps() const;
  std::vector<SampleRow> samples(std::int64_t step) const;
  std::int64_t num_samples() const;  // of all steps
  std::vector<TokenRow> tokens(std::int64_t step) const;
  std::vector<MetricRow> metrics() const;
  std::vector<MetricRow> metrics(const std::string& name) const;
  std::vector<ProvenanceRow> provenance_totals() const;  // summed over steps; step is 0
  std::vector<EventRow> events() const;

 private:
  struct State;
  explicit RunDb(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The file of a run: `path` itself, or path/run.db when it is a folder. kIo when there is none.
std::string run_db_path(const std::string& path);

}  // namespace rlk
