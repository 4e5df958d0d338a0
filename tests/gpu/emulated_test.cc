// What only the emulator can show: that no kernel depends on the order of threads or blocks.
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "rlk/kernels/gpu/gpu.h"
#include "rlk/kernels/gpu/linear_logp.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/kernels/gpu/token_runs.h"
#include "rlk/verify/conform.h"
#include "tests/gpu/gpu_test.h"

namespace rlk {
namespace {

// Operators whose vectors take the emulator less than a second.
const std::vector<Op> kQuickOps = {Op::embedding,
                                   Op::embedding_backward,
                                   Op::residual_add,
                                   Op::rms_norm,
                                   Op::rms_norm_backward,
                                   Op::rms_norm_backward_weight,
                                   Op::merge_heads,
                                   Op::rope,
                                   Op::rope_backward,
                                   Op::gemm,
                                   Op::gemm_backward_weight,
                                   Op::bias_backward,
                                   Op::swiglu,
                                   Op::swiglu_backward,
                                   Op::group_advantages,
                                   Op::ratio,
                                   Op::kl,
                                   Op::grpo_loss,
                                   Op::ppo_loss,
                                   Op::grad_norm,
                                   Op::adamw};

TEST(EmulatedGpuInvariance, BlocksAndThreadsMayRunInAnyOrder) {
  for (const bool reversed : {false, true}) {
    emulation::set_reversed(reversed);
    const Admission admission =
        conform({.contract = {}, .ops = kQuickOps, .backends = {&gpu_kernels_on_host_memory()}});
    for (const AdmissionEntry& entry : admission.entries()) {
      EXPECT_TRUE(entry.admitted) << to_string(entry.op) << ": " << entry.reason;
    }
  }
  emulation::set_reversed(false);
}

using Event = std::pair<std::int64_t, std::int64_t>;  // tokens of a group of mac; {-1, -1}: a close

template <int kWidth>
void add_events(const GemmBackwardWeightArgs& args, const gpu::TokenWindow& window,
                std::vector<Event>* events) {
  const auto visit = [&](std::int64_t first, std::int64_t stop, std::int64_t end) {
    for (std::int64_t t = first; t < stop; t += kWidth) {
      events->push_back({window.begin + t, window.begin + std::min(t + kWidth, end)});
    }
  };
  gpu::TokenRuns(args, window).for_each<kWidth>(visit, [&] { events->push_back({-1, -1}); });
}

template <int kWidth>
void expect_same_events(const GemmBackwardWeightArgs& args, std::int64_t num_tokens) {
  std::vector<Event> whole;
  add_events<kWidth>(args, {0, num_tokens, num_tokens}, &whole);
  for (std::int64_t size = 1; size <= num_tokens; size += 3) {
    std::vector<Event> parts;
    for (std::int64_t begin = 0; begin < num_tokens; begin += size) {
      add_events<kWidth>(args, {begin, std::min(begin + size, num_tokens), num_tokens}, &parts);
    }
    EXPECT_EQ(parts, whole) << "windows of " << size;
  }
}

TEST(EmulatedGpuInvariance, WindowsGoThroughTheGroupsOfTheWholeCall) {
  std::int32_t cu_seqlens[] = {0, 0, 5, 21, 21, 54, 70, 71};
  std::int64_t group_ends[] = {0, 21, 21, 60, 71};
  GemmBackwardWeightArgs args;
  args.group_ends = view(group_ends, {5});
  expect_same_events<1>(args, 71);
  expect_same_events<16>(args, 71);
  args.cu_seqlens = view(cu_seqlens, {8});
  expect_same_events<16>(args, 71);
  std::vector<Event> events;
  add_events<16>(args, {0, 71, 71}, &events);
  EXPECT_EQ(events, (std::vector<Event>{{-1, -1},
                                        {0, 5},
                                        {5, 21},
                                        {-1, -1},
                                        {-1, -1},
                                        {21, 37},
                                        {37, 53},
                                        {53, 54},
                                        {54, 60},
                                        {-1, -1},
                                        {60, 70},
                                        {70, 71},
                                        {-1, -1}}));
}

// dw, chain and d_hidden of 45 rows, in tiles of so many rows.
std::vector<std::uint32_t> head_gradients(std::int64_t tile_rows) {
  constexpr std::int64_t kTokens = 45, kHidden = 9, kVocab = 20, kPadded = 32;
  std::uint32_t seed = 1;
  const auto number = [&] {
    seed = seed * 1664525 + 1013904223;
    return static_cast<float>(static_cast<std::int32_t>(seed) >> 16) * 0x1p-14f;
  };
  std::vector<float> hidden(kTokens * kHidden), head(kPadded * kHidden), g(kTokens);
  for (float& x : hidden) x = number();
  for (std::int64_t i = 0; i < kVocab * kHidden; ++i) head[static_cast<std::size_t>(i)] = number();
  for (float& x : g) x = number();
  std::vector<std::int32_t> targets(kTokens, 3);
  std::int64_t group_ends[] = {0, 14, 15, 44};
  const SamplingParams params;
  std::vector<float> d_hidden(hidden.size()), dw(head.size(), 1.0f), chain(head.size(), 0.5f);
  LinearLogpBackwardArgs args;
  args.forward.hidden = view(hidden.data(), {kTokens, kHidden});
  args.forward.head = view(head.data(), {kPadded, kHidden});
  args.forward.vocab_size = kVocab;
  args.forward.targets = view(targets.data(), {kTokens});
  args.forward.params = &params;
  args.d_hidden = view(d_hidden.data(), {kTokens, kHidden});
  args.dw = view(dw.data(), {kPadded, kHidden});
  args.chain = view(chain.data(), {kPadded, kHidden});
  args.group_ends = view(group_ends, {4});
  args.g = view(g.data(), {kTokens});
  device::Queue queue;
  test::TestExec exec;
  exec.exec.gpu = &queue;
  const gpu::Products products{gpu::gemm, gpu::gemm_backward_weight_in_window, 1};
  gpu::linear_logp_backward_of(products, exec.exec, args, tile_rows * kPadded * 8);
  std::vector<std::uint32_t> bits;
  for (const std::vector<float>* out : {&d_hidden, &dw, &chain}) {
    for (const float x : *out) bits.push_back(std::bit_cast<std::uint32_t>(x));
  }
  return bits;
}

TEST(EmulatedGpuInvariance, TheHeadsGradientsDoNotDependOnTheTiles) {
  const std::vector<std::uint32_t> whole = head_gradients(45);
  for (const std::int64_t tile_rows : {2, 7, 15, 44}) EXPECT_EQ(head_gradients(tile_rows), whole);
}

// out[thread] = base + the number of its neighbour, with or without the barrier that this needs.
RLK_KERNEL(64) pass_on(float* out, int base, bool with_barrier) {
  RLK_SHARED(float, shared, 64);
  shared[gpu::thread()] = static_cast<float>(base + gpu::thread());
  if (with_barrier) gpu::barrier();
  out[gpu::thread()] = shared[gpu::thread() ^ 1];
}

TEST(EmulatedGpuTwin, AMissingBarrierShows) {
  device::Queue queue;
  test::TestExec exec;
  exec.exec.gpu = &queue;
  for (const bool with_barrier : {true, false}) {
    const int base = with_barrier ? 0 : 100;
    std::vector<float> out(64);
    gpu::launch(exec.exec, {1}, 64, 0, pass_on, out.data(), base, with_barrier);
    bool right = true;
    for (int i = 0; i < 64; ++i) {
      right = right && out[static_cast<std::size_t>(i)] == static_cast<float>(base + (i ^ 1));
    }
    EXPECT_EQ(right, with_barrier);
  }
}

}  // namespace
}  // namespace rlk
