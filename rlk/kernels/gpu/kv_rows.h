// Where the keys of a sequence lie.
#pragma once

#include "rlk/kernels/attention.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/views.h"

namespace rlk::gpu {

// No sequence has more keys.
inline std::int64_t max_keys(const KvView& kv) {
  return kv.block_table ? kv.block_table.shape(1) * kv.page_size : kv.k.shape(0);
}

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

}  // namespace rlk::gpu
