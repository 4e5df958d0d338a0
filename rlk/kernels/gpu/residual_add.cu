#include "rlk/kernels/residual_add.h"

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/table.h"

namespace rlk::gpu {
namespace {

template <typename T, bool kWhole>
RLK_KERNEL(kElementThreads)
residual_add_kernel(Ref<T> y, Ref<const T> a, Ref<const T> b, std::int64_t rows, std::int64_t n) {
  const auto [t, k] = place(n, rows == 1);
  if (t >= rows) return;
  float x[kWidth];
  float z[kWidth];
  load_elements<kWhole>(&a(t), a.stride[1], k, n, x);
  load_elements<kWhole>(&b(t), b.stride[1], k, n, z);
  for (int i = 0; i < kWidth; ++i) x[i] = x[i] + z[i];
  store_elements<kWhole>(&y(t), y.stride[1], k, n, x);
}

}  // namespace

void residual_add(Exec& exec, const ResidualAddArgs& args) {
  const Rectangle size = rectangle(args.y, args.a, args.b);
  with_storage(args.y.dtype, [&]<typename T>() {
    const auto run = [&]<bool kWhole>() {
      launch(exec, element_grid(size.rows, size.n), kElementThreads, 0,
             residual_add_kernel<T, kWhole>, ref<T>(args.y), ref<T>(args.a), ref<T>(args.b),
             size.rows, size.n);
    };
    with_whole(run, size.n, args.y, args.a, args.b);
  });
}

}  // namespace rlk::gpu
