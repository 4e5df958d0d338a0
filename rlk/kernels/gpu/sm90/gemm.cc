#include "rlk/kernels/gpu/sm90/gemm.h"

#include <algorithm>
#include <array>
#include <limits>

#include "rlk/kernels/gpu/sm90/table.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"
#include "rlk/numerics/sums.h"

namespace rlk::gpu::sm90 {
namespace {

// Marks a weight as packed; the kernels read the weight itself.
constexpr const char* kPackedOwner = "cuda.sm90";

}  // namespace

void pack_weight(Exec&, const PackWeightArgs& args) {
  *args.packed = PackedWeight{kPackedOwner, args.w.shape(0), args.w.shape(1), nullptr};
}

bool describe(const Exec& exec, const GemmArgs& args, Product* product) {
  const std::int64_t m = args.c.shape(0), n = args.c.shape(1), k = args.a.shape(1);
  const bool fits =
      std::max({m, n, k}) < std::numeric_limits<int>::max() / 2 && std::min({m, n, k}) > 0;
  const bool dense_c = n == 1 || args.c.stride(1) == 1;
  const bool dense_bias = !args.bias || n == 1 || args.bias.stride(0) == 1;
  const bool dense_a = args.a.stride(1) == 1 && copyable(args.a, args.a.stride(0));
  const bool k_major = args.b.stride(1) == 1 && copyable(args.b, args.b.stride(0));
  const bool i_major = args.b.stride(0) == 1 && copyable(args.b, args.b.stride(1));
  if (!fits || !dense_c || !dense_bias || !dense_a || !(k_major || i_major)) return false;

  Product& p = *product;
  p = Product{};
  p.m = static_cast<int>(m);
  p.n = static_cast<int>(n);
  p.k = static_cast<int>(k);
  p.b_is_i_major = !k_major;
  p.b_is_weight = args.packed_b != nullptr && args.packed_b->owner == kPackedOwner;
  p.c = args.c.data;
  p.c_stride = args.c.stride(0);
  p.c_is_f32 = args.c.dtype == DType::kF32;
  p.bias = args.bias.data;

  p.leaves = args.leaf_tree ? exec.contract.leaves : 1;
  if (p.leaves > kMaxLeaves) return false;
  const std::array<std::int64_t, 3> one{k, 0, 0};
  const std::array<std::int64_t, 3>& segments = args.leaf_tree ? args.segments : one;
  bool whole_groups = true;
  p.whole_steps = true;
  for (int leaf = 0; leaf < p.leaves; ++leaf) {
    std::int64_t start = 0;
    for (int i = 0; i < 3; ++i) {
      const auto bound = [&](int of) {
        return static_cast<int>(start + numerics::leaf_bound(segments[i], p.leaves, of));
      };
      const Product::Piece piece{bound(leaf), bound(leaf + 1)};
      p.pieces[leaf][i] = piece;
      p.steps[leaf] += (piece.end - piece.begin + kStep - 1) / kStep;
      if (piece.begin < piece.end && piece.end != p.k) {  // what lies beyond k reads as +0
        whole_groups = whole_groups && (piece.end - piece.begin) % 16 == 0;
        p.whole_steps = p.whole_steps && (piece.end - piece.begin) % kStep == 0;
      }
      start += segments[i];
    }
    p.whole_steps = p.whole_steps && p.steps[leaf] > 0;
  }
  return whole_groups;
}

void gemm(Exec& exec, const GemmArgs& args) {
  constexpr int kFewRows = 64;
  Product p;
  if (!describe(exec, args, &p)) return gemm_any(exec, args);
  if (p.m <= kFewRows && !p.b_is_i_major) {
    return gemm_few_rows(exec, args, p);
  }
  if (p.leaves == 1 || p.leaves == 8) return gemm_many_rows(exec, args, p);
  gemm_any(exec, args);
}

void gemm_backward_weight_in_window(Exec& exec, const GemmBackwardWeightArgs& args,
                                    const TokenWindow& window) {
  if (gemm_backward_weight_copies(args)) return gemm_backward_weight_tiles(exec, args, window);
  gemm_backward_weight_any(exec, args, window);
}

void gemm_backward_weight(Exec& exec, const GemmBackwardWeightArgs& args) {
  const std::int64_t num_tokens = args.dy.shape(0);
  gemm_backward_weight_in_window(exec, args, {0, num_tokens, num_tokens});
}

}  // namespace rlk::gpu::sm90
