// The products of each profile: the functions of an instruction set with, for a profile whose mac
// is a matrix instruction, the chains of its model (numerics/mma/columns.h) in place of fma.
#include <algorithm>
#include <string_view>

#include "rlk/core/error.h"
#include "rlk/kernels/cpu/columns.h"
#include "rlk/kernels/cpu/gemm_blocks.h"
#include "rlk/numerics/mma/columns.h"

namespace rlk::cpu {
namespace {

using numerics::mma::ColumnsIsa;

const GemmIsa& portable_isa(Isa isa) {
  switch (isa) {
    case Isa::kAvx2: return kGemmAvx2;
    case Isa::kAvx512: return kGemmAvx512;
    default: return kGemmScalar;
  }
}

constexpr int kMaxPanel = 32;
constexpr std::int64_t kUnpackDepth = 4 * numerics::mma::kColumnDepth;

// One run of one panel; the sums lie in memory, where a run that goes on finds them.
void run_chains(const GemmIsa& isa, const ColumnsIsa& columns, float* acc, std::int64_t acc_stride,
                const float* a, const float* b, const GemmPiece& piece, const GemmRun& run) {
  columns.chains({acc, acc_stride, a, kGemmStrideA, 1, b, isa.panel, piece.rows, run.depth});
}
void run_chains(const GemmIsa& isa, const ColumnsIsa& columns, float* acc, std::int64_t acc_stride,
                const float* a, const std::uint16_t* b, const GemmPiece& piece,
                const GemmRun& run) {
  alignas(64) float wide[kUnpackDepth * kMaxPanel];
  for (std::int64_t k = 0; k < run.depth; k += kUnpackDepth) {
    const std::int64_t depth = std::min(kUnpackDepth, run.depth - k);
    isa.unpack(wide, b + k * isa.panel, depth);
    columns.chains({acc, acc_stride, a + k, kGemmStrideA, 1, wide, isa.panel, piece.rows, depth});
  }
}

// As product_f32 and product_bf16 of GemmIsa.
template <Isa I, Profile profile, typename T>
void product(const GemmPiece& piece) {
  static const ColumnsIsa& columns = *columns_isa(I, profile);
  const GemmIsa& isa = portable_isa(I);
  const GemmAcc& at = piece.acc;
  for (std::int64_t p = 0; p < piece.num_panels; ++p) {
    const T* b = static_cast<const T*>(piece.b) + p * piece.b_panel_stride;
    for (const GemmRun* run = piece.runs; run != piece.runs + piece.num_runs; ++run) {
      float* acc = at.data + p * at.panel_stride + run->level * at.level_stride;
      for (std::int64_t r = 0; run->start == GemmRun::kFresh && r < piece.rows; ++r) {
        std::fill_n(acc + r * at.row_stride, isa.panel, 0.0f);
      }
      run_chains(isa, columns, acc, at.row_stride, piece.a + run->a, b + run->b * isa.panel, piece,
                 *run);
      for (std::int32_t m = 0; m < run->merges; ++m, acc -= at.level_stride) {
        for (std::int64_t r = 0; r < piece.rows; ++r) {
          float* above = acc + r * at.row_stride;
          isa.add(above - at.level_stride, above, isa.panel);
        }
      }
    }
  }
}

template <Isa I, Profile profile>
const GemmIsa& model_isa() {
  static const GemmIsa kIsa = [] {
    GemmIsa isa = portable_isa(I);
    RLK_ASSERT(isa.panel == columns_isa(I, profile)->panel && isa.panel <= kMaxPanel);
    isa.product_f32 = product<I, profile, float>;
    isa.product_bf16 = product<I, profile, std::uint16_t>;
    return isa;
  }();
  return kIsa;
}

template <Isa I>
const GemmIsa& profile_isa(Profile profile) {
  switch (profile) {
    case Profile::kSm90: return model_isa<I, Profile::kSm90>();
    case Profile::kCdna3: return model_isa<I, Profile::kCdna3>();
    case Profile::kCdna2: return model_isa<I, Profile::kCdna2>();
    default: return portable_isa(I);
  }
}

}  // namespace

const ColumnsIsa* columns_isa(Isa isa, Profile profile) {
  if (profile == Profile::kPortable) return nullptr;
  for (const ColumnsIsa* columns : numerics::mma::columns_isas(profile)) {
    if (std::string_view(columns->name) == to_string(isa)) return columns;
  }
  RLK_ASSERT(false);
  return nullptr;
}

const GemmIsa& gemm_isa(Isa isa, Profile profile) {
  switch (isa) {
    case Isa::kAvx2: return profile_isa<Isa::kAvx2>(profile);
    case Isa::kAvx512: return profile_isa<Isa::kAvx512>(profile);
    default: return profile_isa<Isa::kScalar>(profile);
  }
}

}  // namespace rlk::cpu
