#include "rlk/kernels/swiglu.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {
namespace {

constexpr double kNsPerElement = 0.6;

}  // namespace

template <Isa I>
void swiglu(Exec& exec, const SwigluArgs& args) {
  if (!dense(1, args.y, args.g, args.u)) return reference::swiglu(exec, args);
  const std::int64_t n = args.y.shape(1);
  with_storage(args.y.dtype, [&]<typename T>() {
    const StorageRows<T>& isa = storage_rows<T>(I);
    for_row_ranges(exec, args.y.shape(0), kNsPerElement * static_cast<double>(n),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t t = begin; t < end; ++t) {
                       isa.swiglu(args.y.at<T>(t), args.g.at<T>(t), args.u.at<T>(t), n);
                     }
                   });
  });
}

template <Isa I>
void swiglu_backward(Exec& exec, const SwigluBackwardArgs& args) {
  if (!dense(1, args.dg, args.du, args.dy, args.g, args.u)) {
    return reference::swiglu_backward(exec, args);
  }
  const std::int64_t n = args.dy.shape(1);
  with_storage(args.dy.dtype, [&]<typename T>() {
    const StorageRows<T>& isa = storage_rows<T>(I);
    for_row_ranges(exec, args.dy.shape(0), kNsPerElement * static_cast<double>(n),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t t = begin; t < end; ++t) {
                       isa.swiglu_backward(args.dg.at<T>(t), args.du.at<T>(t), args.dy.at<T>(t),
                                           args.g.at<T>(t), args.u.at<T>(t), n);
                     }
                   });
  });
}

RLK_INSTANTIATE(swiglu, SwigluArgs);
RLK_INSTANTIATE(swiglu_backward, SwigluBackwardArgs);

}  // namespace rlk::cpu
