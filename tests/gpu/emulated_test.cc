// What only the emulator can show: that no kernel depends on the order of threads or blocks.
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "rlk/kernels/gpu/gpu.h"
#include "rlk/kernels/gpu/linear_logp.h"
#include "rlk/kernels/gpu/sm90/gemm.h"
#include "rlk/kernels/gpu/sm90/table.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/kernels/gpu/token_runs.h"
#include "rlk/kernels/reference/storage.h"
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
  for (const std::uint64_t seed : {0, 1}) {
    const emulation::Scope scope({.wave = seed == 0 ? 32 : 64, .seed = seed});
    const Admission admission =
        conform({.contract = {}, .ops = kQuickOps, .backends = {&gpu_kernels()}});
    for (const AdmissionEntry& entry : admission.entries()) {
      EXPECT_TRUE(entry.admitted) << to_string(entry.op) << ": " << entry.reason;
    }
  }
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

constexpr gpu::Products kPortable{gpu::gemm, gpu::gemm_backward_weight_in_window, 1};
constexpr gpu::Products kSm90{gpu::sm90::gemm, gpu::sm90::gemm_backward_weight_in_window, 16};

// d_hidden, dw and chain of 45 rows of some samples, in tiles of so many rows.
template <typename T>
std::vector<float> head_gradients(const gpu::Products& products, std::int64_t tile_rows,
                                  const std::vector<std::int32_t>& cu_seqlens) {
  constexpr std::int64_t kTokens = 45, kHidden = 9, kVocab = 20, kPadded = 32;
  std::uint32_t seed = 1;
  const auto fill = [&]<typename To>(std::vector<To>& to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      seed = seed * 1664525 + 1013904223;
      const float x = static_cast<float>(static_cast<std::int32_t>(seed) >> 16) * 0x1p-14f;
      if constexpr (std::is_same_v<To, float>) {
        to[static_cast<std::size_t>(i)] = x;
      } else {
        to[static_cast<std::size_t>(i)] = numerics::to_bf16(x);
      }
    }
  };
  std::vector<T> hidden(kTokens * kHidden), head(kPadded * kHidden), d_hidden(hidden.size());
  std::vector<float> g(kTokens), dw(head.size(), 1.0f), chain(head.size(), 0.5f);
  fill(hidden, kTokens * kHidden);
  fill(head, kVocab * kHidden);
  fill(g, kTokens);
  const std::vector<std::int32_t> targets(kTokens, 3);
  const std::int64_t group_ends[] = {0, 14, 15, 44};
  const SamplingParams params;
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
  args.g = view(std::as_const(g).data(), {kTokens});
  args.cu_seqlens = view(cu_seqlens.data(), {std::ssize(cu_seqlens)});
  device::Queue queue;
  test::TestExec exec;
  exec.exec.gpu = &queue;
  const emulation::Scope scope({.kernels_may_touch_host = true});
  gpu::linear_logp_backward_of(products, exec.exec, args,
                               tile_rows * kPadded * static_cast<std::int64_t>(4 + sizeof(T)));
  std::vector<float> out;
  for (std::int64_t i = 0; i < std::ssize(d_hidden); ++i) {
    out.push_back(reference::read(view(std::as_const(d_hidden).data(), {std::ssize(d_hidden)}), i));
  }
  out.insert(out.end(), dw.begin(), dw.end());
  out.insert(out.end(), chain.begin(), chain.end());
  return out;
}

TEST(EmulatedGpuInvariance, TheHeadsGradientsDoNotDependOnTheTiles) {
  const std::vector<std::int32_t> samples{0, 3, 3, 20, 45};
  const std::vector<float> portable = head_gradients<float>(kPortable, 45, samples);
  for (const std::int64_t tile_rows : {2, 7, 15, 44}) {
    EXPECT_EQ(head_gradients<float>(kPortable, tile_rows, samples), portable);
  }
  const std::vector<float> sm90 = head_gradients<bf16>(kSm90, 45, samples);
  for (const std::int64_t tile_rows : {33, 44}) {
    EXPECT_EQ(head_gradients<bf16>(kSm90, tile_rows, samples), sm90);
  }
}

TEST(EmulatedGpuTwin, RowsOfAllSamplesAsOneGiveOtherGradientsWhereMacIsWide) {
  const std::vector<std::int32_t> samples{0, 3, 3, 20, 45}, one{0, 45};
  EXPECT_EQ(head_gradients<float>(kPortable, 45, one),
            head_gradients<float>(kPortable, 45, samples));
  EXPECT_NE(head_gradients<bf16>(kSm90, 45, one), head_gradients<bf16>(kSm90, 45, samples));
}

}  // namespace
}  // namespace rlk
