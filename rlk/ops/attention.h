// attention, paged or packed, and its gradient; formulas and shapes stand at the argument structs.
#pragma once

#include "rlk/kernels/attention.h"
#include "rlk/ops/context.h"

namespace rlk {

// Heads are of even size, up to this.
inline constexpr std::int64_t kMaxHeadSize = 256;

// Errors  kShape, kDtype; kUnsupported for a head of another size; kInvalidArgument for a page
//         outside the cache, a sequence with more queries than keys, or a page size that is not a
//         power of two, before any write; kNonFinite where a scaled score reaches 2^22.
void attention(Context& ctx, const AttentionArgs& args);
void attention_backward(Context& ctx, const AttentionBackwardArgs& args);

}  // namespace rlk
