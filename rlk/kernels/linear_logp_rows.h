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

// The rows of a backward call in parts, one after the other: the chains of dW go on from part to
// part.
class RowParts {
 public:
  RowParts(const Exec& exec, const LinearLogpBackwardArgs& args, Workspace::Frame& frame);

  // The end of the part that begins at `begin`, of at most `most` rows: where a chain may be cut.
  // most >= least().
  std::int64_t end(std::int64_t begin, std::int64_t most) const;
  std::int64_t least() const { return portable_ ? 1 : kGroup; }

  // Group ends in (begin, end] that no part before has had, and sample offsets, both counted from
  // `begin`; valid until the next call.
  void set(std::int64_t begin, std::int64_t end, ConstTensorView* group_ends,
           ConstTensorView* cu_seqlens);

 private:
  static constexpr std::int64_t kGroup = 16;  // every profile's mac divides it

  bool portable_;
  std::int64_t num_rows_;
  ConstTensorView ends_, cu_seqlens_;
  std::int64_t next_ = 0;
  std::int64_t* end_memory_;
  std::int32_t* offset_memory_;
};

}  // namespace rlk
