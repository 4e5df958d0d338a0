// dW on the matrix units: rows of dW are columns of dy, its columns those of x, and k runs through
// the tokens. Both operands lie i-major, as the copy engine finds them.
//
//   steps     64 tokens of one run (what lies between ends of samples and groups). The last of a
//             run has fewer: the rows behind them become +0, which adds nothing
//   segments  steps between two ends of groups. The sums start from the open chain, go to dw where
//             a group closes, and what is left is the open chain again
//
// The thread that feeds the copy engine walks through samples and groups and writes to each stage
// what it holds.
#include "rlk/kernels/gpu/sm90/gemm_tiles.h"
#include "rlk/kernels/gpu/sm90/store_tile.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"
#include "rlk/kernels/gpu/token_runs.h"

namespace rlk::gpu::sm90 {
namespace {

template <int kN>
using WeightRing = Ring<kN, 128 + 2 * SumsInRows<kN>::kBytes, true, true>;
// Behind the stages: a word for each, which says what it holds; then room for SumsInRows.

// What a stage holds.
constexpr int kTokens = 0xff;      // none: only the end of a segment
constexpr int kCloses = 0x100;     // a group closes behind these tokens
constexpr int kClosesTwo = 0x200;  // and at least one more, of no tokens
constexpr int kLast = 0x400;       // of the tile
constexpr int kEndsSegment = kCloses | kLast;

struct WeightGradient {
  float* dw;
  std::int64_t dw_stride;
  float* chain;
  std::int64_t chain_stride;
  int n, k;
  TokenRuns runs;
};

// Sends the steps of a tile, each as soon as it is known whether something closes behind it.
template <int kN>
class Sender {
 public:
  RLK_DEVICE Sender(WeightRing<kN>& ring, const CUtensorMap* dy, const CUtensorMap* x, int n0,
                    int k0)
      : ring_(ring), dy_(dy), x_(x), n0_(n0), k0_(k0) {}

  RLK_DEVICE void step(int token, int count) {
    if (pending_) send(0);
    pending_ = true;
    token_ = token;
    word_ = count;
  }
  RLK_DEVICE void close() {
    if (!pending_) word_ = 0;
    pending_ = true;
    word_ |= (word_ & kCloses) != 0 ? kClosesTwo : kCloses;
  }
  RLK_DEVICE void end() {
    if (!pending_) word_ = 0;
    send(kLast);
  }

 private:
  RLK_DEVICE void send(int more) {
    ring_.wait_empty();
    const int word = word_ | more;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(ring_.extra() + 4 * ring_.stage()), "r"(word)
                 : "memory");
    if ((word & kTokens) != 0) {
      ring_.load(dy_, x_, n0_, k0_, token_);
    } else {
      ring_.skip();
    }
    pending_ = false;
  }

  WeightRing<kN>& ring_;
  const CUtensorMap* dy_;
  const CUtensorMap* x_;
  int n0_, k0_;
  bool pending_ = false;
  int token_ = 0;
  int word_ = 0;
};

template <int kN>
__global__ void __launch_bounds__(kTileThreads, 1)
    gemm_backward_weight_kernel(const __grid_constant__ CUtensorMap map_dy,
                                const __grid_constant__ CUtensorMap map_x, const WeightGradient p,
                                const Tiles tiles) {
  RLK_DYNAMIC_SHARED(shared);
  WeightRing<kN> ring(shared);
  if (thread() == 0) ring.init();
  barrier();
  allow_next_kernel();
  const int warpgroup = warpgroup_index();
  if (warpgroup == 0) {
    fewer_registers<40>();
    if (thread() != 0) return;
    wait_for_previous_kernel();
    for (int t = static_cast<int>(block_x()); t < tiles.count(); t += gridDim.x) {
      int row, column;
      tiles.at(t, &row, &column);
      Sender<kN> sender(ring, &map_dy, &map_x, row * kTileRows, column * kN);
      p.runs.for_each<16>(
          [&](std::int64_t first, std::int64_t stop, std::int64_t end) {
            for (int token = static_cast<int>(first); token < stop; token += kStep) {
              const int groups = (static_cast<int>(stop) - token + 15) / 16;
              const int reach = groups < kStep / 16 ? groups * 16 : kStep;
              const int left = static_cast<int>(end) - token;
              sender.step(token, left < reach ? left : reach);
            }
          },
          [&] { sender.close(); });
      sender.end();
    }
    return;
  }

  more_registers<232>();
  wait_for_previous_kernel();
  const int consumer = warpgroup - 1;
  float* const rows_memory = reinterpret_cast<float*>(
      shared + (ring.extra() + 128 - shared_address(shared)) + consumer * SumsInRows<kN>::kBytes);
  const auto read_word = [&] {
    int word;
    ring.wait_full();
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(ring.extra() + 4 * ring.stage()));
    return word;
  };
  for (int t = static_cast<int>(block_x()); t < tiles.count(); t += gridDim.x) {
    int row, column;
    tiles.at(t, &row, &column);
    const int n0 = row * kTileRows + consumer * 64;
    const int k0 = column * kN;
    typename WeightRing<kN>::Sums acc;
    const auto matrix = [&](float* data, std::int64_t stride) {
      return SumsInRows<kN>(rows_memory, 1 + consumer, data + n0 * stride + k0, stride, p.n - n0,
                            p.k - k0);
    };
    matrix(p.chain, p.chain_stride).read(acc);
    for (;;) {
      int word = read_word();
      int before = ring.stage();
      if ((word & kTokens) == 0) {
        // A product waits for all warps of the warpgroup; here nothing else would, and one thread's
        // release lets the next word be written. All have read the same word, so all come here.
        named_barrier_wait(1 + consumer, 128);
        ring.next();
      } else {
        if ((word & kTokens) < kStep) ring.clear(word & kTokens, consumer);
        ring.multiply(acc, consumer);
        while ((word & kEndsSegment) == 0) {
          const int now = ring.stage();
          word = read_word();
          if ((word & kTokens) < kStep) ring.clear(word & kTokens, consumer);
          ring.multiply(acc, consumer);
          wgmma_wait<1>();
          ring.release(before);
          before = now;
        }
        wgmma_wait<0>();
      }
      ring.release(before);
      if ((word & kCloses) != 0) {
        const SumsInRows<kN> dw = matrix(p.dw, p.dw_stride);
        dw.template write<true>(acc);
        RLK_UNROLL
        for (int i = 0; i < kN / 2; ++i) acc[i] = 0.0f;
        if ((word & kClosesTwo) != 0) dw.template write<true>(acc);
      }
      if ((word & kLast) != 0) break;
    }
    matrix(p.chain, p.chain_stride).template write<false>(acc);
  }
}

template <int kN>
void run(Exec& exec, const GemmBackwardWeightArgs& args, const TokenWindow& window) {
  const std::int64_t tokens = args.dy.shape(0), n = args.dw.shape(0), k = args.dw.shape(1);
  const WeightGradient p{static_cast<float*>(args.dw.data),
                         args.dw.stride(0),
                         static_cast<float*>(args.chain.data),
                         args.chain.stride(0),
                         static_cast<int>(n),
                         static_cast<int>(k),
                         TokenRuns(args, window)};
  const Tiles tiles = tiles_of(n, k, kN);
  launch_cluster(exec, {persistent_blocks(tiles)}, kTileThreads, WeightRing<kN>::kBytes, {1, true},
                 gemm_backward_weight_kernel<kN>,
                 tensor_map(args.dy.data, n, tokens, args.dy.stride(0), kStep),
                 tensor_map(args.x.data, k, tokens, args.x.stride(0), kStep), p, tiles);
}

}  // namespace

bool gemm_backward_weight_copies(const GemmBackwardWeightArgs& args) {
  const auto copies = [](const ConstTensorView& t) {
    return t.stride(1) == 1 && copyable(t, t.stride(0));
  };
  const auto fours = [](const ConstTensorView& t) { return t.shape(1) % 4 == 0 && packs<4>(t); };
  return args.dy.shape(0) > 0 && args.dy.shape(0) < (std::int64_t{1} << 30) &&
         args.dw.shape(0) > 0 && args.dw.shape(1) > 0 && copies(args.dy) && copies(args.x) &&
         fours(args.dw) && fours(args.chain);
}

void gemm_backward_weight_tiles(Exec& exec, const GemmBackwardWeightArgs& args,
                                const TokenWindow& window) {
  prefers_wide_tiles(args.dw.shape(0), args.dw.shape(1)) ? run<256>(exec, args, window)
                                                         : run<128>(exec, args, window);
}

}  // namespace rlk::gpu::sm90
