// Where tensors and arrays live: host memory, or memory that a device of the layers above can reach
// too. The host can read and write all of it.
#pragma once

#include <cstddef>
#include <vector>

namespace rlk {

class Memory {
 public:
  virtual ~Memory() = default;

  // At least 64-byte aligned and zeroed. Error kNotAvailable.
  virtual void* take(std::size_t size_bytes) = 0;
  virtual void give_back(void* data) noexcept = 0;

  // Done when they return, and behind all work that the device was given before. Either end of
  // a copy may lie in any memory.
  virtual void fill_zero(void* to, std::size_t size_bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t size_bytes) = 0;
};

Memory& host_memory();

// For standard containers.
template <typename T>
class MemoryAllocator {
 public:
  using value_type = T;

  MemoryAllocator(Memory& memory = host_memory()) : memory_(&memory) {}  // NOLINT: as its memory
  template <typename U>
  MemoryAllocator(const MemoryAllocator<U>& other) : memory_(&other.memory()) {}  // NOLINT

  T* allocate(std::size_t count) { return static_cast<T*>(memory_->take(count * sizeof(T))); }
  void deallocate(T* data, std::size_t) noexcept { memory_->give_back(data); }
  Memory& memory() const { return *memory_; }
  bool operator==(const MemoryAllocator& other) const { return memory_ == other.memory_; }

 private:
  Memory* memory_;
};

template <typename T>
using Array = std::vector<T, MemoryAllocator<T>>;

}  // namespace rlk
