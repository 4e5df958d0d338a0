#include "rlk/core/workspace.h"

#include <algorithm>

namespace rlk {

std::size_t Workspace::size_bytes() const {
  std::size_t total = 0;
  for (const Tensor& block : blocks_) total += block.size_bytes();
  return total;
}

void* Workspace::take_bytes(std::size_t size_bytes) {
  size_bytes = (size_bytes + 63) / 64 * 64;
  while (block_ < blocks_.size()) {
    if (used_ + size_bytes <= blocks_[block_].size_bytes()) {
      void* p = blocks_[block_].data<char>() + used_;
      used_ += size_bytes;
      return p;
    }
    ++block_;
    used_ = 0;
  }
  // Small blocks double, so that there are few; behind a large one only some more is taken.
  constexpr std::size_t kFirstBlock = std::size_t{1} << 20, kLargestStep = std::size_t{4} << 20;
  const std::size_t grown =
      std::max({size_bytes, kFirstBlock, std::min(this->size_bytes(), kLargestStep)});
  blocks_.emplace_back(
      DType::kI32, std::initializer_list<std::int64_t>{static_cast<std::int64_t>((grown + 3) / 4)},
      memory_);
  block_ = blocks_.size() - 1;
  used_ = size_bytes;
  return blocks_.back().data<char>();
}

}  // namespace rlk
