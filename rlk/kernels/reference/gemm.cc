#include "rlk/kernels/gemm.h"

#include <algorithm>

#include "rlk/kernels/reference/storage.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/mma/mac.h"
#include "rlk/numerics/sums.h"

namespace rlk::reference {
namespace {

using numerics::leaf_bound;

// Leaf i is one chain through leaf i of every segment in turn. `leaf` has room for all leaves.
template <typename Mac>
float leaf_tree(const Mac& mac, const Line& a, const Line& b,
                const std::array<std::int64_t, 3>& segments, int leaves, float* leaf) {
  for (int i = 0; i < leaves; ++i) {
    float acc = 0.0f;
    std::int64_t start = 0;
    for (const std::int64_t size : segments) {
      acc = numerics::chain(mac, acc, a, b, start + leaf_bound(size, leaves, i),
                            start + leaf_bound(size, leaves, i + 1));
      start += size;
    }
    leaf[i] = acc;
  }
  return numerics::neighbour_tree(leaf, leaves);
}

template <typename Mac>
void gemm(const Mac& mac, Exec& exec, const GemmArgs& args) {
  const std::int64_t k_size = args.a.shape(1);
  const auto& segments = args.segments;
  RLK_ASSERT(!args.leaf_tree || segments[0] + segments[1] + segments[2] == k_size);
  Workspace::Frame frame(exec.workspace);
  float* leaf = frame.take<float>(exec.contract.leaves);
  for (std::int64_t m = 0; m < args.c.shape(0); ++m) {
    const Line a(args.a, 1, m);
    for (std::int64_t n = 0; n < args.c.shape(1); ++n) {
      const Line b(args.b, 1, n);
      float sum = args.leaf_tree ? leaf_tree(mac, a, b, segments, exec.contract.leaves, leaf)
                                 : numerics::dot_chain(mac, a, b, k_size);
      if (args.bias) sum = sum + read(args.bias, n);
      write(args.c, sum, m, n);
    }
  }
}

template <typename Mac>
void gemm_backward_weight(const Mac& mac, const GemmBackwardWeightArgs& args) {
  const std::int64_t num_tokens = args.dy.shape(0);
  const std::int64_t num_samples = args.cu_seqlens ? args.cu_seqlens.shape(0) - 1 : 1;
  const std::int64_t num_groups = args.group_ends ? args.group_ends.shape(0) : 0;
  for (std::int64_t n = 0; n < args.dw.shape(0); ++n) {
    const Line dy(args.dy, 0, 0, n);
    for (std::int64_t k = 0; k < args.dw.shape(1); ++k) {
      const Line x(args.x, 0, 0, k);
      float& dw = *args.dw.at<float>(n, k);
      float& open = *args.chain.at<float>(n, k);
      std::int64_t token = 0, group = 0;
      const auto close_groups = [&] {
        for (; group < num_groups && *args.group_ends.at<std::int64_t>(group) == token; ++group) {
          dw = dw + open;
          open = 0.0f;
        }
      };
      close_groups();
      for (std::int64_t sample = 0; sample < num_samples; ++sample) {
        const std::int64_t sample_end =
            args.cu_seqlens ? *args.cu_seqlens.at<std::int32_t>(sample + 1) : num_tokens;
        while (token < sample_end) {
          std::int64_t end = sample_end;
          if (group < num_groups) {
            end = std::min(end, *args.group_ends.at<std::int64_t>(group));
          }
          open = numerics::chain(mac, open, dy, x, token, end);
          token = end;
          close_groups();
        }
      }
    }
  }
}

}  // namespace

// The reference reads the weight itself: nothing is kept.
void pack_weight(Exec&, const PackWeightArgs& args) {
  *args.packed = PackedWeight{nullptr, args.w.shape(0), args.w.shape(1), nullptr, args.w.dtype};
}

void gemm(Exec& exec, const GemmArgs& args) {
  numerics::with_mac(exec.contract.profile, [&](const auto& mac) { gemm(mac, exec, args); });
}

void gemm_backward_weight(Exec& exec, const GemmBackwardWeightArgs& args) {
  numerics::with_mac(exec.contract.profile,
                     [&](const auto& mac) { gemm_backward_weight(mac, args); });
}

void bias_backward(Exec& exec, const BiasBackwardArgs& args) {
  const std::int64_t num_samples = args.cu_seqlens.shape(0) - 1;
  for (std::int64_t sample = 0; sample < num_samples; ++sample) {
    const std::int64_t begin = *args.cu_seqlens.at<std::int32_t>(sample);
    const std::int64_t end = *args.cu_seqlens.at<std::int32_t>(sample + 1);
    for (std::int64_t n = 0; n < args.dbias.shape(0); ++n) {
      const Line dy(args.dy, 0, begin, n);
      const auto step = [&](std::int64_t i, float acc) { return acc + dy(i); };
      float& dbias = *args.dbias.at<float>(n);
      dbias = numerics::token_sum(dbias, step, end - begin, exec.contract.token_block);
    }
  }
}

}  // namespace rlk::reference
