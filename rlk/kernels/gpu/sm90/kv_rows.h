// How the keys of a sequence can be read.
#pragma once

#include "rlk/kernels/gpu/kv_rows.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"

namespace rlk::gpu::sm90 {

// `rows` rows by 64 elements of a head of x [rows, heads, d] at a time.
inline CUtensorMap heads_map(const ConstTensorView& x, int rows) {
  return tensor_map(x.data, x.shape(2), x.shape(1), x.stride(1), x.shape(0), x.stride(0), rows);
}
// Whether the copy engine can read the heads of x [rows, heads, d].
inline bool heads_copyable(const ConstTensorView& x) {
  return x.stride(2) == 1 && copyable(x, x.stride(0)) && (x.shape(1) == 1 || x.stride(1) % 8 == 0);
}

// Keys of a block of `block_keys` (a power of two) that always lie together, to be copied at once;
// 0 where the copy engine cannot read k and v, or too few lie together.
inline int keys_per_copy(const KvView& kv, int block_keys) {
  constexpr int kSwizzledRows = 8;
  int keys = block_keys;
  while (kv.block_table && kv.page_size % keys != 0) keys /= 2;
  const bool readable =
      heads_copyable(kv.k) && heads_copyable(kv.v) && kv.k.shape(0) < (std::int64_t{1} << 30);
  return readable && keys >= kSwizzledRows ? keys : 0;
}

}  // namespace rlk::gpu::sm90
