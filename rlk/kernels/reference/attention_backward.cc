#include <algorithm>
#include <cmath>
#include <numeric>

#include "rlk/kernels/attention.h"
#include "rlk/kernels/reference/mac.h"
#include "rlk/kernels/reference/softmax_scale.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/bf16.h"
#include "rlk/numerics/math.h"
#include "rlk/numerics/sums.h"

namespace rlk::reference {
namespace {

using numerics::Strided;
using numerics::to_bf16;
using numerics::to_f32;

struct Shape {
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t heads_per_kv;
  std::int64_t d;
  float c;   // log2(e) / sqrt(d)
  float c2;  // 1 / sqrt(d)
};

Strided<bf16> row(const ConstTensorView& x, std::int64_t token, std::int64_t head) {
  return {x.at<bf16>(token, head), x.stride(2)};
}

float chain(const Strided<bf16>& a, const Strided<bf16>& b, std::int64_t d) {
  float acc = 0.0f;
  for (std::int64_t x = 0; x < d; ++x) acc = mac(a(x), b(x), acc);
  return acc + 0.0f;
}

// Probability and score gradient of one query and one visible key, rounded as products take them.
struct Pair {
  float p;   // bf16(p)
  float ds;  // bf16(p * (dp - D))
};

Pair make_pair(const AttentionBackwardArgs& args, const Shape& shape, const float* d_sum,
               std::int64_t query, std::int64_t head, std::int64_t key) {
  const std::int64_t kv_head = head / shape.heads_per_kv;
  const float s = chain(row(args.q, query, head), row(args.k, key, kv_head), shape.d);
  const float dp = chain(row(args.dy, query, head), row(args.v, key, kv_head), shape.d);
  const float p = numerics::exp2p(std::fma(s, shape.c, -*args.lse.at<float>(query, head)));
  const float ds = p * (dp - d_sum[query * shape.heads + head]);
  return {numerics::round_bf16(p), numerics::round_bf16(ds)};
}

// dq of one query and head: one chain over the visible keys [first, query].
void query_gradient(const AttentionBackwardArgs& args, const Shape& shape, const float* d_sum,
                    std::int64_t first, std::int64_t query, std::int64_t head, float* acc) {
  const std::int64_t kv_head = head / shape.heads_per_kv;
  std::fill_n(acc, shape.d, 0.0f);
  for (std::int64_t key = first; key <= query; ++key) {
    const Pair pair = make_pair(args, shape, d_sum, query, head, key);
    const Strided<bf16> k = row(args.k, key, kv_head);
    for (std::int64_t x = 0; x < shape.d; ++x) acc[x] = mac(pair.ds, k(x), acc[x]);
  }
  for (std::int64_t x = 0; x < shape.d; ++x) {
    *args.dq.at<bf16>(query, head, x) = to_bf16(shape.c2 * (acc[x] + 0.0f));
  }
}

// dk and dv of one key and KV head. Part i is one chain over its query heads, and within a head
// over the queries that see the key, [key, end). dk_part and dv_part are [d][parts].
void key_gradient(const AttentionBackwardArgs& args, const Shape& shape, const float* d_sum,
                  std::int64_t key, std::int64_t end, std::int64_t kv_head, int parts,
                  float* dk_part, float* dv_part) {
  std::fill_n(dk_part, shape.d * parts, 0.0f);
  std::fill_n(dv_part, shape.d * parts, 0.0f);
  const std::int64_t first_head = kv_head * shape.heads_per_kv;
  for (int i = 0; i < parts; ++i) {
    const std::int64_t begin_head = first_head + i * shape.heads_per_kv / parts;
    const std::int64_t end_head = first_head + (i + 1) * shape.heads_per_kv / parts;
    for (std::int64_t head = begin_head; head < end_head; ++head) {
      for (std::int64_t query = key; query < end; ++query) {
        const Pair pair = make_pair(args, shape, d_sum, query, head, key);
        const Strided<bf16> q = row(args.q, query, head);
        const Strided<bf16> dy = row(args.dy, query, head);
        for (std::int64_t x = 0; x < shape.d; ++x) {
          float& dk = dk_part[x * parts + i];
          float& dv = dv_part[x * parts + i];
          dk = mac(pair.ds, q(x), dk);
          dv = mac(pair.p, dy(x), dv);
        }
      }
    }
  }
  for (std::int64_t x = 0; x < shape.d; ++x) {
    const float dk = numerics::neighbour_tree(dk_part + x * parts, parts);
    const float dv = numerics::neighbour_tree(dv_part + x * parts, parts);
    *args.dk.at<bf16>(key, kv_head, x) = to_bf16(shape.c2 * dk);
    *args.dv.at<bf16>(key, kv_head, x) = to_bf16(dv);
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
  float* dq = frame.take<float>(d);
  float* dk_part = frame.take<float>(d * parts);
  float* dv_part = frame.take<float>(d * parts);

  for (std::int64_t t = 0; t < num_tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      d_sum[t * heads + h] =
          numerics::lane_sum(row(args.dy, t, h), row(args.y, t, h), d, contract.norm_lanes);
    }
  }
  for (std::int64_t s = 0; s + 1 < args.cu_seqlens.shape(0); ++s) {
    const std::int64_t begin = *args.cu_seqlens.at<std::int32_t>(s);
    const std::int64_t end = *args.cu_seqlens.at<std::int32_t>(s + 1);
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        query_gradient(args, shape, d_sum, begin, t, h, dq);
      }
      for (std::int64_t h = 0; h < kv_heads; ++h) {
        key_gradient(args, shape, d_sum, t, end, h, parts, dk_part, dv_part);
      }
    }
  }
}

}  // namespace rlk::reference
