// Few rows, bound by reading the weights once: every wave reads 16 rows of the weight from device
// memory straight into operands. The waves of a block are the leaves of the tree.
#include "rlk/kernels/gpu/cdna/gemm.h"
#include "rlk/kernels/gpu/cdna/store_tile.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/numerics/sums.h"

namespace rlk::gpu::cdna {
namespace {

constexpr int kColumns = 16;  // of the result: rows of the weight
constexpr int kStride = kColumns + 4;

RLK_DEVICE int quad_of_lane() { return thread() % kWave / 16 * 4; }

// kDepth operands of 16 rows: row lane % 16, k 4 * (lane / 16) + i of each.
template <int kDepth>
struct Row {
  const char* base;
  std::uint32_t start;  // of this lane's row

  RLK_DEVICE Row(const Operand& x, int i0)
      : base(reinterpret_cast<const char*>(x.data) + i0 * x.stride * 2) {
    const int last = x.size - 1 - i0;  // rows beyond read it; nobody looks at their sums
    const int i = thread() % 16;
    start = static_cast<std::uint32_t>((i < last ? i : last) * x.stride * 2);
  }

  // From piece.end on anything.
  RLK_DEVICE void load(Half4 (&x)[kDepth], int k, const Product::Piece& piece) const {
    const char* const from = base + std::int64_t{2} * (k < piece.end ? k : piece.begin);
    RLK_UNROLL
    for (int j = 0; j < kDepth; ++j) {
      const int at = j * 16 + quad_of_lane();
      load_quads<1>(from + (start + (k + at < piece.end ? at * 2u : 0)), x + j);
    }
  }
};

template <int kTiles, int kDepth>
RLK_KERNEL(kWave* kMaxLeaves)
gemm_few_rows_kernel(Product p) {
  constexpr int kRows = kTiles * 16;
  RLK_SHARED(float, sums, kMaxLeaves* kRows* kStride);
  const int leaf = uniform(thread() / kWave);
  const int n0 = static_cast<int>(block_x()) * kColumns;
  const int m0 = static_cast<int>(block_y()) * kRows;
  const Row<kDepth> weight(p.b, n0);
  Float4 acc[kTiles] = {};

  struct Operands {
    Half4 weight[kDepth];
    Half4 row[kTiles][kDepth];
  } now, next;
  const auto load = [&](Operands& x, int k, const Product::Piece& piece) {
    weight.load(x.weight, k, piece);
    RLK_UNROLL
    for (int i = 0; i < kTiles; ++i) {
      const int from = m0 + i * 16;
      Row<kDepth>(p.a, from < p.a.size ? from : p.a.size - 1).load(x.row[i], k, piece);
    }
    keep_schedule();
  };
  const auto multiply = [&](const Operands& x, int k, const Product::Piece& piece) {
    RLK_UNROLL
    for (int j = 0; j < kDepth; ++j) {
      const bool inside = k + j * 16 + quad_of_lane() < piece.end;
      const Half4 weights = inside ? x.weight[j] : Half4{};
      RLK_UNROLL
      for (int i = 0; i < kTiles; ++i) {
        acc[i] = mfma_16x16x16(weights, inside ? x.row[i][j] : Half4{}, acc[i]);
      }
    }
    keep_schedule();  // loads stay a whole step ahead
  };
  constexpr int kStep = kDepth * 16;
  for (int i = p.first_piece[leaf]; i < p.first_piece[leaf + 1]; ++i) {
    const Product::Piece piece = p.pieces[i];
    load(now, piece.begin, piece);
    for (int k = piece.begin; k < piece.end; k += 2 * kStep) {
      load(next, k + kStep, piece);
      multiply(now, k, piece);
      load(now, k + 2 * kStep, piece);
      multiply(next, k + kStep, piece);
    }
  }

  const int lane = thread() % kWave;
  RLK_UNROLL
  for (int i = 0; i < kTiles; ++i) {
    float* const to = sums + (leaf * kRows + i * 16 + lane % 16) * kStride + row_16(lane, 0);
    RLK_UNROLL
    for (int j = 0; j < 4; ++j) to[j] = acc[i][j];
  }
  barrier();
  for (int i = thread(); i < kRows * kColumns / 4; i += threads()) {
    const int m = i / (kColumns / 4);
    const int n = i % (kColumns / 4) * 4;
    float quad[4];
    RLK_UNROLL
    for (int j = 0; j < 4; ++j) {
      // With fewer leaves the rest of the tree adds +0 to a sum, and another +0 follows anyway.
      float x[kMaxLeaves];
      RLK_UNROLL
      for (int of = 0; of < kMaxLeaves; ++of) {
        x[of] = of < p.leaves ? sums[(of * kRows + m) * kStride + n + j] : 0.0f;
      }
      quad[j] = numerics::neighbour_tree(x, kMaxLeaves);
    }
    store_quad(p, m0 + m, n0 + n, quad);
  }
}

template <int kTiles, int kDepth>
void run(Exec& exec, const Product& p) {
  launch(exec, {ceil_div(p.b.size, kColumns), ceil_div(p.a.size, kTiles * 16)}, kWave * p.leaves, 0,
         gemm_few_rows_kernel<kTiles, kDepth>, p);
}

}  // namespace

void gemm_few_rows(Exec& exec, const Product& p) {
  if (p.a.size <= 16) return run<1, 16>(exec, p);
  if (p.a.size <= 32) return run<2, 8>(exec, p);
  run<4, 8>(exec, p);
}

}  // namespace rlk::gpu::cdna
