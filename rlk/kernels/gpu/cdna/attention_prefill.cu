// A block holds 128 rows (tokens by the heads of a KV head), 32 a wave, and goes through k and v in
// blocks of 128 keys at absolute positions.
//
//   registers       q, the scores of a block (64), their terms (32), o (kD / 2)
//   shared memory   two items of 16 KiB of k or v: one is used, the next is being written
//   memory          o of the splits before, where there are several
//
// Two blocks fit a compute unit, so that one's softmax runs beside the other's products.
#include "rlk/kernels/gpu/cdna/attention.h"
#include "rlk/kernels/gpu/cdna/attention_kv_items.h"
#include "rlk/kernels/gpu/cdna/attention_softmax.h"
#include "rlk/kernels/reference/softmax_scale.h"

namespace rlk::gpu::cdna {
namespace {

using S = Shape32;

constexpr int kRows = 128;

struct Problem {
  Ref<bf16> y;
  Ref<float> lse;
  Ref<const bf16> q;
  KvTensors kv;
  Ref<const std::int32_t> kv_lens;
  TileMap tiles;
  std::int64_t num_tiles;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t group;
  int split_blocks;
  float c;
  float* total;  // [rows of all blocks, kD + 4], where there are several splits
  unsigned long long* fault;
};

// Scores of the wave's queries against an item of keys.
template <typename It, int kSteps>
RLK_DEVICE void multiply_keys(const char* keys, const Half4 (&q)[kSteps], Float16* s) {
  constexpr int kReads = kSteps / 2;  // of a tile
  const int base = It::row_base();
  load_ahead<It::kRows / 32 * kReads>(
      [&](int i) { return It::rows(keys, base, i / kReads, i % kReads); },
      [&](int i, const TwoOperands& k) {
        Float16& sums = s[i / kReads];
        sums = S::multiply(k.of[0], q[i % kReads * 2], i % kReads == 0 ? Float16{} : sums);
        sums = S::multiply(k.of[1], q[i % kReads * 2 + 1], sums);
      });
}

// o goes on over an item of values.
template <typename It, int kTiles>
RLK_DEVICE void multiply_values(const char* values, const Half4 (*terms)[4], Float16 (&o)[kTiles]) {
  const int base = It::column_base();
  load_ahead<It::kRows / 16 * kTiles>(
      [&](int i) { return It::columns(values, base, i % kTiles, i / kTiles); },
      [&](int i, const TwoOperands& v) {
        const int step = i / kTiles;
        Float16& sums = o[i % kTiles];
        sums = S::multiply(v.of[0], terms[step / 2][step % 2 * 2], sums);
        sums = S::multiply(v.of[1], terms[step / 2][step % 2 * 2 + 1], sums);
      });
}

// The split is over: it and those before, in `total`, become one, which goes to `total` again or,
// of the last split, stays in o. `total` is a row's kD elements and, for each group of lanes, m and
// l. Sums 4 r .. 4 r + 3 of o[i] are elements 32 i + 8 r + 4 group() + {0..3}.
template <bool kIsLast, int kD>
RLK_DEVICE SplitFold end_split(bool is_first, float* total, Softmax<S>& softmax,
                               Float16 (&o)[kD / 32]) {
  SplitFold fold;
  const float m = softmax.m;
  const float l = softmax.end_split();
  if ((kIsLast && is_first) || total == nullptr) {
    fold.add(true, m, l);
    return fold;
  }
  const int group = opaque(S::group());
  float* const own = total + kD + 2 * group;
  if (!is_first) fold = {own[0], own[1]};
  const auto weights = fold.add(is_first, m, l);
  if (!kIsLast) {
    own[0] = fold.m;
    own[1] = fold.l;
  }
  RLK_UNROLL
  for (int i = 0; i < kD / 32; ++i) {
    RLK_UNROLL
    for (int r = 0; r < 4; ++r) {
      Float4* const at = reinterpret_cast<Float4*>(total + 32 * i + 8 * r + 4 * group);
      Float4 sum = {};
      if (!is_first) sum = *at;
      RLK_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float o2 = o[i][4 * r + j];
        sum[j] = is_first ? o2 : numerics::fma(sum[j], weights.a1, o2 * weights.a2);
        o[i][4 * r + j] = kIsLast ? sum[j] : 0.0f;
      }
      if (!kIsLast) *at = sum;
    }
  }
  return fold;
}

template <int kD>
RLK_WAVES_PER_SIMD(2)
RLK_KERNEL(kItemThreads) attention_prefill_kernel(Problem p) {
  using Items = KvItems<kD, 0>;
  using It = typename Items::It;
  constexpr int kTilesOfItem = It::kRows / 32;
  RLK_DYNAMIC_SHARED(shared);
  // Neighbouring blocks have different KV heads: on a chip of eight dies, each with a cache of its
  // own, a die keeps to its KV heads. Late tiles of a sequence see most keys: they start first.
  const std::int64_t tile_number = divide(block_x(), p.kv_heads);
  const std::int64_t kv_head = block_x() - tile_number * p.kv_heads;
  const SequenceTile tile = find_tile(p.tiles, p.num_tiles - 1 - tile_number);
  if (tile.num_rows == 0) return;
  const int kv_len = p.kv_lens(tile.sequence);
  const auto query_at = [&](int r) { return query_of(tile, p.group, kv_head, kv_len, r); };
  const int num_rows = static_cast<int>(tile.num_rows);
  const int row0 = uniform(thread() / kWave * 32);
  // The lane's query. (Not kept over the loop, which needs the registers.)
  const auto own_query = [&] { return query_at(row0 + opaque(S::column())); };
  const int max_visible = query_at(num_rows - 1).visible;
  const int num_blocks = max_visible <= 0 ? 0 : (max_visible + kBlockKeys - 1) / kBlockKeys;
  const int all_see = row0 < num_rows ? query_at(row0).visible : 0;  // all queries of the wave
  const int visible = own_query().visible;

  Half4 q[kD / 8];
  {
    const Query query = own_query();
    RLK_UNROLL
    for (int i = 0; i < kD / 8; ++i) {
      q[i] = Half4{};
      if (visible > 0) {
        q[i] =
            *reinterpret_cast<const Half4*>(&p.q(query.token, query.head, 8 * i + 4 * S::group()));
      }
    }
  }
  const auto total = [&] {
    if (p.total == nullptr) return static_cast<float*>(nullptr);
    return p.total + (block_x() * kRows + row0 + opaque(S::column())) * (kD + 4);
  };

  Softmax<S> softmax;
  Float16 o[kD / 32] = {};
  if (num_blocks > 0) {
    Items items(p.kv, tile.sequence, kv_head, 0, kv_len, shared);
    int left_of_split = p.split_blocks;
    for (int j = 0; j < num_blocks; ++j) {
      const int first = j * kBlockKeys;
      Float16 s[kBlockKeys / 32];
      RLK_UNROLL
      for (int part = 0; part < Items::kOfBlock; ++part) {
        const char* const keys = items.begin_part(part);
        multiply_keys<It>(keys, q, s + part * kTilesOfItem);
        items.end_part(part);
      }
      Half4 terms[kBlockKeys / 32][4];
      const float a = first + kBlockKeys <= all_see
                          ? softmax_block<false>(p.c, visible - first, s, softmax, terms)
                          : softmax_block<true>(p.c, visible - first, s, softmax, terms);
      RLK_UNROLL
      for (Float16& x : o) x = x * a;
      RLK_UNROLL
      for (int part = 0; part < Items::kOfBlock; ++part) {
        const char* const values = items.begin_part(Items::kOfBlock + part);
        multiply_values<It>(values, terms + part * kTilesOfItem, o);
        items.end_part(Items::kOfBlock + part);
      }
      if (--left_of_split == 0 && j + 1 < num_blocks) {
        left_of_split = p.split_blocks;
        end_split<false, kD>(j < p.split_blocks, total(), softmax, o);
      }
    }
  }

  const Query query = own_query();
  const SplitFold fold = end_split<true, kD>(num_blocks <= p.split_blocks, total(), softmax, o);
  if (!query.live) return;
  const std::int64_t row = query.token * p.heads + query.head;
  if (S::group() == 0 && (query.visible <= 0 || !softmax.in_range)) report(p.fault, row);
  if (query.visible <= 0) return;  // an error, not a zero
  bf16* const y = &p.y(query.token, query.head, 4 * S::group());
  RLK_UNROLL
  for (int i = 0; i < kD / 32; ++i) {
    RLK_UNROLL
    for (int r = 0; r < 4; ++r) {
      float x[4];
      RLK_UNROLL
      for (int j = 0; j < 4; ++j) x[j] = o[i][4 * r + j] / fold.l + 0.0f;
      Pack<bf16, 4>::of(x).write(y + 32 * i + 8 * r);
    }
  }
  if (p.lse && S::group() == 0) p.lse(query.token, query.head) = fold.lse();
}

}  // namespace

bool attention_prefill(Exec& exec, const AttentionArgs& args) {
  const Contract& contract = exec.contract;
  const std::int64_t num_tokens = args.q.shape(0), heads = args.q.shape(1), d = args.q.shape(2);
  const std::int64_t kv_heads = args.kv.k.shape(1);
  const bool fits = (d == 64 || d == 128) && contract.kv_block == kBlockKeys &&
                    contract.softmax_lanes == 16 && readable(args.kv) && packs<4>(args.q) &&
                    packs<4>(args.y);
  if (!fits) return false;
  Problem p{ref<bf16>(args.y),
            ref<float>(args.lse),
            ref<bf16>(args.q),
            kv_tensors(args.kv),
            ref<std::int32_t>(args.kv_lens),
            {ref<std::int32_t>(args.cu_seqlens_q), args.kv_lens.shape(0), heads / kv_heads, kRows},
            0,
            heads,
            kv_heads,
            heads / kv_heads,
            contract.kv_split / kBlockKeys,
            reference::log2e_over_sqrt(d),
            nullptr,
            exec.gpu->fault()};
  p.num_tiles = p.tiles.bound(num_tokens);
  device::Workspace::Frame frame(exec.gpu->workspace());
  if (max_keys(args.kv) > contract.kv_split) {
    p.total = frame.take<float>(p.num_tiles * kv_heads * kRows * (d + 4));
  }
  const Grid grid{p.num_tiles * kv_heads};
  if (d == 64) {
    launch(exec, grid, kItemThreads, KvItems<64, 0>::kSharedBytes, attention_prefill_kernel<64>, p);
  } else {
    launch(exec, grid, kItemThreads, KvItems<128, 0>::kSharedBytes, attention_prefill_kernel<128>,
           p);
  }
  return true;
}

}  // namespace rlk::gpu::cdna
