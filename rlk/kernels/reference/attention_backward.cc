#include <algorithm>
#include <cmath>
#include <numeric>

#include "rlk/kernels/attention.h"
#include "rlk/kernels/reference/softmax_scale.h"
#include "rlk/kernels/reference/storage.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/math.h"
#include "rlk/numerics/mma/mac.h"
#include "rlk/numerics/sums.h"

namespace rlk::reference {
namespace {

struct Shape {
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t heads_per_kv;
  std::int64_t d;
  float c;   // log2(e) / sqrt(d)
  float c2;  // 1 / sqrt(d)
};

Line row(const ConstTensorView& x, std::int64_t token, std::int64_t head) {
  return {x, 2, token, head};
}

// Probabilities and score gradients of pairs of a query and a key, rounded to storage.
struct Pairs {
  float* p;
  float* ds;  // p * (dp - D)
};

template <typename Mac>
void set_pair(const Mac& mac, const AttentionBackwardArgs& args, const Shape& shape,
              const float* d_sum, std::int64_t query, std::int64_t head, std::int64_t key,
              const Pairs& pairs, std::int64_t i) {
  const std::int64_t kv_head = head / shape.heads_per_kv;
  const float s =
      numerics::dot_chain(mac, row(args.q, query, head), row(args.k, key, kv_head), shape.d);
  const float dp =
      numerics::dot_chain(mac, row(args.dy, query, head), row(args.v, key, kv_head), shape.d);
  const float p = numerics::exp2p(std::fma(s, shape.c, -*args.lse.at<float>(query, head)));
  const float ds = p * (dp - d_sum[query * shape.heads + head]);
  pairs.p[i] = round_to(args.q.dtype, p);
  pairs.ds[i] = round_to(args.q.dtype, ds);
}

// dq of one query and head: one chain over the keys it sees, which are [first, query].
template <typename Mac>
void query_gradient(const Mac& mac, const AttentionBackwardArgs& args, const Shape& shape,
                    const float* d_sum, std::int64_t first, std::int64_t query, std::int64_t head,
                    const Pairs& pairs) {
  const std::int64_t num_keys = query + 1 - first;
  for (std::int64_t j = 0; j < num_keys; ++j) {
    set_pair(mac, args, shape, d_sum, query, head, first + j, pairs, j);
  }
  const auto ds = [&](std::int64_t j) { return pairs.ds[j]; };
  for (std::int64_t x = 0; x < shape.d; ++x) {
    const Line k(args.k, 0, first, head / shape.heads_per_kv, x);
    write(args.dq, shape.c2 * numerics::dot_chain(mac, ds, k, num_keys), query, head, x);
  }
}

// dk and dv of one key and KV head, of a sequence at [first, end). Part i is one chain over its
// query heads, and within a head over the queries at positions 0 and up; those before the key do
// not see it: zeros. dk_part and dv_part are [d][parts].
template <typename Mac>
void key_gradient(const Mac& mac, const AttentionBackwardArgs& args, const Shape& shape,
                  const float* d_sum, std::int64_t first, std::int64_t key, std::int64_t end,
                  std::int64_t kv_head, int parts, const Pairs& pairs, float* dk_part,
                  float* dv_part) {
  std::fill_n(dk_part, shape.d * parts, 0.0f);
  std::fill_n(dv_part, shape.d * parts, 0.0f);
  const std::int64_t num_queries = end - first;
  // Groups of zeros change nothing: the chain may start at the one that holds the key.
  const std::int64_t begin = (key - first) / Mac::kWidth * Mac::kWidth;
  const std::int64_t first_head = kv_head * shape.heads_per_kv;
  for (int i = 0; i < parts; ++i) {
    const std::int64_t begin_head = first_head + i * shape.heads_per_kv / parts;
    const std::int64_t end_head = first_head + (i + 1) * shape.heads_per_kv / parts;
    for (std::int64_t head = begin_head; head < end_head; ++head) {
      for (std::int64_t j = begin; j < num_queries; ++j) {
        if (first + j < key) {
          pairs.p[j] = pairs.ds[j] = 0.0f;
        } else {
          set_pair(mac, args, shape, d_sum, first + j, head, key, pairs, j);
        }
      }
      const auto p = [&](std::int64_t j) { return pairs.p[j]; };
      const auto ds = [&](std::int64_t j) { return pairs.ds[j]; };
      for (std::int64_t x = 0; x < shape.d; ++x) {
        float& dk = dk_part[x * parts + i];
        float& dv = dv_part[x * parts + i];
        const Line q(args.q, 0, first, head, x);
        const Line dy(args.dy, 0, first, head, x);
        dk = numerics::chain(mac, dk, ds, q, begin, num_queries);
        dv = numerics::chain(mac, dv, p, dy, begin, num_queries);
      }
    }
  }
  for (std::int64_t x = 0; x < shape.d; ++x) {
    const float dk = numerics::neighbour_tree(dk_part + x * parts, parts);
    const float dv = numerics::neighbour_tree(dv_part + x * parts, parts);
    write(args.dk, shape.c2 * dk, key, kv_head, x);
    write(args.dv, dv, key, kv_head, x);
  }
}

}  // namespace

void attention_backward(Exec& exec, const AttentionBackwardArgs& args) {
  const Contract& contract = exec.contract;
  const std::int64_t num_tokens = args.q.shape(0);
  const std::int64_t heads = args.q.shape(1);
  const std::int64_t kv_heads = args.k.shape(1);
  const std::int64_t d = args.q.shape(2);
  const Shape shape{heads, kv_heads, heads / kv_heads, d, log2e_over_sqrt(d), one_over_sqrt(d)};
  const int parts =
      static_cast<int>(contract.leaves / std::gcd<std::int64_t>(contract.leaves, kv_heads));
  Workspace::Frame frame(exec.workspace);
  float* d_sum = frame.take<float>(num_tokens * heads);  // D of the contract
  const Pairs pairs{frame.take<float>(num_tokens), frame.take<float>(num_tokens)};
  float* dk_part = frame.take<float>(d * parts);
  float* dv_part = frame.take<float>(d * parts);

  for (std::int64_t t = 0; t < num_tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      d_sum[t * heads + h] =
          numerics::lane_sum(row(args.dy, t, h), row(args.y, t, h), d, contract.norm_lanes);
    }
  }
  numerics::with_mac(contract.profile, [&](const auto& mac) {
    for (std::int64_t s = 0; s + 1 < args.cu_seqlens.shape(0); ++s) {
      const std::int64_t begin = *args.cu_seqlens.at<std::int32_t>(s);
      const std::int64_t end = *args.cu_seqlens.at<std::int32_t>(s + 1);
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          query_gradient(mac, args, shape, d_sum, begin, t, h, pairs);
        }
        for (std::int64_t h = 0; h < kv_heads; ++h) {
          key_gradient(mac, args, shape, d_sum, begin, t, end, h, parts, pairs, dk_part, dv_part);
        }
      }
    }
  });
}

}  // namespace rlk::reference
