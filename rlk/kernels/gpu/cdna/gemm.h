// Products of profiles cdna2 and cdna3: kernels that give the same bits, each for the shapes it is
// good at. The same text serves both chips.
#pragma once

#include "rlk/kernels/exec.h"
#include "rlk/kernels/gemm.h"
#include "rlk/kernels/gpu/cdna/operand_tile.h"
#include "rlk/kernels/gpu/gemm_shape.h"
#include "rlk/kernels/gpu/tile_grid.h"
#include "rlk/kernels/gpu/token_window.h"

namespace rlk::gpu::cdna {

// What the kernels for whole tiles need to know of a call.
struct Product {
  struct Piece {
    int begin, end;  // values of k: not empty, multiples of 8
  };
  Operand a, b;
  bool b_is_i_major;  // b is a transposed view: n is its dense dimension
  int leaves;         // 1: one chain
  // What the chain of leaf i walks through: pieces[first_piece[i]] up to first_piece[i + 1].
  int first_piece[kMaxLeaves + 1];
  Piece pieces[3 * kMaxLeaves];
  void* c;
  std::int64_t c_stride;
  bool c_is_f32;
  bool c_packs;      // four neighbours can be written at once
  const bf16* bias;  // null: none
};

// False where a or b cannot be read 16 bytes at a time, c or the bias have gaps, a piece is no
// multiple of 8 long, or there are too many leaves.
bool describe(const Exec& exec, const GemmArgs& args, Product* product);

// The tiles are a plan: no bit depends on them.
enum class Tiles : std::uint8_t {
  kSmall,  // 64 x 64
  kLarge,  // 128 x 128
  kTall,   // 256 x 128; one chain, b k-major
};
Tiles tiles_for(const Product& product);
void gemm_many_rows(Exec& exec, const Product& product, Tiles tiles);
// b k-major.
void gemm_few_rows(Exec& exec, const Product& product);
// Any shape and strides.
void gemm_any(Exec& exec, const GemmArgs& args);

// As that of profile portable.
void gemm_backward_weight_in_window(Exec& exec, const GemmBackwardWeightArgs& args,
                                    const TokenWindow& window);
// Any shape and strides.
void gemm_backward_weight_any(Exec& exec, const GemmBackwardWeightArgs& args,
                              const TokenWindow& window);

// What plans depend on.
struct Chip {
  int processors;
  int dies;  // with a cache of their own, which blocks go round: 8 on MI300X
};
const Chip& chip();

// The order in which blocks take tiles: of each die a contiguous part.
struct TileOrder {
  TileGrid tiles;
  int dies;

  RLK_HD int count() const { return tiles.rows * tiles.columns; }
  RLK_HD TileGrid::Place place(int block) const {
    const int all = count();
    const int die = block % dies;
    const int rest = all % dies;
    return tiles.place<8>(die * (all / dies) + (die < rest ? die : rest) + block / dies);
  }
};
TileOrder tile_order(int m, int kM, int n, int kN);

}  // namespace rlk::gpu::cdna
