// How rows of logits are cut into parts, and the calls that take a cut. What hosts need of
// row_parts.h.
#pragma once

#include "rlk/kernels/exec.h"
#include "rlk/kernels/logprob.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu {

// The parts of a row: `count` of `size` tokens, the last one shorter; at most kRowThreads. A plan.
struct Parts {
  int count = 1;
  int size = 0;

  RLK_HD int begin(std::int64_t part) const { return static_cast<int>(part) * size; }
  RLK_HD int end(std::int64_t part, std::int64_t vocab_size) const {
    const std::int64_t end = (part + 1) * size;
    return static_cast<int>(end < vocab_size ? end : vocab_size);
  }
};
Parts parts_of(std::int64_t count, std::int64_t vocab_size);
// What fills a GPU.
Parts parts_for(std::int64_t num_rows, std::int64_t vocab_size);

// logprob_of_rows and sample with so many parts a row.
void logprob_in_parts(Exec& exec, const LogprobArgs& args, std::int64_t first_row,
                      const Parts& parts);
void sample_in_parts(Exec& exec, const SampleArgs& args, const Parts& parts);

}  // namespace rlk::gpu
