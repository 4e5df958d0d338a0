#include "rlk/kernels/rope.h"

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/numerics/ieee.h"

namespace rlk::gpu {
namespace {

struct RopeShape {
  std::int64_t rows;  // tokens * heads
  std::int64_t heads;
  std::int64_t half;
  bool packed;
  bool checked;  // forward: |y| must be below 2^56
};

// Thread by thread kWidth pairs (i, i + half) of one head of one token.
template <typename T>
RLK_KERNEL(kElementThreads)
rope_kernel(Ref<T> y, Ref<const T> x, Ref<const float> cos_table, Ref<const float> sin_table,
            Ref<const std::int32_t> positions, RopeShape shape, bool backward,
            unsigned long long* fault) {
  const auto [row, i] = place(shape.half);
  if (row >= shape.rows) return;
  const std::int64_t t = divide(row, shape.heads);
  const std::int64_t h = row - t * shape.heads;
  const std::int64_t position = positions(t);
  float x1[kWidth];
  float x2[kWidth];
  float cosine[kWidth];
  float sine[kWidth];
  load_pack(&x(t, h), x.stride[2], i, shape.half, shape.packed, x1);
  load_pack(&x(t, h, shape.half), x.stride[2], i, shape.half, shape.packed, x2);
  load_pack(&cos_table(position), cos_table.stride[1], i, shape.half, shape.packed, cosine);
  load_pack(&sin_table(position), sin_table.stride[1], i, shape.half, shape.packed, sine);
  bool good = true;
  for (int j = 0; j < kWidth; ++j) {
    const float s1 = x1[j] * sine[j];
    const float s2 = x2[j] * sine[j];
    x1[j] = numerics::fma(x1[j], cosine[j], backward ? s2 : -s2);
    x2[j] = numerics::fma(x2[j], cosine[j], backward ? -s1 : s1);
    good = good && numerics::abs(round_to<T>(x1[j])) < 0x1p56f &&
           numerics::abs(round_to<T>(x2[j])) < 0x1p56f;
  }
  store_pack(&y(t, h), y.stride[2], i, shape.half, shape.packed, x1);
  store_pack(&y(t, h, shape.half), y.stride[2], i, shape.half, shape.packed, x2);
  if (shape.checked && !good) report(fault, row);
}

void run(Exec& exec, const RopeArgs& args, bool backward) {
  const std::int64_t half = args.x.shape(2) / 2;
  const bool packed = half % kWidth == 0 && packs<kWidth>(args.x) && packs<kWidth>(args.y) &&
                      packs<kWidth>(args.cos) && packs<kWidth>(args.sin);
  const RopeShape shape{args.x.shape(0) * args.x.shape(1), args.x.shape(1), half, packed,
                        !backward};
  with_storage(args.x.dtype, [&]<typename T>() {
    launch(exec, element_grid(shape.rows, half), kElementThreads, 0, rope_kernel<T>, ref<T>(args.y),
           ref<T>(args.x), ref<float>(args.cos), ref<float>(args.sin),
           ref<std::int32_t>(args.positions), shape, backward, exec.gpu->fault());
  });
}

}  // namespace

void rope(Exec& exec, const RopeArgs& args) { run(exec, args, false); }
void rope_backward(Exec& exec, const RopeArgs& args) { run(exec, args, true); }

}  // namespace rlk::gpu
