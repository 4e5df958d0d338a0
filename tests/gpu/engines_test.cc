// The engines on a GPU, here a model small enough for the emulator: forward, backward, the
// optimizer and sampling give the bytes of the engines on a CPU.
#include "tests/gpu/engines.h"

#include <algorithm>
#include <span>
#include <utility>

#include "rlk/core/error.h"

namespace rlk::test {
namespace {

std::vector<Request> requests() {
  std::vector<Request> out;
  for (const std::int64_t length : {34, 5}) {
    Request r;
    r.id = static_cast<std::uint64_t>(length);
    r.seed = 11;
    r.prompt_token_ids = random_tokens(length, r.id);
    r.max_new_tokens = 3;
    if (length == 5) r.sampling = {0.7f, 20, 0.9f, 0};
    out.push_back(r);
  }
  return out;
}

std::vector<TrainSample> samples() {
  std::vector<TrainSample> out;
  for (const std::int64_t length : {34, 7, 4}) {
    TrainSample t;
    t.token_ids = random_tokens(length, static_cast<std::uint64_t>(length));
    t.prompt_len = length / 2;
    t.old_logprobs.assign(static_cast<std::size_t>(t.response_len()), -3.0f);
    t.active.assign(static_cast<std::size_t>(t.response_len()), 1);
    t.advantage = length == 7 ? -1.0f : 0.5f;
    out.push_back(t);
  }
  out[0].active[2] = 0;
  return out;
}

// Short sequences, most of whose steps only decode. The last one joins when another has finished.
std::vector<Request> decode_requests() {
  std::vector<Request> out;
  for (const auto& [length, max_new_tokens] :
       {std::pair{5, 10}, std::pair{3, 6}, std::pair{2, 5}}) {
    Request r;
    r.id = out.size();
    r.seed = 5;
    r.prompt_token_ids = random_tokens(length, 40 + r.id);
    r.max_new_tokens = max_new_tokens;
    if (r.id == 1) r.sampling.temperature = 0;
    out.push_back(r);
  }
  return out;
}

EngineSetup decode_setup() {
  EngineSetup s;
  s.rollout.max_num_seqs = 2;
  return s;
}

using GpuEngines = OnGpu;
using GpuEnginesInvariance = OnGpu;
using GpuEnginesTwin = OnGpu;

TEST_F(GpuEnginesInvariance, TrainTheWeightsOfTheCpu) {
  const EngineSetup s;
  const Trained want = train(s.on(cpu_kernels()), samples());
  EngineSetup cut = s;
  cut.trainer.micro_batch_tokens = 10;
  expect_same(train(cut.on(gpu_kernels()), samples()), want);
}

TEST_F(GpuEnginesInvariance, SampleTheTokensOfTheCpu) {
  EngineSetup s;
  const std::vector<Completion> want = generate(s.on(cpu_kernels()), requests());
  s.rollout.max_num_batched_tokens = 24;  // prompts in chunks
  s.rollout.page_size = 8;
  expect_same(generate(s.on(gpu_kernels()), requests()), want);
}

// Sequences grow over pages, finish and join, and with few pages give theirs back and start again.
TEST_F(GpuEnginesInvariance, GraphsReplayTheDecodeStepsOfTheCpu) {
  const std::vector<Completion> want =
      generate(decode_setup().on(cpu_kernels()), decode_requests());
  for (const auto& [page_size, num_pages] : {std::pair{16, 0}, std::pair{4, 0}, std::pair{2, 8}}) {
    EngineSetup s = decode_setup();
    s.rollout.page_size = page_size;
    s.rollout.num_pages = num_pages;
    RolloutStats stats;
    expect_same(generate(s.on(gpu_kernels()), decode_requests(), &stats), want);
    EXPECT_GT(stats.num_graph_steps, page_size == 16 ? 4 : 0) << page_size;
    EXPECT_EQ(stats.num_preemptions > 0, num_pages != 0);
  }
  EngineSetup s = decode_setup();
  s.rollout.graphs = false;
  RolloutStats stats;
  expect_same(generate(s.on(gpu_kernels()), decode_requests(), &stats), want);
  EXPECT_EQ(stats.num_graph_steps, 0);
}

// Graphs read the new weights where the old ones were.
TEST_F(GpuEnginesInvariance, GraphsStayRightWhenWeightsChange) {
  std::vector<Completion> results[2];
  for (const KernelTable* table : {&cpu_kernels(), &gpu_kernels()}) {
    const EngineSetup s = decode_setup().on(*table);
    OneContext one(s);
    RolloutEngine engine(one.ctx, s.config, s.rollout);
    std::vector<Completion>& result = results[table->on_device ? 1 : 0];
    for (const Request& r : decode_requests()) engine.add_request(r);
    for (std::int64_t version = 0; !engine.idle(); ++version) {
      Parameters weights =
          tiny_weights(s.config, s.contract, 7 + static_cast<std::uint64_t>(version));
      engine.load_weights(weights, version);
      const std::int64_t before = engine.stats().num_graph_steps;
      for (int i = 0; i < 4; ++i) {
        for (Completion& c : engine.step()) result.push_back(std::move(c));
      }
      if (table->on_device && version == 1) {
        EXPECT_GT(engine.stats().num_graph_steps, before);
      }
    }
  }
  expect_same(results[1], results[0]);
}

TEST_F(GpuEnginesTwin, OtherLeavesGiveOtherLogprobs) {
  EngineSetup s;
  const std::vector<std::vector<float>> want = scores(s.on(cpu_kernels()), samples());
  s.contract.leaves = 1;
  EXPECT_NE(scores(s.on(gpu_kernels()), samples()), want);
}

// Hidden states of two sequences that decode, with their arrays in memory of the context.
struct DecodeStep {
  DecodeStep(Context& ctx, const ModelConfig& config)
      : ctx(ctx),
        model(config, ctx.contract(), 64, false, ctx.memory()),
        cache(config, 8, ctx.memory()),
        activations(config, false, ctx.memory()) {
    Parameters weights = tiny_weights(model.config(), ctx.contract());
    model.load(ctx, weights, 0);
  }
  void give() {
    ForwardBatch b;
    b.token_ids = view(std::as_const(token_ids).data(), {2});
    b.positions = view(std::as_const(positions).data(), {2});
    b.cu_seqlens = view(std::as_const(cu_seqlens).data(), {3});
    b.kv_lens = view(std::as_const(kv_lens).data(), {2});
    b.slot_mapping = view(std::as_const(slot_mapping).data(), {2});
    b.block_table = view(std::as_const(block_table).data(), {2, 1});
    b.page_size = 4;
    hidden = forward(ctx, model, b, &cache, activations);
  }
  std::vector<std::uint16_t> result() {
    ctx.synchronize();
    const auto* const first = static_cast<const std::uint16_t*>(hidden.data);
    return {first, first + hidden.layout.size()};
  }
  // The next step.
  void advance() {
    for (int s = 0; s < 2; ++s) {
      token_ids[s] += 3;
      ++positions[s];
      ++kv_lens[s];
      ++slot_mapping[s];
    }
  }

  template <typename T>
  Array<T> array(std::initializer_list<T> values) {
    return Array<T>(values, ctx.small_memory());
  }
  Context& ctx;
  Array<std::int32_t> token_ids = array<std::int32_t>({5, 11});
  Array<std::int32_t> positions = array<std::int32_t>({0, 0});
  Array<std::int32_t> cu_seqlens = array<std::int32_t>({0, 1, 2});
  Array<std::int32_t> kv_lens = array<std::int32_t>({1, 1});
  Array<std::int32_t> block_table = array<std::int32_t>({1, 0});
  Array<std::int64_t> slot_mapping = array<std::int64_t>({4, 0});
  Model model;
  KvCache cache;
  Activations activations;
  ConstTensorView hidden;
};

// A graph sees what the arrays hold when it is launched; without their new contents it gives other
// bytes.
TEST_F(GpuEnginesTwin, AGraphOfStaleArraysGivesOtherBytes) {
  const EngineSetup s;
  OneContext one(s.on(cpu_kernels())), other(s.on(gpu_kernels()));
  DecodeStep cpu(one.ctx, s.config), gpu(other.ctx, s.config);
  for (DecodeStep* step : {&cpu, &gpu}) step->give();
  ASSERT_EQ(gpu.result(), cpu.result());
  Context::Recording recording = other.ctx.record([&] { gpu.give(); });
  for (int i = 0; i < 2; ++i) {
    cpu.advance();
    cpu.give();
    other.ctx.replay(recording);
    EXPECT_NE(gpu.result(), cpu.result());
    gpu.advance();
    other.ctx.replay(recording);
    EXPECT_EQ(gpu.result(), cpu.result());
  }
}

// The message names the node although nobody waited behind it.
TEST_F(GpuEngines, NameTheNodeThatMetANumberTheContractForbids) {
  const EngineSetup s;
  std::vector<std::string> messages;
  for (const KernelTable* table : {&cpu_kernels(), &gpu_kernels()}) {
    OneContext one(s.on(*table));
    Parameters weights = s.weights();
    weights.layers[0].k_norm.data<bf16>()[3] = bf16{0x7f80};
    Trainer trainer(one.ctx, s.config, s.trainer, weights, 0);
    try {
      trainer.score(samples());
      FAIL() << table->backend << ": accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kNonFinite);
      messages.push_back(e.what());
    }
  }
  EXPECT_NE(messages[0].find("layer 0"), std::string::npos) << messages[0];
  EXPECT_EQ(messages[0], messages[1]);
}

// An embedding that no norm can take, of a token that is sampled in the middle: the step behind it
// is a replay. With other weights the engine goes on.
TEST_F(GpuEngines, NameTheNodeOfAFaultInAReplayedStep) {
  EngineSetup s = decode_setup();
  s.config.tie_word_embeddings = false;
  std::vector<Request> requests = decode_requests();
  requests.resize(1);
  const std::vector<Completion> want = generate(s.on(cpu_kernels()), requests);
  const std::vector<std::int32_t>& ids = want[0].token_ids;
  const auto in = [](std::span<const std::int32_t> some, std::int32_t id) {
    return std::find(some.begin(), some.end(), id) != some.end();
  };
  std::size_t k = 4;
  while (in(std::span(ids).first(k), ids[k]) || in(requests[0].prompt_token_ids, ids[k])) ++k;
  ASSERT_LT(k + 1, ids.size());
  Parameters weights = s.weights();
  std::vector<std::string> messages;
  for (const auto& [table, graphs] :
       {std::pair{&cpu_kernels(), true}, {&gpu_kernels(), false}, {&gpu_kernels(), true}}) {
    s.rollout.graphs = graphs;
    OneContext one(s.on(*table));
    RolloutEngine engine(one.ctx, s.config, s.rollout);
    Parameters spoilt = copy_of(weights, host_memory());
    *spoilt.embed_tokens.view().at<bf16>(ids[k], 3) = numerics::to_bf16(0x1p100f);
    engine.load_weights(spoilt, 0);
    engine.add_request(requests[0]);
    try {
      while (!engine.idle()) engine.step();
      FAIL() << table->backend << ": accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kNonFinite);
      messages.push_back(e.what());
    }
    EXPECT_EQ(engine.stats().num_graph_steps > 0, table->on_device && graphs);
    engine.load_weights(weights, 1);
    std::vector<Completion> got;
    while (got.empty()) got = engine.step();
    expect_same(got, want);
  }
  EXPECT_NE(messages[0].find("layer 0 input_layernorm"), std::string::npos) << messages[0];
  EXPECT_EQ(messages[1], messages[0]);
  EXPECT_EQ(messages[2], messages[0]);
}

}  // namespace
}  // namespace rlk::test
