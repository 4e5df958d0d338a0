// Tables of kernels that break the contract as other systems did: each is the table of this CPU
// with one operator changed. Each has right bits for some plans, so only a comparison of two plans
// can tell.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "rlk/kernels/kernel_table.h"
#include "rlk/numerics/bf16.h"

namespace rlk::test {

// The kernel behind `kField`, with arguments and contract as kChange leaves them.
template <auto kField, auto kChange, typename Args>
void changed(Exec& exec, const Args& args) {
  Args other = args;
  Contract contract = exec.contract;
  kChange(exec, other, contract);
  Exec inner{exec.pool, exec.workspace, contract, exec.fault};
  (cpu_kernels().*kField)(inner, other);
}

// ---- Products

// Few rows split K, as for decode.
inline void few_rows_split_k(Exec&, GemmArgs& args, Contract&) {
  if (args.c.shape(0) < 9) args.leaf_tree = !args.leaf_tree;
}

// As many partial sums as threads.
inline void threads_split_k(Exec& exec, GemmArgs& args, Contract& contract) {
  if (exec.pool.num_threads() == 1) return;
  args.leaf_tree = true;
  contract.leaves = 8;
}

// A vector register holds eight partial sums of one output.
inline void vectors_split_k(Exec&, GemmArgs& args, Contract& contract) {
  args.leaf_tree = true;
  contract.leaves = 8;
}

// Full tiles of eight rows, and another schedule for those that are left over.
inline void left_over_rows_split_k(Exec& exec, const GemmArgs& args) {
  const std::int64_t m = args.c.shape(0), full = m / 8 * 8;
  for (const bool tail : {false, true}) {
    GemmArgs part = args;
    part.c = rows(args.c, tail ? full : 0, tail ? m : full);
    part.a = rows(args.a, tail ? full : 0, tail ? m : full);
    if (tail) part.leaf_tree = !part.leaf_tree;
    if (part.c.shape(0) > 0) cpu_kernels().gemm(exec, part);
  }
}

inline void logits_in_bf16(Exec& exec, const GemmArgs& args) {
  cpu_kernels().gemm(exec, args);
  if (args.c.dtype != DType::kF32) return;
  for (std::int64_t i = 0; i < args.c.shape(0); ++i) {
    for (std::int64_t j = 0; j < args.c.shape(1); ++j) {
      float& x = *args.c.at<float>(i, j);
      x = numerics::round_bf16(x);
    }
  }
}

// The input gradients of q, k and v, or of gate and up, meet as BF16 tensors.
inline void input_gradients_add_in_bf16(Exec& exec, const GemmArgs& args) {
  if (args.segments[1] == 0) return cpu_kernels().gemm(exec, args);
  const std::int64_t m = args.c.shape(0), n = args.c.shape(1);
  std::int64_t begin = 0;
  for (const std::int64_t size : args.segments) {
    if (size == 0) break;
    Tensor part(DType::kBF16, {m, n});
    GemmArgs one = args;
    one.c = part;
    one.a = columns(args.a, begin, begin + size);
    one.b = columns(args.b, begin, begin + size);
    one.packed_b = nullptr;
    one.segments = {size, 0, 0};
    cpu_kernels().gemm(exec, one);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        bf16& sum = *args.c.at<bf16>(i, j);
        const float x = numerics::to_f32(part.data<bf16>()[i * n + j]);
        sum = numerics::to_bf16(begin == 0 ? x : numerics::to_f32(sum) + x);
      }
    }
    begin += size;
  }
}

// ---- Attention

// Whether a sequence of the call has keys from before.
inline bool has_a_prefix(const AttentionArgs& args) {
  for (std::int64_t s = 0; s < args.kv_lens.shape(0); ++s) {
    const std::int32_t queries =
        *args.cu_seqlens_q.at<std::int32_t>(s + 1) - *args.cu_seqlens_q.at<std::int32_t>(s);
    if (queries < *args.kv_lens.at<std::int32_t>(s)) return true;
  }
  return false;
}

// Chunks and decode have other tiles than a prefill.
inline void decode_has_other_tiles(Exec&, AttentionArgs& args, Contract& contract) {
  if (has_a_prefix(args)) contract.kv_block = 16;
}

// A fold for the first 32 positions and one for the rest, merged at the end.
inline void the_fold_restarts_at_the_prefix(Exec&, AttentionArgs& args, Contract& contract) {
  if (has_a_prefix(args)) contract.kv_block = contract.kv_split = 32;
}

inline void blocks_follow_pages(Exec&, AttentionArgs& args, Contract& contract) {
  if (args.kv.page_size == 0) return;
  contract.kv_block = static_cast<int>(std::max<std::int64_t>(16, args.kv.page_size));
  contract.kv_split = std::max(contract.kv_split, contract.kv_block);
}

// ---- The stream

// The stream that the norms carry on is not rounded between layers. One model at a time.
inline void residual_in_f32(Exec& exec, const RmsNormArgs& args) {
  RmsNormArgs norm = args;
  if (args.residual) {
    static std::vector<float> stream;
    const std::int64_t m = args.x.shape(0), n = args.x.shape(2);
    stream.resize(static_cast<std::size_t>(m * n));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        float& x = stream[static_cast<std::size_t>(i * n + j)];
        const bf16 a = *args.residual.at<bf16>(i, 0, j);
        if (numerics::to_bf16(x).bits != a.bits) x = numerics::to_f32(a);  // another stream begins
        x += numerics::to_f32(*args.x.at<bf16>(i, 0, j));
        *args.residual_out.at<bf16>(i, 0, j) = numerics::to_bf16(x);
      }
    }
    norm.x = args.residual_out;
    norm.residual = {};
    norm.residual_out = {};
  }
  reference_kernels().rms_norm(exec, norm);
}

// ---- Weight gradients

// Every call closes its group.
inline void groups_end_with_the_call(Exec& exec, const GemmBackwardWeightArgs& args) {
  std::vector<std::int64_t> ends;
  for (std::int64_t i = 0; i < args.group_ends.shape(0); ++i) {
    ends.push_back(*args.group_ends.at<std::int64_t>(i));
  }
  const std::int64_t num_tokens = args.x.shape(0);
  if (ends.empty() || ends.back() < num_tokens) ends.push_back(num_tokens);
  GemmBackwardWeightArgs other = args;
  other.group_ends = view(std::as_const(ends).data(), {static_cast<std::int64_t>(ends.size())});
  cpu_kernels().gemm_backward_weight(exec, other);
}

// Every thread adds the sum over its part of the tokens.
inline void threads_add_their_parts(Exec& exec, const GemmBackwardWeightArgs& args) {
  const std::int64_t num_tokens = args.x.shape(0), parts = exec.pool.num_threads();
  std::vector<std::int64_t> ends;
  for (std::int64_t i = 1; i < parts; ++i) {
    if (num_tokens * i / parts > 0) ends.push_back(num_tokens * i / parts);
  }
  for (std::int64_t i = 0; i < args.group_ends.shape(0); ++i) {
    ends.push_back(*args.group_ends.at<std::int64_t>(i));
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  GemmBackwardWeightArgs other = args;
  other.group_ends = view(std::as_const(ends).data(), {static_cast<std::int64_t>(ends.size())});
  cpu_kernels().gemm_backward_weight(exec, other);
}

// The table of this CPU with `kernel` in place of one operator.
template <typename Args>
KernelTable with_kernel(void (*KernelTable::*field)(Exec&, const Args&),
                        void (*kernel)(Exec&, const Args&)) {
  KernelTable table = cpu_kernels();
  table.*field = kernel;
  return table;
}
template <auto kChange>
KernelTable wrong_gemm() {
  return with_kernel<GemmArgs>(&KernelTable::gemm, &changed<&KernelTable::gemm, kChange>);
}
template <auto kChange>
KernelTable wrong_attention() {
  return with_kernel<AttentionArgs>(&KernelTable::attention,
                                    &changed<&KernelTable::attention, kChange>);
}

}  // namespace rlk::test
