#include "rlk/kernels/copy_rows.h"

#include <cmath>

#include "rlk/kernels/reference/storage.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::reference {
namespace {

template <typename T>
void copy(const TensorView& y, const ConstTensorView& x, std::int64_t to, std::int64_t from) {
  for (std::int64_t k = 0; k < x.shape(1); ++k) {
    *y.at<T>(to, k) = from < 0 ? T{} : *x.at<T>(from, k);
  }
}

}  // namespace

void copy_rows(Exec& exec, const CopyRowsArgs& args) {
  for (std::int64_t i = 0; i < num_copies(args); ++i) {
    const std::int64_t from = args.from ? *args.from.at<std::int64_t>(i) : i;
    const std::int64_t to = args.to ? *args.to.at<std::int64_t>(i) : i;
    for (std::int64_t k = 0; args.bounded && from >= 0 && k < args.x.shape(1); ++k) {
      if (!(std::fabs(read(args.x, from, k)) < kCopyBound)) exec.fault.report(i);
    }
    if (!args.y) continue;
    if (args.x.dtype == DType::kF32) {
      copy<float>(args.y, args.x, to, from);
    } else {
      copy<bf16>(args.y, args.x, to, from);
    }
  }
}

}  // namespace rlk::reference
