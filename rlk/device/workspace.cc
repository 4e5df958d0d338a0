#include <algorithm>

#include "rlk/device/device.h"

namespace rlk::device {

void* Workspace::take_bytes(std::size_t size_bytes) {
  constexpr std::size_t kAlign = 256;
  constexpr std::size_t kFirstBlock = std::size_t{1} << 22;
  size_bytes = std::max((size_bytes + kAlign - 1) / kAlign * kAlign, kAlign);
  while (block_ < blocks_.size() && used_ + size_bytes > blocks_[block_].size_bytes()) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    const std::size_t last = blocks_.empty() ? kFirstBlock : 2 * blocks_.back().size_bytes();
    blocks_.emplace_back(std::max(size_bytes, last));
  }
  char* at = static_cast<char*>(blocks_[block_].data()) + used_;
  used_ += size_bytes;
  return at;
}

}  // namespace rlk::device
