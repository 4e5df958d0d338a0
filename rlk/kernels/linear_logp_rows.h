// linear_logp as gemm and logprob on tiles of whole rows of logits: for backends without a kernel
// of their own, and for rows with filters, which need a whole row.
#pragma once

#include "rlk/kernels/kernel_table.h"

namespace rlk {

void linear_logp_by_rows(const KernelTable& kernels, Exec& exec, const LinearLogpArgs& args);
void linear_logp_backward_by_rows(const KernelTable& kernels, Exec& exec,
                                  const LinearLogpBackwardArgs& args);

// Rows [begin, end) of a call.
LinearLogpArgs rows_of(const LinearLogpArgs& args, std::int64_t begin, std::int64_t end);

// The group ends in (begin, end], counted from begin; `next` is the first that no run before has
// had.
class GroupEnds {
 public:
  explicit GroupEnds(const ConstTensorView& ends) : ends_(ends) {}
  // At most as many as `ends` has; valid until the next call. `memory` has room for them.
  ConstTensorView in_rows(std::int64_t begin, std::int64_t end, std::int64_t* memory);

 private:
  ConstTensorView ends_;
  std::int64_t next_ = 0;
};

}  // namespace rlk
