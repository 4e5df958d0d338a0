// Mode audit: a second set of outputs, compared with the first byte for byte.
#pragma once

#include <cstdint>
#include <vector>

#include "rlk/core/tensor.h"

namespace rlk {

class Audit {
 public:
  explicit Audit(Memory& memory) : memory_(memory) {}

  // Points the output of that name at a copy of what it holds; keeps where the original is.
  void redirect(const char* name, TensorView& view);

  // Holds every copy against its original; adds to the counts.
  void compare(std::int64_t& compared, std::int64_t& mismatches) const;

 private:
  struct Pair {
    ConstTensorView original;
    Tensor copy;
    bool open_sum;
  };
  Memory& memory_;
  std::vector<Pair> pairs_;
};

// A copy of the view without gaps.
Tensor gather(const ConstTensorView& view, Memory& memory = host_memory());

// Turns every -0 of an f32 tensor into +0: open sums (outputs.h) are the same up to that.
void drop_zero_signs(const TensorView& open_sum);

}  // namespace rlk
