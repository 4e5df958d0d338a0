// A block holds 128 queries of one head: one warpgroup feeds the copy engine, two hold 64 queries
// each. K and V come in blocks of 128 keys at absolute positions. Blocks of threads stay and take
// one item (queries of a head) after the other.
//
//   shared memory   q | 2 x k | 2 x v | o of the splits before
//   registers       scores (64), o (kD / 2), terms as bf16 (32)
//
// The scores of the next block are multiplied before the terms of this one are, so that the softmax
// runs beside the products; the two warpgroups take turns at the multipliers. Lanes of l are
// columns mod 16, and a thread's columns are 2 q, 2 q + 1 of every block of 8: four whole lanes.
#include <algorithm>

#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/sm90/attention.h"
#include "rlk/kernels/gpu/sm90/attention_softmax.h"
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
constexpr unsigned kStages = 2;
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
  unsigned num_items;  // tiles of a head each
  int num_heads;
  int group;  // heads per KV head
  int box;    // keys that lie together: a copy
  int split_blocks;
  float c;             // log2(e) / sqrt(d)
  std::uint32_t zero;  // 0
  unsigned long long* fault;
};

// The operand that lies `bytes` behind.
RLK_DEVICE std::uint64_t further(std::uint64_t operand, unsigned bytes) {
  const std::uint32_t low = static_cast<std::uint32_t>(operand) + bytes / 16;
  return (operand & 0xffffffff00000000ull) | low;
}

// 128 queries of a head, and the blocks of keys that the last of them sees.
struct Item {
  int sequence;
  int head;
  int token0;
  int num_rows;
  int kv_len;
  int first;  // position of the first query
  int num_blocks;
};

// Calls body(item) for this block's items. Those that see most keys come first, and blocks take
// them in turn, there and back: then all have about the same number of keys.
template <typename Body>
RLK_DEVICE void for_items(const Problem& p, const Body& body) {
  const auto block = static_cast<unsigned>(block_x());
  for (unsigned begin = 0, turn = 0;; begin += gridDim.x, ++turn) {
    const unsigned i = begin + (turn % 2 == 0 ? block : gridDim.x - 1 - block);
    if (i >= p.num_items) return;
    const auto heads = static_cast<unsigned>(p.num_heads);
    const unsigned number = (p.num_items - 1 - i) / heads;  // late tiles see most keys
    const SequenceTile tile = find_tile(p.tiles, number);
    if (tile.num_rows == 0) continue;
    const int kv_len = p.kv_lens(tile.sequence);
    Item item;
    item.sequence = static_cast<int>(tile.sequence);
    item.head = static_cast<int>(p.num_items - 1 - i - number * heads);
    item.token0 = static_cast<int>(tile.begin + tile.first);
    item.num_rows = static_cast<int>(tile.num_rows);
    item.kv_len = kv_len;
    item.first = kv_len - static_cast<int>(tile.end - tile.begin - tile.first);
    const int last = item.first + item.num_rows - 1;
    item.num_blocks = last < 0 ? 0 : last / kKeys + 1;
    body(item);
  }
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
  const std::uint32_t empty_q = full_q + 8;
  const std::uint32_t full_k = empty_q + 8;
  const std::uint32_t full_v = full_k + 8 * kStages;
  const std::uint32_t empty_k = full_v + 8 * kStages;
  const std::uint32_t empty_v = empty_k + 8 * kStages;

  const int warpgroup = warpgroup_index();
  if (thread() == 0) {
    mbarrier_init(full_q, 1);
    mbarrier_init(empty_q, kConsumers / 128);
    for (unsigned i = 0; i < kStages; ++i) {
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
    if (thread() == 0) {
      unsigned block = 0;  // counts the blocks of all items
      unsigned tile = 0;
      for_items(p, [&](const Item& item) {
        if (item.num_blocks == 0) return;
        mbarrier_wait(empty_q, tile % 2 ^ 1);
        mbarrier_expect(full_q, L::kBlock);
        for (int x = 0; x < kD; x += 64) {
          tma_load(shared_q + x / 64 * kAtomBytes, &map_q, full_q, x, item.head, item.token0);
        }
        ++tile;
        const int kv_head = item.head / p.group;
        // Block j of k or v; what lies beyond the sequence is of another one, or +0.
        const auto load = [&](const CUtensorMap* map, std::uint32_t to, std::uint32_t full,
                              std::uint32_t empty, int j) {
          const unsigned stage = block % kStages;
          mbarrier_wait(empty + 8 * stage, block / kStages % 2 ^ 1);
          mbarrier_expect(full + 8 * stage, L::kBlock);
          for (int i = 0; i < kKeys; i += p.box) {
            const int position = j * kKeys + i;
            const int row = static_cast<int>(
                position < item.kv_len ? p.kv.row(item.sequence, position) : p.num_kv_rows);
            for (int x = 0; x < kD; x += 64) {
              tma_load(to + stage * L::kBlock + x / 64 * kAtomBytes + i * 128, map,
                       full + 8 * stage, x, kv_head, row);
            }
          }
        };
        for (int j = 0; j < item.num_blocks; ++j, ++block) {
          load(&map_k, shared_k, full_k, empty_k, j);
          load(&map_v, shared_v, full_v, empty_v, j);
        }
      });
    }
    return;
  }

  more_registers<240>();
  const int consumer = warpgroup - 1;
  const int row0 = consumer * 64 + thread() % 128 / 32 * 16 + thread() % 32 / 4;
  float s[64];
  float o[kD / 2];
  std::uint32_t terms[32];
  SoftmaxRow row[2];
  float a[2];
  bool in_range[2];
  float total_m[2], total_l[2];
  unsigned block = 0;  // counts the blocks of all items before this one
  float* const total_o =
      reinterpret_cast<float*>(shared + (shared_o - shared_address(shared))) + thread() - 128;

  const std::uint64_t desc_q = k_major(shared_q + consumer * 64 * 128);
  const std::uint64_t desc_k = k_major(shared_k);
  const std::uint64_t desc_v = i_major(shared_v, kAtomBytes);
  const auto release = [&](std::uint32_t bar) {
    if (thread() % 128 == 0) mbarrier_arrive(bar);
  };
  const auto multiply_keys = [&](unsigned j) {  // s = q k of block j
    const unsigned stage = (block + j) % kStages;
    const std::uint64_t keys = further(desc_k, stage * L::kBlock);
    mbarrier_wait(full_k + 8 * stage, (block + j) / kStages % 2);
    wgmma_fence();
    RLK_UNROLL
    for (unsigned x = 0; x < kD; x += 16) {
      const unsigned at = x / 64 * kAtomBytes + x % 64 * 2;
      if (x == 0) {
        Wgmma<kKeys, false>::run<true>(s, desc_q, keys);
      } else {
        Wgmma<kKeys, false>::run(s, further(desc_q, at), further(keys, at));
      }
    }
    wgmma_commit();
  };
  const auto multiply_values = [&](unsigned j) {  // o goes on with terms by v of block j
    const unsigned stage = (block + j) % kStages;
    const std::uint64_t values = further(desc_v, stage * L::kBlock);
    mbarrier_wait(full_v + 8 * stage, (block + j) / kStages % 2);
    wgmma_fence();
    RLK_UNROLL
    for (unsigned i = 0; i < kKeys / 16; ++i) {
      WgmmaA<kD>::run(o, terms + 4 * i, further(values, i * 16 * 128));
    }
    wgmma_commit();
  };
  const auto run_softmax = [&](int first, int j) {
    const int visible = first + row0 + 1 - thread() % 4 * 2 - j * kKeys;
    const int limit[2] = {visible, visible + 8};
    const bool whole = (j + 1) * kKeys <= first + consumer * 64 + 1;
    if (!softmax_plain(whole, s, row, a, p.c, p.zero, in_range)) {
      softmax_masked(s, row, a, p.c, limit, in_range);
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
    for (SoftmaxRow& r : row) r = {-numerics::kInfinity, {0.0f, 0.0f, 0.0f, 0.0f}};
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

  if (consumer == 1) named_barrier_arrive(2, kConsumers);
  unsigned num_tiles = 0;
  for_items(p, [&](const Item& item) {
    const int num_blocks = item.num_blocks;
    for (bool& x : in_range) x = true;
    for (int h = 0; h < 2; ++h) total_m[h] = total_l[h] = 0.0f;
    if (num_blocks > 0) {
      mbarrier_wait(full_q, num_tiles % 2);
      ++num_tiles;
      begin_split();
      wait_turn();
      multiply_keys(0);
      pass_turn();
      wgmma_wait<0>();
      release(empty_k + 8 * (block % kStages));
      if (num_blocks == 1) release(empty_q);
      run_softmax(item.first, 0);
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
          release(empty_k + 8 * ((block + j + 1) % kStages));
          run_softmax(item.first, j + 1);
          wgmma_wait<0>();
          release(empty_v + 8 * ((block + j) % kStages));
          round_terms();
        }
        rescale();
        if (split_end == num_blocks) break;
        wait_turn();
        multiply_keys(j + 1);
        multiply_values(j);
        pass_turn();
        wgmma_wait<0>();
        release(empty_k + 8 * ((block + j + 1) % kStages));
        release(empty_v + 8 * ((block + j) % kStages));
        end_split(j < p.split_blocks, false);
        begin_split();
        ++j;
        run_softmax(item.first, j);
        round_terms();
      }
      if (num_blocks > 1) release(empty_q);
      wait_turn();
      multiply_values(j);
      pass_turn();
      wgmma_wait<0>();
      release(empty_v + 8 * ((block + j) % kStages));
      end_split(num_blocks <= p.split_blocks, true);
      block += static_cast<unsigned>(num_blocks);
    }

    const int q = thread() % 4;
    RLK_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = row0 + h * 8;
      if (r >= item.num_rows) continue;
      const int token = item.token0 + r;
      // A query without a key is an error, not a zero.
      if (item.first + r < 0 || !in_range[h]) {
        report(p.fault, static_cast<std::int64_t>(token) * p.num_heads + item.head);
      }
      if (item.first + r < 0) continue;
      store_quotients<kD>(&p.y(token, item.head, 2 * q), o, h, total_l[h]);
      if (q == 0 && p.lse) {
        p.lse(token, item.head) = lse_of(total_l[h], total_m[h]);
      }
    }
  });
  if (consumer == 0) wait_turn();  // takes the turn that is left over
}

template <int kD>
void run(Exec& exec, const AttentionArgs& args, const Problem& p) {
  const ConstTensorView& k = args.kv.k;
  const ConstTensorView& v = args.kv.v;
  const Grid grid{std::min<std::int64_t>(p.num_items, num_processors())};
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
  const TileMap tiles{ref<std::int32_t>(args.cu_seqlens_q), num_seqs, 1, kQueries};
  const std::int64_t num_tiles = tiles.bound(args.q.shape(0));
  Problem p{ref<bf16>(args.y),
            ref<float>(args.lse),
            ref<std::int32_t>(args.kv_lens),
            KvRows(args.kv),
            tiles,
            args.kv.k.shape(0),
            static_cast<unsigned>(num_tiles * args.q.shape(1)),
            static_cast<int>(args.q.shape(1)),
            static_cast<int>(args.q.shape(1) / args.kv.k.shape(1)),
            box,
            contract.kv_split / contract.kv_block,
            reference::log2e_over_sqrt(d),
            0,
            exec.gpu->fault()};
  d == 64 ? run<64>(exec, args, p) : run<128>(exec, args, p);
  return true;
}

}  // namespace rlk::gpu::sm90
