#include "rlk/numerics/mma/columns.h"

#include <array>

#include "rlk/core/error.h"
#include "rlk/core/instruction_sets.h"
#include "rlk/numerics/mma/mac.h"

namespace rlk::numerics::mma {
namespace {

template <typename Mac>
float column(float c, const float* a, const float* b, std::int64_t stride) {
  std::array<float, Mac::kWidth> y;
  for (int i = 0; i < Mac::kWidth; ++i) y[i] = b[i * stride];
  return Mac()(c, a, y.data());
}

constexpr int kScalarPanel = 16;

template <typename Mac>
void scalar_chains(const ColumnChains& x) {
  for (std::int64_t m = 0; m < x.rows; ++m) {
    for (int n = 0; n < kScalarPanel; ++n) {
      float& acc = x.acc[m * x.acc_stride + n];
      acc = chain(
          Mac(), acc, [&](std::int64_t k) { return x.a[m * x.a_row + k * x.a_step]; },
          [&](std::int64_t k) { return x.b[k * x.b_stride + n]; }, 0, x.k);
    }
  }
}

template <typename Mac>
constexpr ColumnsIsa kScalar = {"scalar", kScalarPanel, scalar_chains<Mac>};

std::vector<const ColumnsIsa*> usable(const ColumnsIsa& avx512, const ColumnsIsa& avx2,
                                      const ColumnsIsa& scalar) {
  std::vector<const ColumnsIsa*> all;
  if (has_avx512()) all.push_back(&avx512);
  if (has_avx2()) all.push_back(&avx2);
  all.push_back(&scalar);
  return all;
}

}  // namespace

float hopper_column(float c, const float* a, const float* b, std::int64_t stride) {
  return column<Sm90Mac>(c, a, b, stride);
}
float cdna3_column(float c, const float* a, const float* b, std::int64_t stride) {
  return column<Cdna3Mac>(c, a, b, stride);
}
float cdna2_column(float c, const float* a, const float* b, std::int64_t stride) {
  return column<Cdna2Mac>(c, a, b, stride);
}

const std::vector<const ColumnsIsa*>& columns_isas(Profile profile) {
  RLK_ASSERT(profile != Profile::kPortable);
  static const auto kSm90 = usable(kHopperAvx512, kHopperAvx2, kScalar<Sm90Mac>);
  static const auto kCdna3 = usable(kCdna3Avx512, kCdna3Avx2, kScalar<Cdna3Mac>);
  static const auto kCdna2 = usable(kCdna2Avx512, kCdna2Avx2, kScalar<Cdna2Mac>);
  return profile == Profile::kSm90 ? kSm90 : profile == Profile::kCdna3 ? kCdna3 : kCdna2;
}

}  // namespace rlk::numerics::mma
