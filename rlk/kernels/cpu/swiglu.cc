#include "rlk/kernels/swiglu.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/rows_isa.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {
namespace {

constexpr double kNsPerElement = 0.7;

}  // namespace

template <Isa I>
void swiglu(Exec& exec, const SwigluArgs& args) {
  if (!dense(1, args.y, args.g, args.u)) return reference::swiglu(exec, args);
  const RowsIsa& isa = rows_isa(I);
  const std::int64_t n = args.y.shape(1);
  exec.pool.parallel_for(args.y.shape(0), grain(kNsPerElement * static_cast<double>(n)),
                         [&](std::int64_t begin, std::int64_t end, int) {
                           for (std::int64_t t = begin; t < end; ++t) {
                             isa.swiglu(args.y.at<std::uint16_t>(t), args.g.at<std::uint16_t>(t),
                                        args.u.at<std::uint16_t>(t), n);
                           }
                         });
}

template <Isa I>
void swiglu_backward(Exec& exec, const SwigluBackwardArgs& args) {
  if (!dense(1, args.dg, args.du, args.dy, args.g, args.u)) {
    return reference::swiglu_backward(exec, args);
  }
  const RowsIsa& isa = rows_isa(I);
  const std::int64_t n = args.dy.shape(1);
  exec.pool.parallel_for(args.dy.shape(0), grain(kNsPerElement * static_cast<double>(n)),
                         [&](std::int64_t begin, std::int64_t end, int) {
                           for (std::int64_t t = begin; t < end; ++t) {
                             isa.swiglu_backward(
                                 args.dg.at<std::uint16_t>(t), args.du.at<std::uint16_t>(t),
                                 args.dy.at<std::uint16_t>(t), args.g.at<std::uint16_t>(t),
                                 args.u.at<std::uint16_t>(t), n);
                           }
                         });
}

RLK_INSTANTIATE(swiglu, SwigluArgs);
RLK_INSTANTIATE(swiglu_backward, SwigluBackwardArgs);

}  // namespace rlk::cpu
