#include "rlk/kernels/embedding.h"

#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/bf16.h"

namespace rlk::reference {

using numerics::to_bf16;
using numerics::to_f32;

void embedding(Exec& exec, const EmbeddingArgs& args) {
  const std::int64_t num_tokens = args.y.shape(0);
  const std::int64_t hidden_size = args.y.shape(1);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const std::int64_t id = *args.ids.at<std::int32_t>(t);
    if (id < 0 || id >= args.table.shape(0)) {
      exec.fault.report(t);
      continue;
    }
    for (std::int64_t k = 0; k < hidden_size; ++k) {
      *args.y.at<bf16>(t, k) = to_bf16(to_f32(*args.table.at<bf16>(id, k)) + 0.0f);
    }
  }
}

void embedding_backward(Exec& exec, const EmbeddingBackwardArgs& args) {
  const std::int64_t num_tokens = args.dy.shape(0);
  const std::int64_t hidden_size = args.dy.shape(1);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const std::int64_t id = *args.ids.at<std::int32_t>(t);
    if (id < 0 || id >= args.dtable.shape(0)) {
      exec.fault.report(t);
      continue;
    }
    for (std::int64_t k = 0; k < hidden_size; ++k) {
      float& sum = *args.dtable.at<float>(id, k);
      sum = sum + to_f32(*args.dy.at<bf16>(t, k));
    }
  }
}

}  // namespace rlk::reference
