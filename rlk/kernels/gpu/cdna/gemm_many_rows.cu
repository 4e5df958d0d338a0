// Products on whole tiles, from shared memory. A chain's sums fit as 256 x 128 of a block, or as
// 128 x 128 of two blocks that share a processor; a leaf tree holds three more sums for every one,
// so a block of 128 x 128 has the processor for itself, and twice the depth of a step. Blocks of
// 64 x 64 are bound by shared memory, but there are four times as many.
#include "rlk/kernels/gpu/cdna/gemm.h"
#include "rlk/kernels/gpu/cdna/pipeline.h"
#include "rlk/kernels/gpu/cdna/store_tile.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/trees.h"

namespace rlk::gpu::cdna {
namespace {

// The steps of all leaves, one after the other; the last one repeats.
class Steps {
 public:
  RLK_DEVICE Steps(const Product& p, int step) : step_(step), now_{0, 0} {
    const Product::Piece piece = p.pieces[0];
    now_ = {piece.begin, piece.end};
  }
  RLK_DEVICE const Step& now() const { return now_; }
  RLK_DEVICE void advance(const Product& p) {
    if (now_.k + step_ < now_.end) {
      now_.k += step_;
    } else if (piece_ + 1 < p.first_piece[p.leaves]) {
      ++piece_;
      now_ = {p.pieces[piece_].begin, p.pieces[piece_].end};
    }
  }

 private:
  int step_;
  int piece_ = 0;
  Step now_;
};

template <typename Pipe, int kLevels>
RLK_KERNEL(Pipe::kThreads)
gemm_many_rows_kernel(Product p, TileOrder order) {
  RLK_SHARED(Chunk, shared, Pipe::kSharedChunks);
  const TileGrid::Place place = order.place(static_cast<int>(block_x()));
  const int m0 = place.row * Pipe::kM;
  const int n0 = place.column * Pipe::kN;
  Pipe pipe(p.a, m0, p.b, n0, shared);
  Steps steps(p, Pipe::kStep);
  const Step first = steps.now();
  steps.advance(p);
  pipe.begin(first, steps.now());
  steps.advance(p);
  TreeInRegisters<Float16, Pipe::Tile::kCount, kLevels> tree;
  for (int leaf = 0; leaf < (kLevels == 0 ? 1 : p.leaves); ++leaf) {
    int count = 0;
    for (int i = p.first_piece[leaf]; i < p.first_piece[leaf + 1]; ++i) {
      count += (p.pieces[i].end - p.pieces[i].begin + Pipe::kStep - 1) / Pipe::kStep;
    }
    if (kLevels == 0 || count == 0) {
      pipe.tile.clear();
    } else {
      pipe.template multiply<true>(steps.now());
      steps.advance(p);
      --count;
    }
    for (; count > 0; --count) {
      pipe.multiply(steps.now());
      steps.advance(p);
    }
    tree.merge(pipe.tile.acc);
  }
  store_tile(p, m0 + Pipe::wave_m(), n0 + Pipe::wave_n(), pipe.tile);
}

template <typename Pipe, int kLevels>
void run(Exec& exec, const Product& p) {
  const TileOrder order = tile_order(p.a.size, Pipe::kM, p.b.size, Pipe::kN);
  launch(exec, {order.count()}, Pipe::kThreads, 0, gemm_many_rows_kernel<Pipe, kLevels>, p, order);
}

// kTiles x kTiles instructions a wave, but for tall ones.
template <int kTiles, int kStep, bool kBIMajor = false>
using Square = Pipeline<kTiles * 64, false, kTiles * 64, kBIMajor, kTiles, kTiles, kStep>;
using Tall = Pipeline<256, false, 128, false, 4, 2, 32>;

}  // namespace

Tiles tiles_for(const Product& p) {
  const auto count = [&](int m, int n) { return ceil_div(p.a.size, m) * ceil_div(p.b.size, n); };
  // Too few large tiles for the chip, or half of what they hold would lie outside.
  const std::int64_t large = count(128, 128);
  if (large < chip().processors || 2 * count(64, 64) <= 4 * large) return Tiles::kSmall;
  const bool tall = p.leaves == 1 && !p.b_is_i_major && count(256, 128) >= 4 * chip().processors;
  return tall ? Tiles::kTall : Tiles::kLarge;
}

void gemm_many_rows(Exec& exec, const Product& p, Tiles tiles) {
  const bool tree = p.leaves > 1;
  const bool i_major = p.b_is_i_major;
  if (tiles == Tiles::kSmall) {
    if (tree) {
      i_major ? run<Square<1, 64, true>, 3>(exec, p) : run<Square<1, 64>, 3>(exec, p);
    } else {
      i_major ? run<Square<1, 64, true>, 0>(exec, p) : run<Square<1, 64>, 0>(exec, p);
    }
  } else if (tree) {
    i_major ? run<Square<2, 64, true>, 3>(exec, p) : run<Square<2, 64>, 3>(exec, p);
  } else if (i_major) {
    run<Square<2, 32, true>, 0>(exec, p);
  } else {
    tiles == Tiles::kTall ? run<Tall, 0>(exec, p) : run<Square<2, 32>, 0>(exec, p);
  }
}

}  // namespace rlk::gpu::cdna
