// The gate refuses what must not be compared; the comparison sees every bit.
#include "rlk/compare/compare.h"

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "rlk/core/error.h"

namespace rlk {
namespace {

Record make_record(const std::string& name) {
  Record record;
  record.name = name;
  record.provenance = "run/" + name;
  record.model_digest = "m";
  record.forward_digest = "f";
  record.vocab_size = 16;
  for (int i = 0; i < 3; ++i) {
    RecordSample s;
    s.step = 4;
    s.sample = i;
    s.prefix = {1, 2, 3};
    s.targets = {5, 6};
    s.positions = {3, 4};
    s.mask = {1, 1};
    s.weight_versions = {7, 7};
    s.logprobs = {-1.5F - static_cast<float>(i), -0.25F};
    record.samples.push_back(s);
  }
  return record;
}

Comparison compare_after(const std::function<void(Record&)>& change) {
  const Record a = make_record("rollout");
  Record b = make_record("trainer");
  change(b);
  return compare(a, b);
}

TEST(Compare, EqualBytesAreEqual) {
  const Comparison c = compare_after([](Record&) {});
  EXPECT_EQ(c.status, CompareStatus::kEqual);
  EXPECT_EQ(c.compared, 6);
  EXPECT_EQ(c.mismatch_count, 0);
  EXPECT_EQ(c.max_abs_diff, 0.0);
  EXPECT_EQ(c.ulp_histogram[0], 6);
  EXPECT_EQ(c.name_a, "rollout");
  EXPECT_EQ(c.name_b, "trainer");
  EXPECT_EQ(exit_code(c.status), 0);
}

TEST(CompareTwin, OneAlteredBitDiffersAndIsFound) {
  const Comparison c =
      compare_after([](Record& r) { r.samples[1].logprobs[1] = std::nextafter(-0.25F, -1.0F); });
  EXPECT_EQ(c.status, CompareStatus::kDiffers);
  EXPECT_EQ(exit_code(c.status), 1);
  EXPECT_EQ(c.mismatch_count, 1);
  EXPECT_EQ(c.compared, 6);
  EXPECT_EQ(c.first_mismatch.step, 4);
  EXPECT_EQ(c.first_mismatch.sample, 1);
  EXPECT_EQ(c.first_mismatch.position, 4);
  EXPECT_EQ(c.first_mismatch.token_id, 6);
  EXPECT_EQ(c.first_mismatch.a, -0.25F);
  EXPECT_EQ(c.ulp_histogram[0], 5);
  EXPECT_EQ(c.ulp_histogram[1], 1);
  EXPECT_EQ(c.max_abs_diff, std::ldexp(1.0, -25));
  EXPECT_EQ(c.mean_abs_diff, std::ldexp(1.0, -25) / 6);
}

TEST(CompareTwin, PlusAndMinusZeroDiffer) {
  Record a = make_record("rollout");
  Record b = make_record("trainer");
  a.samples[0].logprobs[0] = 0.0F;
  b.samples[0].logprobs[0] = -0.0F;
  const Comparison c = compare(a, b);
  EXPECT_EQ(c.status, CompareStatus::kDiffers);
  EXPECT_EQ(c.mismatch_count, 1);
  EXPECT_EQ(c.max_abs_diff, 0.0);
  EXPECT_EQ(c.ulp_histogram[0], 5);
  EXPECT_EQ(c.ulp_histogram[1], 1);
}

TEST(CompareTwin, NanFailsEvenWithTheSameBitsOnBothSides) {
  Record a = make_record("rollout");
  Record b = make_record("trainer");
  a.samples[2].logprobs[0] = std::numeric_limits<float>::quiet_NaN();
  b.samples[2].logprobs[0] = a.samples[2].logprobs[0];
  const Comparison c = compare(a, b);
  EXPECT_EQ(c.status, CompareStatus::kDiffers);
  EXPECT_EQ(c.mismatch_count, 1);
  EXPECT_EQ(c.nan_count, 1);
  EXPECT_EQ(c.max_abs_diff, 0.0);
}

TEST(CompareTwin, LargestDistanceHasABin) {
  Record a = make_record("rollout");
  Record b = make_record("trainer");
  a.samples[0].logprobs[0] = std::numeric_limits<float>::infinity();
  b.samples[0].logprobs[0] = -std::numeric_limits<float>::infinity();
  const Comparison c = compare(a, b);
  EXPECT_EQ(c.ulp_histogram[32], 1);
  EXPECT_EQ(c.mismatch_count, 1);
}

TEST(Compare, MaskedTokensTakeNoPart) {
  Record a = make_record("rollout");
  Record b = make_record("trainer");
  for (Record* r : {&a, &b}) r->samples[0].mask[1] = 0;
  b.samples[0].logprobs[1] = 3.0F;
  const Comparison c = compare(a, b);
  EXPECT_EQ(c.status, CompareStatus::kEqual);
  EXPECT_EQ(c.compared, 5);
}

TEST(Compare, NoActiveTokenIsNothingComparedAndFails) {
  Record a = make_record("rollout");
  Record b = make_record("trainer");
  for (Record* r : {&a, &b}) {
    for (RecordSample& s : r->samples) s.mask = {0, 0};
  }
  EXPECT_EQ(compare(a, b).status, CompareStatus::kNothingCompared);
  a.samples.clear();
  b.samples.clear();
  EXPECT_EQ(compare(a, b).status, CompareStatus::kNothingCompared);
  EXPECT_EQ(exit_code(CompareStatus::kNothingCompared), 2);
}

struct GateCase {
  const char* field;
  std::function<void(Record&)> change;
};

TEST(CompareTwin, EveryFieldOfTheGateClosesItWithItsName) {
  const GateCase cases[] = {
      {"model_digest", [](Record& r) { r.model_digest = "other"; }},
      {"samples", [](Record& r) { r.samples.pop_back(); }},
      {"samples", [](Record& r) { r.samples[1].step = 5; }},
      {"weight_version", [](Record& r) { r.samples[2].weight_versions[1] = 8; }},
      {"forward_digest", [](Record& r) { r.forward_digest = "other"; }},
      {"prefix_tokens", [](Record& r) { r.samples[0].prefix[2] = 4; }},
      {"prefix_tokens", [](Record& r) { r.samples[0].prefix.pop_back(); }},
      {"targets", [](Record& r) { r.samples[0].targets[0] = 9; }},
      {"mask", [](Record& r) { r.samples[1].mask[0] = 0; }},
      {"positions", [](Record& r) { r.samples[1].positions[0] = 9; }},
      {"sampling", [](Record& r) { r.samples[1].sampling.temperature = 0.7; }},
      {"sampling", [](Record& r) { r.samples[1].sampling.top_k = 5; }},
      {"sampling", [](Record& r) { r.samples[1].sampling.top_p = 0.9; }},
      {"sampling", [](Record& r) { r.samples[1].sampling.min_p = 0.1; }},
      {"vocab_size", [](Record& r) { r.vocab_size = 17; }},
  };
  for (const GateCase& one : cases) {
    const Comparison c = compare_after(one.change);
    EXPECT_EQ(c.status, CompareStatus::kNotComparable) << one.field;
    EXPECT_EQ(c.field, one.field);
    EXPECT_FALSE(c.detail.empty());
    EXPECT_EQ(c.compared, 0) << "a closed gate gives no number";
    EXPECT_EQ(to_json(c).find("mismatch_count"), std::string::npos);
    EXPECT_EQ(exit_code(c.status), 2);
  }
}

TEST(Compare, TheFirstFieldInTheOrderOfTheGateIsNamed) {
  const Comparison c = compare_after([](Record& r) {
    r.vocab_size = 17;
    r.samples[2].targets.push_back(1);
    r.samples[2].positions.push_back(5);
    r.samples[2].mask.push_back(1);
    r.samples[2].weight_versions.push_back(7);
    r.samples[2].logprobs.push_back(-1);
  });
  EXPECT_EQ(c.field, "targets");
  EXPECT_EQ(c.detail, "step 4, sample 2: 2 entries != 3");
}

ErrorCode error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kIo;
}

TEST(CompareTwin, ARecordComparedWithItselfOrWithItsCopyIsAnError) {
  const Record a = make_record("rollout");
  const Record copy = a;
  EXPECT_EQ(error_of([&] { compare(a, a); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { compare(a, copy); }), ErrorCode::kInvalidArgument);
  Record altered = a;
  altered.samples[0].logprobs[0] = -9.0F;
  EXPECT_EQ(compare(a, altered).status, CompareStatus::kDiffers);
}

TEST(Compare, VectorsOfUnequalSizesAreAnError) {
  const Record a = make_record("rollout");
  Record b = make_record("trainer");
  b.samples[1].logprobs.pop_back();
  EXPECT_EQ(error_of([&] { compare(a, b); }), ErrorCode::kShape);
}

TEST(Compare, MergedPartsGiveTheFiguresOfTheWhole) {
  Record a = make_record("rollout");
  Record b = make_record("trainer");
  b.samples[1].logprobs[0] += 0.5F;
  b.samples[2].logprobs[1] += 0.125F;
  const Comparison whole = compare(a, b);
  Comparison total;
  for (int i = 0; i < 3; ++i) {
    Record part_a = a;
    Record part_b = b;
    part_a.samples = {a.samples[i]};
    part_b.samples = {b.samples[i]};
    merge(total, compare(part_a, part_b));
  }
  EXPECT_EQ(to_json(total), to_json(whole));
  EXPECT_EQ(whole.mismatch_count, 2);

  Comparison closed;
  closed.status = CompareStatus::kNotComparable;
  closed.field = "mask";
  merge(total, closed);
  EXPECT_EQ(total.status, CompareStatus::kNotComparable);
  EXPECT_EQ(total.compared, 0);
  merge(total, whole);
  EXPECT_EQ(total.field, "mask");
}

TEST(Compare, TextNamesThePairAndTheFirstMismatch) {
  const Comparison c = compare_after([](Record& r) { r.samples[0].logprobs[0] = -1.25F; });
  EXPECT_EQ(to_text(c),
            "rollout != trainer: 1 of 6 log-probabilities differ, max |d| 0.25, mean |d| 0.0417\n"
            "first: step 4, sample 0, position 3, token 5: -1.5 (bfc00000) and -1.25 (bfa00000)");
}

}  // namespace
}  // namespace rlk
