// A block holds 16 rows (tokens by the heads of a KV head) and one split. Its four waves share the
// loads of k and v, compute the same scores and terms, and sum a quarter of the elements each: time
// is that of the loads, and what the waves would have to tell each other they know. The states of
// splits are merged in order by a second kernel.
//
// Bound by reading k and v once.
#include "rlk/kernels/gpu/cdna/attention.h"
#include "rlk/kernels/gpu/cdna/attention_kv_items.h"
#include "rlk/kernels/gpu/cdna/attention_softmax.h"
#include "rlk/kernels/reference/softmax_scale.h"

namespace rlk::gpu::cdna {
namespace {

using S = Shape16;

constexpr int kRows = 16;
constexpr int kWaves = kItemThreads / kWave;
constexpr int kAhead = 2;

struct Problem {
  Ref<bf16> y;
  Ref<float> lse;
  Ref<const bf16> q;
  KvTensors kv;
  Ref<const std::int32_t> kv_lens;
  TileMap tiles;
  std::int64_t heads;
  std::int64_t group;
  int kv_split;
  float c;
  float*
      partial;  // [splits, tokens * heads, kD + 4]: o, m, l, two unused; null: there is one split
  std::int64_t num_rows;
  unsigned long long* fault;

  RLK_DEVICE float* partial_of(std::int64_t split, const Query& query, int d) const {
    return partial + (split * num_rows + query.token * heads + query.head) * (d + 4);
  }
  RLK_DEVICE void write(const Query& query, int x, float o, const SplitFold& fold) const {
    store(y(query.token, query.head, x), o / fold.l + 0.0f);
  }
};

template <int kD>
RLK_KERNEL(kItemThreads)
attention_decode_kernel(Problem p) {
  using Items = KvItems<kD, kAhead>;
  using It = typename Items::It;
  constexpr int kTilesOfItem = It::kRows / 16;
  constexpr int kTiles = kD / 16 / kWaves;  // of o, that a wave has
  RLK_DYNAMIC_SHARED(shared);
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();
  const int begin = static_cast<int>(block_z()) * p.kv_split;
  const int kv_len = p.kv_lens(tile.sequence);
  const Query query = query_of(tile, p.group, kv_head, kv_len, S::column());
  const int max_visible =
      query_of(tile, p.group, kv_head, kv_len, static_cast<int>(tile.num_rows) - 1).visible;
  const bool writes = query.live && begin < query.visible;
  const int wave = uniform(thread() / kWave);
  const bool is_first_lane = wave == 0 && S::group() == 0;
  if (begin == 0 && query.live && query.visible <= 0 && is_first_lane) {  // an error, not a zero
    report(p.fault, query.token * p.heads + query.head);
  }
  if (begin >= max_visible) return;
  const int end = begin + p.kv_split < max_visible ? begin + p.kv_split : max_visible;

  Half4 q[kD / 16];
  RLK_UNROLL
  for (int i = 0; i < kD / 16; ++i) {
    q[i] = Half4{};
    if (query.visible > 0) {
      q[i] =
          *reinterpret_cast<const Half4*>(&p.q(query.token, query.head, 16 * i + 4 * S::group()));
    }
  }
  Softmax<S> softmax;
  Float4 o[kTiles] = {};
  Items items(p.kv, tile.sequence, kv_head, begin, end, shared);
  for (int first = begin; first < end; first += kBlockKeys) {
    Float4 s[kBlockKeys / 16];
    RLK_UNROLL
    for (int part = 0; part < Items::kOfBlock; ++part) {
      const char* const keys = items.begin_part(part);
      const int base = It::row_base_16();
      RLK_UNROLL
      for (int i = 0; i < kTilesOfItem; ++i) {
        Float4& sums = s[part * kTilesOfItem + i];
        sums = Float4{};
        RLK_UNROLL
        for (int step = 0; step < kD / 16; ++step) {
          sums = S::multiply(It::rows_16(keys, base, i, step), q[step], sums);
        }
      }
      items.end_part(part);
    }
    Half4 terms[kBlockKeys / 16][1];
    const float a = softmax_block<true>(p.c, query.visible - first, s, softmax, terms);
    RLK_UNROLL
    for (Float4& x : o) x = x * a;
    RLK_UNROLL
    for (int part = 0; part < Items::kOfBlock; ++part) {
      const char* const values = items.begin_part(Items::kOfBlock + part);
      const int base = It::column_base_16();
      RLK_UNROLL
      for (int step = 0; step < kTilesOfItem; ++step) {
        RLK_UNROLL
        for (int i = 0; i < kTiles; ++i) {
          o[i] = S::multiply(It::columns_16(values, base, wave * kTiles + i, step),
                             terms[part * kTilesOfItem + step][0], o[i]);
        }
      }
      items.end_part(Items::kOfBlock + part);
    }
  }

  const float m = softmax.m;
  const float l = softmax.end_split();
  if (!writes) return;
  if (is_first_lane && !softmax.in_range) {
    report(p.fault, query.token * p.heads + query.head);
  }
  const int x0 = 16 * kTiles * wave + 4 * S::group();
  if (p.partial != nullptr) {
    float* const out = p.partial_of(block_z(), query, kD);
    RLK_UNROLL
    for (int i = 0; i < kTiles; ++i) *reinterpret_cast<Float4*>(out + x0 + 16 * i) = o[i];
    if (is_first_lane) {
      out[kD] = m;
      out[kD + 1] = l;
    }
    return;
  }
  SplitFold fold;
  fold.add(true, m, l);
  RLK_UNROLL
  for (int i = 0; i < kTiles; ++i) {
    for (int j = 0; j < 4; ++j) p.write(query, x0 + 16 * i + j, o[i][j], fold);
  }
  if (p.lse && is_first_lane) p.lse(query.token, query.head) = fold.lse();
}

// The left fold over the splits of one row, a thread for each element.
template <int kD>
RLK_KERNEL(kD)
attention_decode_merge_kernel(Problem p) {
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const Query query =
      query_of(tile, p.group, block_z(), p.kv_lens(tile.sequence), static_cast<int>(block_y()));
  SplitFold fold;
  float o = 0.0f;
  for (int split = 0; split * p.kv_split < query.visible; ++split) {
    const float* const from = p.partial_of(split, query, kD);
    const auto weights = fold.add(split == 0, from[kD], from[kD + 1]);
    const float o2 = from[thread()];
    o = split == 0 ? o2 : numerics::fma(o, weights.a1, o2 * weights.a2);
  }
  if (query.visible <= 0) return;
  p.write(query, thread(), o, fold);
  if (p.lse && thread() == 0) p.lse(query.token, query.head) = fold.lse();
}

template <int kD>
void run(Exec& exec, const AttentionArgs& args, Problem p, std::int64_t max_splits) {
  device::Workspace::Frame frame(exec.gpu->workspace());
  if (max_splits > 1) p.partial = frame.take<float>(max_splits * p.num_rows * (kD + 4));
  const std::int64_t tiles = p.tiles.bound(args.q.shape(0));
  const std::int64_t kv_heads = args.kv.k.shape(1);
  launch(exec, {tiles, kv_heads, max_splits}, kItemThreads, KvItems<kD, kAhead>::kSharedBytes,
         attention_decode_kernel<kD>, p);
  if (max_splits > 1) {
    launch(exec, {tiles, kRows, kv_heads}, kD, 0, attention_decode_merge_kernel<kD>, p);
  }
}

}  // namespace

bool attention_decode(Exec& exec, const AttentionArgs& args) {
  const Contract& contract = exec.contract;
  const std::int64_t d = args.q.shape(2);
  const std::int64_t max_splits = ceil_div(max_keys(args.kv), contract.kv_split);
  const bool fits = (d == 64 || d == 128) && contract.kv_block == kBlockKeys &&
                    contract.softmax_lanes == 16 && readable(args.kv) && packs<4>(args.q) &&
                    max_splits < 65536;
  if (!fits) return false;
  const std::int64_t heads = args.q.shape(1);
  const std::int64_t group = heads / args.kv.k.shape(1);
  const Problem p{ref<bf16>(args.y),
                  ref<float>(args.lse),
                  ref<bf16>(args.q),
                  kv_tensors(args.kv),
                  ref<std::int32_t>(args.kv_lens),
                  {ref<std::int32_t>(args.cu_seqlens_q), args.kv_lens.shape(0), group, kRows},
                  heads,
                  group,
                  contract.kv_split,
                  reference::log2e_over_sqrt(d),
                  nullptr,
                  args.q.shape(0) * heads,
                  exec.gpu->fault()};
  d == 64 ? run<64>(exec, args, p, max_splits) : run<128>(exec, args, p, max_splits);
  return true;
}

}  // namespace rlk::gpu::cdna
