#include "rlk/kernels/rope.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {
namespace {

bool supported(const RopeArgs& args) {
  return dense(2, args.x, args.y) && dense(1, args.cos, args.sin);
}

// Calls run(rows) for every token and reports the bad head that it returns, if any.
template <typename T>
void for_each_position(Exec& exec, const RopeArgs& args,
                       std::int64_t (*run)(const RopeRows<T>& rows)) {
  const std::int64_t heads = args.x.shape(1);
  const double ns = 5.0 + 0.25 * static_cast<double>(heads * args.x.shape(2));
  for_row_ranges(exec, args.x.shape(0), ns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t position = *args.positions.at<std::int32_t>(t);
      const std::int64_t bad = run({args.y.at<T>(t), args.y.stride(1), args.x.at<T>(t),
                                    args.x.stride(1), args.cos.at<float>(position),
                                    args.sin.at<float>(position), heads, args.x.shape(2) / 2});
      if (bad >= 0) exec.fault.report(t * heads + bad);
    }
  });
}

}  // namespace

template <Isa I>
void rope(Exec& exec, const RopeArgs& args) {
  if (!supported(args)) return reference::rope(exec, args);
  with_storage(args.x.dtype,
               [&]<typename T>() { for_each_position<T>(exec, args, storage_rows<T>(I).rope); });
}

template <Isa I>
void rope_backward(Exec& exec, const RopeArgs& args) {
  if (!supported(args)) return reference::rope_backward(exec, args);
  with_storage(args.x.dtype, [&]<typename T>() {
    for_each_position<T>(exec, args, storage_rows<T>(I).rope_backward);
  });
}

RLK_INSTANTIATE(rope, RopeArgs);
RLK_INSTANTIATE(rope_backward, RopeArgs);

}  // namespace rlk::cpu
