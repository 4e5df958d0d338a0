#include "rlk/kernels/rope.h"

#include <cmath>

#include "rlk/kernels/reference/storage.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::reference {
namespace {

struct Pair {
  float first, second;
};

// Stores rotate(x1, x2, cos, sin) = {y1, y2} of every pair; returns the lowest row
// (token * heads + head) with a value that is NaN or not below 2^56, or -1.
template <typename Rotate>
std::int64_t for_each_pair(const RopeArgs& args, const Rotate& rotate) {
  const std::int64_t heads = args.x.shape(1);
  const std::int64_t half = args.x.shape(2) / 2;
  std::int64_t bad_row = -1;
  for (std::int64_t t = 0; t < args.x.shape(0); ++t) {
    const std::int64_t position = *args.positions.at<std::int32_t>(t);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < half; ++i) {
        const float x1 = read(args.x, t, h, i);
        const float x2 = read(args.x, t, h, i + half);
        const float cos = *args.cos.at<float>(position, i);
        const float sin = *args.sin.at<float>(position, i);
        const Pair y = rotate(x1, x2, cos, sin);
        write(args.y, y.first, t, h, i);
        write(args.y, y.second, t, h, i + half);
        const bool good = std::fabs(read(args.y, t, h, i)) < 0x1p56f &&
                          std::fabs(read(args.y, t, h, i + half)) < 0x1p56f;
        if (!good && bad_row < 0) bad_row = t * heads + h;
      }
    }
  }
  return bad_row;
}

}  // namespace

void rope(Exec& exec, const RopeArgs& args) {
  const std::int64_t bad_row =
      for_each_pair(args, [](float x1, float x2, float cos, float sin) -> Pair {
        return {std::fma(x1, cos, -(x2 * sin)), std::fma(x2, cos, x1 * sin)};
      });
  if (bad_row >= 0) exec.fault.report(bad_row);
}

void rope_backward(Exec&, const RopeArgs& args) {
  for_each_pair(args, [](float x1, float x2, float cos, float sin) -> Pair {
    return {std::fma(x1, cos, x2 * sin), std::fma(x2, cos, -(x1 * sin))};
  });
}

}  // namespace rlk::reference
