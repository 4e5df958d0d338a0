#include "rlk/kernels/rms_norm.h"

#include <cmath>

#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/bf16.h"
#include "rlk/numerics/math.h"
#include "rlk/numerics/sums.h"

namespace rlk::reference {

using numerics::Strided;
using numerics::to_bf16;
using numerics::to_f32;

void rms_norm(Exec& exec, const RmsNormArgs& args) {
  const std::int64_t heads = args.x.shape(1);
  const std::int64_t n = args.x.shape(2);
  const Strided w{args.w.at<bf16>(), args.w.stride(0)};
  for (std::int64_t t = 0; t < args.x.shape(0); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const Strided x{args.x.at<bf16>(t, h), args.x.stride(2)};
      const float s = numerics::lane_sum(x, x, n, exec.contract.norm_lanes);
      if (!numerics::is_finite(s)) exec.fault.report(t * heads + h);
      const float q = numerics::rsqrt(s / static_cast<float>(n) + args.eps);
      for (std::int64_t k = 0; k < n; ++k) {
        *args.y.at<bf16>(t, h, k) = to_bf16((x(k) * q) * w(k));
      }
      if (args.q) *args.q.at<float>(t, h) = q;
    }
  }
}

void rms_norm_backward(Exec& exec, const RmsNormBackwardArgs& args) {
  const std::int64_t heads = args.x.shape(1);
  const std::int64_t n = args.x.shape(2);
  const Strided w{args.w.at<bf16>(), args.w.stride(0)};
  for (std::int64_t t = 0; t < args.x.shape(0); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const Strided x{args.x.at<bf16>(t, h), args.x.stride(2)};
      const Strided dy{args.dy.at<bf16>(t, h), args.dy.stride(2)};
      const float q = *args.q.at<float>(t, h);
      const auto u = [&](std::int64_t k) { return dy(k) * w(k); };
      const float sum = numerics::lane_sum(u, x, n, exec.contract.norm_lanes);
      const float z = ((q * q) * q) * (sum / static_cast<float>(n));
      for (std::int64_t k = 0; k < n; ++k) {
        *args.dx.at<bf16>(t, h, k) = to_bf16(std::fma(u(k), q, -(x(k) * z)));
      }
    }
  }
}

void rms_norm_backward_weight(Exec& exec, const RmsNormBackwardWeightArgs& args) {
  const std::int64_t num_samples = args.cu_seqlens.shape(0) - 1;
  for (std::int64_t sample = 0; sample < num_samples; ++sample) {
    const std::int64_t begin = *args.cu_seqlens.at<std::int32_t>(sample);
    const std::int64_t end = *args.cu_seqlens.at<std::int32_t>(sample + 1);
    for (std::int64_t h = 0; h < args.x.shape(1); ++h) {
      for (std::int64_t k = 0; k < args.x.shape(2); ++k) {
        const auto step = [&](std::int64_t i, float acc) {
          const float dy = to_f32(*args.dy.at<bf16>(begin + i, h, k));
          const float x = to_f32(*args.x.at<bf16>(begin + i, h, k));
          const float q = *args.q.at<float>(begin + i, h);
          return std::fma(dy, x * q, acc);
        };
        float& dw = *args.dw.at<float>(h, k);
        dw = numerics::token_sum(dw, step, end - begin, exec.contract.token_block);
      }
    }
  }
}

void merge_heads(Exec& exec, const MergeHeadsArgs& args) {
  const std::int64_t heads = args.partial.shape(0);
  const int leaves = exec.contract.leaves;
  Workspace::Frame frame(exec.workspace);
  float* cut = frame.take<float>(leaves);
  for (std::int64_t k = 0; k < args.partial.shape(1); ++k) {
    for (int i = 0; i < leaves; ++i) {
      float acc = 0.0f;
      for (std::int64_t h = i * heads / leaves; h < (i + 1) * heads / leaves; ++h) {
        acc = acc + *args.partial.at<float>(h, k);
      }
      cut[i] = acc;
    }
    *args.dw.at<float>(k) = numerics::neighbour_tree(cut, leaves);
  }
}

}  // namespace rlk::reference
