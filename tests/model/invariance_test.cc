// Log-probabilities of a model do not depend on the batch, on how a sequence is cut, on where its
// keys lie, or on threads and instruction set. Each twin breaks the contract in one operator, on
// the same data, and the comparison of the same plans must see it.
#include "tests/model/model_run.h"
#include "tests/model/wrong_kernels.h"

namespace rlk::test {
namespace {

constexpr std::int64_t kLength = 400;

// One watched sequence; its prefix crosses blocks and splits.
Tokens watched(std::int64_t n = kLength) { return random_tokens(n, 5); }

// n sequences with the watched one in the middle; the others differ by `seed`.
std::vector<Tokens> batch_of(std::int64_t n, const Tokens& tokens, std::uint64_t seed) {
  std::vector<Tokens> out;
  Rng rng(seed);
  for (std::int64_t i = 0; i < n; ++i) {
    out.push_back(i == n / 2 ? tokens : random_tokens(12 + rng.below(9), seed + 1000 * rng.next()));
  }
  return out;
}

Logprobs packed_in_a_batch_of(ModelRun& run, std::int64_t n, std::uint64_t seed = 1) {
  return run.packed(batch_of(n, watched(70), seed))[static_cast<std::size_t>(n / 2)];
}

// The watched sequence decodes its last ten tokens beside n - 1 others.
Logprobs decoded_in_a_batch_of(ModelRun& run, std::int64_t n, std::uint64_t seed = 1) {
  PagedRun paged(run, batch_of(n, watched(70), seed), 16);
  std::vector<std::int64_t> prefill(static_cast<std::size_t>(n), 2), decode(prefill.size(), 1);
  prefill[static_cast<std::size_t>(n / 2)] = 60;
  paged.step(prefill);
  for (int i = 0; i < 10; ++i) paged.step(decode);
  return paged.logprobs(static_cast<std::size_t>(n / 2));
}

Logprobs in_pages(ModelRun& run, std::int64_t page_size, std::int64_t chunk) {
  return PagedRun(run, {watched()}, page_size).in_chunks(chunk)[0];
}

// A second sequence that starts behind `prefix` tokens of the first.
Logprobs behind_a_prefix(ModelRun& run, std::int64_t prefix) {
  Tokens other = watched(prefix + 1);
  other.insert(other.end(), {1, 2, 3});
  const std::int64_t page_size = prefix % 16 ? 1 : 16;
  PagedRun paged(run, {other, watched(150)}, page_size);
  paged.step({prefix, 0});
  paged.take_prefix(1, 0, prefix);
  paged.step({4, 150});
  return paged.logprobs(1);
}

const std::vector<std::int64_t> kBatchSizes{1, 2, 3, 8, 17, 64, 257};

class ModelInvariance : public testing::TestWithParam<const char*> {
 protected:
  ModelSetup setup_{.config = small_config(GetParam())};
  ModelRun run_{setup_};
};
INSTANTIATE_TEST_SUITE_P(Families, ModelInvariance, testing::Values("qwen3", "qwen2"));

TEST_P(ModelInvariance, ASequenceInABatchOf1To257) {
  const Logprobs wanted = run_.packed({watched(70)})[0];
  for (const std::int64_t n : kBatchSizes) {
    EXPECT_TRUE(same_bytes(packed_in_a_batch_of(run_, n), wanted)) << n;
    EXPECT_TRUE(same_bytes(decoded_in_a_batch_of(run_, n), wanted)) << n << ", decode";
  }
}

TEST_P(ModelInvariance, OtherNeighbours) {
  const Logprobs wanted = run_.packed({watched(70)})[0];
  for (std::uint64_t seed = 2; seed < 6; ++seed) {
    EXPECT_TRUE(same_bytes(packed_in_a_batch_of(run_, 9, seed), wanted)) << seed;
    EXPECT_TRUE(same_bytes(decoded_in_a_batch_of(run_, 9, seed), wanted)) << seed;
  }
}

TEST_P(ModelInvariance, AnyPackingOrderAndPadding) {
  std::vector<Tokens> sequences = batch_of(11, watched(70), 3);
  std::vector<Logprobs> wanted;
  for (const Tokens& s : sequences) wanted.push_back(run_.packed({s})[0]);
  for (int turn = 0; turn < 11; ++turn) {
    EXPECT_EQ(run_.packed(sequences), wanted) << turn;
    std::rotate(sequences.begin(), sequences.begin() + 1, sequences.end());
    std::rotate(wanted.begin(), wanted.begin() + 1, wanted.end());
  }
  // Every sequence filled up to the longest.
  for (Tokens& s : sequences) s.resize(70, 0);
  const std::vector<Logprobs> padded = run_.packed(sequences);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(
        same_bytes({padded[i].begin(), padded[i].begin() + std::ssize(wanted[i])}, wanted[i]))
        << i;
  }
}

TEST_P(ModelInvariance, ChunksOfAnySize) {
  const Logprobs wanted = run_.packed({watched()})[0];
  for (const std::int64_t chunk : {1, 7, 64, 333, 400}) {
    EXPECT_TRUE(same_bytes(in_pages(run_, 16, chunk), wanted)) << chunk;
  }
}

TEST_P(ModelInvariance, ScatteredPagesOfAnySize) {
  const Logprobs wanted = run_.packed({watched()})[0];
  for (const std::int64_t page_size : {1, 8, 16, 32, 64, 128, 256}) {
    EXPECT_TRUE(same_bytes(in_pages(run_, page_size, 400), wanted)) << page_size;
    EXPECT_TRUE(same_bytes(in_pages(run_, page_size, 37), wanted)) << page_size;
  }
}

TEST_P(ModelInvariance, PrefixHitsAroundPagesBlocksAndSplits) {
  const Logprobs wanted = run_.packed({watched(150)})[0];
  for (const std::int64_t prefix : {1, 15, 16, 17, 32, 33, 48, 63, 64, 65, 128}) {
    EXPECT_TRUE(same_bytes(behind_a_prefix(run_, prefix), wanted)) << prefix;
  }
}

TEST_P(ModelInvariance, TheReferenceAndEveryInstructionSetOnAnyThreads) {
  const Logprobs wanted = run_.packed({watched(150)})[0];
  const auto expect_same = [&](const KernelTable& kernels, int num_threads) {
    ModelSetup setup = setup_;
    setup.kernels = &kernels;
    setup.num_threads = num_threads;
    ModelRun run(setup);
    EXPECT_TRUE(same_bytes(run.packed({watched(150)})[0], wanted))
        << kernels.backend << ", " << num_threads << " threads";
    PagedRun paged(run, {watched(150)}, 32);
    EXPECT_TRUE(same_bytes(paged.in_chunks(40)[0], wanted))
        << kernels.backend << ", " << num_threads << " threads";
  };
  for (const KernelTable* kernels : backends()) expect_same(*kernels, 2);
  for (int num_threads = 1; num_threads <= 8; ++num_threads) {
    expect_same(cpu_kernels(), num_threads);
  }
}

// ---- The same plans on the same data, with one operator that breaks the contract.

TEST(ModelTwin, ProductsThatSplitKForFewRowsDependOnTheBatchSize) {
  const KernelTable wrong = wrong_gemm<&few_rows_split_k>();
  ModelRun run({.kernels = &wrong});
  const Logprobs alone = decoded_in_a_batch_of(run, 1);
  EXPECT_TRUE(same_bytes(decoded_in_a_batch_of(run, 8), alone));
  for (const std::int64_t n : {17, 64, 257}) {
    EXPECT_FALSE(same_bytes(decoded_in_a_batch_of(run, n), alone)) << n;
  }
}

TEST(ModelTwin, TilesWithLeftOverRowsDependOnNeighboursAndPackingOrder) {
  const KernelTable wrong = with_kernel<GemmArgs>(&KernelTable::gemm, &left_over_rows_split_k);
  ModelRun run({.kernels = &wrong});
  std::vector<Tokens> sequences = batch_of(11, watched(70), 3);
  const Logprobs middle = run.packed(sequences)[5];
  std::rotate(sequences.begin(), sequences.begin() + 6, sequences.end());
  EXPECT_FALSE(same_bytes(run.packed(sequences)[10], middle));
  EXPECT_FALSE(same_bytes(run.packed({watched(70)})[0], middle));
}

TEST(ModelTwin, OtherTilesInDecodeDependOnTheChunk) {
  const KernelTable wrong = wrong_attention<&decode_has_other_tiles>();
  ModelRun run({.kernels = &wrong});
  const Logprobs whole = in_pages(run, 16, 400);
  for (const std::int64_t chunk : {1, 7, 64, 333}) {
    EXPECT_FALSE(same_bytes(in_pages(run, 16, chunk), whole)) << chunk;
  }
}

TEST(ModelTwin, AFoldThatRestartsAtThePrefixDependsOnTheHit) {
  const KernelTable wrong = wrong_attention<&the_fold_restarts_at_the_prefix>();
  ModelRun run({.kernels = &wrong});
  const Logprobs cold = run.packed({watched(150)})[0];
  for (const std::int64_t prefix : {15, 16, 17, 32}) {
    EXPECT_FALSE(same_bytes(behind_a_prefix(run, prefix), cold)) << prefix;
  }
}

TEST(ModelTwin, BlocksThatFollowPagesDependOnThePageSize) {
  const KernelTable wrong = wrong_attention<&blocks_follow_pages>();
  ModelRun run({.kernels = &wrong});
  const Logprobs wanted = run.packed({watched()})[0];
  EXPECT_TRUE(same_bytes(in_pages(run, 32, 400), wanted));  // pages as large as blocks
  for (const std::int64_t page_size : {8, 16, 64, 128, 256}) {
    EXPECT_FALSE(same_bytes(in_pages(run, page_size, 400), wanted)) << page_size;
  }
}

TEST(ModelTwin, AWrongPageGivesOtherBytes) {
  ModelRun run({});
  const Logprobs wanted = run.packed({watched(150)})[0];
  PagedRun paged(run, {watched(150)}, 8);
  paged.step({100});
  paged.take_wrong_page(0, 2, 7);
  paged.step({50});
  EXPECT_FALSE(same_bytes(paged.logprobs(0), wanted));
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.begin() + 100, paged.logprobs(0).begin()));
}

TEST(ModelTwin, SumsSplitByThreadsOrVectorsGiveOtherBytes) {
  ModelSetup setup;
  const Logprobs wanted = ModelRun(setup).packed({watched(150)})[0];
  const KernelTable by_threads = wrong_gemm<&threads_split_k>();
  const KernelTable by_vectors = wrong_gemm<&vectors_split_k>();
  setup.kernels = &by_threads;
  EXPECT_TRUE(same_bytes(ModelRun(setup).packed({watched(150)})[0], wanted));
  setup.num_threads = 2;
  EXPECT_FALSE(same_bytes(ModelRun(setup).packed({watched(150)})[0], wanted));
  setup.kernels = &by_vectors;
  EXPECT_FALSE(same_bytes(ModelRun(setup).packed({watched(150)})[0], wanted));
}

TEST(ModelTwin, AnotherRoundingGivesOtherBytes) {
  const Logprobs wanted = ModelRun({}).packed({watched(150)})[0];
  const KernelTable residual = with_kernel<RmsNormArgs>(&KernelTable::rms_norm, &residual_in_f32);
  const KernelTable logits = with_kernel<GemmArgs>(&KernelTable::gemm, &logits_in_bf16);
  for (const KernelTable* kernels : {&residual, &logits}) {
    EXPECT_FALSE(same_bytes(ModelRun({.kernels = kernels}).packed({watched(150)})[0], wanted));
  }
}

TEST(ModelTwin, AnotherFieldOfTheForwardContractGivesOtherBytes) {
  const Logprobs wanted = ModelRun({}).packed({watched()})[0];
  const auto differs = [&](const char* what, auto change) {
    ModelSetup setup;
    change(setup.contract);
    EXPECT_FALSE(same_bytes(ModelRun(setup).packed({watched()})[0], wanted)) << what;
  };
  differs("leaves", [](Contract& c) { c.leaves = 8; });
  differs("kv_block", [](Contract& c) { c.kv_block = 16; });
  differs("kv_split", [](Contract& c) { c.kv_split = 128; });
}

}  // namespace
}  // namespace rlk::test
