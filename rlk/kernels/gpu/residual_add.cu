#include "rlk/kernels/residual_add.h"

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/table.h"

namespace rlk::gpu {
namespace {

template <typename T>
RLK_KERNEL(kElementThreads)
residual_add_kernel(Ref<T> y, Ref<const T> a, Ref<const T> b, std::int64_t rows, std::int64_t n,
                    bool packed) {
  const auto [t, k] = place(n);
  if (t >= rows) return;
  float x[kWidth];
  float z[kWidth];
  load_pack(&a(t), a.stride[1], k, n, packed, x);
  load_pack(&b(t), b.stride[1], k, n, packed, z);
  for (int i = 0; i < kWidth; ++i) x[i] = x[i] + z[i];
  store_pack(&y(t), y.stride[1], k, n, packed, x);
}

}  // namespace

void residual_add(Exec& exec, const ResidualAddArgs& args) {
  const std::int64_t rows = args.y.shape(0);
  const std::int64_t n = args.y.shape(1);
  const bool packed = packs<kWidth>(args.y) && packs<kWidth>(args.a) && packs<kWidth>(args.b);
  with_storage(args.y.dtype, [&]<typename T>() {
    launch(exec, element_grid(rows, n), kElementThreads, 0, residual_add_kernel<T>, ref<T>(args.y),
           ref<T>(args.a), ref<T>(args.b), rows, n, packed);
  });
}

}  // namespace rlk::gpu
