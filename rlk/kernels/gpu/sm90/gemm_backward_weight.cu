// dW on the matrix units: rows of dW are columns of dy, its columns those of x, and k runs through
// the tokens. Both operands lie i-major, as the copy engine finds them.
//
//   stages    four groups of mac, 16 tokens each; of several samples, if they are short. The last
//             group of a run (what lies between ends of samples and groups) may have fewer tokens:
//             dy of those behind becomes +0, and its products add nothing
//   segments  stages between two ends of groups. The sums start from the open chain, go to dw where
//             a group closes, and what is left is the open chain again
//
// The threads that feed the copy engine walk through samples and groups and write to each stage
// what it holds.
#include "rlk/kernels/gpu/sm90/gemm_tiles.h"
#include "rlk/kernels/gpu/sm90/store_tile.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"
#include "rlk/kernels/gpu/token_runs.h"

namespace rlk::gpu::sm90 {
namespace {

template <int kN>
using WeightRing = Ring<kN, 2 * SumsInRows<kN>::kBytes, true, true>;

// What a stage holds, as its word says.
constexpr int kMissing = 0xffff;     // tokens that each group of mac lacks, four bits each
constexpr int kEmpty = 0x10000;      // nothing: only the end of a segment
constexpr int kCloses = 0x20000;     // a group closes behind these tokens
constexpr int kClosesTwo = 0x40000;  // and at least one more, of no tokens
constexpr int kLast = 0x80000;       // of the tile
constexpr int kEndsSegment = kCloses | kLast;

struct WeightGradient {
  float* dw;
  std::int64_t dw_stride;
  float* chain;
  std::int64_t chain_stride;
  int n, k;
  TokenRuns runs;
};

struct Maps {
  ColumnMaps dy, x;
};

// Walks through the groups of mac of a tile and sends its stages, each as soon as it is known
// whether something closes behind it. One of four threads that all do so: of a stage each loads the
// group that it is for, and the first writes what the stage holds.
template <int kN>
class Sender {
 public:
  RLK_DEVICE Sender(WeightRing<kN>& ring, const Maps& maps, int mine, int n0, int k0)
      : ring_(ring), maps_(maps), mine_(mine), n0_(n0), k0_(k0) {}

  // The groups of mac that begin at token, token + 16, .. below stop, of tokens below end.
  RLK_DEVICE void run(int token, int stop, int end) {
    while (token < stop) {
      if (groups_ == kStep / 16 || (word_ & kCloses) != 0) send(0);
      open();
      const int left = (stop - token + 15) / 16, room = kStep / 16 - groups_;
      const int count = left < room ? left : room;
      if (groups_ <= mine_ && mine_ < groups_ + count) load(token + (mine_ - groups_) * 16);
      token += 16 * count;
      groups_ += count;
      word_ &= ~kEmpty;
    }
    if (token > end) word_ |= (token - end) << 4 * (groups_ - 1);
  }
  RLK_DEVICE void close() {
    open();
    word_ |= (word_ & kCloses) != 0 ? kClosesTwo : kCloses;
  }
  RLK_DEVICE void end() {
    open();
    send(kLast);
  }

 private:
  RLK_DEVICE void open() {
    if (word_ != 0 || groups_ != 0) return;
    ring_.wait_empty();
    word_ = kEmpty;
  }
  RLK_DEVICE void load(int token) { ring_.load_group(maps_.dy, maps_.x, n0_, k0_, token, mine_); }
  RLK_DEVICE void send(int more) {
    constexpr int kBehindAll = 1 << 30;  // there the copy engine finds +0
    if (groups_ > 0 && groups_ <= mine_) load(kBehindAll);
    if (mine_ == 0) ring_.put_word(word_ | more);
    ring_.fill();
    groups_ = 0;
    word_ = 0;
  }

  WeightRing<kN>& ring_;
  const Maps& maps_;
  int mine_, n0_, k0_;
  int groups_ = 0;  // of mac in the stage that is open,
  int word_ = 0;    // and what else is known of it; both 0: none is open
};

template <int kN>
__global__ void __launch_bounds__(kTileThreads, 1)
    gemm_backward_weight_kernel(const __grid_constant__ Maps maps, const WeightGradient p,
                                const Tiles tiles) {
  RLK_DYNAMIC_SHARED(shared);
  WeightRing<kN> ring(shared);
  if (thread() == 0) ring.init();
  barrier();
  allow_next_kernel();
  const int warpgroup = warpgroup_index();
  if (warpgroup == 0) {
    fewer_registers<40>();
    const int warp = __shfl_sync(~0u, thread() / 32, 0);
    if (thread() % 32 != 0) return;
    wait_for_previous_kernel();
    for (int t = static_cast<int>(block_x()); t < tiles.count(); t += gridDim.x) {
      int row, column;
      tiles.at(t, &row, &column);
      Sender<kN> sender(ring, maps, warp, row * kTileRows, column * kN);
      p.runs.for_each<16>(
          [&](std::int64_t first, std::int64_t stop, std::int64_t end) {
            sender.run(static_cast<int>(first), static_cast<int>(stop), static_cast<int>(end));
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
      shared + (ring.extra() - shared_address(shared)) + consumer * SumsInRows<kN>::kBytes);
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
    const auto add = [&](int word) {
      if ((word & kMissing) != 0) ring.clear(word & kMissing, consumer);
      ring.multiply(acc, consumer);
    };
    const bool was_zero = matrix(p.chain, p.chain_stride).read(acc);
    int word;
    do {
      word = ring.wait_word();
      int before = ring.stage();
      if ((word & kEmpty) != 0) {
        ring.next();
      } else {
        add(word);
        while ((word & kEndsSegment) == 0) {
          const int now = ring.stage();
          word = ring.wait_word();
          add(word);
          wgmma_wait<1>();
          ring.release(before);
          before = now;
        }
        wgmma_wait<0>();
      }
      ring.release(before);
      if ((word & kCloses) != 0) {
        const SumsInRows<kN> dw = matrix(p.dw, p.dw_stride);
        dw.add(acc);
        RLK_UNROLL
        for (int i = 0; i < kN / 2; ++i) acc[i] = 0.0f;
        if ((word & kClosesTwo) != 0) dw.add(acc);
      }
    } while ((word & kLast) == 0);
    const SumsInRows<kN> chain = matrix(p.chain, p.chain_stride);
    if ((word & kCloses) == 0) {
      chain.write(acc);
    } else if (!was_zero) {
      chain.clear();
    }
  }
}

template <int kN>
void run(Exec& exec, const GemmBackwardWeightArgs& args, const TokenWindow& window) {
  const std::int64_t n = args.dw.shape(0), k = args.dw.shape(1);
  const WeightGradient p{static_cast<float*>(args.dw.data),
                         args.dw.stride(0),
                         static_cast<float*>(args.chain.data),
                         args.chain.stride(0),
                         static_cast<int>(n),
                         static_cast<int>(k),
                         TokenRuns(args, window)};
  const Tiles tiles = tiles_of(n, k, kN);
  const auto maps_of = [](const ConstTensorView& t, int width) {
    const std::int64_t tokens = t.shape(0), columns = t.shape(1), stride = t.stride(0);
    return ColumnMaps{tensor_map_of_blocks(t.data, columns, tokens, stride, 16, width / 64),
                      tensor_map(t.data, columns, tokens, stride, 16), static_cast<int>(columns)};
  };
  const Maps maps{maps_of(args.dy, kTileRows), maps_of(args.x, kN)};
  launch_cluster(exec, {persistent_blocks(tiles)}, kTileThreads, WeightRing<kN>::kBytes, {1, true},
                 gemm_backward_weight_kernel<kN>, maps, p, tiles);
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
  with_tile_columns(args.dw.shape(0), args.dw.shape(1),
                    [&]<int kN>() { run<kN>(exec, args, window); });
}

}  // namespace rlk::gpu::sm90
