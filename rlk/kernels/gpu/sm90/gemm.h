// Products of profile sm90: kernels that give the same bits, each for the shapes it is good at.
#pragma once

#include "rlk/kernels/exec.h"
#include "rlk/kernels/gemm.h"
#include "rlk/kernels/gpu/gemm_shape.h"
#include "rlk/kernels/gpu/token_window.h"

namespace rlk::gpu::sm90 {

inline constexpr int kStep = 64;  // values of k in a stage of shared memory

// What the kernels for whole tiles need to know of a call.
struct Product {
  struct Piece {
    int begin, end;  // values of k; empty: begin = end
  };
  int m, n, k;
  int leaves;                   // 1: one chain
  Piece pieces[kMaxLeaves][3];  // what the chain of each leaf walks through
  int steps[kMaxLeaves];        // of kStep, the last of a piece may be shorter
  bool whole_steps;             // every piece is a multiple of kStep long, or ends with k
  bool b_is_i_major;            // b is a transposed view: n is its dense dimension
  bool b_is_weight;             // packed before: no kernel that may still run writes it
  void* c;
  std::int64_t c_stride;
  bool c_is_f32;
  const void* bias;  // bf16; null: none
};

// False where the copy engine cannot read a or b, a piece that another follows is no multiple of 16
// long (its last group would hold the first of the next piece), or there are too many leaves.
bool describe(const Exec& exec, const GemmArgs& args, Product* product);

// 1 or 8 leaves.
void gemm_many_rows(Exec& exec, const GemmArgs& args, const Product& product);
// b k-major.
void gemm_few_rows(Exec& exec, const GemmArgs& args, const Product& product);
// Any shape and strides.
void gemm_any(Exec& exec, const GemmArgs& args);

// As that of profile portable.
void gemm_backward_weight_in_window(Exec& exec, const GemmBackwardWeightArgs& args,
                                    const TokenWindow& window);
// Whether the copy engine can read dy and x, and dw and chain can be moved four numbers at a time.
bool gemm_backward_weight_copies(const GemmBackwardWeightArgs& args);
// Where it can.
void gemm_backward_weight_tiles(Exec& exec, const GemmBackwardWeightArgs& args,
                                const TokenWindow& window);
// Any shape and strides.
void gemm_backward_weight_any(Exec& exec, const GemmBackwardWeightArgs& args,
                              const TokenWindow& window);

}  // namespace rlk::gpu::sm90
