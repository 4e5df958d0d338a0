// An item is 16 rows (tokens by the heads of a KV head) and one split. A block for every processor
// takes one item after the other: a warp feeds the copy engine, which runs ahead into the next
// item; four share the block of 128 keys for the scores, and the elements of v for the sums. The
// states of the splits are merged in order by a second kernel.
//
// Bound by reading k and v once. The KV heads of the same keys are neighbouring items, so that
// what lies together in memory is read at the same time.
#include "rlk/kernels/gpu/sm90/attention.h"
#include "rlk/kernels/gpu/sm90/attention_decode.h"
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/sm90/kv_rows.h"
#include "rlk/kernels/gpu/sm90/launch.h"
#include "rlk/kernels/reference/softmax_scale.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu::sm90 {
namespace {

using numerics::exp2p;

constexpr int kRows = DecodeProblem::kRows;
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

struct Item {
  SequenceTile tile;
  std::int64_t kv_head;
  std::int64_t split;
  int begin;  // its keys
  int end;    // not above begin: nothing to do

  RLK_DEVICE int num_blocks() const { return (end - begin + kKeys - 1) / kKeys; }
};
RLK_DEVICE Item find_item(const DecodeProblem& p, int number) {
  const int rest = number / p.kv_heads;
  Item item{find_sequence_tile(p.tiles, rest % p.num_tiles), number % p.kv_heads,
            rest / p.num_tiles, 0, 0};
  item.begin = static_cast<int>(item.split) * p.kv_split;
  if (item.tile.num_rows == 0) return item;
  const int last_row = static_cast<int>(item.tile.num_rows) - 1;
  const int visible = query_of(p, item.tile, item.kv_head, last_row).visible;
  item.end = item.begin + p.kv_split < visible ? item.begin + p.kv_split : visible;
  return item;
}

// Items up to the last split of the longest sequence. All threads of the block.
RLK_DEVICE int count_items(const DecodeProblem& p) {
  RLK_SHARED(int, longest, 1);
  if (thread() == 0) *longest = 0;
  barrier();
  int kv_len = 0;
  for (std::int64_t i = thread(); i < p.tiles.num_seqs; i += kThreads) {
    kv_len = max(kv_len, p.kv_lens(i));
  }
  atomic_max(longest, kv_len);
  barrier();
  const int splits = (*longest + p.kv_split - 1) / p.kv_split;
  return max(min(splits, p.max_splits), 1) * p.num_tiles * p.kv_heads;
}

template <int kD>
__global__ void __launch_bounds__(kThreads)
    attention_decode_kernel(const __grid_constant__ CUtensorMap map_k,
                            const __grid_constant__ CUtensorMap map_v, const DecodeProblem p) {
  using L = Layout<kD>;
  RLK_DYNAMIC_SHARED(shared);
  const int lane = thread() % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int warp = thread() / 32;
  const std::uint32_t base = swizzle_base(shared);
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
  allow_next_kernel();
  const int num_items = count_items(p);

  if (warp == kWarps) {
    // A lane for each copy of a block: its pages are looked up side by side, and before there is
    // room for them.
    const int copies = kKeys / p.box;
    int i = 0;  // blocks so far
    for (int number = static_cast<int>(block_x()); number < num_items; number += gridDim.x) {
      const Item item = find_item(p, number);
      const int kv_len = p.kv_lens(item.tile.sequence);
      const auto row_of = [&](int j) {
        const int position = item.begin + j * kKeys + lane * p.box;
        return static_cast<int>(lane < copies && position < kv_len
                                    ? p.kv.row(item.tile.sequence, position)
                                    : p.num_kv_rows);
      };
      const int num_blocks = item.num_blocks();
      int row = num_blocks > 0 ? row_of(0) : 0;
      for (int j = 0; j < num_blocks; ++j, ++i) {
        const int stage = i % L::kStages;
        const int next_row = j + 1 < num_blocks ? row_of(j + 1) : 0;
        const auto load = [&](const CUtensorMap* map, std::uint32_t to, std::uint32_t full,
                              std::uint32_t empty) {
          mbarrier_wait(empty + 8 * stage, i / L::kStages % 2 ^ 1);
          if (lane == 0) mbarrier_expect(full + 8 * stage, L::kBlock);
          __syncwarp();
          if (lane >= copies) return;
          for (int x = 0; x < kD; x += 64) {
            tma_load(to + stage * L::kBlock + x / 64 * kAtomBytes + lane * p.box * 128, map,
                     full + 8 * stage, x, static_cast<int>(item.kv_head), row);
          }
        };
        load(&map_k, shared_k, full_k, empty_k);
        load(&map_v, shared_v, full_v, empty_v);
        row = next_row;
      }
    }
    return;
  }

  const auto sync = [] { named_barrier_wait(1, kWorkers); };
  const auto release = [&](std::uint32_t bar) {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(bar);
  };
  int step = 0;  // blocks so far
  for (int number = static_cast<int>(block_x()); number < num_items; number += gridDim.x) {
    const Item item = find_item(p, number);
    const SequenceTile& tile = item.tile;
    const std::int64_t kv_head = item.kv_head;
    const int begin = item.begin;
    if (begin == 0 && thread() < tile.num_rows) {  // a query without a key is an error, not a zero
      const Query query = query_of(p, tile, kv_head, thread());
      if (query.visible == 0) report(p.fault, query.token * p.heads + query.head);
    }
    const int num_blocks = item.num_blocks();
    if (num_blocks <= 0) continue;

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
    constexpr int kSlice = kD / kWarps;  // elements of v that a warp sums
    float o[kSlice / 8][4] = {};
    float m[2] = {-numerics::kInfinity, -numerics::kInfinity};
    float l[2] = {0.0f, 0.0f};  // lanes 2 (thread % 8), + 1 of row thread / 8
    const int l_row = thread() / 8;
    const int l_lane = thread() % 8 * 2;
    bool in_range[2] = {true, true};
    for (int j = 0; j < num_blocks; ++j, ++step) {
      const int stage = step % L::kStages;
      const int parity = step / L::kStages % 2;
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
      p.partial_of(item.split, l_query.token * p.heads + l_query.head, kD)[1] = total_l;
    }
    for (int h = 0; h < 2; ++h) {
      const Query query = query_of(p, tile, kv_head, g + 8 * h);
      if (begin >= query.visible) continue;
      const std::int64_t row = query.token * p.heads + query.head;
      float* const out = p.partial_of(item.split, row, kD);
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
}

template <int kD>
void run(Exec& exec, const AttentionArgs& args, DecodeProblem p) {
  device::Workspace::Frame frame(exec.gpu->workspace());
  p.partial = frame.take<float>(p.max_splits * p.num_rows * (kD + 2));
  const std::int64_t max_items = std::int64_t{p.kv_heads} * p.num_tiles * p.max_splits;
  const std::int64_t blocks = max_items < num_processors() ? max_items : num_processors();
  launch_cluster(exec, {blocks}, kThreads, Layout<kD>::kBytes, {}, attention_decode_kernel<kD>,
                 heads_map(args.kv.k, p.box), heads_map(args.kv.v, p.box), p);
  attention_decode_merge(exec, p, kD);
}

}  // namespace

bool attention_decode(Exec& exec, const AttentionArgs& args) {
  const Contract& contract = exec.contract;
  const std::int64_t d = args.q.shape(2);
  const std::int64_t heads = args.q.shape(1), kv_heads = args.kv.k.shape(1);
  const std::int64_t group = heads / kv_heads;
  const TileMap tiles{ref<std::int32_t>(args.cu_seqlens_q), args.kv_lens.shape(0), group, kRows};
  const std::int64_t num_tiles = tiles.bound(args.q.shape(0));
  const std::int64_t max_splits = ceil_div(max_keys(args.kv), contract.kv_split);
  const int box = keys_per_copy(args.kv, kKeys);
  const bool fits = (d == 64 || d == 128) && contract.kv_block == kKeys &&
                    contract.softmax_lanes == 16 && box > 0 && packs<2>(args.q) &&
                    num_tiles < 65536 && max_splits < 65536 &&
                    num_tiles * max_splits * kv_heads < (std::int64_t{1} << 30);
  if (!fits) return false;
  const DecodeProblem p{ref<bf16>(args.y),
                        ref<float>(args.lse),
                        ref<bf16>(args.q),
                        ref<std::int32_t>(args.kv_lens),
                        KvRows(args.kv),
                        tiles,
                        args.kv.k.shape(0),
                        heads,
                        group,
                        static_cast<int>(kv_heads),
                        static_cast<int>(num_tiles),
                        static_cast<int>(max_splits),
                        box,
                        contract.kv_split,
                        reference::log2e_over_sqrt(d),
                        nullptr,
                        args.q.shape(0) * heads,
                        exec.gpu->fault()};
  d == 64 ? run<64>(exec, args, p) : run<128>(exec, args, p);
  return true;
}

}  // namespace rlk::gpu::sm90
