#include "rlk/kernels/rope.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/rows_isa.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {
namespace {

bool supported(const RopeArgs& args) {
  return dense(2, args.x, args.y) && dense(1, args.cos, args.sin);
}

// Calls rotate(t, position) for every token.
template <typename Rotate>
void for_each_token(Exec& exec, const RopeArgs& args, const Rotate& rotate) {
  const double elements = static_cast<double>(args.x.shape(1) * args.x.shape(2));
  exec.pool.parallel_for(args.x.shape(0), grain(5.0 + 0.25 * elements),
                         [&](std::int64_t begin, std::int64_t end, int) {
                           for (std::int64_t t = begin; t < end; ++t) {
                             rotate(t, *args.positions.at<std::int32_t>(t));
                           }
                         });
}

}  // namespace

template <Isa I>
void rope(Exec& exec, const RopeArgs& args) {
  if (!supported(args)) return reference::rope(exec, args);
  const RowsIsa& isa = rows_isa(I);
  const std::int64_t heads = args.x.shape(1);
  for_each_token(exec, args, [&](std::int64_t t, std::int64_t position) {
    const std::int64_t bad =
        isa.rope(args.y.at<std::uint16_t>(t), args.y.stride(1), args.x.at<std::uint16_t>(t),
                 args.x.stride(1), args.cos.at<float>(position), args.sin.at<float>(position),
                 heads, args.x.shape(2) / 2);
    if (bad >= 0) exec.fault.report(t * heads + bad);
  });
}

template <Isa I>
void rope_backward(Exec& exec, const RopeArgs& args) {
  if (!supported(args)) return reference::rope_backward(exec, args);
  const RowsIsa& isa = rows_isa(I);
  for_each_token(exec, args, [&](std::int64_t t, std::int64_t position) {
    isa.rope_backward(args.y.at<std::uint16_t>(t), args.y.stride(1), args.x.at<std::uint16_t>(t),
                      args.x.stride(1), args.cos.at<float>(position), args.sin.at<float>(position),
                      args.x.shape(1), args.x.shape(2) / 2);
  });
}

RLK_INSTANTIATE(rope, RopeArgs);
RLK_INSTANTIATE(rope_backward, RopeArgs);

}  // namespace rlk::cpu
