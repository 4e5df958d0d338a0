#include "rlk/kernels/residual_add.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {

template <Isa I>
void residual_add(Exec& exec, const ResidualAddArgs& args) {
  if (!dense(1, args.y, args.a, args.b)) return reference::residual_add(exec, args);
  const std::int64_t n = args.y.shape(1);
  with_storage(args.y.dtype, [&]<typename T>() {
    const StorageRows<T>& isa = storage_rows<T>(I);
    for_row_ranges(exec, args.y.shape(0), 5.0 + 0.2 * static_cast<double>(n),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t t = begin; t < end; ++t) {
                       isa.residual_add(args.y.at<T>(t), args.a.at<T>(t), args.b.at<T>(t), n);
                     }
                   });
  });
}

RLK_INSTANTIATE(residual_add, ResidualAddArgs);

}  // namespace rlk::cpu
