#include "rlk/kernels/gemm.h"

#include "rlk/kernels/reference/mac.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/bf16.h"
#include "rlk/numerics/sums.h"

namespace rlk::reference {
namespace {

using numerics::leaf_bound;
using numerics::Strided;
using numerics::to_bf16;
using numerics::to_f32;

// acc goes on through k in [begin, end) of one row of a and one row of b.
float chain(float acc, const Strided<bf16>& a, const Strided<bf16>& b, std::int64_t begin,
            std::int64_t end) {
  for (std::int64_t k = begin; k < end; ++k) acc = mac(a(k), b(k), acc);
  return acc;
}

// Leaf i is one chain through leaf i of every segment in turn. `leaf` has room for all leaves.
float leaf_tree(const Strided<bf16>& a, const Strided<bf16>& b,
                const std::array<std::int64_t, 3>& segments, int leaves, float* leaf) {
  for (int i = 0; i < leaves; ++i) {
    float acc = 0.0f;
    std::int64_t start = 0;
    for (const std::int64_t size : segments) {
      acc = chain(acc, a, b, start + leaf_bound(size, leaves, i),
                  start + leaf_bound(size, leaves, i + 1));
      start += size;
    }
    leaf[i] = acc;
  }
  return numerics::neighbour_tree(leaf, leaves);
}

void store(const TensorView& c, std::int64_t m, std::int64_t n, float sum) {
  if (c.dtype == DType::kBF16) {
    *c.at<bf16>(m, n) = to_bf16(sum);
  } else {
    *c.at<float>(m, n) = sum;
  }
}

}  // namespace

// The reference reads the weight itself: nothing is kept.
void pack_weight(Exec&, const PackWeightArgs& args) {
  *args.packed = PackedWeight{nullptr, args.w.shape(0), args.w.shape(1), nullptr};
}

void gemm(Exec& exec, const GemmArgs& args) {
  const std::int64_t k_size = args.a.shape(1);
  const auto& segments = args.segments;
  RLK_ASSERT(!args.leaf_tree || segments[0] + segments[1] + segments[2] == k_size);
  Workspace::Frame frame(exec.workspace);
  float* leaf = frame.take<float>(exec.contract.leaves);
  for (std::int64_t m = 0; m < args.c.shape(0); ++m) {
    const Strided a{args.a.at<bf16>(m), args.a.stride(1)};
    for (std::int64_t n = 0; n < args.c.shape(1); ++n) {
      const Strided b{args.b.at<bf16>(n), args.b.stride(1)};
      float sum = args.leaf_tree ? leaf_tree(a, b, segments, exec.contract.leaves, leaf)
                                 : chain(0.0f, a, b, 0, k_size) + 0.0f;
      if (args.bias) sum = sum + to_f32(*args.bias.at<bf16>(n));
      store(args.c, m, n, sum);
    }
  }
}

void gemm_backward_weight(Exec&, const GemmBackwardWeightArgs& args) {
  const std::int64_t num_tokens = args.dy.shape(0);
  const std::int64_t num_group_ends = args.group_ends ? args.group_ends.shape(0) : 0;
  for (std::int64_t n = 0; n < args.dw.shape(0); ++n) {
    const Strided dy{args.dy.at<bf16>(0, n), args.dy.stride(0)};
    for (std::int64_t k = 0; k < args.dw.shape(1); ++k) {
      const Strided x{args.x.at<bf16>(0, k), args.x.stride(0)};
      float& dw = *args.dw.at<float>(n, k);
      float& open = *args.chain.at<float>(n, k);
      std::int64_t begin = 0;
      for (std::int64_t group = 0; group < num_group_ends; ++group) {
        const std::int64_t end = *args.group_ends.at<std::int64_t>(group);
        dw = dw + chain(open, dy, x, begin, end);
        open = 0.0f;
        begin = end;
      }
      open = chain(open, dy, x, begin, num_tokens);
    }
  }
}

void bias_backward(Exec& exec, const BiasBackwardArgs& args) {
  const std::int64_t num_samples = args.cu_seqlens.shape(0) - 1;
  for (std::int64_t sample = 0; sample < num_samples; ++sample) {
    const std::int64_t begin = *args.cu_seqlens.at<std::int32_t>(sample);
    const std::int64_t end = *args.cu_seqlens.at<std::int32_t>(sample + 1);
    for (std::int64_t n = 0; n < args.dbias.shape(0); ++n) {
      const Strided dy{args.dy.at<bf16>(begin, n), args.dy.stride(0)};
      const auto step = [&](std::int64_t i, float acc) { return acc + dy(i); };
      float& dbias = *args.dbias.at<float>(n);
      dbias = numerics::token_sum(dbias, step, end - begin, exec.contract.token_block);
    }
  }
}

}  // namespace rlk::reference
