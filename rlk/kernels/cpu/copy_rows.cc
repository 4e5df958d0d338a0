#include "rlk/kernels/copy_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::cpu {
namespace {

// Numbers by their bits: below 2^56 the exponent is below 183.
bool below_bound(const std::uint16_t* x, std::int64_t n) {
  std::uint16_t largest = 0;
  for (std::int64_t k = 0; k < n; ++k) largest = std::max<std::uint16_t>(largest, x[k] & 0x7f80);
  return largest < 183 << 7;
}
bool below_bound(const float* x, std::int64_t n) {
  std::uint32_t largest = 0;
  for (std::int64_t k = 0; k < n; ++k) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(x[k]) & 0x7f800000u);
  }
  return largest < std::uint32_t{183} << 23;
}

}  // namespace

template <Isa>
void copy_rows(Exec& exec, const CopyRowsArgs& args) {
  if (!dense(1, args.x, args.y)) return reference::copy_rows(exec, args);
  const std::int64_t n = args.x.shape(1);
  with_storage(args.x.dtype, [&]<typename T>() {
    const std::size_t size = static_cast<std::size_t>(n) * sizeof(T);
    for_row_ranges(exec, num_copies(args), 10.0 + 0.1 * static_cast<double>(n),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const std::int64_t from = args.from ? *args.from.at<std::int64_t>(i) : i;
                       const std::int64_t to = args.to ? *args.to.at<std::int64_t>(i) : i;
                       if (from < 0) {
                         if (args.y) std::memset(args.y.at<T>(to), 0, size);
                         continue;
                       }
                       const T* x = args.x.at<T>(from);
                       if (args.bounded && !below_bound(x, n)) exec.fault.report(i);
                       if (args.y) std::memcpy(args.y.at<T>(to), x, size);
                     }
                   });
  });
}

RLK_INSTANTIATE(copy_rows, CopyRowsArgs);

}  // namespace rlk::cpu
