// attention: causal softmax attention by key blocks at absolute positions, paged or packed.
#pragma once

#include "rlk/core/tensor.h"

namespace rlk {

// Where the keys and values of position p of sequence s lie: row
//   block_table[s][p / page_size] * page_size + p % page_size     (paged)
//   kv_start[s] + p                                               (packed; block_table absent)
// of k and v, each bf16 or f32 [kv_rows, num_key_value_heads, d].
struct KvView {
  ConstTensorView k;
  ConstTensorView v;
  ConstTensorView block_table;  // i32 [num_seqs, max_pages]; absent: packed
  ConstTensorView kv_start;     // i32 [num_seqs]; packed only
  std::int64_t page_size = 0;
};

// Queries of sequence s are rows cu_seqlens_q[s] .. cu_seqlens_q[s+1] of q; the last one stands at
// position kv_lens[s] - 1 and each sees the keys at positions <= its own. q, k, v and y have the
// storage type of the call, bf16 or f32; d is even, 2 to 256, and the elements of a head lie
// together.
//   y             out       [num_tokens, num_attention_heads, d]
//   lse           out  f32  [num_tokens, num_attention_heads], base 2; optional, kept for backward
//   q             in        [num_tokens, num_attention_heads, d]
//   cu_seqlens_q  in   i32  [num_seqs + 1]
//   kv_lens       in   i32  [num_seqs], keys visible to the last query
// Bits    contract section 4: blocks of kv_block, splits of kv_split, softmax_lanes lanes of l.
// Errors  |m'| >= 2^22: row is token * heads + head.
struct AttentionArgs {
  TensorView y;
  TensorView lse;
  ConstTensorView q;
  KvView kv;
  ConstTensorView cu_seqlens_q;
  ConstTensorView kv_lens;
};

// Gradients of a packed batch in which every sequence starts at position 0. All but lse and
// cu_seqlens have the storage type of the call, bf16 or f32. Scratch is linear in the tokens.
//   dq            out       [num_tokens, num_attention_heads, d]
//   dk, dv        out       [num_tokens, num_key_value_heads, d]
//   dy, y, q      in        [num_tokens, num_attention_heads, d]
//   k, v          in        [num_tokens, num_key_value_heads, d]
//   lse           in   f32  [num_tokens, num_attention_heads]
//   cu_seqlens    in   i32  [num_seqs + 1]
struct AttentionBackwardArgs {
  TensorView dq;
  TensorView dk;
  TensorView dv;
  ConstTensorView dy;
  ConstTensorView y;
  ConstTensorView q;
  ConstTensorView k;
  ConstTensorView v;
  ConstTensorView lse;
  ConstTensorView cu_seqlens;
};

}  // namespace rlk
