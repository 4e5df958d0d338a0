#include "rlk/kernels/embedding.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {

template <Isa I>
void embedding(Exec& exec, const EmbeddingArgs& args) {
  if (!dense(1, args.y, args.table)) return reference::embedding(exec, args);
  const std::int64_t n = args.y.shape(1);
  with_storage(args.y.dtype, [&]<typename T>() {
    const StorageRows<T>& isa = storage_rows<T>(I);
    for_row_ranges(exec, args.y.shape(0), 10.0 + 0.15 * static_cast<double>(n),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t t = begin; t < end; ++t) {
                       const std::int64_t id = *args.ids.at<std::int32_t>(t);
                       if (id < 0 || id >= args.table.shape(0)) {
                         exec.fault.report(t);
                       } else {
                         isa.embedding(args.y.at<T>(t), args.table.at<T>(id), n);
                       }
                     }
                   });
  });
}

// Threads own columns: the order of a row's tokens stays.
template <Isa I>
void embedding_backward(Exec& exec, const EmbeddingBackwardArgs& args) {
  if (!dense(1, args.dtable, args.dy)) return reference::embedding_backward(exec, args);
  const std::int64_t num_tokens = args.dy.shape(0);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const std::int64_t id = *args.ids.at<std::int32_t>(t);
    if (id < 0 || id >= args.dtable.shape(0)) exec.fault.report(t);
  }
  constexpr std::int64_t kColumns = 32;  // whole cache lines
  const std::int64_t blocks = (args.dy.shape(1) + kColumns - 1) / kColumns;
  with_storage(args.dy.dtype, [&]<typename T>() {
    const StorageRows<T>& isa = storage_rows<T>(I);
    for_row_ranges(exec, blocks, 10.0 * static_cast<double>(num_tokens),
                   [&](std::int64_t begin, std::int64_t end) {
                     const std::int64_t first = begin * kColumns;
                     const std::int64_t n = std::min(end * kColumns, args.dy.shape(1)) - first;
                     for (std::int64_t t = 0; t < num_tokens; ++t) {
                       const std::int64_t id = *args.ids.at<std::int32_t>(t);
                       if (id < 0 || id >= args.dtable.shape(0)) continue;
                       isa.add_to_f32(args.dtable.at<float>(id, first), args.dy.at<T>(t, first), n);
                     }
                   });
  });
}

RLK_INSTANTIATE(embedding, EmbeddingArgs);
RLK_INSTANTIATE(embedding_backward, EmbeddingBackwardArgs);

}  // namespace rlk::cpu
