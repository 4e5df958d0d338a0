// Any shape, strides and pages: a wave holds 16 rows (tokens by the heads of a group) and loads its
// numbers one by one. Scores are computed twice, for the largest of a block and for its terms, so
// that nothing is stored, whatever the size of a block.
#include "rlk/kernels/gpu/cdna/attention.h"
#include "rlk/kernels/gpu/cdna/attention_softmax.h"
#include "rlk/kernels/gpu/cdna/fragments.h"
#include "rlk/kernels/gpu/kv_rows.h"
#include "rlk/kernels/reference/softmax_scale.h"

namespace rlk::gpu::cdna {
namespace {

using S = Shape16;

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

// 16 keys of the sequence, from position `first` on; there are none from `end` on.
template <int kTiles>
RLK_DEVICE Float4 scores(const Problem& p, std::int64_t sequence, std::int64_t kv_head,
                         std::int64_t first, std::int64_t end, const Half4 (&q)[kTiles]) {
  const std::int64_t position = first + thread() % 16;
  const bool in = position < end;
  const bf16* const k = in ? &p.k(p.kv.row(sequence, position), kv_head) : nullptr;
  Float4 s = {};
  RLK_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    const int x = 16 * tile + 4 * S::group();
    if (16 * tile >= p.d) break;
    s = S::multiply(load_half4(in ? p.d - x : 0, [&](int i) { return k[x + i]; }), q[tile], s);
  }
  return s;
}

// o goes on over the same 16 keys. Sum i of o[tile] is element 16 * tile + row(i) of the row.
template <int kTiles>
RLK_DEVICE void add_values(const Problem& p, std::int64_t sequence, std::int64_t kv_head,
                           std::int64_t first, std::int64_t end, Half4 terms, Float4 (&o)[kTiles]) {
  const std::int64_t position = first + 4 * S::group();
  const bf16* v[4];
  for (int i = 0; i < 4; ++i) {
    v[i] = position + i < end ? &p.v(p.kv.row(sequence, position + i), kv_head) : nullptr;
  }
  RLK_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    const int x = 16 * tile + thread() % 16;
    if (16 * tile >= p.d) break;
    const Half4 values = load_half4(x < p.d ? end - position : 0, [&](int i) { return v[i][x]; });
    o[tile] = S::multiply(values, terms, o[tile]);
  }
}

// 16 * kTiles >= d. A group of padding behind the last visible key leaves a sum as it is (but makes
// +0 of -0, which no result shows): what a group of CDNA2 leaves is never subnormal.
template <int kTiles>
RLK_KERNEL(kWave)
attention_any_kernel(Problem p) {
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();
  const int kv_len = p.kv_lens(tile.sequence);
  const Query query = query_of(tile, p.group, kv_head, kv_len, S::column());
  const std::int64_t max_visible =
      query_of(tile, p.group, kv_head, kv_len, static_cast<int>(tile.num_rows) - 1).visible;
  Half4 q[kTiles];
  RLK_UNROLL
  for (int i = 0; i < kTiles; ++i) {
    const int x = 16 * i + 4 * S::group();
    q[i] = load_half4(query.live ? p.d - x : 0,
                      [&](int j) { return p.q(query.token, query.head, x + j); });
  }

  Softmax<S> softmax;
  SplitFold fold;
  Float4 total[kTiles] = {};
  for (std::int64_t split = 0; split < max_visible; split += p.kv_split) {
    Float4 o[kTiles] = {};
    const std::int64_t split_end =
        split + p.kv_split < max_visible ? split + p.kv_split : max_visible;
    for (std::int64_t block = split; block < split_end; block += p.kv_block) {
      const std::int64_t end = block + p.kv_block < split_end ? block + p.kv_block : split_end;
      const int own_visible = query.visible - 4 * S::group();
      float max_s = -numerics::kInfinity;
      for (std::int64_t first = block; first < end; first += 16) {
        const Float4 s = scores(p, tile.sequence, kv_head, first, end, q);
        max_s = softmax.max_of<true>(own_visible - static_cast<int>(first), s, max_s);
      }
      const auto step = softmax.begin_block(p.c, max_s);
      RLK_UNROLL
      for (Float4& x : o) x = x * step.a;
      for (std::int64_t first = block; first < end; first += 16) {
        const Float4 s = scores(p, tile.sequence, kv_head, first, end, q);
        Half4 terms[1];
        softmax.add_terms<true>(p.c, step, own_visible - static_cast<int>(first), s, terms);
        add_values(p, tile.sequence, kv_head, first, end, terms[0], o);
      }
    }
    const float m = softmax.m;
    const float l = softmax.end_split();
    const auto weights = fold.add(split == 0, m, l);
    RLK_UNROLL
    for (int i = 0; i < kTiles; ++i) {
      RLK_UNROLL
      for (int j = 0; j < 4; ++j) {
        total[i][j] =
            split == 0 ? o[i][j] : numerics::fma(total[i][j], weights.a1, o[i][j] * weights.a2);
      }
    }
  }
  if (!query.live) return;
  if (S::group() == 0 && (query.visible <= 0 || !softmax.in_range)) {
    report(p.fault, query.token * p.heads + query.head);
  }
  if (query.visible <= 0) return;  // an error, not a zero
  RLK_UNROLL
  for (int i = 0; i < kTiles; ++i) {
    RLK_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int x = 16 * i + S::row(j);
      if (x < p.d) store(p.y(query.token, query.head, x), total[i][j] / fold.l + 0.0f);
    }
  }
  if (p.lse && S::group() == 0) p.lse(query.token, query.head) = fold.lse();
}

}  // namespace

void attention_any(Exec& exec, const AttentionArgs& args) {
  const Contract& contract = exec.contract;
  RLK_ASSERT(contract.softmax_lanes == 16);
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
                  {ref<std::int32_t>(args.cu_seqlens_q), args.kv_lens.shape(0), group, 16},
                  args.q.shape(1),
                  group,
                  static_cast<int>(d),
                  contract.kv_block,
                  contract.kv_split,
                  reference::log2e_over_sqrt(d),
                  exec.gpu->fault()};
  with_head_dim(d, [&]<int kTiles>() {
    launch(exec, {p.tiles.bound(args.q.shape(0)), kv_heads}, kWave, 0, attention_any_kernel<kTiles>,
           p);
  });
}

}  // namespace rlk::gpu::cdna
