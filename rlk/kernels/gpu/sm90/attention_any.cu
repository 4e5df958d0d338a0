// Any shape, strides and pages: a warp holds 16 rows (tokens by the heads of a group) and loads its
// numbers one by one; a thread does the softmax of a row.
#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/sm90/attention.h"
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/sm90/kv_rows.h"
#include "rlk/kernels/reference/softmax_scale.h"
#include "rlk/numerics/math.h"
#include "rlk/numerics/sums.h"

namespace rlk::gpu::sm90 {
namespace {

using numerics::exp2p;

constexpr int kRows = 16;
constexpr int kLanes = 16;

struct Problem {
  Ref<bf16> y;
  Ref<float> lse;
  Ref<const bf16> q;
  Ref<const bf16> k;
  Ref<const bf16> v;
  Ref<const std::int32_t> kv_lens;
  KvRows kv;
  TileMap tiles;
  std::int64_t heads;
  std::int64_t group;
  int d;
  int kv_block;
  std::int64_t kv_split;
  float c;
  unsigned long long* fault;
};

RLK_DEVICE float larger(float a, float b) { return a < b ? b : a; }

RLK_DEVICE std::uint32_t pair(bf16 low, bf16 high) {
  return low.bits | (static_cast<std::uint32_t>(high.bits) << 16);
}

RLK_KERNEL(32)
attention_any_kernel(Problem p) {
  RLK_DYNAMIC_SHARED(shared);
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();
  const int lane = thread();
  const int g = lane / 4;
  const int t = lane % 4;
  const int width = (p.d + 7) / 8 * 8;
  float* const s = reinterpret_cast<float*>(shared);  // [kRows][kv_block]
  float* const o = s + kRows * p.kv_block;            // [kRows][width], of the split
  float* const total = o + kRows * width;             // [kRows][width], of the splits before
  bf16* const e = reinterpret_cast<bf16*>(total + kRows * width);  // [kRows][kv_block]

  const auto token_of = [&](int r) { return divide(tile.first + r, p.group); };
  const auto head_of = [&](int r) {
    return kv_head * p.group + (tile.first + r - token_of(r) * p.group);
  };
  const std::int64_t kv_len = p.kv_lens(tile.sequence);
  const auto visible_of = [&](int r) -> std::int64_t {
    if (r >= tile.num_rows) return 0;
    return kv_len - (tile.end - tile.begin - 1 - token_of(r));
  };
  const auto load_q = [&](int r, int x) {
    if (r >= tile.num_rows || x >= p.d) return bf16{};
    return p.q(tile.begin + token_of(r), head_of(r), x);
  };
  const std::int64_t max_visible = visible_of(static_cast<int>(tile.num_rows) - 1);

  // The row of a thread below kRows.
  const std::int64_t visible = lane < kRows ? visible_of(lane) : 0;
  float m = 0.0f, l[kLanes] = {}, total_m = 0.0f, total_l = 0.0f;
  bool in_range = true;
  for (std::int64_t split = 0; split < max_visible; split += p.kv_split) {
    m = -numerics::kInfinity;
    for (float& x : l) x = 0.0f;
    for (int i = lane; i < kRows * width; i += 32) o[i] = 0.0f;
    const std::int64_t split_end =
        split + p.kv_split < max_visible ? split + p.kv_split : max_visible;
    for (std::int64_t begin = split; begin < split_end; begin += p.kv_block) {
      const int count =
          static_cast<int>(split_end - begin < p.kv_block ? split_end - begin : p.kv_block);
      for (int n = 0; n < count; n += 8) {
        const bool in = n + g < count;
        const std::int64_t row = in ? p.kv.row(tile.sequence, begin + n + g) : 0;
        const auto load_k = [&](int x) { return in && x < p.d ? p.k(row, kv_head, x) : bf16{}; };
        float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int x = 2 * t; x - 2 * t < p.d; x += 16) {
          const std::uint32_t a[4] = {pair(load_q(g, x), load_q(g, x + 1)),
                                      pair(load_q(g + 8, x), load_q(g + 8, x + 1)),
                                      pair(load_q(g, x + 8), load_q(g, x + 9)),
                                      pair(load_q(g + 8, x + 8), load_q(g + 8, x + 9))};
          const std::uint32_t b[2] = {pair(load_k(x), load_k(x + 1)),
                                      pair(load_k(x + 8), load_k(x + 9))};
          mma_sync(acc, a, b);
        }
        for (int i = 0; i < 4; ++i) {
          s[(g + 8 * (i / 2)) * p.kv_block + n + 2 * t + i % 2] = acc[i] + 0.0f;
        }
      }
      barrier();
      if (lane < kRows) {
        const std::int64_t seen = visible - begin;
        const int n = static_cast<int>(seen < 0 ? 0 : seen < count ? seen : count);
        float* const row = s + lane * p.kv_block;
        bf16* const terms = e + lane * p.kv_block;
        for (int j = n; j < p.kv_block; ++j) terms[j] = bf16{};
        if (n > 0) {
          float max_s = -numerics::kInfinity;
          for (int j = 0; j < n; ++j) max_s = larger(max_s, row[j]);
          const float new_m = larger(m, p.c * max_s);
          if (!(numerics::abs(new_m) < 0x1p22f)) in_range = false;
          const float a = exp2p(m - new_m);
          m = new_m;
          for (float& x : l) x = x * a;
          for (int j = 0; j < n; ++j) {
            const float term = exp2p(numerics::fma(row[j], p.c, -new_m));
            l[j % kLanes] = l[j % kLanes] + term;
            store(terms[j], term);
          }
          for (int x = 0; x < width; ++x) o[lane * width + x] = o[lane * width + x] * a;
        }
      }
      barrier();
      for (int x0 = 0; x0 < p.d; x0 += 8) {
        float acc[4];
        float* at[4];
        for (int i = 0; i < 4; ++i) {
          at[i] = o + (g + 8 * (i / 2)) * width + x0 + 2 * t + i % 2;
          acc[i] = *at[i];
        }
        for (int j = 2 * t; j - 2 * t < count; j += 16) {
          const auto load_e = [&](int r, int key) { return e[r * p.kv_block + key]; };
          const auto load_v = [&](int key) {
            if (key >= count || x0 + g >= p.d) return bf16{};
            return p.v(p.kv.row(tile.sequence, begin + key), kv_head, x0 + g);
          };
          const std::uint32_t a[4] = {pair(load_e(g, j), load_e(g, j + 1)),
                                      pair(load_e(g + 8, j), load_e(g + 8, j + 1)),
                                      pair(load_e(g, j + 8), load_e(g, j + 9)),
                                      pair(load_e(g + 8, j + 8), load_e(g + 8, j + 9))};
          const std::uint32_t b[2] = {pair(load_v(j), load_v(j + 1)),
                                      pair(load_v(j + 8), load_v(j + 9))};
          mma_sync(acc, a, b);
        }
        for (int i = 0; i < 4; ++i) *at[i] = acc[i];
      }
      barrier();
    }
    if (lane < kRows && split < visible) {
      float lanes[kLanes];
      for (int i = 0; i < kLanes; ++i) lanes[i] = l[i];
      const float split_l = numerics::neighbour_tree(lanes, kLanes);
      float a1 = 0.0f, a2 = 1.0f;
      if (split == 0) {
        total_m = m;
        total_l = split_l;
      } else {
        const float new_m = larger(total_m, m);
        a1 = exp2p(total_m - new_m);
        a2 = exp2p(m - new_m);
        total_m = new_m;
        total_l = numerics::fma(total_l, a1, split_l * a2);
      }
      for (int x = lane * width; x < (lane + 1) * width; ++x) {
        total[x] = split == 0 ? o[x] : numerics::fma(total[x], a1, o[x] * a2);
      }
    }
    barrier();
  }
  if (lane >= kRows || lane >= tile.num_rows) return;
  const std::int64_t token = tile.begin + token_of(lane);
  const std::int64_t head = head_of(lane);
  if (visible <= 0 || !in_range) report(p.fault, token * p.heads + head);
  if (visible <= 0) return;
  for (int x = 0; x < p.d; ++x) {
    store(p.y(token, head, x), total[lane * width + x] / total_l + 0.0f);
  }
  if (p.lse) {
    p.lse(token, head) = numerics::fma(numerics::log(total_l), numerics::kLog2E, total_m);
  }
}

}  // namespace

void attention_any(Exec& exec, const AttentionArgs& args) {
  const Contract& contract = exec.contract;
  RLK_ASSERT(contract.softmax_lanes == kLanes);
  const std::int64_t d = args.q.shape(2);
  const std::int64_t kv_heads = args.kv.k.shape(1);
  const std::int64_t group = args.q.shape(1) / kv_heads;
  const Problem p{ref<bf16>(args.y),
                  ref<float>(args.lse),
                  ref<bf16>(args.q),
                  ref<bf16>(args.kv.k),
                  ref<bf16>(args.kv.v),
                  ref<std::int32_t>(args.kv_lens),
                  KvRows(args.kv),
                  {ref<std::int32_t>(args.cu_seqlens_q), args.kv_lens.shape(0), group, kRows},
                  args.q.shape(1),
                  group,
                  static_cast<int>(d),
                  contract.kv_block,
                  contract.kv_split,
                  reference::log2e_over_sqrt(d),
                  exec.gpu->fault()};
  const std::size_t shared_bytes =
      static_cast<std::size_t>(kRows * (contract.kv_block * 6 + 2 * ceil_div(d, 8) * 8 * 4));
  launch(exec, {p.tiles.bound(args.q.shape(0)), kv_heads}, 32, shared_bytes, attention_any_kernel,
         p);
}

}  // namespace rlk::gpu::sm90
