// The calls that cases time, for any size, on a CPU or a GPU. For rlk/bench/*.cc only.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "rlk/bench/case.h"
#include "rlk/kernels/logprob.h"

namespace rlk::bench {

// Where `rotated_bytes` is not 0, calls take turns on so many bytes of data, so that none is found
// in a cache.

struct ProductShape {
  std::int64_t m, n, k;
  DType storage = DType::kBF16;
  bool leaf_tree = false;
  bool input_gradient = false;  // the weight lies as [K, N] and is read transposed
  std::array<std::int64_t, 3> segments = {0, 0, 0};  // of k; zeros: one
  std::int64_t rotated_bytes = 0;                    // of weights
  bool reads_weights = false;  // its work is not operations, but the bytes of a weight
};
Prepared prepare_product(Engines& e, const ProductShape& s);

struct WeightGradientShape {
  std::int64_t tokens, n, k;
  DType storage = DType::kBF16;
  std::int64_t sample_length = 0;  // 0: one sample
};
Prepared prepare_weight_gradient(Engines& e, const WeightGradientShape& s);
// The first of dw[ns, ks] that is not what the reference adds up from +0, or "".
std::string difference_of_weight_gradient(Engines& e, const GemmBackwardWeightArgs& args,
                                          const std::vector<std::int64_t>& ns,
                                          const std::vector<std::int64_t>& ks);

struct RowShape {
  std::int64_t tokens, heads, n;
  DType storage = DType::kBF16;
  std::int64_t rotated_bytes = 0;
  double elements() const { return static_cast<double>(tokens * heads * n); }
  double bytes() const { return elements() * static_cast<double>(size_of(storage)); }
};
Prepared prepare_rms_norm(Engines& e, const RowShape& s);
Prepared prepare_rope(Engines& e, const RowShape& s);
Prepared prepare_swiglu(Engines& e, const RowShape& s);

struct LogitShape {
  std::int64_t num_rows, vocab_size;
  std::int64_t rotated_bytes = 0;
  SamplingParams params = {};
};
Prepared prepare_logprob(Engines& e, const LogitShape& s, bool with_entropy);
Prepared prepare_log_softmax(Engines& e, const LogitShape& s);
Prepared prepare_sample(Engines& e, const LogitShape& s);

struct HeadShape {
  std::int64_t num_rows, hidden_size, vocab_size, vocab_padded;
  DType storage = DType::kBF16;
  std::int64_t sample_length = 1000;
};
Prepared prepare_linear_logp(Engines& e, const HeadShape& s);
Prepared prepare_linear_logp_backward(Engines& e, const HeadShape& s);

// One packed sequence.
struct AttentionShape {
  std::int64_t length, heads, kv_heads, d;
  DType storage = DType::kBF16;
  std::int64_t product_size = 1024;  // of our own product that it is measured by
};
Prepared prepare_attention(Engines& e, const AttentionShape& s, bool backward);

// Calls take turns on groups of `batch` sequences.
struct DecodeShape {
  std::int64_t batch, length, heads, kv_heads, d, page_size, groups;
  DType storage = DType::kBF16;
};
Prepared prepare_decode(Engines& e, const DecodeShape& s);

}  // namespace rlk::bench
