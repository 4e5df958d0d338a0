// A block holds 128 queries of one head: one warpgroup feeds the copy engine, two hold 64 queries
// each. K and V come in blocks of 128 keys at absolute positions.
//
//   shared memory   q | 2 x k | 2 x v | o of the splits before
//   registers       scores (64), o (kD / 2), terms as bf16 (32)
//
// The scores of the next block are multiplied before the terms of this one are, so that the softmax
// runs beside the products; the two warpgroups take turns at the multipliers. Lanes of l are
// columns mod 16, and a thread's columns are 2 q, 2 q + 1 of every block of 8: four whole lanes.
#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/sm90/attention.h"
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/sm90/kv_rows.h"
#include "rlk/kernels/gpu/sm90/launch.h"
#include "rlk/kernels/reference/softmax_scale.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu::sm90 {
namespace {

using numerics::exp2p;

constexpr int kQueries = 128;
constexpr int kKeys = 128;
constexpr int kThreads = 384;
constexpr int kConsumers = 256;
constexpr int kStages = 2;
constexpr int kAtomBytes = 128 * 128;  // 128 rows of 64 bf16

template <int kD>
struct Layout {
  static constexpr int kBlock = kD / 64 * kAtomBytes;  // 128 rows of q, k or v
  static constexpr int kTotal = kQueries * kD * 4;
  static constexpr int kBytes = (1 + 2 * kStages) * kBlock + kTotal + 2048;
};

struct Problem {
  Ref<bf16> y;
  Ref<float> lse;
  Ref<const std::int32_t> kv_lens;
  KvRows kv;
  TileMap tiles;  // rows are tokens
  std::int64_t num_kv_rows;
  int group;  // heads per KV head
  int box;    // keys that lie together: a copy
  int split_blocks;
  float c;  // log2(e) / sqrt(d)
  unsigned long long* fault;
};

// m and the lanes of l of one query in one split.
struct Row {
  float m;
  float lane[4];
};

// Scores s of 64 queries become terms e; a[h] is what o has to be multiplied by. limit[h]: columns
// below it, counted from the thread's first, are visible to row h.
//
// What is here runs one instruction a clock only while registers are left over to work on several
// scores at a time: nothing that could be an immediate may be kept.
template <bool kMasked>
RLK_DEVICE void softmax(float (&s)[64], Row (&row)[2], float (&a)[2], float c,
                        const int (&limit)[2], bool (&in_range)[2]) {
  constexpr int kMaxima = 4;  // side by side: one alone would be a chain of 32
  RLK_UNROLL
  for (int h = 0; h < 2; ++h) {
    float maxima[kMaxima];
    RLK_UNROLL
    for (float& x : maxima) x = -numerics::kInfinity;
    RLK_UNROLL
    for (int i = 0; i < 32; ++i) {
      float& x = maxima[i % kMaxima];
      if (!kMasked || i / 2 * 8 + i % 2 < limit[h]) x = fmaxf(x, s[i / 2 * 4 + h * 2 + i % 2]);
    }
    float max_s = fmaxf(fmaxf(maxima[0], maxima[1]), fmaxf(maxima[2], maxima[3]));
    max_s = fmaxf(max_s, shuffle_xor(max_s, 1));
    max_s = fmaxf(max_s, shuffle_xor(max_s, 2));
    const float m = fmaxf(row[h].m, c * max_s);
    // Without a visible key so far m is -inf, and nothing below changes o or l, which are +0.
    const float minus_m = m == -numerics::kInfinity ? 0.0f : -m;
    if (!(numerics::abs(minus_m) < 0x1p22f)) in_range[h] = false;
    a[h] = exp2p(row[h].m + minus_m);
    row[h].m = m;
    RLK_UNROLL
    for (int i = 0; i < 4; ++i) row[h].lane[i] = row[h].lane[i] * a[h];
    RLK_UNROLL
    for (int i = 0; i < 32; ++i) {
      float& x = s[i / 2 * 4 + h * 2 + i % 2];
      x = exp2p(numerics::fma(x, c, minus_m));
      if (kMasked && i / 2 * 8 + i % 2 >= limit[h]) x = 0.0f;
      float& lane = row[h].lane[i / 2 % 2 * 2 + i % 2];
      lane = lane + x;
    }
  }
}

// l of a split: the neighbour tree of 16 lanes, which 4 threads hold.
RLK_DEVICE float lane_tree(const float (&lane)[4]) {
  float low = lane[0] + lane[1];
  float high = lane[2] + lane[3];
  low = low + shuffle_xor(low, 1);
  high = high + shuffle_xor(high, 1);
  low = low + shuffle_xor(low, 2);
  high = high + shuffle_xor(high, 2);
  return low + high + 0.0f;
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    attention_prefill_kernel(const __grid_constant__ CUtensorMap map_q,
                             const __grid_constant__ CUtensorMap map_k,
                             const __grid_constant__ CUtensorMap map_v, const Problem p) {
  using L = Layout<kD>;
  RLK_DYNAMIC_SHARED(shared);
  const std::uint32_t base = swizzle_base(shared);
  const std::uint32_t shared_q = base;
  const std::uint32_t shared_k = shared_q + L::kBlock;
  const std::uint32_t shared_v = shared_k + kStages * L::kBlock;
  const std::uint32_t shared_o = shared_v + kStages * L::kBlock;
  const std::uint32_t full_q = shared_o + L::kTotal;
  const std::uint32_t full_k = full_q + 8;
  const std::uint32_t full_v = full_k + 8 * kStages;
  const std::uint32_t empty_k = full_v + 8 * kStages;
  const std::uint32_t empty_v = empty_k + 8 * kStages;

  // Late tiles of a sequence see most keys: they start first.
  const SequenceTile tile = find_tile(p.tiles, gridDim.x - 1 - block_x());
  if (tile.num_rows == 0) return;
  const int head = static_cast<int>(block_y());
  const int kv_head = head / p.group;
  const int kv_len = p.kv_lens(tile.sequence);
  // The position of the tile's first query, and the blocks of keys that its last one sees.
  const int first = kv_len - static_cast<int>(tile.end - tile.begin - tile.first);
  const int last = first + static_cast<int>(tile.num_rows) - 1;
  const int num_blocks = last < 0 ? 0 : last / kKeys + 1;
  const int token0 = static_cast<int>(tile.begin + tile.first);
  const int warpgroup = warpgroup_index();
  if (thread() == 0) {
    mbarrier_init(full_q, 1);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full_k + 8 * i, 1);
      mbarrier_init(full_v + 8 * i, 1);
      mbarrier_init(empty_k + 8 * i, kConsumers / 128);
      mbarrier_init(empty_v + 8 * i, kConsumers / 128);
    }
    mbarrier_init_fence();
  }
  barrier();

  if (warpgroup == 0) {
    fewer_registers<24>();
    if (thread() == 0 && num_blocks > 0) {
      mbarrier_expect(full_q, L::kBlock);
      for (int x = 0; x < kD; x += 64) {
        tma_load(shared_q + x / 64 * kAtomBytes, &map_q, full_q, x, head, token0);
      }
      // Block j of k or v; what lies beyond the sequence is of another one, or +0.
      const auto load = [&](const CUtensorMap* map, std::uint32_t to, std::uint32_t full,
                            std::uint32_t empty, int j) {
        const int stage = j % kStages;
        mbarrier_wait(empty + 8 * stage, j / kStages % 2 ^ 1);
        mbarrier_expect(full + 8 * stage, L::kBlock);
        for (int i = 0; i < kKeys; i += p.box) {
          const int position = j * kKeys + i;
          const int row = static_cast<int>(position < kv_len ? p.kv.row(tile.sequence, position)
                                                             : p.num_kv_rows);
          for (int x = 0; x < kD; x += 64) {
            tma_load(to + stage * L::kBlock + x / 64 * kAtomBytes + i * 128, map, full + 8 * stage,
                     x, kv_head, row);
          }
        }
      };
      for (int j = 0; j < num_blocks; ++j) {
        load(&map_k, shared_k, full_k, empty_k, j);
        load(&map_v, shared_v, full_v, empty_v, j);
      }
    }
    return;
  }

  more_registers<240>();
  const int consumer = warpgroup - 1;
  const int row0 = consumer * 64 + thread() % 128 / 32 * 16 + thread() % 32 / 4;
  const int position0 = first + row0;  // of row 0; row 1 is 8 further
  float s[64];
  float o[kD / 2];
  std::uint32_t terms[32];
  Row row[2];
  float a[2];
  bool in_range[2] = {true, true};
  float total_m[2] = {}, total_l[2] = {};
  float* const total_o =
      reinterpret_cast<float*>(shared + (shared_o - shared_address(shared))) + thread() - 128;

  const auto release = [&](std::uint32_t bar) {
    if (thread() % 128 == 0) mbarrier_arrive(bar);
  };
  const auto multiply_keys = [&](int j) {  // s = q k of block j
    const int stage = j % kStages;
    mbarrier_wait(full_k + 8 * stage, j / kStages % 2);
    wgmma_fence();
    RLK_UNROLL
    for (int x = 0; x < kD; x += 16) {
      const int at = x / 64 * kAtomBytes + x % 64 * 2;
      const std::uint64_t q = k_major(shared_q + consumer * 64 * 128 + at);
      const std::uint64_t k = k_major(shared_k + stage * L::kBlock + at);
      if (x == 0) {
        Wgmma<kKeys, false>::run<true>(s, q, k);
      } else {
        Wgmma<kKeys, false>::run(s, q, k);
      }
    }
    wgmma_commit();
  };
  const auto multiply_values = [&](int j) {  // o goes on with terms by v of block j
    const int stage = j % kStages;
    mbarrier_wait(full_v + 8 * stage, j / kStages % 2);
    wgmma_fence();
    RLK_UNROLL
    for (int i = 0; i < kKeys / 16; ++i) {
      WgmmaA<kD>::run(o, terms + 4 * i,
                      i_major(shared_v + stage * L::kBlock + i * 16 * 128, kAtomBytes));
    }
    wgmma_commit();
  };
  const auto run_softmax = [&](int j) {
    const int visible = position0 + 1 - thread() % 4 * 2 - j * kKeys;
    const int limit[2] = {visible, visible + 8};
    if ((j + 1) * kKeys <= first + consumer * 64 + 1) {
      softmax<false>(s, row, a, p.c, limit, in_range);
    } else {
      softmax<true>(s, row, a, p.c, limit, in_range);
    }
  };
  const auto round_terms = [&] {
    RLK_UNROLL
    for (int i = 0; i < 32; ++i) terms[i] = bf16_pair(s[2 * i], s[2 * i + 1]);
  };
  const auto rescale = [&] {
    RLK_UNROLL
    for (int i = 0; i < kD / 2; ++i) o[i] = o[i] * a[i / 2 % 2];
  };
  const auto begin_split = [&] {
    for (Row& r : row) r = {-numerics::kInfinity, {0.0f, 0.0f, 0.0f, 0.0f}};
    RLK_UNROLL
    for (int i = 0; i < kD / 2; ++i) o[i] = 0.0f;
  };
  // The left fold over splits; o ends as the total of all splits so far.
  const auto end_split = [&](bool is_first, bool is_last) {
    float a1[2], a2[2];
    RLK_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float l = lane_tree(row[h].lane);
      a1[h] = 1.0f;
      a2[h] = 0.0f;
      if (is_first) {
        total_m[h] = row[h].m;
        total_l[h] = l;
      } else if (row[h].m != -numerics::kInfinity) {  // else the row sees nothing of this split
        const float m = larger(total_m[h], row[h].m);
        a1[h] = exp2p(total_m[h] - m);
        a2[h] = exp2p(row[h].m - m);
        total_m[h] = m;
        total_l[h] = numerics::fma(total_l[h], a1[h], l * a2[h]);
      }
    }
    if (!is_first) {
      RLK_UNROLL
      for (int i = 0; i < kD / 2; ++i) {
        o[i] = numerics::fma(total_o[i * kConsumers], a1[i / 2 % 2], o[i] * a2[i / 2 % 2]);
      }
    }
    if (!is_last) {
      RLK_UNROLL
      for (int i = 0; i < kD / 2; ++i) total_o[i * kConsumers] = o[i];
    }
  };
  // The warpgroups take turns at the multipliers: barrier 2 + consumer is this one's turn.
  const auto wait_turn = [&] { named_barrier_wait(2 + consumer, kConsumers); };
  const auto pass_turn = [&] { named_barrier_arrive(3 - consumer, kConsumers); };

  if (num_blocks > 0) {
    if (consumer == 1) named_barrier_arrive(2, kConsumers);
    mbarrier_wait(full_q, 0);
    begin_split();
    wait_turn();
    multiply_keys(0);
    pass_turn();
    wgmma_wait<0>();
    release(empty_k);
    run_softmax(0);
    round_terms();
    int j = 0;
    for (;;) {  // here: terms and a of block j; o without block j
      int split_end = (j / p.split_blocks + 1) * p.split_blocks;
      if (split_end > num_blocks) split_end = num_blocks;
      for (; j + 1 < split_end; ++j) {
        wait_turn();
        multiply_keys(j + 1);
        rescale();  // while the scores are multiplied
        multiply_values(j);
        pass_turn();
        wgmma_wait<1>();
        release(empty_k + 8 * ((j + 1) % kStages));
        run_softmax(j + 1);
        wgmma_wait<0>();
        release(empty_v + 8 * (j % kStages));
        round_terms();
      }
      rescale();
      if (split_end == num_blocks) break;
      wait_turn();
      multiply_keys(j + 1);
      multiply_values(j);
      pass_turn();
      wgmma_wait<0>();
      release(empty_k + 8 * ((j + 1) % kStages));
      release(empty_v + 8 * (j % kStages));
      end_split(j < p.split_blocks, false);
      begin_split();
      ++j;
      run_softmax(j);
      round_terms();
    }
    wait_turn();
    multiply_values(j);
    pass_turn();
    wgmma_wait<0>();
    if (consumer == 0) wait_turn();  // takes the turn that is left over
    end_split(num_blocks <= p.split_blocks, true);
  }

  const int q = thread() % 4;
  RLK_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int r = row0 + h * 8;
    if (r >= tile.num_rows) continue;
    const int token = token0 + r;
    if (position0 + h * 8 < 0 || !in_range[h]) {  // a query without a key is an error, not a zero
      report(p.fault, static_cast<std::int64_t>(token) * gridDim.y + head);
    }
    if (position0 + h * 8 < 0) continue;
    bf16* const y = &p.y(token, head, 2 * q);
    RLK_UNROLL
    for (int i = 0; i < kD / 8; ++i) {
      const float y0 = o[4 * i + 2 * h] / total_l[h] + 0.0f;
      const float y1 = o[4 * i + 2 * h + 1] / total_l[h] + 0.0f;
      *reinterpret_cast<std::uint32_t*>(y + 8 * i) = bf16_pair(y0, y1);
    }
    if (q == 0 && p.lse) {
      p.lse(token, head) = lse_of(total_l[h], total_m[h]);
    }
  }
}

template <int kD>
void run(Exec& exec, const AttentionArgs& args, const Problem& p) {
  const ConstTensorView& k = args.kv.k;
  const ConstTensorView& v = args.kv.v;
  const Grid grid{p.tiles.bound(args.q.shape(0)), args.q.shape(1)};
  launch_cluster(exec, grid, kThreads, Layout<kD>::kBytes, {}, attention_prefill_kernel<kD>,
                 heads_map(args.q, kQueries), heads_map(k, p.box), heads_map(v, p.box), p);
}

}  // namespace

bool attention_prefill(Exec& exec, const AttentionArgs& args) {
  const Contract& contract = exec.contract;
  const std::int64_t d = args.q.shape(2);
  const int box = keys_per_copy(args.kv, kKeys);
  const std::int64_t num_seqs = args.kv_lens.shape(0);
  const bool fits = (d == 64 || d == 128) && contract.kv_block == kKeys &&
                    contract.softmax_lanes == 16 && box > 0 && heads_copyable(args.q) &&
                    packs<2>(args.y) && args.q.shape(0) > 16 * num_seqs;
  if (!fits) return false;
  Problem p{ref<bf16>(args.y),
            ref<float>(args.lse),
            ref<std::int32_t>(args.kv_lens),
            KvRows(args.kv),
            {ref<std::int32_t>(args.cu_seqlens_q), num_seqs, 1, kQueries},
            args.kv.k.shape(0),
            static_cast<int>(args.q.shape(1) / args.kv.k.shape(1)),
            box,
            contract.kv_split / contract.kv_block,
            reference::log2e_over_sqrt(d),
            exec.gpu->fault()};
  d == 64 ? run<64>(exec, args, p) : run<128>(exec, args, p);
  return true;
}

}  // namespace rlk::gpu::sm90
