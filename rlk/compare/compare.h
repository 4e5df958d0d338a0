// Records of scored tokens, the gate that says whether two of them may be compared, and the
// comparison itself: bytes, never tolerances.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace rlk {

// What was asked of the sampler. A log-probability is one of the distribution that was sampled.
struct RecordSampling {
  double temperature = 1.0;
  std::int64_t top_k = 0;  // 0: off
  double top_p = 1.0;      // 1: off
  double min_p = 0.0;      // 0: off

  bool operator==(const RecordSampling&) const = default;
};

// One sequence: `prefix`, then `targets`. The context of targets[i] is the prefix and
// targets[0, i). The five vectors from `targets` on have the same size.
struct RecordSample {
  std::int64_t step = 0;
  std::int64_t sample = 0;
  RecordSampling sampling;
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> targets;
  std::vector<std::int64_t> positions;        // absolute position of each target
  std::vector<std::uint8_t> mask;             // 1: takes part in the comparison
  std::vector<std::int64_t> weight_versions;  // of the weights that scored each target
  std::vector<float> logprobs;
};

// What one side knows of tokens it scored.
struct Record {
  std::string name;        // how a report calls this side: "rollout", "trainer"
  std::string provenance;  // names the computation, e.g. "<run id>/rollout"; empty: unknown
  std::string model_digest;
  std::string forward_digest;
  std::int64_t vocab_size = 0;  // real columns, without padding
  std::vector<RecordSample> samples;
};

enum class CompareStatus { kEqual, kDiffers, kNotComparable, kNothingCompared };
const char* to_string(CompareStatus status);  // "equal", "differs", "not_comparable", ...

// The first compared token, in record order, whose bytes differ.
struct Mismatch {
  std::int64_t step = 0;
  std::int64_t sample = 0;
  std::int64_t position = 0;
  std::int32_t token_id = 0;
  float a = 0;
  float b = 0;
};

// Bin 0 counts equal pairs, bin k > 0 those whose distance d in ulp has 2^(k-1) <= d < 2^k (+0 and
// -0 are one apart). Pairs with a NaN are in no bin.
inline constexpr int kUlpBins = 34;

struct Comparison {
  CompareStatus status = CompareStatus::kNothingCompared;
  std::string name_a;
  std::string name_b;
  std::string field;   // kNotComparable: the first field of the gate that differs
  std::string detail;  // and where: "step 3, sample 7: 1 != 2"
  std::int64_t compared = 0;
  std::int64_t mismatch_count = 0;  // pairs whose bytes differ, or with a NaN on either side
  std::int64_t nan_count = 0;       // pairs with a NaN on either side
  double max_abs_diff = 0;          // |a - b| in f64, over pairs without a NaN
  double mean_abs_diff = 0;         // the same pairs, equal ones included
  double sum_abs_diff = 0;
  std::array<std::int64_t, kUlpBins> ulp_histogram{};
  Mismatch first_mismatch;  // meaningful when mismatch_count > 0
};

// The gate, in this order: model_digest, samples (the list of step and sample numbers),
// weight_version, forward_digest, prefix_tokens, targets, mask, positions, sampling, vocab_size.
// The first that differs gives kNotComparable and no number. Then bytes, over targets whose mask
// is 1: +0 and -0 differ, a NaN on either side is a mismatch, no such target at all is
// kNothingCompared.
// Errors  kInvalidArgument when a side is compared with itself (the same object, or the same
//         provenance and not one byte that differs: a copy); kShape when a record's vectors do
//         not have one size.
Comparison compare(const Record& a, const Record& b);

// Adds a later part of the same comparison (another step) to `total`. A part that compared
// nothing changes nothing; one that is not comparable makes the total so, for good.
void merge(Comparison& total, const Comparison& part);

// One object: status, pair, field, counts, figures, histogram as {"1": n, "2-3": n}, first
// mismatch with both values and their bits.
std::string to_json(const Comparison& comparison);

// For people, one or a few lines: "rollout = trainer: 23456 log-probabilities, 0 differ".
std::string to_text(const Comparison& comparison);

// Exit code of the program: 0 equal, 1 differs, 2 not comparable or nothing compared.
int exit_code(CompareStatus status);

}  // namespace rlk
