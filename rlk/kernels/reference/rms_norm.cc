#include "rlk/kernels/rms_norm.h"

#include <cmath>

#include "rlk/kernels/reference/storage.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/math.h"
#include "rlk/numerics/sums.h"

namespace rlk::reference {

void rms_norm(Exec& exec, const RmsNormArgs& args) {
  const std::int64_t heads = args.x.shape(1);
  const std::int64_t n = args.x.shape(2);
  const Line w(args.w, 0);
  for (std::int64_t t = 0; t < args.x.shape(0); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      if (args.residual) {
        for (std::int64_t k = 0; k < n; ++k) {
          write(args.residual_out, read(args.residual, t, h, k) + read(args.x, t, h, k), t, h, k);
        }
      }
      const Line x(args.residual ? args.residual_out : args.x, 2, t, h);
      const float s = numerics::lane_sum(x, x, n, exec.contract.norm_lanes);
      if (!numerics::is_finite(s)) exec.fault.report(t * heads + h);
      const float q = numerics::rsqrt(s / static_cast<float>(n) + args.eps);
      for (std::int64_t k = 0; k < n; ++k) {
        write(args.y, (x(k) * q) * w(k), t, h, k);
      }
      if (args.q) *args.q.at<float>(t, h) = q;
    }
  }
}

void rms_norm_backward(Exec& exec, const RmsNormBackwardArgs& args) {
  const std::int64_t heads = args.x.shape(1);
  const std::int64_t n = args.x.shape(2);
  const Line w(args.w, 0);
  for (std::int64_t t = 0; t < args.x.shape(0); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const Line x(args.x, 2, t, h);
      const Line dy(args.dy, 2, t, h);
      const float q = *args.q.at<float>(t, h);
      const auto u = [&](std::int64_t k) { return dy(k) * w(k); };
      const float sum = numerics::lane_sum(u, x, n, exec.contract.norm_lanes);
      const float z = ((q * q) * q) * (sum / static_cast<float>(n));
      for (std::int64_t k = 0; k < n; ++k) {
        write(args.dx, std::fma(u(k), q, -(x(k) * z)), t, h, k);
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
          const float q = *args.q.at<float>(begin + i, h);
          return std::fma(read(args.dy, begin + i, h, k), read(args.x, begin + i, h, k) * q, acc);
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
