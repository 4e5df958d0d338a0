#include "rlk/compare/compare.h"

#include <algorithm>
#include <array>

#include "rlk/core/error.h"
#include "rlk/numerics/bits.h"

namespace rlk {

namespace {

static_assert(kUlpBins == std::tuple_size_v<decltype(numerics::BitComparison::ulp_histogram)>);

void check_sizes(const Record& record) {
  for (const RecordSample& s : record.samples) {
    const std::size_t n = s.targets.size();
    const auto check = [&](const char* field, std::size_t size) {
      if (size == n) return;
      fail(ErrorCode::kShape, "{}: step {}, sample {}: {} has {} elements, targets has {}",
           record.name, s.step, s.sample, field, size, n);
    };
    check("positions", s.positions.size());
    check("mask", s.mask.size());
    check("weight_versions", s.weight_versions.size());
    check("logprobs", s.logprobs.size());
  }
}

// The gate. Returns true, with field and detail filled in, when something differs.
class Gate {
 public:
  Gate(const Record& a, const Record& b, Comparison& result) : a_(a), b_(b), result_(result) {}

  bool closed() {
    return differs("model_digest", a_.model_digest, b_.model_digest) || samples_differ() ||
           elements_differ("weight_version", &RecordSample::weight_versions, false) ||
           differs("forward_digest", a_.forward_digest, b_.forward_digest) ||
           elements_differ("prefix_tokens", &RecordSample::prefix, true) ||
           elements_differ("targets", &RecordSample::targets, true) ||
           elements_differ("mask", &RecordSample::mask, true) ||
           elements_differ("positions", &RecordSample::positions, true) || sampling_differs() ||
           differs("vocab_size", a_.vocab_size, b_.vocab_size);
  }

 private:
  bool close(const char* field, std::string detail) {
    result_.status = CompareStatus::kNotComparable;
    result_.field = field;
    result_.detail = std::move(detail);
    return true;
  }

  template <typename T>
  bool differs(const char* field, const T& a, const T& b) {
    return a == b ? false : close(field, fmt::format("{} != {}", a, b));
  }

  bool samples_differ() {
    const std::size_t n = std::min(a_.samples.size(), b_.samples.size());
    for (std::size_t i = 0; i < n; ++i) {
      const RecordSample& a = a_.samples[i];
      const RecordSample& b = b_.samples[i];
      if (a.step != b.step || a.sample != b.sample) {
        return close("samples", fmt::format("entry {}: step {}, sample {} != step {}, sample {}", i,
                                            a.step, a.sample, b.step, b.sample));
      }
    }
    if (a_.samples.size() == b_.samples.size()) return false;
    return close("samples", fmt::format("{} samples != {}", a_.samples.size(), b_.samples.size()));
  }

  // Without sizes_too, a difference in size is left to the field that owns it (targets).
  template <typename T>
  bool elements_differ(const char* field, std::vector<T> RecordSample::*member, bool sizes_too) {
    for (std::size_t i = 0; i < a_.samples.size(); ++i) {
      const std::vector<T>& x = a_.samples[i].*member;
      const std::vector<T>& y = b_.samples[i].*member;
      const std::string where =
          fmt::format("step {}, sample {}", a_.samples[i].step, a_.samples[i].sample);
      const std::size_t n = std::min(x.size(), y.size());
      for (std::size_t k = 0; k < n; ++k) {
        if (x[k] == y[k]) continue;
        return close(field, fmt::format("{}, entry {}: {} != {}", where, k, x[k], y[k]));
      }
      if (sizes_too && x.size() != y.size()) {
        return close(field, fmt::format("{}: {} entries != {}", where, x.size(), y.size()));
      }
    }
    return false;
  }

  bool sampling_differs() {
    for (std::size_t i = 0; i < a_.samples.size(); ++i) {
      const RecordSampling& x = a_.samples[i].sampling;
      const RecordSampling& y = b_.samples[i].sampling;
      if (x == y) continue;
      const auto text = [](const RecordSampling& s) {
        return fmt::format("(temperature {}, top_k {}, top_p {}, min_p {})", s.temperature, s.top_k,
                           s.top_p, s.min_p);
      };
      return close("sampling", fmt::format("step {}, sample {}: {} != {}", a_.samples[i].step,
                                           a_.samples[i].sample, text(x), text(y)));
    }
    return false;
  }

  const Record& a_;
  const Record& b_;
  Comparison& result_;
};

void finish(Comparison& c) {
  const std::int64_t numbers = c.compared - c.nan_count;
  c.mean_abs_diff = numbers > 0 ? c.sum_abs_diff / static_cast<double>(numbers) : 0.0;
  if (c.status == CompareStatus::kNotComparable) return;
  c.status = c.compared == 0         ? CompareStatus::kNothingCompared
             : c.mismatch_count == 0 ? CompareStatus::kEqual
                                     : CompareStatus::kDiffers;
}

// The log-probabilities whose mask is 1, and where in the sample they stand.
struct Active {
  std::vector<std::size_t> indices;
  std::vector<float> a;
  std::vector<float> b;
};

void compare_sample(const RecordSample& a, const RecordSample& b, Active& active, Comparison& c) {
  active.indices.clear();
  active.a.clear();
  active.b.clear();
  for (std::size_t i = 0; i < a.targets.size(); ++i) {
    if (!a.mask[i]) continue;
    active.indices.push_back(i);
    active.a.push_back(a.logprobs[i]);
    active.b.push_back(b.logprobs[i]);
  }
  const numerics::BitComparison bits = numerics::compare_bits(
      active.a.data(), active.b.data(), static_cast<std::int64_t>(active.indices.size()));
  if (c.mismatch_count == 0 && bits.mismatch_count > 0) {
    const std::size_t i = active.indices[static_cast<std::size_t>(bits.first_index)];
    c.first_mismatch = {a.step,       a.sample,      a.positions[i],
                        a.targets[i], a.logprobs[i], b.logprobs[i]};
  }
  c.compared += bits.compared;
  c.mismatch_count += bits.mismatch_count;
  c.nan_count += bits.nan_count;
  c.max_abs_diff = std::max(c.max_abs_diff, bits.max_abs_diff);
  c.sum_abs_diff += bits.sum_abs_diff;
  for (int i = 0; i < kUlpBins; ++i) c.ulp_histogram[i] += bits.ulp_histogram[i];
}

}  // namespace

Comparison compare(const Record& a, const Record& b) {
  if (&a == &b) {
    fail(ErrorCode::kInvalidArgument, "compare: both sides are one record ({})", a.name);
  }
  check_sizes(a);
  check_sizes(b);
  Comparison result;
  result.name_a = a.name;
  result.name_b = b.name;
  if (Gate(a, b, result).closed()) return result;
  Active active;
  for (std::size_t i = 0; i < a.samples.size(); ++i) {
    compare_sample(a.samples[i], b.samples[i], active, result);
  }
  finish(result);
  if (result.status == CompareStatus::kEqual && !a.provenance.empty() &&
      a.provenance == b.provenance) {
    fail(ErrorCode::kInvalidArgument,
         "compare: {} and {} are copies of one computation ({}); compare two independent ones",
         a.name, b.name, a.provenance);
  }
  return result;
}

void merge(Comparison& total, const Comparison& part) {
  if (total.name_a.empty() && total.name_b.empty()) {
    total.name_a = part.name_a;
    total.name_b = part.name_b;
  }
  if (total.status == CompareStatus::kNotComparable) return;
  if (part.status == CompareStatus::kNotComparable) {
    total = part;  // no number beside a closed gate
    return;
  }
  if (total.mismatch_count == 0) total.first_mismatch = part.first_mismatch;
  total.compared += part.compared;
  total.mismatch_count += part.mismatch_count;
  total.nan_count += part.nan_count;
  total.max_abs_diff = std::max(total.max_abs_diff, part.max_abs_diff);
  total.sum_abs_diff += part.sum_abs_diff;
  for (int i = 0; i < kUlpBins; ++i) total.ulp_histogram[i] += part.ulp_histogram[i];
  finish(total);
}

int exit_code(CompareStatus status) {
  switch (status) {
    case CompareStatus::kEqual: return 0;
    case CompareStatus::kDiffers: return 1;
    case CompareStatus::kNotComparable:
    case CompareStatus::kNothingCompared: return 2;
  }
  return 2;
}

}  // namespace rlk
