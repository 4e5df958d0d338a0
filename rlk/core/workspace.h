// Scratch memory for operators: grows to what the largest call needed, then never again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rlk/core/tensor.h"

namespace rlk {

// A stack of scratch. Only the thread that calls operators may use it; a kernel takes what all its
// threads need before it starts them.
class Workspace {
 public:
  // Everything taken through a Frame goes back when the Frame ends.
  class Frame {
   public:
    explicit Frame(Workspace& workspace)
        : workspace_(workspace), block_(workspace.block_), used_(workspace.used_) {}
    ~Frame() {
      workspace_.block_ = block_;
      workspace_.used_ = used_;
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

    // 64-byte aligned, not initialised.
    template <typename T>
    T* take(std::int64_t count) {
      return static_cast<T*>(workspace_.take_bytes(static_cast<std::size_t>(count) * sizeof(T)));
    }

   private:
    Workspace& workspace_;
    std::size_t block_;
    std::size_t used_;
  };

  explicit Workspace(Memory& memory = host_memory()) : memory_(memory) {}
  std::size_t size_bytes() const;

 private:
  void* take_bytes(std::size_t size_bytes);

  Memory& memory_;
  std::vector<Tensor> blocks_;
  std::size_t block_ = 0;  // the block in use
  std::size_t used_ = 0;   // bytes of it that are taken
};

}  // namespace rlk
