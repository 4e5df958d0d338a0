// Weight gradients on whole tiles: a block holds 128 x 128 sums and goes through all tokens, both
// operands turned over on their way to shared memory.
#include <limits>

#include "rlk/kernels/gpu/cdna/gemm.h"
#include "rlk/kernels/gpu/cdna/pipeline.h"
#include "rlk/kernels/gpu/cdna/table.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/token_runs.h"

namespace rlk::gpu::cdna {
namespace {

constexpr int kStep = 32;
constexpr int kTile = 128;
using Pipe = Pipeline<kTile, true, kTile, true, 2, 2, kStep, Padding::kNegativeZeroGroups>;

// A step of tokens, and how many groups of samples end before it. Behind the last there is one
// without tokens.
struct TokenStep {
  Step step;
  int closes;
};

// One wave writes what all blocks of the product go through.
RLK_KERNEL(kWave) list_steps_kernel(TokenStep* steps, int* num_steps, TokenRuns runs) {
  int count = 0;
  int closes = 0;
  runs.for_each<16>(
      [&](std::int64_t first, std::int64_t stop, std::int64_t end) {
        // The last group of 16 that begins before `stop` is the window's as a whole.
        const std::int64_t reach = first + (stop - first + 15) / 16 * 16;
        const int begin = static_cast<int>(first);
        const int last = static_cast<int>(reach < end ? reach : end);
        const int added = (last - begin + kStep - 1) / kStep;
        for (int i = thread(); i < added; i += kWave) {
          steps[count + i] = {{begin + i * kStep, last}, i == 0 ? closes : 0};
        }
        count += added;
        closes = 0;
      },
      [&] { ++closes; });
  if (thread() == 0) {
    steps[count] = {{0, 0}, closes};
    *num_steps = count;
  }
}

// dw and chain, [n, k] with dense rows; four neighbours are moved at once, as they are.
struct Gradient {
  float* dw;
  float* chain;
  std::int64_t dw_stride, chain_stride;
  int n, k;
};

RLK_DEVICE Float4 read_quad(const float* at) {
  Float4 quad;
  __builtin_memcpy(&quad, __builtin_assume_aligned(at, 16), 16);
  return quad;
}
RLK_DEVICE void write_quad(float* at, const Float4& quad) {
  __builtin_memcpy(__builtin_assume_aligned(at, 16), &quad, 16);
}

RLK_KERNEL(Pipe::kThreads)
gemm_backward_weight_kernel(Gradient out, Operand dy, Operand x, const TokenStep* steps,
                            const int* num_steps, TileOrder order) {
  RLK_SHARED(Chunk, shared, Pipe::kSharedChunks);
  const TileGrid::Place place = order.place(static_cast<int>(block_x()));
  const int n0 = place.row * kTile + Pipe::wave_m();
  const int k0 = place.column * kTile + Pipe::wave_n();
  Pipe pipe(dy, place.row * kTile, x, place.column * kTile, shared);
  // Calls visit(n, k, sums) for the lane's quadruples, and takes back what it leaves in `sums`.
  const auto for_each_quad = [&](const auto& visit) {
    Pipe::Tile::for_each_quad(n0, k0, [&](int tile, int part, int n, int k) {
      if (n >= out.n || k >= out.k) return;
      Float16& acc = pipe.tile.acc[tile];
      Float4 sums;
      RLK_UNROLL
      for (int e = 0; e < 4; ++e) sums[e] = acc[part * 4 + e];
      visit(n, k, sums);
      RLK_UNROLL
      for (int e = 0; e < 4; ++e) acc[part * 4 + e] = sums[e];
    });
  };
  const int count = load_uniform(num_steps);
  const auto read = [&](int i) {
    const TokenStep* const step = steps + (i < count ? i : count);
    return TokenStep{{load_uniform(&step->step.k), load_uniform(&step->step.end)},
                     load_uniform(&step->closes)};
  };
  TokenStep now = read(0), next = read(1), later = read(2);
  if (count > 0) pipe.begin(now.step, next.step);
  pipe.tile.clear();
  for_each_quad(
      [&](int n, int k, Float4& sums) { sums = read_quad(out.chain + n * out.chain_stride + k); });
  for (int i = 0;; ++i) {
    const TokenStep after = read(i + 3);
    for (; now.closes > 0; --now.closes) {
      for_each_quad([&](int n, int k, Float4& sums) {
        float* const dw = out.dw + n * out.dw_stride + k;
        write_quad(dw, read_quad(dw) + sums);
        sums = Float4{};
      });
    }
    if (i == count) break;
    pipe.multiply(later.step);
    now = next;
    next = later;
    later = after;
  }
  for_each_quad([&](int n, int k, const Float4& sums) {
    write_quad(out.chain + n * out.chain_stride + k, sums);
  });
}

bool readable(const ConstTensorView& x) {
  constexpr std::int64_t kMaxStride = std::int64_t{1} << 22;  // offsets in a tile have 32 bits
  return x.shape(0) < std::numeric_limits<int>::max() / 2 && x.shape(1) % 8 == 0 &&
         x.shape(1) < kMaxStride && x.stride(0) < kMaxStride && packs<8>(x);
}

}  // namespace

void gemm_backward_weight_in_window(Exec& exec, const GemmBackwardWeightArgs& args,
                                    const TokenWindow& window) {
  const std::int64_t n = args.dw.shape(0);
  const std::int64_t k = args.dw.shape(1);
  const std::int64_t num_tokens = args.dy.shape(0);
  if (num_tokens == 0 || n == 0 || k == 0 || !readable(args.dy) || !readable(args.x) ||
      !packs<4>(args.dw) || !packs<4>(args.chain)) {
    return gemm_backward_weight_any(exec, args, window);
  }
  const TokenRuns runs(args, window);
  // A run ends with a sample or a group, and its last step may be short.
  const std::int64_t max_steps = num_tokens / kStep + runs.num_samples + runs.num_groups + 1;
  device::Workspace::Frame frame(exec.gpu->workspace());
  auto* const steps = frame.take<TokenStep>(max_steps + 1);
  auto* const num_steps = frame.take<int>(1);
  launch(exec, {1}, kWave, 0, list_steps_kernel, steps, num_steps, runs);
  const Gradient out{static_cast<float*>(args.dw.data),
                     static_cast<float*>(args.chain.data),
                     args.dw.stride(0),
                     args.chain.stride(0),
                     static_cast<int>(n),
                     static_cast<int>(k)};
  const auto operand = [](const ConstTensorView& x) {
    return Operand{static_cast<const bf16*>(x.data), x.stride(0), static_cast<int>(x.shape(1))};
  };
  const TileOrder order = tile_order(out.n, kTile, out.k, kTile);
  launch(exec, {order.count()}, Pipe::kThreads, 0, gemm_backward_weight_kernel, out,
         operand(args.dy), operand(args.x), steps, num_steps, order);
}

void gemm_backward_weight(Exec& exec, const GemmBackwardWeightArgs& args) {
  const std::int64_t num_tokens = args.dy.shape(0);
  gemm_backward_weight_in_window(exec, args, {0, num_tokens, num_tokens});
}

}  // namespace rlk::gpu::cdna
