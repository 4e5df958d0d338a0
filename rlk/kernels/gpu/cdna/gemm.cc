#include "rlk/kernels/gpu/cdna/gemm.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "rlk/device/device.h"
#include "rlk/kernels/gpu/cdna/table.h"
#include "rlk/kernels/gpu/views.h"
#include "rlk/numerics/sums.h"

namespace rlk::gpu::cdna {
namespace {

// Element (i, k), as it lies; false where 16 bytes at a time cannot be read.
bool read_as(const ConstTensorView& x, bool i_major, Operand* operand) {
  constexpr std::int64_t kMaxStride = std::int64_t{1} << 22;  // offsets in a tile have 32 bits
  const std::int64_t stride = x.stride(i_major ? 1 : 0);
  const bool dense = x.stride(i_major ? 0 : 1) == 1;
  *operand = {static_cast<const bf16*>(x.data), stride, static_cast<int>(x.shape(0))};
  return dense && stride % 8 == 0 && stride < kMaxStride && (!i_major || x.shape(0) % 8 == 0) &&
         reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
}

}  // namespace

// The kernels read the weight itself: nothing is kept.
void pack_weight(Exec&, const PackWeightArgs& args) {
  *args.packed = PackedWeight{nullptr, args.w.shape(0), args.w.shape(1), nullptr, args.w.dtype};
}

const Chip& chip() {
  static const Chip kChip = [] {
    const std::vector<device::Info> devices = device::list();
    if (devices.empty()) return Chip{1, 1};
    const bool mi300 = devices[0].architecture.starts_with("gfx942");
    return Chip{devices[0].num_processors, mi300 ? 8 : 1};
  }();
  return kChip;
}

TileOrder tile_order(int m, int kM, int n, int kN) {
  return {(m + kM - 1) / kM, (n + kN - 1) / kN, chip().dies};
}

bool describe(const Exec& exec, const GemmArgs& args, Product* product) {
  const std::int64_t m = args.c.shape(0), n = args.c.shape(1), k = args.a.shape(1);
  const bool fits =
      std::max({m, n, k}) < std::numeric_limits<int>::max() / 2 && std::min({m, n, k}) > 0;
  const bool dense_c = n == 1 || args.c.stride(1) == 1;
  const bool dense_bias = !args.bias || n == 1 || args.bias.stride(0) == 1;
  Product& p = *product;
  p = Product{};
  if (!fits || !dense_c || !dense_bias || !read_as(args.a, false, &p.a)) return false;
  p.b_is_i_major = !read_as(args.b, false, &p.b);
  if (p.b_is_i_major && !read_as(args.b, true, &p.b)) return false;
  p.c = args.c.data;
  p.c_stride = args.c.stride(0);
  p.c_is_f32 = args.c.dtype == DType::kF32;
  p.c_packs = packs<4>(args.c);
  p.bias = static_cast<const bf16*>(args.bias.data);

  p.leaves = args.leaf_tree ? exec.contract.leaves : 1;
  if (p.leaves > kMaxLeaves) return false;
  const std::array<std::int64_t, 3> one{k, 0, 0};
  int count = 0;
  for (int leaf = 0; leaf < p.leaves; ++leaf) {
    std::int64_t start = 0;
    for (const std::int64_t size : args.leaf_tree ? args.segments : one) {
      if (size % 8 != 0) return false;
      const auto bound = [&](int of) {
        return static_cast<int>(start + numerics::leaf_bound(size, p.leaves, of));
      };
      const Product::Piece piece{bound(leaf), bound(leaf + 1)};
      if (piece.begin < piece.end) p.pieces[count++] = piece;
      start += size;
    }
    p.first_piece[leaf + 1] = count;
  }
  return true;
}

void gemm(Exec& exec, const GemmArgs& args) {
  constexpr int kFewRows = 64;
  Product p;
  if (!describe(exec, args, &p)) return gemm_any(exec, args);
  if (p.a.size <= kFewRows && !p.b_is_i_major) return gemm_few_rows(exec, p);
  gemm_many_rows(exec, p, tiles_for(p));
}

}  // namespace rlk::gpu::cdna
