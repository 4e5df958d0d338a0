// Decode steps as graphs, where only the emulator can show what happens: how much a step gives to
// the device, what a failed recording leaves behind, and memory that moves under a graph.
#include <cmath>
#include <optional>
#include <set>
#include <stdexcept>

#include "rlk/core/error.h"
#include "rlk/device/gpu_runtime.h"
#include "rlk/ops/copy_rows.h"
#include "rlk/ops/residual_add.h"
#include "tests/gpu/engines.h"

namespace rlk::test {
namespace {

Request request(std::uint64_t id, std::int64_t prompt_len, std::int64_t max_new_tokens) {
  Request r;
  r.id = id;
  r.seed = 6;
  r.prompt_token_ids = random_tokens(prompt_len, 60 + id);
  r.max_new_tokens = max_new_tokens;
  return r;
}

// An engine with version 0 of the weights.
struct Engine {
  OneContext one;
  RolloutEngine engine;

  explicit Engine(const EngineSetup& s) : one(s), engine(one.ctx, s.config, s.rollout) {
    Parameters weights = s.weights();
    engine.load_weights(weights, 0);
  }
  // What one step gives to the device.
  std::int64_t step() {
    const std::int64_t before = emulation::num_given();
    for (Completion& c : engine.step()) done.push_back(std::move(c));
    return emulation::num_given() - before;
  }
  void finish() {
    while (!engine.idle()) step();
  }

  std::vector<Completion> done;
};

std::vector<std::int64_t> counts(Context& ctx) {
  std::vector<std::int64_t> out;
  for (const auto& [key, stats] : ctx.provenance().calls()) out.push_back(stats.count);
  return out;
}

TEST(EmulatedGraphs, TakeThePlaceOfALaunchPerCall) {
  EngineSetup s;
  s.config.num_hidden_layers = 2;
  std::vector<std::int64_t> given[2];
  std::vector<std::int64_t> calls[2];
  for (const bool graphs : {false, true}) {
    s.rollout.graphs = graphs;
    Engine e(s.on(gpu_kernels()));
    e.engine.add_request(request(1, 3, 5));
    while (!e.engine.idle()) given[graphs].push_back(e.step());
    calls[graphs] = counts(e.one.ctx);
  }
  // A prompt, a step that is seen for the first time, and replays: a graph instead of the copies of
  // 7 arrays, 13 calls a layer and 4 around them. Sampling and waiting are as before.
  ASSERT_EQ(given[1].size(), 5u);
  EXPECT_EQ(given[1][1], given[0][1]);
  for (const std::size_t i : {2, 3, 4}) {
    EXPECT_EQ(given[0][i] - given[1][i], 7 + 2 * 13 + 4 - 1);
    EXPECT_LT(given[1][i], 16);
  }
  EXPECT_EQ(calls[1], calls[0]);
}

TEST(EmulatedGraphs, HaveTheBytesOfTheCpuInProfileSm90) {
  EngineSetup s;
  s.contract.profile = Profile::kSm90;
  const std::vector<Request> requests = {request(1, 3, 5)};
  RolloutStats stats;
  expect_same(generate(s.on(gpu_kernels(Profile::kSm90)), requests, &stats),
              generate(s.on(cpu_kernels()), requests));
  EXPECT_EQ(stats.num_graph_steps, 3);
}

TEST(EmulatedGraphs, AFailedRecordingLeavesTheEngineUsable) {
  const EngineSetup s;
  Engine want(s.on(cpu_kernels()));
  Engine got(s.on(gpu_kernels()));
  for (Engine* e : {&want, &got}) e->engine.add_request(request(1, 3, 7));
  want.finish();
  got.step();
  got.step();
  emulation::spoil_next_capture();
  try {
    got.step();
    FAIL() << "recorded";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotAvailable);
    EXPECT_NE(std::string(e.what()).find("rollout.graphs"), std::string::npos) << e.what();
  }
  EXPECT_EQ(got.engine.stats().num_graph_steps, 0);
  got.finish();
  EXPECT_GT(got.engine.stats().num_graph_steps, 0);
  expect_same(got.done, want.done);
}

// A replay that reads memory which was freed stops the test: longer and longer prompts join, and
// neither activations nor the arrays of the batch move.
TEST(EmulatedGraphs, KnowMemoryThatStaysWhereItIs) {
  const EngineSetup s;
  std::vector<Completion> results[2];
  for (const KernelTable* table : {&cpu_kernels(), &gpu_kernels()}) {
    Engine e(s.on(*table));
    e.engine.add_request(request(1, 2, 18));
    for (const std::int64_t prompt_len : {5, 20, 31}) {
      for (int i = 0; i < 3; ++i) e.step();
      e.engine.add_request(request(static_cast<std::uint64_t>(prompt_len), prompt_len, 2));
    }
    e.finish();
    EXPECT_GE(e.engine.stats().num_graph_steps, table->on_device ? 4 : 0);
    results[table->on_device] = e.done;
  }
  expect_same(results[1], results[0]);
}

TEST(EmulatedGraphs, OfTheKeysUsedLastAreKept) {
  const EngineSetup s;
  OneContext one(s.on(gpu_kernels()));
  const Tensor x(DType::kF32, {1, 2}, one.ctx.memory());
  Tensor y(DType::kF32, {1, 2}, one.ctx.memory());
  const auto work = [&] { residual_add(one.ctx, {y, x, x}); };
  DecodeGraphs graphs(one.ctx, true);
  constexpr std::int64_t kKeys = DecodeGraphs::kMaxGraphs + 3;
  for (std::int64_t i = 0; i < kKeys; ++i) {
    for (int turn = 0; turn < 2; ++turn) graphs.run({i, 1}, work);
  }
  EXPECT_EQ(graphs.num_graphs(), DecodeGraphs::kMaxGraphs);
  EXPECT_EQ(graphs.num_replays(), kKeys);
  graphs.run({kKeys - 1, 1}, work);
  EXPECT_EQ(graphs.num_replays(), kKeys + 1);
  graphs.run({0, 1}, work);  // forgotten
  EXPECT_EQ(graphs.num_replays(), kKeys + 1);
  DecodeGraphs none(one.ctx, false);
  for (int turn = 0; turn < 3; ++turn) none.run({1, 1}, work);
  EXPECT_EQ(none.num_replays(), 0);
  one.ctx.synchronize();
}

TEST(EmulatedGraphs, ServeSeveralNumbersOfSequences) {
  const auto kinds_up_to = [](std::int64_t most) {
    std::set<std::int64_t> kinds;
    for (std::int64_t n = 1; n <= most; ++n) {
      const std::int64_t padded = DecodeGraphs::padded(n);
      EXPECT_GE(padded, n);
      EXPECT_LE(padded - n, std::min(n / 8, DecodeGraphs::kMaxPadding)) << n;
      kinds.insert(padded);
    }
    return kinds.size();
  };
  EXPECT_EQ(kinds_up_to(16), 16u);
  EXPECT_EQ(kinds_up_to(64), 32u);
  EXPECT_EQ(kinds_up_to(1000), 32u + 16u + 47u);
}

// 17 sequences are padded to 18, then one goes on alone.
TEST(EmulatedGraphs, PadWithRowsThatRepeatASequence) {
  EngineSetup s;
  s.config.tie_word_embeddings = false;
  std::vector<Request> requests;
  for (std::uint64_t id = 0; id < 17; ++id) {
    requests.push_back(request(id, 1, id == 3 ? 4 : 3));
    requests.back().prompt_token_ids = {static_cast<std::int32_t>(id)};
  }
  RolloutStats stats;
  const std::vector<Completion> want = generate(s.on(cpu_kernels()), requests);
  expect_same(generate(s.on(gpu_kernels()), requests, &stats), want);
  EXPECT_EQ(stats.num_graph_steps, 2);
  EXPECT_EQ(stats.num_forward_tokens, 3 * 17 + 1);

  // A fault of the repeated sequence, which is the first: it is not the repetition's.
  s.random_weights = s.weights();
  *s.random_weights.embed_tokens.view().at<bf16>(0, 3) = numerics::to_bf16(0x1p100f);
  std::vector<std::string> messages;
  for (const KernelTable* table : {&cpu_kernels(), &gpu_kernels()}) {
    Engine e(s.on(*table));
    for (const Request& r : requests) e.engine.add_request(r);
    try {
      e.finish();
      FAIL() << table->backend << ": accepted";
    } catch (const Error& error) {
      messages.push_back(error.what());
    }
  }
  EXPECT_NE(messages[0].find("layer 0 input_layernorm: rms_norm: row 0:"), std::string::npos)
      << messages[0];
  EXPECT_EQ(messages[1], messages[0]);
}

TEST(EmulatedGraphs, NeedEveryOperatorOnTheDevice) {
  const EngineSetup s;
  EXPECT_FALSE(OneContext(s.on(cpu_kernels())).ctx.can_record());
  EXPECT_TRUE(OneContext(s.on(gpu_kernels())).ctx.can_record());
  for (const Mode mode : {Mode::kOff, Mode::kAudit}) {
    Modes modes = all_ops(Mode::kStrict);
    modes[static_cast<int>(Op::swiglu)] = mode;
    const Context ctx(s.contract, modes, 1, &gpu_kernels(), admit_all(gpu_kernels()));
    EXPECT_FALSE(ctx.can_record());
  }
}

// A copy of the row that an index array names.
struct CopyOfARow {
  explicit CopyOfARow(Context& ctx)
      : ctx_(ctx), x_(DType::kF32, {2, 1}, ctx.memory()), y_(DType::kF32, {1, 1}, ctx.memory()) {
    x_.data<float>()[0] = 3;
    x_.data<float>()[1] = INFINITY;
  }
  void give(bool bounded = false) {
    copy_rows(ctx_, {y_, x_, view(std::as_const(row).data(), {1}), {}, bounded});
  }
  float result() {
    ctx_.synchronize();
    return y_.data<float>()[0];
  }

 private:
  Context& ctx_;
  Tensor x_, y_;

 public:
  Array<std::int64_t> row{Array<std::int64_t>(1, ctx_.small_memory())};
};

TEST(EmulatedGraphs, AFailedRecordingLeavesTheContextAsItWas) {
  const EngineSetup s;
  OneContext one(s.on(gpu_kernels()));
  CopyOfARow copy(one.ctx);
  for (int i = 0; i < 2; ++i) copy.give();
  EXPECT_EQ(copy.result(), 3);
  const std::vector<std::int64_t> before = counts(one.ctx);
  EXPECT_THROW(one.ctx.record([&] {
    copy.give();
    one.ctx.synchronize();
  }),
               Error);
  EXPECT_EQ(counts(one.ctx), before);
  copy.row[0] = 1;
  copy.give();
  EXPECT_EQ(copy.result(), INFINITY);
}

TEST(EmulatedGraphs, ARecordingStandsBetweenOtherCalls) {
  const EngineSetup s;
  OneContext one(s.on(gpu_kernels()));
  CopyOfARow copy(one.ctx);
  copy.give(true);
  Context::Recording recording = one.ctx.record([&] { copy.give(true); });
  copy.give(true);
  EXPECT_EQ(copy.result(), 3);  // recording did nothing
  EXPECT_EQ(counts(one.ctx), std::vector<std::int64_t>{2});
  copy.row[0] = 1;
  for (int i = 0; i < 2; ++i) {
    one.ctx.set_node(-1, "another");
    one.ctx.replay(recording);
    copy.give();
    EXPECT_THROW(one.ctx.synchronize(), Error);
  }
  copy.give(true);
  EXPECT_THROW(one.ctx.replay(recording), Error);  // of the call before it
  copy.row[0] = 0;
  copy.give(true);
  one.ctx.replay(recording);
  EXPECT_EQ(copy.result(), 3);
  EXPECT_EQ(counts(one.ctx), std::vector<std::int64_t>{9});
}

TEST(EmulatedGraphs, AbandonedCallsLeaveNoFaultAndNoCopyOfAnArray) {
  const EngineSetup s;
  OneContext one(s.on(gpu_kernels()));
  CopyOfARow copy(one.ctx);
  copy.row[0] = 1;
  copy.give(true);
  one.ctx.abandon();
  copy.row[0] = 0;
  copy.give(true);
  EXPECT_EQ(copy.result(), 3);
}

// The host may write to its arrays again after an error, although nobody waited.
TEST(EmulatedGraphs, AnErrorInAGuardedScopeAbandonsItsCalls) {
  const EngineSetup s;
  for (const bool guarded : {false, true}) {
    OneContext one(s.on(gpu_kernels()));
    CopyOfARow copy(one.ctx);
    copy.row[0] = 1;
    try {
      std::optional<AbandonOnError> guard;
      if (guarded) guard.emplace(one.ctx);
      copy.give(true);
      throw std::runtime_error("in the middle of a step");
    } catch (const std::runtime_error&) {
    }
    copy.row[0] = 0;
    bool failed = false;
    try {
      copy.give(true);
      EXPECT_EQ(copy.result(), 3);
    } catch (const Error&) {
      failed = true;
    }
    EXPECT_EQ(failed, !guarded);
  }
}

}  // namespace
}  // namespace rlk::test
