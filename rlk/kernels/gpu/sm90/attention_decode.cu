// A block holds 16 rows (tokens by the heads of a KV head) and one split: a warp feeds the copy
// engine, four share the block of 128 keys for the scores, and the elements of v for the sums. The
// states of the splits are merged in order by a second kernel.
//
// Bound by reading k and v once.
#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/sm90/attention.h"
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/sm90/kv_rows.h"
#include "rlk/kernels/gpu/sm90/launch.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"
#include "rlk/kernels/reference/softmax_scale.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu::sm90 {
namespace {

using numerics::exp2p;

constexpr int kRows = 16;
constexpr int kKeys = 128;
constexpr int kWarps = 4;
constexpr int kWorkers = 32 * kWarps;
constexpr int kThreads = kWorkers + 32;
constexpr int kAtomBytes = kKeys * 128;  // 128 rows of 64 bf16
constexpr int kTermStride = kKeys + 8;   // bf16, rows of terms
constexpr int kSumStride = kKeys + 4;    // f32, the same terms unrounded

template <int kD>
struct Layout {
  static constexpr int kBlock = kD / 64 * kAtomBytes;
  static constexpr int kStages = kD == 128 ? 3 : 5;
  static constexpr int kTerms = kRows * (kTermStride * 2 + kSumStride * 4);
  static constexpr int kRowFloats = kRows * (kWarps + 1);
  static constexpr int kBytes = 2 * kStages * kBlock + kTerms + kRowFloats * 4 + 2048;
};

struct Problem {
  Ref<bf16> y;
  Ref<float> lse;
  Ref<const bf16> q;
  Ref<const std::int32_t> kv_lens;
  KvRows kv;
  TileMap tiles;
  std::int64_t num_kv_rows;
  std::int64_t heads;
  std::int64_t group;
  int box;
  int kv_split;
  float c;
  float* partial;  // [splits, tokens * heads, kD + 2]: m, l, o
  std::int64_t num_rows;
  unsigned long long* fault;

  RLK_DEVICE float* partial_of(std::int64_t split, std::int64_t row, int d) const {
    return partial + (split * num_rows + row) * (d + 2);
  }
};

// The token, head and visible keys of row r of a tile.
struct Query {
  std::int64_t token;
  std::int64_t head;
  int visible;  // 0: no such row, or one without a key
};
RLK_DEVICE Query query_of(const Problem& p, const SequenceTile& tile, std::int64_t kv_head, int r) {
  if (r >= tile.num_rows) return {0, 0, 0};
  const std::int64_t token = divide(tile.first + r, p.group);
  const std::int64_t visible = p.kv_lens(tile.sequence) - (tile.end - tile.begin - 1 - token);
  return {tile.begin + token, kv_head * p.group + (tile.first + r - token * p.group),
          visible < 0 ? 0 : static_cast<int>(visible)};
}

template <int kD>
__global__ void __launch_bounds__(kThreads)
    attention_decode_kernel(const __grid_constant__ CUtensorMap map_k,
                            const __grid_constant__ CUtensorMap map_v, const Problem p) {
  using L = Layout<kD>;
  RLK_DYNAMIC_SHARED(shared);
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();
  const int begin = static_cast<int>(block_z()) * p.kv_split;
  const int kv_len = p.kv_lens(tile.sequence);
  const int max_visible = query_of(p, tile, kv_head, static_cast<int>(tile.num_rows) - 1).visible;
  const int lane = thread() % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int warp = thread() / 32;
  if (begin == 0 && thread() < tile.num_rows) {  // a query without a key is an error, not a zero
    const Query query = query_of(p, tile, kv_head, thread());
    if (query.visible == 0) report(p.fault, query.token * p.heads + query.head);
  }
  if (begin >= max_visible) return;
  const int end = begin + p.kv_split < max_visible ? begin + p.kv_split : max_visible;
  const int num_blocks = (end - begin + kKeys - 1) / kKeys;

  const std::uint32_t base = (shared_address(shared) + 1023) & ~1023u;
  const std::uint32_t shared_k = base;
  const std::uint32_t shared_v = shared_k + L::kStages * L::kBlock;
  const std::uint32_t shared_terms = shared_v + L::kStages * L::kBlock;
  char* const after = shared + (shared_terms - shared_address(shared));
  bf16* const terms = reinterpret_cast<bf16*>(after);  // [kRows][kTermStride]
  float* const sums = reinterpret_cast<float*>(after + kRows * kTermStride * 2);
  float* const warp_max = sums + kRows * kSumStride;  // [kWarps][kRows]
  float* const scale = warp_max + kWarps * kRows;     // [kRows]: a
  const std::uint32_t full_k = shared_address(scale + kRows);
  const std::uint32_t full_v = full_k + 8 * L::kStages;
  const std::uint32_t empty_k = full_v + 8 * L::kStages;
  const std::uint32_t empty_v = empty_k + 8 * L::kStages;
  if (thread() == 0) {
    for (int i = 0; i < L::kStages; ++i) {
      mbarrier_init(full_k + 8 * i, 1);
      mbarrier_init(full_v + 8 * i, 1);
      mbarrier_init(empty_k + 8 * i, kWarps);
      mbarrier_init(empty_v + 8 * i, kWarps);
    }
    mbarrier_init_fence();
  }
  barrier();

  if (warp == kWarps) {
    // A lane for each copy of a block: its pages are looked up side by side.
    const int copies = kKeys / p.box;
    const auto load = [&](const CUtensorMap* map, std::uint32_t to, std::uint32_t full,
                          std::uint32_t empty, int j) {
      const int stage = j % L::kStages;
      mbarrier_wait(empty + 8 * stage, j / L::kStages % 2 ^ 1);
      if (lane == 0) mbarrier_expect(full + 8 * stage, L::kBlock);
      __syncwarp();
      if (lane >= copies) return;
      const int position = begin + j * kKeys + lane * p.box;
      const int row =
          static_cast<int>(position < kv_len ? p.kv.row(tile.sequence, position) : p.num_kv_rows);
      for (int x = 0; x < kD; x += 64) {
        tma_load(to + stage * L::kBlock + x / 64 * kAtomBytes + lane * p.box * 128, map,
                 full + 8 * stage, x, static_cast<int>(kv_head), row);
      }
    };
    for (int j = 0; j < num_blocks; ++j) {
      load(&map_k, shared_k, full_k, empty_k, j);
      load(&map_v, shared_v, full_v, empty_v, j);
    }
    return;
  }

  // q as the left operand of the scores.
  std::uint32_t a_q[kD / 16][4];
  int limit[2];  // keys of the sequence that rows g, g + 8 see
  for (int h = 0; h < 2; ++h) {
    const Query query = query_of(p, tile, kv_head, g + 8 * h);
    limit[h] = query.visible;
    RLK_UNROLL
    for (int i = 0; i < kD / 16; ++i) {
      RLK_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int x = 16 * i + 8 * half + 2 * t;
        a_q[i][h + 2 * half] =
            query.visible > 0
                ? *reinterpret_cast<const std::uint32_t*>(&p.q(query.token, query.head, x))
                : 0;
      }
    }
  }
  const auto sync = [] { named_barrier_wait(1, kWorkers); };
  const auto release = [&](std::uint32_t bar) {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(bar);
  };

  constexpr int kSlice = kD / kWarps;  // elements of v that a warp sums
  float o[kSlice / 8][4] = {};
  float m[2] = {-numerics::kInfinity, -numerics::kInfinity};
  float l[2] = {0.0f, 0.0f};  // lanes 2 (thread % 8), + 1 of row thread / 8
  const int l_row = thread() / 8;
  const int l_lane = thread() % 8 * 2;
  bool in_range[2] = {true, true};
  for (int j = 0; j < num_blocks; ++j) {
    const int stage = j % L::kStages;
    const int parity = j / L::kStages % 2;
    // Scores of the warp's 32 keys.
    float s[4][4] = {};
    mbarrier_wait(full_k + 8 * stage, parity);
    RLK_UNROLL
    for (int i = 0; i < kD / 16; ++i) {
      RLK_UNROLL
      for (int n = 0; n < 4; n += 2) {
        const int key = warp * 32 + n * 8 + lane / 16 * 8 + lane % 8;
        std::uint32_t b[4];
        load_matrices(b, shared_k + stage * L::kBlock + i / 4 * kAtomBytes + key * 128 +
                             (((i % 4 * 2 + lane / 8 % 2) ^ (key % 8)) << 4));
        mma_sync(s[n], a_q[i], b);
        mma_sync(s[n + 1], a_q[i], b + 2);
      }
    }
    release(empty_k + 8 * stage);

    const int first = begin + j * kKeys + warp * 32 + 2 * t;  // position of s[0][0]
    RLK_UNROLL
    for (int h = 0; h < 2; ++h) {
      float max_s = -numerics::kInfinity;
      RLK_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (first + i / 2 * 8 + i % 2 < limit[h]) {
          max_s = fmaxf(max_s, s[i / 2][2 * h + i % 2]);
        }
      }
      max_s = fmaxf(max_s, shuffle_xor(max_s, 1));
      max_s = fmaxf(max_s, shuffle_xor(max_s, 2));
      if (t == 0) warp_max[warp * kRows + g + 8 * h] = max_s;
    }
    sync();
    RLK_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int row = g + 8 * h;
      float max_s = warp_max[row];
      for (int w = 1; w < kWarps; ++w) max_s = fmaxf(max_s, warp_max[w * kRows + row]);
      const float new_m = fmaxf(m[h], p.c * max_s);
      // Without a visible key so far m is -inf, and nothing below changes o or l, which are +0.
      const float minus_m = new_m == -numerics::kInfinity ? 0.0f : -new_m;
      if (!(numerics::abs(minus_m) < 0x1p22f)) in_range[h] = false;
      const float a = exp2p(m[h] + minus_m);
      m[h] = new_m;
      if (warp == 0 && t == 0) scale[row] = a;
      RLK_UNROLL
      for (int n = 0; n < kSlice / 8; ++n) {
        o[n][2 * h] = o[n][2 * h] * a;
        o[n][2 * h + 1] = o[n][2 * h + 1] * a;
      }
      RLK_UNROLL
      for (int i = 0; i < 8; ++i) {
        float e = exp2p(numerics::fma(s[i / 2][2 * h + i % 2], p.c, minus_m));
        if (first + i / 2 * 8 + i % 2 >= limit[h]) e = 0.0f;
        const int column = warp * 32 + i / 2 * 8 + 2 * t + i % 2;
        sums[row * kSumStride + column] = e;
        store(terms[row * kTermStride + column], e);
      }
    }
    sync();
    const float a = scale[l_row];
    RLK_UNROLL
    for (int i = 0; i < 2; ++i) {
      l[i] = l[i] * a;
      for (int column = l_lane + i; column < kKeys; column += 16) {
        l[i] = l[i] + sums[l_row * kSumStride + column];
      }
    }
    mbarrier_wait(full_v + 8 * stage, parity);
    RLK_UNROLL
    for (int i = 0; i < kKeys / 16; ++i) {
      std::uint32_t x[4];
      load_matrices(x, shared_terms + (lane % 16 * kTermStride + i * 16 + lane / 16 * 8) * 2);
      RLK_UNROLL
      for (int n = 0; n < kSlice / 8; n += 2) {
        const int key = i * 16 + lane % 16;
        const int column = warp * kSlice + n * 8 + lane / 16 * 8;
        std::uint32_t b[4];
        load_matrices_transposed(b, shared_v + stage * L::kBlock + column / 64 * kAtomBytes +
                                        key * 128 + ((column % 64 / 8 ^ (key % 8)) << 4));
        mma_sync(o[n], x, b);
        mma_sync(o[n + 1], x, b + 2);
      }
    }
    release(empty_v + 8 * stage);
  }

  float total_l = l[0] + l[1];
  total_l = total_l + shuffle_xor(total_l, 1);
  total_l = total_l + shuffle_xor(total_l, 2);
  total_l = total_l + shuffle_xor(total_l, 4) + 0.0f;
  const Query l_query = query_of(p, tile, kv_head, l_row);
  if (thread() % 8 == 0 && begin < l_query.visible) {
    p.partial_of(block_z(), l_query.token * p.heads + l_query.head, kD)[1] = total_l;
  }
  for (int h = 0; h < 2; ++h) {
    const Query query = query_of(p, tile, kv_head, g + 8 * h);
    if (begin >= query.visible) continue;
    const std::int64_t row = query.token * p.heads + query.head;
    float* const out = p.partial_of(block_z(), row, kD);
    if (warp == 0 && t == 0) {
      out[0] = m[h];
      if (!in_range[h]) report(p.fault, row);
    }
    RLK_UNROLL
    for (int n = 0; n < kSlice / 8; ++n) {
      float2* const to = reinterpret_cast<float2*>(out + 2 + warp * kSlice + n * 8 + 2 * t);
      *to = make_float2(o[n][2 * h], o[n][2 * h + 1]);
    }
  }
}

// The left fold over the splits of one query and head, a thread for each element.
template <int kD>
RLK_KERNEL(kD)
attention_decode_merge_kernel(Problem p) {
  const SequenceTile tile = find_tile(p.tiles, block_x());
  const Query query = query_of(p, tile, block_z(), static_cast<int>(block_y()));
  if (query.visible == 0) return;
  const std::int64_t row = query.token * p.heads + query.head;
  float m = 0.0f, l = 0.0f, o = 0.0f;
  for (std::int64_t split = 0; split * p.kv_split < query.visible; ++split) {
    const float* const x = p.partial_of(split, row, kD);
    const float m2 = x[0], l2 = x[1], o2 = x[2 + thread()];
    if (split == 0) {
      m = m2;
      l = l2;
      o = o2;
      continue;
    }
    const float new_m = m < m2 ? m2 : m;
    const float a1 = exp2p(m - new_m);
    const float a2 = exp2p(m2 - new_m);
    m = new_m;
    l = numerics::fma(l, a1, l2 * a2);
    o = numerics::fma(o, a1, o2 * a2);
  }
  store(p.y(query.token, query.head, thread()), o / l + 0.0f);
  if (p.lse && thread() == 0) {
    p.lse(query.token, query.head) = numerics::fma(numerics::log(l), numerics::kLog2E, m);
  }
}

template <int kD>
void run(Exec& exec, const AttentionArgs& args, Problem p, std::int64_t max_splits) {
  device::Workspace::Frame frame(exec.gpu->workspace());
  p.partial = frame.take<float>(max_splits * p.num_rows * (kD + 2));
  const auto map = [&](const ConstTensorView& x) {
    return tensor_map(x.data, kD, x.shape(1), x.stride(1), x.shape(0), x.stride(0), p.box);
  };
  const std::int64_t tiles = p.tiles.bound(args.q.shape(0));
  const std::int64_t kv_heads = args.kv.k.shape(1);
  launch_cluster(exec, {tiles, kv_heads, max_splits}, kThreads, Layout<kD>::kBytes, {},
                 attention_decode_kernel<kD>, map(args.kv.k), map(args.kv.v), p);
  launch(exec, {tiles, kRows, kv_heads}, kD, 0, attention_decode_merge_kernel<kD>, p);
}

}  // namespace

bool attention_decode(Exec& exec, const AttentionArgs& args) {
  const Contract& contract = exec.contract;
  const std::int64_t d = args.q.shape(2);
  const std::int64_t max_keys =
      args.kv.block_table ? args.kv.block_table.shape(1) * args.kv.page_size : args.kv.k.shape(0);
  const std::int64_t max_splits = ceil_div(max_keys, contract.kv_split);
  const int box = keys_per_copy(args.kv, kKeys);
  const bool fits = (d == 64 || d == 128) && contract.kv_block == kKeys &&
                    contract.softmax_lanes == 16 && box > 0 && in_pairs(args.q) &&
                    max_splits < 65536;
  if (!fits) return false;
  const std::int64_t heads = args.q.shape(1);
  const std::int64_t group = heads / args.kv.k.shape(1);
  const Problem p{ref<bf16>(args.y),
                  ref<float>(args.lse),
                  ref<bf16>(args.q),
                  ref<std::int32_t>(args.kv_lens),
                  KvRows(args.kv),
                  {ref<std::int32_t>(args.cu_seqlens_q), args.kv_lens.shape(0), group, kRows},
                  args.kv.k.shape(0),
                  heads,
                  group,
                  box,
                  contract.kv_split,
                  reference::log2e_over_sqrt(d),
                  nullptr,
                  args.q.shape(0) * heads,
                  exec.gpu->fault()};
  d == 64 ? run<64>(exec, args, p, max_splits) : run<128>(exec, args, p, max_splits);
  return true;
}

}  // namespace rlk::gpu::sm90
