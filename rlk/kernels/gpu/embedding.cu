#include "rlk/kernels/embedding.h"

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/table.h"

namespace rlk::gpu {
namespace {

template <typename T>
RLK_KERNEL(kElementThreads)
embedding_kernel(Ref<T> y, Ref<const T> table, Ref<const std::int32_t> ids, std::int64_t rows,
                 std::int64_t vocab_size, std::int64_t n, bool packed, unsigned long long* fault) {
  const auto [t, k] = place(n);
  if (t >= rows) return;
  const std::int64_t id = ids(t);
  if (id < 0 || id >= vocab_size) {
    report(fault, t);
    return;
  }
  float x[kWidth];
  load_pack(&table(id), table.stride[1], k, n, packed, x);
  for (int i = 0; i < kWidth; ++i) x[i] = x[i] + 0.0f;
  store_pack(&y(t), y.stride[1], k, n, packed, x);
}

// The block of a token adds all tokens of its id, if it is the first of them: one row of the table,
// one block, in order. The ids are read in chunks of a thread each.
template <typename T>
RLK_KERNEL(kElementThreads)
embedding_backward_kernel(Ref<float> dtable, Ref<const T> dy, Ref<const std::int32_t> ids,
                          std::int64_t num_tokens, std::int64_t vocab_size, std::int64_t n,
                          unsigned long long* fault) {
  RLK_SHARED(int, matches, kElementThreads);
  RLK_SHARED(bool, is_match, kElementThreads);
  const std::int64_t first = block_x();
  const std::int64_t id = ids(first);
  if (id < 0 || id >= vocab_size) {
    if (thread() == 0) report(fault, first);
    return;
  }
  for (std::int64_t chunk = 0; chunk < first; chunk += kElementThreads) {
    const std::int64_t t = chunk + thread();
    if (barrier_count(t < first && ids(t) == id) > 0) return;
  }
  const std::int64_t k = block_y() * kElementThreads + thread();
  float sum = k < n ? dtable(id, k) : 0.0f;
  for (std::int64_t chunk = first; chunk < num_tokens; chunk += kElementThreads) {
    const std::int64_t t = chunk + thread();
    const bool match = t < num_tokens && ids(t) == id;
    is_match[thread()] = match;
    const int count = barrier_count(match);
    if (match) {
      int rank = 0;
      for (int i = 0; i < thread(); ++i) rank += is_match[i] ? 1 : 0;
      matches[rank] = thread();
    }
    barrier();
    for (int i = 0; i < count && k < n; ++i) sum = sum + load(dy(chunk + matches[i], k));
    barrier();
  }
  if (k < n) dtable(id, k) = sum;
}

}  // namespace

void embedding(Exec& exec, const EmbeddingArgs& args) {
  const std::int64_t rows = args.y.shape(0);
  const std::int64_t n = args.y.shape(1);
  const bool packed = packs<kWidth>(args.y) && packs<kWidth>(args.table);
  with_storage(args.y.dtype, [&]<typename T>() {
    launch(exec, element_grid(rows, n), kElementThreads, 0, embedding_kernel<T>, ref<T>(args.y),
           ref<T>(args.table), ref<std::int32_t>(args.ids), rows, args.table.shape(0), n, packed,
           exec.gpu->fault());
  });
}

void embedding_backward(Exec& exec, const EmbeddingBackwardArgs& args) {
  const std::int64_t num_tokens = args.dy.shape(0);
  const std::int64_t n = args.dy.shape(1);
  with_storage(args.dy.dtype, [&]<typename T>() {
    launch(exec, {num_tokens, ceil_div(n, kElementThreads)}, kElementThreads, 0,
           embedding_backward_kernel<T>, ref<float>(args.dtable), ref<T>(args.dy),
           ref<std::int32_t>(args.ids), num_tokens, args.dtable.shape(0), n, exec.gpu->fault());
  });
}

}  // namespace rlk::gpu
