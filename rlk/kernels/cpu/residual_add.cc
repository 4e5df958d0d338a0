#include "rlk/kernels/residual_add.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/rows_isa.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {

template <Isa I>
void residual_add(Exec& exec, const ResidualAddArgs& args) {
  if (!dense(1, args.y, args.a, args.b)) return reference::residual_add(exec, args);
  const RowsIsa& isa = rows_isa(I);
  const std::int64_t n = args.y.shape(1);
  exec.pool.parallel_for(args.y.shape(0), grain(5.0 + 0.2 * static_cast<double>(n)),
                         [&](std::int64_t begin, std::int64_t end, int) {
                           for (std::int64_t t = begin; t < end; ++t) {
                             isa.residual_add(args.y.at<std::uint16_t>(t),
                                              args.a.at<std::uint16_t>(t),
                                              args.b.at<std::uint16_t>(t), n);
                           }
                         });
}

RLK_INSTANTIATE(residual_add, ResidualAddArgs);

}  // namespace rlk::cpu
