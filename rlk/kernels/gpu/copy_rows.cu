#include "rlk/kernels/copy_rows.h"

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/table.h"

namespace rlk::gpu {
namespace {

struct Copies {
  Ref<const std::int64_t> from;
  Ref<const std::int64_t> to;
  std::int64_t count;
  std::int64_t n;
  bool write;
  bool bounded;
};

template <typename T, bool kWhole>
RLK_KERNEL(kElementThreads)
copy_rows_kernel(Ref<T> y, Ref<const T> x, Copies copies, unsigned long long* fault) {
  const auto [i, k] = place(copies.n);
  if (i >= copies.count) return;
  const std::int64_t from = copies.from ? copies.from(i) : i;
  const std::int64_t to = copies.to ? copies.to(i) : i;
  HeldElements<T, kWhole> held{};
  if (from >= 0) held.load(&x(from), x.stride[1], k, copies.n);
  if (copies.bounded) {
    float number[kWidth];
    held.get(number);
    bool below = true;
    for (int j = 0; j < kWidth; ++j) {
      below = below && number[j] < kCopyBound && number[j] > -kCopyBound;
    }
    if (!below) report(fault, i);
  }
  if (!copies.write) return;
  if constexpr (kWhole) {
    held.pack.write(&y(to, k));
  } else {
    float number[kWidth];
    held.get(number);
    store_elements<false>(&y(to), y.stride[1], k, copies.n, number);
  }
}

}  // namespace

void copy_rows(Exec& exec, const CopyRowsArgs& args) {
  const Copies copies{ref<std::int64_t>(args.from),
                      ref<std::int64_t>(args.to),
                      num_copies(args),
                      args.x.shape(1),
                      static_cast<bool>(args.y),
                      args.bounded};
  with_storage(args.x.dtype, [&]<typename T>() {
    const auto run = [&]<bool kWhole>() {
      launch(exec, element_grid(copies.count, copies.n), kElementThreads, 0,
             copy_rows_kernel<T, kWhole>, ref<T>(args.y), ref<T>(args.x), copies,
             exec.gpu->fault());
    };
    with_whole(run, copies.n, args.y, args.x);
  });
}

}  // namespace rlk::gpu
