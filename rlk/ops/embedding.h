// embedding and its gradient; formulas and shapes stand at the argument structs.
#pragma once

#include "rlk/kernels/embedding.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype; kInvalidArgument for an id outside the vocabulary, before any write.
void embedding(Context& ctx, const EmbeddingArgs& args);
void embedding_backward(Context& ctx, const EmbeddingBackwardArgs& args);

}  // namespace rlk
