#include "rlk/kernels/gpu/sm90/gemm.h"

#include "rlk/kernels/gpu/sm90/table.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"
#include "rlk/kernels/gpu/sm90/vendor_gemm.h"

namespace rlk::gpu::sm90 {
namespace {

// Marks a weight as packed; the kernels read the weight itself.
constexpr const char* kPackedOwner = "cuda.sm90";

}  // namespace

void pack_weight(Exec&, const PackWeightArgs& args) {
  *args.packed = PackedWeight{kPackedOwner, args.w.shape(0), args.w.shape(1), nullptr};
}

bool describe(const Exec& exec, const GemmArgs& args, Product* product) {
  const GemmShape shape = GemmShape::of(exec, args);
  const bool dense_a = args.a.stride(1) == 1 && copyable(args.a, args.a.stride(0));
  const bool k_major = args.b.stride(1) == 1 && copyable(args.b, args.b.stride(0));
  const bool i_major = args.b.stride(0) == 1 && copyable(args.b, args.b.stride(1));
  if (!is_plain(shape, args) || !dense_a || !(k_major || i_major)) return false;

  Product& p = *product;
  p = Product{};
  p.m = static_cast<int>(shape.m);
  p.n = static_cast<int>(shape.n);
  p.k = static_cast<int>(shape.k);
  p.b_is_i_major = !k_major;
  p.b_is_weight = args.packed_b != nullptr && args.packed_b->owner == kPackedOwner;
  p.c = args.c.data;
  p.c_stride = args.c.stride(0);
  p.c_is_f32 = shape.c_is_f32;
  p.bias = args.bias.data;

  p.leaves = shape.leaves;
  if (p.leaves > kMaxLeaves) return false;
  bool whole_groups = true;
  p.whole_steps = true;
  for (int leaf = 0; leaf < p.leaves; ++leaf) {
    int count = 0;
    shape.for_each_piece(leaf, [&](std::int64_t begin, std::int64_t end) {
      const Product::Piece piece{static_cast<int>(begin), static_cast<int>(end)};
      const int size = piece.end - piece.begin;
      p.pieces[leaf][count++] = piece;
      p.steps[leaf] += (size + kStep - 1) / kStep;
      if (size > 0 && piece.end != p.k) {  // what lies beyond k reads as +0
        whole_groups = whole_groups && size % 16 == 0;
        p.whole_steps = p.whole_steps && size % kStep == 0;
      }
    });
    p.whole_steps = p.whole_steps && p.steps[leaf] > 0;
  }
  return whole_groups;
}

void gemm(Exec& exec, const GemmArgs& args) {
  if (vendor_gemm(exec, args)) return;
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
