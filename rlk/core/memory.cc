#include "rlk/core/memory.h"

#include <cstdlib>
#include <cstring>

#include "rlk/core/error.h"

namespace rlk {
namespace {

class HostMemory : public Memory {
 public:
  void* take(std::size_t size_bytes) override {
    const std::size_t rounded = size_bytes == 0 ? 64 : (size_bytes + 63) / 64 * 64;
    void* data = std::aligned_alloc(64, rounded);
    if (!data) fail(ErrorCode::kNotAvailable, "tensor: no memory for {} bytes", size_bytes);
    std::memset(data, 0, rounded);
    return data;
  }
  void give_back(void* data) noexcept override { std::free(data); }
  void fill_zero(void* to, std::size_t size_bytes) override { std::memset(to, 0, size_bytes); }
  void copy(void* to, const void* from, std::size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace rlk
