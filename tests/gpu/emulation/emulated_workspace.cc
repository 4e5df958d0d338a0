// Scratch memory for operators, each piece of it device memory of its own: so what runs over the
// end of one is seen, and what the last user has left is forgotten.
#include <algorithm>

#include "rlk/device/device.h"
#include "tests/gpu/emulation/memory.h"

namespace rlk::device {

// Blocks before block_ are taken, those behind it are free.
void* Workspace::take_bytes(std::size_t size_bytes) {
  size_bytes = std::max<std::size_t>(size_bytes, 1);
  const auto free = blocks_.begin() + static_cast<std::ptrdiff_t>(block_);
  const auto same = std::find_if(free, blocks_.end(),
                                 [&](const Buffer& b) { return b.size_bytes() == size_bytes; });
  if (same == blocks_.end()) {
    blocks_.insert(free, Buffer(size_bytes));
  } else {
    std::rotate(free, same, same + 1);
    emulation::forget(blocks_[block_].data(), size_bytes);
  }
  return blocks_[block_++].data();
}

}  // namespace rlk::device
