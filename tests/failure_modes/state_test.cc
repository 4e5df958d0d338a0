// Failures of state, buffers and weights, fm26 to fm30.
#include <map>
#include <sstream>

#include "rlk/compare/record_file.h"
#include "rlk/ops/gemm.h"
#include "rlk/rl/engines.h"
#include "tests/failure_modes/each_backend.h"
#include "tests/rollout/rollout_data.h"
#include "tests/trainer/trainer_data.h"

namespace rlk::test {
namespace {

// A prefix cache, or KV, that outlives a weight update.
TEST(FailureModes, fm26_KvBelongsToItsWeightVersion) {
  const Request r = request(1, 70, 12);
  const Completion fresh_old = TestEngine({}, 7).engine.generate({r})[0];
  const Completion fresh_new = TestEngine({}, 8).engine.generate({r})[0];
  EXPECT_FALSE(same_completion(fresh_old, fresh_new));  // old KV would show

  for (const bool prefix_cache : {false, true}) {
    RolloutSetup setup;
    setup.options.prefix_cache = prefix_cache;
    TestEngine t(setup, 7);
    EXPECT_TRUE(same_completion(t.engine.generate({r})[0], fresh_old));
    Parameters old_weights = tiny_weights(setup.config, setup.contract, 7);
    Parameters new_weights = tiny_weights(setup.config, setup.contract, 8);
    for (std::int64_t version = 1; version <= 4; ++version) {
      t.engine.load_weights(version % 2 ? new_weights : old_weights, version);
      EXPECT_TRUE(same_completion(t.engine.generate({r})[0], version % 2 ? fresh_new : fresh_old))
          << version;
      EXPECT_EQ(t.engine.stats().num_prefix_hits, 0);  // not even those of version - 2
    }
  }
  // A sequence that is running when the weights change goes on from recomputed keys.
  TestEngine t({}, 7);
  t.engine.add_request(r);
  for (int i = 0; i < 5; ++i) t.engine.step();
  Parameters new_weights = tiny_weights(tiny_config(), tiny_contract(), 8);
  t.engine.load_weights(new_weights, 1);
  Completion done;
  while (!t.engine.idle()) {
    for (Completion& c : t.engine.step()) done = std::move(c);
  }
  Request rest = r;
  rest.prompt_token_ids.insert(rest.prompt_token_ids.end(), done.token_ids.begin(),
                               done.token_ids.begin() + 5);
  rest.max_new_tokens = 7;
  const Completion wanted = TestEngine({}, 8).engine.generate({rest})[0];
  EXPECT_TRUE(same_bytes({done.logprobs.begin() + 5, done.logprobs.end()}, wanted.logprobs));
}

// A version that is not raised, or is missing for aborted samples, or stands once for a sample of
// several.
TEST(FailureModes, fm27_EveryTokenCarriesAWeightVersionAndVersionsRise) {
  TestEngine t{{}};
  Parameters weights = tiny_weights(tiny_config(), tiny_contract(), 8);
  t.engine.add_request(request(1, 20, 9));
  for (std::int64_t version = 2; version < 5; ++version) {
    t.engine.step();
    t.engine.step();
    EXPECT_EQ(t.engine.load_weights(weights, version), version);
    for (std::int64_t stale : {version, version - 1, std::int64_t{0}, std::int64_t{-1}}) {
      expect_error(ErrorCode::kContract, {"does not follow", std::to_string(version)},
                   [&] { t.engine.load_weights(weights, stale); });
    }
  }
  Completion done;
  while (!t.engine.idle()) {
    for (Completion& c : t.engine.step()) done = std::move(c);
  }
  EXPECT_EQ(done.weight_versions, (std::vector<std::int64_t>{0, 0, 2, 2, 3, 3, 4, 4, 4}));

  // The trainer raises the version with every step.
  TrainerSetup setup;
  TestTrainer trainer(setup);
  for (std::int64_t version = 1; version < 3; ++version) {
    trainer.trainer.accumulate(batch_record());
    trainer.trainer.apply();
    EXPECT_EQ(trainer.trainer.weight_version(), version);
  }

  // Tokens of other versions are not comparable with the trainer's one.
  Record a, b;
  RecordSample s;
  s.prefix = {1};
  s.targets.assign(9, 2);
  s.positions.assign(9, 1);
  s.mask.assign(9, 1);
  s.weight_versions = done.weight_versions;
  s.logprobs = done.logprobs;
  a.samples = b.samples = {s};
  b.samples[0].weight_versions.assign(9, 4);
  EXPECT_EQ(compare(a, b).status, CompareStatus::kNotComparable);
  EXPECT_EQ(compare(a, b).field, "weight_version");
}

Tensor hidden_states(Context& ctx, const Model& model, Activations& activations,
                     const std::vector<std::int64_t>& lengths, std::uint64_t seed) {
  std::vector<TrainSample> samples;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    samples.push_back(train_sample(1, lengths[i] - 1, 1, seed + i));
  }
  PackedBatch batch;
  batch.pack(samples);
  const ConstTensorView hidden = forward(ctx, model, batch.forward_batch(), nullptr, activations);
  Tensor out(DType::kBF16, {hidden.shape(0), hidden.shape(1)});
  std::copy_n(hidden.at<bf16>(), out.size(), out.data<bf16>());
  return out;
}

// A buffer captured for 56 rows replayed with 50; packed weights of the version before.
TEST(FailureModes, fm28_NeitherStaleRowsNorStalePackedWeightsAreRead) {
  const Contract contract = tiny_contract();
  const ModelConfig config = tiny_config();
  Parameters first = tiny_weights(config, contract, 7), second = tiny_weights(config, contract, 8);
  each_backend(
      [&](Context& ctx) {
        // Buffers that held 56 rows, then 50, then 1, against fresh ones.
        Model model(config, contract, 128, true);
        model.load(ctx, first, 0);
        Activations reused(config, false), kept(config, true);
        hidden_states(ctx, model, reused, {20, 36}, 50);
        hidden_states(ctx, model, kept, {20, 36}, 50);
        for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{50}, {1}}) {
          Activations fresh(config, false);
          const Tensor wanted = hidden_states(ctx, model, fresh, lengths, 60);
          EXPECT_TRUE(same_bits(hidden_states(ctx, model, reused, lengths, 60), wanted));
          EXPECT_TRUE(same_bits(hidden_states(ctx, model, kept, lengths, 60), wanted));
        }
        // An update reaches every packed panel.
        Model updated(config, contract, 128, true);
        updated.load(ctx, second, 0);
        Activations a(config, false);
        const Tensor before = hidden_states(ctx, model, a, {40}, 70);
        model.load(ctx, second, 1);
        const Tensor after = hidden_states(ctx, model, a, {40}, 70);
        EXPECT_TRUE(same_bits(after, hidden_states(ctx, updated, a, {40}, 70)));
        EXPECT_FALSE(same_bits(after, before));
        Tensor logits(DType::kF32, {40, 53}), wanted(DType::kF32, {40, 53});
        compute_logits(ctx, model, after, logits);
        compute_logits(ctx, updated, after, wanted);
        EXPECT_TRUE(same_bits(logits, wanted));
        // A stale panel would show, where the backend has panels.
        PackedWeight stale;
        pack_weight(ctx, {&stale, first.layers[0].o_proj});
        if (!stale.owner) return;
        Tensor c(DType::kF32, {40, 64}), right(DType::kF32, {40, 64});
        GemmArgs args;
        args.c = right;
        args.a = after;
        args.b = second.layers[0].o_proj;
        args.segments = {64, 0, 0};
        gemm(ctx, args);
        args.c = c;
        args.packed_b = &stale;
        gemm(ctx, args);
        EXPECT_FALSE(same_bits(c, right));
        pack_weight(ctx, {&stale, second.layers[0].o_proj});
        gemm(ctx, args);
        EXPECT_TRUE(same_bits(c, right));
      },
      contract);

  // In the engine: 6 sequences, then 2 in the same buffers.
  TestEngine t{{}};
  t.engine.generate(mixed_requests());
  const std::vector<Request> few{request(31, 9, 20), request(32, 18, 20)};
  EXPECT_TRUE(same_completions(t.engine.generate(few), generate({}, few)));
}

// A rank whose bucket is empty; ranks that are at other steps.
TEST(FailureModes, fm29_EmptySlotsAddNothingAndVersionsMustAgree) {
  const std::vector<TrainSample> samples{train_sample(5, 30, 1, 1), train_sample(9, 20, -1, 2)};
  TrainerSetup two, four, eight;
  two.contract.grad_slots = 2;
  four.contract.grad_slots = 4;  // slots 1 and 3 are empty
  eight.contract.grad_slots = 8;
  PassResult wanted = run_pass(two, samples);
  for (TrainerSetup* setup : {&four, &eight}) {
    PassResult found = run_pass(*setup, samples);
    EXPECT_TRUE(same_result(found, wanted));
  }
  TrainerSetup one;
  PassResult other = run_pass(one, samples);  // one chain over both samples
  EXPECT_FALSE(same_bits(other.gradient, wanted.gradient));
  // No sample at all: a zero gradient, and the version moves all the same.
  TestTrainer t(four);
  EXPECT_TRUE(t.trainer.accumulate({}).logprobs.empty());
  EXPECT_EQ(t.trainer.apply().grad_norm, 0.0);
  EXPECT_EQ(t.trainer.weight_version(), 1);

  // The rollout engine acknowledges what it loaded; a repeated or older version is refused, and
  // nothing of it is loaded.
  TestEngine rollout{{}};
  const Request r = request(1, 20, 8);
  Parameters next = tiny_weights(tiny_config(), tiny_contract(), 8);
  EXPECT_EQ(rollout.engine.load_weights(next, 6), 6);
  const Completion at_6 = rollout.engine.generate({r})[0];
  Parameters stale = tiny_weights(tiny_config(), tiny_contract(), 7);
  expect_error(ErrorCode::kContract, {"5", "does not follow 6"},
               [&] { rollout.engine.load_weights(stale, 5); });
  EXPECT_TRUE(same_completion(rollout.engine.generate({r})[0], at_6));
  EXPECT_EQ(rollout.engine.model().weight_version(), 6);
  // Engines of other contracts refuse each other before the first token.
  Contract contract = tiny_contract();
  contract.kv_block = 16;
  check_handshake(tiny_contract(), tiny_contract());
  expect_error(ErrorCode::kContract, {"kv_block"},
               [&] { check_handshake(tiny_contract(), contract); });
}

void expect_one_size(const Completion& c) {
  EXPECT_FALSE(c.token_ids.empty());
  EXPECT_EQ(c.logprobs.size(), c.token_ids.size());
  EXPECT_EQ(c.logprobs_raw.size(), c.token_ids.size());
  EXPECT_EQ(c.weight_versions.size(), c.token_ids.size());
}

// Fewer log-probabilities than tokens after an abort; a mask that a resumed rollout outgrew.
TEST(FailureModes, fm30_TokensLogprobsVersionsAndMasksHaveOneSize) {
  // Preempted, resumed under other weights, stopped, or out of room.
  RolloutSetup setup;
  setup.options.num_pages = 14;
  setup.options.max_model_len = 60;
  TestEngine t(setup);
  Parameters next = tiny_weights(setup.config, setup.contract, 8);
  for (std::uint64_t id = 1; id <= 6; ++id) {
    Request r = request(id, 20 + static_cast<std::int64_t>(id), 90);
    if (id == 3) r.stop_token_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    t.engine.add_request(r);
  }
  std::int64_t steps = 0, finished = 0;
  while (!t.engine.idle()) {
    for (const Completion& c : t.engine.step()) {
      expect_one_size(c);
      ++finished;
    }
    if (++steps == 12) t.engine.load_weights(next, 1);
  }
  EXPECT_EQ(finished, 6);
  EXPECT_GT(t.engine.stats().num_preemptions, 5);

  // A failed step takes nothing away and leaves nothing half done.
  Parameters bad = next;
  for (std::int64_t i = 0; i < bad.norm.size(); ++i) {
    bad.norm.data<bf16>()[i] = numerics::to_bf16(0x1p125f);
  }
  t.engine.add_request(request(9, 10, 12));
  for (int i = 0; i < 4; ++i) t.engine.step();
  t.engine.load_weights(bad, 2);
  EXPECT_THROW(t.engine.step(), Error);
  t.engine.load_weights(next, 3);
  while (!t.engine.idle()) {
    for (const Completion& c : t.engine.step()) {
      expect_one_size(c);
      EXPECT_EQ(c.token_ids.size(), 12u);
      EXPECT_EQ(c.weight_versions[3], 1);
      EXPECT_EQ(c.weight_versions[4], 3);
    }
  }

  // A record in which they differ is refused at every door.
  TestTrainer trainer{{}};
  for (const bool mask : {false, true}) {
    TrainSample s = train_sample(5, 10, 1, 1);
    if (mask) {
      s.active.pop_back();
    } else {
      s.old_logprobs.pop_back();
    }
    expect_error(ErrorCode::kInvalidArgument, {"sample 0", "10 response tokens", "9"}, [&] {
      trainer.trainer.accumulate({&s, 1});
    });
    expect_error(ErrorCode::kInvalidArgument, {"sample 0"}, [&] {
      trainer.trainer.score({&s, 1});
    });
  }
  Record a;
  RecordSample s;
  s.targets = {1, 2};
  s.positions = {0, 1};
  s.mask = {1, 1};
  s.weight_versions = {0, 0};
  s.logprobs = {-1};
  a.samples = {s};
  expect_error(ErrorCode::kShape, {"logprobs", "1", "2"}, [&] { compare(a, Record(a)); });
  std::istringstream in(
      R"({"format":"rlk-record","version":1,"engine":"e","model_digest":"m",)"
      R"("forward_digest":"f","vocab_size":9})"
      "\n"
      R"({"sample":0,"prefix":[1],"targets":[1,2],"weight_version":0,"logprobs":["bf800000"]})");
  expect_error(ErrorCode::kFormat, {"file:2", "logprobs", "1", "2"},
               [&] { read_record(in, "file"); });
}

}  // namespace
}  // namespace rlk::test
