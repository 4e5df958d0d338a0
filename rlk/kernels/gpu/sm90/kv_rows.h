// Where the keys of a sequence lie.
#pragma once

#include "rlk/kernels/attention.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"
#include "rlk/kernels/gpu/views.h"

namespace rlk::gpu::sm90 {

struct KvRows {
  Ref<const std::int32_t> block_table;  // absent: packed
  Ref<const std::int32_t> kv_start;
  std::int64_t page_size;

  explicit KvRows(const KvView& kv)
      : block_table(ref<std::int32_t>(kv.block_table)),
        kv_start(ref<std::int32_t>(kv.kv_start)),
        page_size(kv.page_size) {}

  RLK_DEVICE std::int64_t row(std::int64_t sequence, std::int64_t position) const {
    if (!block_table) return kv_start(sequence) + position;
    const std::int64_t page = divide(position, page_size);
    return block_table(sequence, page) * page_size + (position - page * page_size);
  }
};

// Whether the copy engine can read the heads of x [rows, heads, d].
inline bool heads_copyable(const ConstTensorView& x) {
  return x.stride(2) == 1 && copyable(x, x.stride(0)) && (x.shape(1) == 1 || x.stride(1) % 8 == 0);
}

// Whether neighbours in x [rows, heads, d] can be moved two at a time.
inline bool in_pairs(const ConstTensorView& x) {
  return x.stride(2) == 1 && x.stride(1) % 2 == 0 && x.stride(0) % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(x.data) % 4 == 0;
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
