#include "rlk/kernels/rope.h"

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/numerics/ieee.h"

namespace rlk::gpu {
namespace {

// Heads of a thread, which share what it reads of the tables.
constexpr int kRopeHeads = 4;

struct RopeShape {
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t groups;  // of kRopeHeads heads
  std::int64_t half;
  bool backward;
};

// The least |x| that is stored as 2^56 or more.
template <typename T>
constexpr float kRopeLimit = sizeof(T) == 2 ? 0x1.ffp55f : 0x1p56f;

// Thread by thread kWidth pairs (i, i + half) of kRopeHeads heads of one token: g, g + groups, ..
// Forward |y| must be below 2^56.
template <typename T, bool kWhole>
RLK_KERNEL(kElementThreads)
rope_kernel(Ref<T> y, Ref<const T> x, Ref<const float> cos_table, Ref<const float> sin_table,
            Ref<const std::int32_t> positions, RopeShape shape, unsigned long long* fault) {
  const auto [row, i] = place(shape.half);
  if (row >= shape.tokens * shape.groups) return;
  const std::int64_t t = divide(row, shape.groups);
  const std::int64_t g = row - t * shape.groups;
  const std::int64_t position = positions(t);
  const T* x_row = &x(t, g);
  T* y_row = &y(t, g);
  const std::int64_t x_half = shape.half * x.stride[2];
  const std::int64_t y_half = shape.half * y.stride[2];
  HeldElements<T, kWhole> x1[kRopeHeads];
  HeldElements<T, kWhole> x2[kRopeHeads];
  float cosine[kWidth];
  float sine[kWidth];
  RLK_UNROLL
  for (int p = 0; p < kRopeHeads; ++p) {
    if (g + p * shape.groups >= shape.heads) continue;
    const T* const head = x_row + p * shape.groups * x.stride[1];
    x1[p].load(head, x.stride[2], i, shape.half);
    x2[p].load(head + x_half, x.stride[2], i, shape.half);
  }
  load_elements<kWhole>(&cos_table(position), cos_table.stride[1], i, shape.half, cosine);
  load_elements<kWhole>(&sin_table(position), sin_table.stride[1], i, shape.half, sine);
  if (shape.backward) {
    RLK_UNROLL
    for (int j = 0; j < kWidth; ++j) sine[j] = -sine[j];
  }
  RLK_UNROLL
  for (int p = 0; p < kRopeHeads; ++p) {
    const std::int64_t h = g + p * shape.groups;
    if (h >= shape.heads) continue;
    float y1[kWidth];
    float y2[kWidth];
    x1[p].get(y1);
    x2[p].get(y2);
    bool good = true;
    RLK_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      const float s1 = y1[j] * sine[j];
      const float s2 = y2[j] * sine[j];
      y1[j] = numerics::fma(y1[j], cosine[j], -s2);
      y2[j] = numerics::fma(y2[j], cosine[j], s1);
      good = good & (numerics::abs(y1[j]) < kRopeLimit<T>);
      good = good & (numerics::abs(y2[j]) < kRopeLimit<T>);
    }
    T* const head = y_row + p * shape.groups * y.stride[1];
    store_elements<kWhole>(head, y.stride[2], i, shape.half, y1);
    store_elements<kWhole>(head + y_half, y.stride[2], i, shape.half, y2);
    if (!good && !shape.backward) report(fault, t * shape.heads + h);
  }
}

void run(Exec& exec, const RopeArgs& args, bool backward) {
  const std::int64_t heads = args.x.shape(1);
  const RopeShape shape{args.x.shape(0), heads, ceil_div(heads, kRopeHeads), args.x.shape(2) / 2,
                        backward};
  with_storage(args.x.dtype, [&]<typename T>() {
    const auto run = [&]<bool kWhole>() {
      launch(exec, element_grid(shape.tokens * shape.groups, shape.half), kElementThreads, 0,
             rope_kernel<T, kWhole>, ref<T>(args.y), ref<T>(args.x), ref<float>(args.cos),
             ref<float>(args.sin), ref<std::int32_t>(args.positions), shape, exec.gpu->fault());
    };
    with_whole(run, shape.half, args.x, args.y, args.cos, args.sin);
  });
}

}  // namespace

void rope(Exec& exec, const RopeArgs& args) { run(exec, args, false); }
void rope_backward(Exec& exec, const RopeArgs& args) { run(exec, args, true); }

}  // namespace rlk::gpu
