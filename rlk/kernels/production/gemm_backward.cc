// Weight and bias gradients: library products that add straight onto dw. Group ends mean nothing
// here and the open chain stays as it is.
#include <cblas.h>

#include <algorithm>

#include "rlk/kernels/gemm.h"
#include "rlk/kernels/production/onednn.h"
#include "rlk/kernels/production/table.h"
#include "rlk/numerics/bf16.h"

namespace rlk::production {
namespace {

using numerics::to_f32;

// Tokens of a product, and what a shorter last one is padded to with zeros, so that few shapes are
// ever met.
constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kTokenStep = 64;

std::int64_t up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

// Rows of dw per thread.
std::int64_t part_rows(std::int64_t n, double ns, int threads) {
  if (ns < 16000.0) return n;
  return std::max<std::int64_t>(32, up((n + threads - 1) / threads, 32));
}

// Columns [begin, begin + columns) of `tokens` rows, without gaps, then zeros up to `padded` rows.
void copy_columns(bf16* out, const ConstTensorView& x, std::int64_t token, std::int64_t tokens,
                  std::int64_t padded, std::int64_t begin, std::int64_t columns) {
  for (std::int64_t t = 0; t < tokens; ++t, out += columns) {
    const bf16* from = x.at<bf16>(token + t, begin);
    if (x.stride(1) == 1) {
      std::copy_n(from, columns, out);
    } else {
      for (std::int64_t i = 0; i < columns; ++i) out[i] = from[i * x.stride(1)];
    }
  }
  std::fill_n(out, (padded - tokens) * columns, bf16{0});
}

bool is_dense(const ConstTensorView& x) { return x.stride(1) == 1 && x.stride(0) == x.shape(1); }

void add_onednn(Exec& exec, const GemmBackwardWeightArgs& args) {
  const std::int64_t n = args.dw.shape(0);
  const std::int64_t k = args.dw.shape(1);
  const std::int64_t num_tokens = args.dy.shape(0);
  const int threads = exec.pool.num_threads();
  for (std::int64_t token = 0; token < num_tokens; token += kTokens) {
    const std::int64_t tokens = std::min(kTokens, num_tokens - token);
    const std::int64_t padded = up(tokens, kTokenStep);
    const double ns = 4e-3 * static_cast<double>(n * k) * static_cast<double>(padded);
    const std::int64_t part = part_rows(n, ns, threads);
    const bool dy_as_is = tokens == padded && part == n && is_dense(args.dy);
    Workspace::Frame frame(exec.workspace);
    bf16* dy_copy = dy_as_is ? nullptr : frame.take<bf16>(padded * n);
    const bf16* x = args.x.at<bf16>(token);
    if (tokens < padded || !is_dense(args.x)) {
      bf16* copy = frame.take<bf16>(padded * k);
      copy_columns(copy, args.x, token, tokens, padded, 0, k);
      x = copy;
    }
    const auto& whole = find_sum({part, k, padded});
    const auto& last = n % part == 0 ? whole : find_sum({n % part, k, padded});
    const std::int64_t size = up(std::max(scratch_bytes(whole), scratch_bytes(last)) + 1, 64);
    char* scratch = frame.take<char>(size * threads);
    exec.pool.parallel_for(
        up(n, part) / part, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
          for (std::int64_t row = begin * part; row < std::min(n, end * part); row += part) {
            const std::int64_t rows = std::min(part, n - row);
            const bf16* dy = args.dy.at<bf16>(token);
            if (!dy_as_is) {
              copy_columns(dy_copy + padded * row, args.dy, token, tokens, padded, row, rows);
              dy = dy_copy + padded * row;
            }
            run_sum(rows == part ? whole : last, dy, x, args.dw.at<float>(row),
                    scratch + thread * size);
          }
        });
  }
}

float value(const ConstTensorView& x, std::int64_t i, std::int64_t j) {
  return x.dtype == DType::kF32 ? *x.at<float>(i, j) : to_f32(*x.at<bf16>(i, j));
}

void add_openblas(Exec& exec, const GemmBackwardWeightArgs& args) {
  const std::int64_t n = args.dw.shape(0);
  const std::int64_t k = args.dw.shape(1);
  const std::int64_t num_tokens = args.dy.shape(0);
  for (std::int64_t token = 0; token < num_tokens; token += kTokens) {
    const std::int64_t tokens = std::min(kTokens, num_tokens - token);
    Workspace::Frame frame(exec.workspace);
    float* dy = frame.take<float>(tokens * n);
    float* x = frame.take<float>(tokens * k);
    exec.pool.parallel_for(tokens, 64, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t i = 0; i < n; ++i) dy[t * n + i] = value(args.dy, token + t, i);
        for (std::int64_t i = 0; i < k; ++i) x[t * k + i] = value(args.x, token + t, i);
      }
    });
    const double ns = 0.03 * static_cast<double>(n * k) * static_cast<double>(tokens);
    const std::int64_t part = part_rows(n, ns, exec.pool.num_threads());
    exec.pool.parallel_for(up(n, part) / part, 1, [&](std::int64_t begin, std::int64_t end, int) {
      use_one_library_thread();
      for (std::int64_t row = begin * part; row < std::min(n, end * part); row += part) {
        cblas_sgemm(
            CblasRowMajor, CblasTrans, CblasNoTrans, static_cast<int>(std::min(part, n - row)),
            static_cast<int>(k), static_cast<int>(tokens), 1.0f, dy + row, static_cast<int>(n), x,
            static_cast<int>(k), 1.0f, args.dw.at<float>(row), static_cast<int>(args.dw.stride(0)));
      }
    });
  }
}

}  // namespace

void gemm_backward_weight(Exec& exec, const GemmBackwardWeightArgs& args) {
  if (args.dw.shape(0) == 0 || args.dw.shape(1) == 0) return;
  RLK_ASSERT(args.dw.shape(1) == 1 || args.dw.stride(1) == 1);
  const bool dense = args.dw.shape(0) == 1 || args.dw.stride(0) == args.dw.shape(1);
  onednn_bf16() && dense&& args.dy.dtype == DType::kBF16 ? add_onednn(exec, args)
                                                         : add_openblas(exec, args);
}

void bias_backward(Exec& exec, const BiasBackwardArgs& args) {
  const std::int64_t n = args.dbias.shape(0);
  const std::int64_t num_samples = args.cu_seqlens.shape(0) - 1;
  if (num_samples <= 0) return;
  const std::int64_t first = *args.cu_seqlens.at<std::int32_t>(0);
  const std::int64_t last = *args.cu_seqlens.at<std::int32_t>(num_samples);
  constexpr std::int64_t kColumns = 64;
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / (kColumns * (last - first) + 1));
  exec.pool.parallel_for(
      up(n, kColumns) / kColumns, grain, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t c = begin * kColumns; c < std::min(n, end * kColumns); c += kColumns) {
          const std::int64_t count = std::min(kColumns, n - c);
          float sum[kColumns] = {};
          for (std::int64_t t = first; t < last; ++t) {
            for (std::int64_t i = 0; i < count; ++i) sum[i] += value(args.dy, t, c + i);
          }
          for (std::int64_t i = 0; i < count; ++i) *args.dbias.at<float>(c + i) += sum[i];
        }
      });
}

}  // namespace rlk::production
