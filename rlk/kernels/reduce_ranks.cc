#include "rlk/kernels/reduce_ranks.h"

#include "rlk/core/error.h"

namespace rlk {
namespace {

// The bytes of all ranks, one after the other, then one level of the tree after the other. An f32
// residual_add is one IEEE addition.
void reduce(const KernelTable& kernels, Exec& exec, const device::Communicator& ranks, float* sum,
            std::int64_t n, float* parts) {
  ranks.all_gather(parts, sum, static_cast<std::size_t>(n) * sizeof(float),
                   exec.gpu ? &exec.gpu->stream() : nullptr);
  const auto part = [&](std::int64_t i) { return view(parts + i * n, {1, n}); };
  for (std::int64_t width = ranks.size(); width > 1; width /= 2) {
    for (std::int64_t i = 0; i < width / 2; ++i) {
      const TensorView out = width == 2 ? view(sum, {1, n}) : part(i);
      kernels.residual_add(exec, {out, part(2 * i), part(2 * i + 1)});
    }
  }
}

}  // namespace

void reduce_ranks(const KernelTable& kernels, Exec& exec, const device::Communicator& ranks,
                  float* sum, std::int64_t n) {
  const int size = ranks.size();
  RLK_ASSERT((size & (size - 1)) == 0);
  if (size == 1 || n == 0) return;
  if (exec.gpu) {
    device::Workspace::Frame frame(exec.gpu->workspace());
    reduce(kernels, exec, ranks, sum, n, frame.take<float>(size * n));
  } else {
    Workspace::Frame frame(exec.workspace);
    reduce(kernels, exec, ranks, sum, n, frame.take<float>(size * n));
  }
}

}  // namespace rlk
