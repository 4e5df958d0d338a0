// The keys and values of one sequence and KV head, in blocks of 128 keys from a position on: per
// block the items of k, then those of v.
#pragma once

#include "rlk/kernels/attention.h"
#include "rlk/kernels/gpu/cdna/attention_items.h"
#include "rlk/kernels/gpu/kv_rows.h"

namespace rlk::gpu::cdna {

inline constexpr int kBlockKeys = 128;
inline constexpr int kItemThreads = 256;

struct KvTensors {
  Ref<const bf16> k;
  Ref<const bf16> v;
  KvRows kv;
};

// Whether k and v can be read 16 bytes at a time, and keys 4 i .. 4 i + 3 lie together.
inline bool readable(const KvView& kv) {
  const bool pages_fit = !kv.block_table || (kv.page_size % 4 == 0 && packs<1>(kv.block_table));
  return packs<8>(kv.k) && packs<8>(kv.v) && pages_fit && kv.k.shape(0) < (std::int64_t{1} << 31);
}

inline KvTensors kv_tensors(const KvView& kv) {
  return {ref<bf16>(kv.k), ref<bf16>(kv.v), KvRows(kv)};
}

// Moves items by all threads of a block. Two are in shared memory: one is used, the next is
// written; kAhead more are on their way to registers. With 0 the next one comes while one is used,
// and takes no registers between.
template <int kD, int kAhead>
class KvItems {
 public:
  using It = Item<kD, kItemThreads * 32 / kD>;
  static constexpr int kOfBlock = kBlockKeys / It::kRows;  // items of k in a block; as many of v
  static constexpr int kParts = 2 * kOfBlock;
  static constexpr int kSharedBytes = 2 * It::kBytes;
  static constexpr int kWaiting = kAhead == 0 ? 1 : kAhead;
  static_assert(kWaiting <= kParts && kParts % kWaiting == 0);

  // Blocks from position `begin` on; keys from `end` on are not read and are +0.
  RLK_DEVICE KvItems(const KvTensors& from, std::int64_t sequence, std::int64_t kv_head, int begin,
                     int end, char* shared)
      : shared_(shared),
        k_(&from.k(0, kv_head)),
        v_(&from.v(0, kv_head)),
        k_stride_(from.k.stride[0]),
        v_stride_(from.v.stride[0]),
        end_(end) {
    position_ = begin + It::row0();
    if (from.kv.block_table) {
      pages_ = &from.kv.block_table(sequence);
      page_size_ = static_cast<int>(from.kv.page_size);
      page_ = static_cast<int>(divide(position_, page_size_));
      slot_ = position_ - page_ * page_size_;
      pages_per_item_ = static_cast<int>(divide(It::kRows, page_size_));
      slots_per_item_ = It::kRows - pages_per_item_ * page_size_;
    } else {
      start_ = from.kv.kv_start(sequence);
    }
    RLK_UNROLL
    for (int i = 0; i < kOfBlock; ++i) look_up(i, position_ + i * It::kRows);
    RLK_UNROLL
    for (int i = 0; i < kAhead + 1; ++i) {
      request(i % kParts);
      if (i == 0) put(0);
    }
    barrier();
  }

  // Part `part` of the block (items of k, then of v) lies at the address returned until end_part().
  // The parts of a block are called for one after the other, and blocks likewise.
  RLK_DEVICE const char* begin_part(int part) {
    if constexpr (kAhead > 0) put((part + 1) % kParts);
    request((part + 1 + kAhead) % kParts);
    return shared_ + part % 2 * It::kBytes;
  }
  RLK_DEVICE void end_part(int part) {
    if constexpr (kAhead == 0) put((part + 1) % kParts);
    barrier();
  }

 private:
  // The row of the first of the thread's four keys of an item, which stands at `position`. Items
  // are looked up in order.
  RLK_DEVICE void look_up(int i, int position) {
    if (position < end_) {
      row_[i] = pages_ == nullptr ? start_ + position : pages_[page_] * page_size_ + slot_;
    }
    if (pages_ == nullptr) return;
    page_ += pages_per_item_;
    slot_ += slots_per_item_;
    if (slot_ >= page_size_) {
      slot_ -= page_size_;
      ++page_;
    }
  }

  RLK_DEVICE void request(int part) {
    Octet(&x)[4] = waiting_[part % kWaiting];
    const int i = part % kOfBlock;
    const bool is_k = part < kOfBlock;
    const int position = position_ + i * It::kRows;
    const std::int64_t stride = is_k ? k_stride_ : v_stride_;
    const bf16* at = (is_k ? k_ : v_) + (row_[i] * stride + 8 * It::octet());
    if (position + 3 < end_) {
      RLK_UNROLL
      for (int j = 0; j < 4; ++j, at += stride) x[j] = Octet::read(at);
    } else {
      RLK_UNROLL
      for (int j = 0; j < 4; ++j, at += stride) {
        x[j] = position + j < end_ ? Octet::read(at) : Octet{};
      }
    }
    if (is_k) return;
    look_up(i, position + kBlockKeys);
    if (i == kOfBlock - 1) position_ += kBlockKeys;
  }

  RLK_DEVICE void put(int part) {
    char* const to = shared_ + part % 2 * It::kBytes;
    if (part < kOfBlock) {
      It::put_rows(to, waiting_[part % kWaiting]);
    } else {
      It::put_columns(to, waiting_[part % kWaiting]);
    }
  }

  char* shared_;
  const bf16* k_;
  const bf16* v_;
  std::int64_t k_stride_, v_stride_;
  int end_;
  const std::int32_t* pages_ = nullptr;  // of the sequence; null: its keys lie from start_ on
  int page_size_ = 0;
  int start_ = 0;
  int position_;  // of the thread's first key in the block that is being requested
  int page_ = 0;  // of the next item to be looked up
  int slot_ = 0;
  int pages_per_item_ = 0;  // an item is so many pages, and so many slots of one more
  int slots_per_item_ = 0;
  int row_[kOfBlock] = {};
  Octet waiting_[kWaiting][4];
};

}  // namespace rlk::gpu::cdna
