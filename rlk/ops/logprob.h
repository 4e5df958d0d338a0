// logprob and log_softmax, their gradients, and sampling; formulas and shapes stand at the argument
// structs.
#pragma once

#include "rlk/kernels/logprob.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype; kInvalidArgument for a target outside the vocabulary or parameters out of
//         range, before any write; kNonFinite for a row that has no log-probability.
void logprob(Context& ctx, const LogprobArgs& args);
void logprob_backward(Context& ctx, const LogprobBackwardArgs& args);
void log_softmax(Context& ctx, const LogSoftmaxArgs& args);
void log_softmax_backward(Context& ctx, const LogSoftmaxBackwardArgs& args);
void sample(Context& ctx, const SampleArgs& args);

// Throws kInvalidArgument naming `where` and the field: temperature >= 0 and finite, top_k >= 0,
// top_p in (0, 1], min_p in [0, 1].
void validate(const SamplingParams& params, const char* where);

}  // namespace rlk
