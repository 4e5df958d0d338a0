#include "rlk/kernels/gpu/cdna/gemm.h"

#include <algorithm>
#include <string>
#include <vector>

#include "rlk/device/device.h"
#include "rlk/kernels/gpu/cdna/table.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/views.h"

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
    const device::Info device = device::selected();
    const bool mi300 = device.architecture.starts_with("gfx942");
    return Chip{device.num_processors, mi300 ? 8 : 1};
  }();
  return kChip;
}

TileOrder tile_order(int m, int kM, int n, int kN) {
  return {{ceil_div(m, kM), ceil_div(n, kN)}, chip().dies};
}

bool describe(const Exec& exec, const GemmArgs& args, Product* product) {
  const GemmShape shape = GemmShape::of(exec, args);
  Product& p = *product;
  p = Product{};
  if (!is_plain(shape, args) || !read_as(args.a, false, &p.a)) return false;
  p.b_is_i_major = !read_as(args.b, false, &p.b);
  if (p.b_is_i_major && !read_as(args.b, true, &p.b)) return false;
  p.c = args.c.data;
  p.c_stride = args.c.stride(0);
  p.c_is_f32 = shape.c_is_f32;
  p.c_packs = packs<4>(args.c);
  p.bias = static_cast<const bf16*>(args.bias.data);

  p.leaves = shape.leaves;
  const auto odd = [](std::int64_t size) { return size % 8 != 0; };
  if (p.leaves > kMaxLeaves || std::ranges::any_of(shape.segments, odd)) return false;
  int count = 0;
  for (int leaf = 0; leaf < p.leaves; ++leaf) {
    shape.for_each_piece(leaf, [&](std::int64_t begin, std::int64_t end) {
      if (begin < end) p.pieces[count++] = {static_cast<int>(begin), static_cast<int>(end)};
    });
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
