// Runs an operator with the reference and with every CPU backend, and compares bytes.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "rlk/kernels/kernel_table.h"
#include "tests/kernels/test_data.h"

namespace rlk::test {

// A call of one operator: gives its outputs.
using OpCall = std::function<std::vector<Tensor>(const KernelTable&, Exec&)>;

struct Outcome {
  std::vector<Tensor> outputs;
  std::int64_t fault_row;
};

inline Outcome outcome(const OpCall& run, const KernelTable& kernels, const Contract& contract = {},
                       int num_threads = 1) {
  TestExec exec(contract, num_threads);
  std::vector<Tensor> outputs = run(kernels, exec);
  return {std::move(outputs), exec.fault.row()};
}

inline std::vector<Isa> isas() {
  std::vector<Isa> found;
  for (Isa isa : kAllIsas) {
    if (available(isa)) found.push_back(isa);
  }
  return found;
}

// Bytes, so that NaN outputs of refused rows count too.
inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.layout().shape == b.layout().shape && a.size_bytes() == b.size_bytes() &&
         (a.size_bytes() == 0 || std::memcmp(a.view().data, b.view().data, a.size_bytes()) == 0);
}

inline void expect_same(const Outcome& actual, const Outcome& expected, const std::string& what) {
  EXPECT_EQ(actual.fault_row, expected.fault_row) << what;
  ASSERT_EQ(actual.outputs.size(), expected.outputs.size());
  for (std::size_t i = 0; i < expected.outputs.size(); ++i) {
    if (same_bytes(actual.outputs[i], expected.outputs[i])) continue;
    ADD_FAILURE() << what << ", output " << i << ": "
                  << same_bits(actual.outputs[i], expected.outputs[i]).message();
  }
}

inline void expect_the_reference_everywhere(const OpCall& run, const std::string& what,
                                            const Contract& contract = {},
                                            std::vector<int> thread_counts = {1, 2, 3, 4}) {
  const Outcome expected = outcome(run, reference_kernels(), contract);
  for (const Isa isa : isas()) {
    for (const int threads : thread_counts) {
      expect_same(outcome(run, cpu_kernels(isa), contract, threads), expected,
                  what + ", " + to_string(isa) + ", " + std::to_string(threads) + " threads");
    }
  }
}

// [tokens, heads, n] inside a larger tensor: rows, and with `apart` the numbers too, are not
// neighbours.
struct Spaced {
  Tensor storage;
  TensorView view;
};

inline Spaced spaced(const Tensor& dense, std::int64_t apart) {
  const std::int64_t tokens = dense.shape(0), heads = dense.shape(1), n = dense.shape(2);
  const std::int64_t head_stride = n * apart + 5, token_stride = (heads + 1) * head_stride;
  Spaced out{Tensor(dense.dtype(), {tokens * token_stride + 1}), {}};
  out.view = {out.storage.view().data, dense.dtype(), Layout{tokens, heads, n}};
  out.view.layout.stride = {token_stride, head_stride, apart, 0};
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t k = 0; k < n; ++k) {
        if (dense.dtype() == DType::kBF16) {
          *out.view.at<bf16>(t, h, k) = *dense.view().at<bf16>(t, h, k);
        } else {
          *out.view.at<float>(t, h, k) = *dense.view().at<float>(t, h, k);
        }
      }
    }
  }
  return out;
}

// The first two dimensions as one matrix row: drops dimension 1 of a one-headed view.
inline TensorView as_matrix(const TensorView& v) {
  TensorView m{v.data, v.dtype, Layout{v.shape(0), v.shape(2)}};
  m.layout.stride = {v.stride(0), v.stride(2), 0, 0};
  return m;
}

}  // namespace rlk::test
