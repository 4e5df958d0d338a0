// Runs a check with the reference and with the CPU kernels of every instruction set here.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "rlk/ops/context.h"
#include "rlk/ops/logprob.h"
#include "tests/io/error_matchers.h"
#include "tests/kernels/test_data.h"
#include "tests/model/tiny_model.h"

namespace rlk::test {

template <typename Check>
void each_backend(const Check& check, const Contract& contract = {}, int num_threads = 2) {
  for (const KernelTable* kernels : backends()) {
    SCOPED_TRACE(kernels->backend);
    Context ctx(contract, all_ops(Mode::kStrict), num_threads, kernels);
    check(ctx);
  }
}

inline Tensor f32_rows(const std::vector<std::vector<float>>& rows) {
  const auto width = static_cast<std::int64_t>(rows[0].size());
  Tensor t(DType::kF32, {static_cast<std::int64_t>(rows.size()), width});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy(rows[i].begin(), rows[i].end(),
              t.data<float>() + static_cast<std::int64_t>(i) * width);
  }
  return t;
}

// Log-probabilities, and entropies, of one target a row.
struct Scored {
  Tensor logp, entropy;
};
inline Scored score(Context& ctx, const ConstTensorView& logits,
                    const std::vector<std::int32_t>& targets, const SamplingParams& params = {}) {
  const std::int64_t n = logits.shape(0);
  Scored out{Tensor(DType::kF32, {n}), Tensor(DType::kF32, {n})};
  const Tensor ids = i32_tensor(targets);
  logprob(ctx, {out.logp, out.entropy, logits, ids, &params, 1});
  return out;
}

}  // namespace rlk::test
