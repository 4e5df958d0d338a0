#include "rlk/kernels/embedding.h"

#include "rlk/kernels/reference/storage.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::reference {

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
      write(args.y, read(args.table, id, k) + 0.0f, t, k);
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
      sum = sum + read(args.dy, t, k);
    }
  }
}

}  // namespace rlk::reference
