// What attention's kernels share: tiles of rows (queries or keys) that a block of 16 x 16 threads
// holds against runs of columns (keys or queries). Thread (y, x) owns rows y + 16 i; of dot
// products columns x + 16 c, of vectors over d the elements x + 16 c.
#pragma once

#include "rlk/kernels/gpu/elements.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu {

inline constexpr int kAttentionThreads = 256;
inline constexpr int kScoreColumns = 64;  // dot products of one pass
inline constexpr int kScoreSlice = 16;    // elements of d in shared memory at a time
inline constexpr int kMaxHeadDim = 256;

RLK_DEVICE int thread_x() { return thread() % 16; }
RLK_DEVICE int thread_y() { return thread() / 16; }

// Sequences cut into tiles of `size` rows, `rows_per_token` rows a token. Tile i of sequence s is
// number floor(cu_seqlens[s] * rows_per_token / size) + s + i: every number belongs to at most one
// tile, and the host knows their bound without reading cu_seqlens.
struct TileMap {
  Ref<const std::int32_t> cu_seqlens;
  std::int64_t num_seqs;
  std::int64_t rows_per_token;
  std::int64_t size;

  std::int64_t bound(std::int64_t num_tokens) const {
    return num_seqs == 0 ? 0 : num_tokens * rows_per_token / size + num_seqs;
  }
  RLK_DEVICE std::int64_t number(std::int64_t s) const {
    return cu_seqlens(s) * rows_per_token / size + s;
  }
};

struct SequenceTile {
  std::int64_t sequence;
  std::int64_t begin;  // its tokens
  std::int64_t end;
  std::int64_t first;     // first row of the tile in the sequence
  std::int64_t num_rows;  // of the tile; 0: no such tile
};

// Tile `number`, which is of sequence s or of none.
RLK_DEVICE SequenceTile tile_of_sequence(const TileMap& map, std::int64_t s, std::int64_t number) {
  SequenceTile tile{s, map.cu_seqlens(s), map.cu_seqlens(s + 1), 0, 0};
  tile.first = (number - map.number(s)) * map.size;
  const std::int64_t rest = (tile.end - tile.begin) * map.rows_per_token - tile.first;
  tile.num_rows = rest < 0 ? 0 : rest < map.size ? rest : map.size;
  return tile;
}

RLK_DEVICE SequenceTile find_tile(const TileMap& map, std::int64_t number) {
  std::int64_t low = 0;
  for (std::int64_t high = map.num_seqs; high - low > 1;) {
    const std::int64_t middle = (low + high) / 2;
    if (map.number(middle) <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return tile_of_sequence(map, low, number);
}

// Row r of a tile of rows (token, head of the KV head's group), tokens first.
struct Query {
  std::int64_t token;
  std::int64_t head;
  int visible;  // keys; at most 0: there is no such row, or it sees no key
  bool live;    // there is such a row
};
RLK_DEVICE Query query_of(const SequenceTile& tile, std::int64_t group, std::int64_t kv_head,
                          int kv_len, int r) {
  if (r >= tile.num_rows) return {0, 0, 0, false};
  const std::int64_t token = divide(tile.first + r, group);
  return {tile.begin + token, kv_head * group + (tile.first + r - token * group),
          kv_len - static_cast<int>(tile.end - tile.begin - 1 - token), true};
}

// m1, l1 = both; the weights of the old and the new o.
struct MergeWeights {
  float a1, a2;
};
RLK_DEVICE MergeWeights merge(float* m1, float* l1, float m2, float l2) {
  const float m = larger(*m1, m2);
  const MergeWeights w{numerics::exp2p(*m1 - m), numerics::exp2p(m2 - m)};
  *m1 = m;
  *l1 = numerics::fma(*l1, w.a1, l2 * w.a2);
  return w;
}

RLK_DEVICE float lse_of(float l, float m) {
  return numerics::fma(numerics::log(l), numerics::kLog2E, m);
}

// acc[i][c] = chain over x in [0, d) of row i by column c: rows lie in shared memory, `stride`
// apart; load(column, x) gives a column's elements. slice: kScoreColumns * (kScoreSlice + 1)
// floats.
template <int kRows, typename Load>
RLK_DEVICE void dot_products(const float* rows, int stride, int d, float* slice, const Load& load,
                             float (&acc)[kRows][kScoreColumns / 16]) {
  for (int i = 0; i < kRows; ++i) {
    for (int c = 0; c < kScoreColumns / 16; ++c) acc[i][c] = 0.0f;
  }
  for (int x0 = 0; x0 < d; x0 += kScoreSlice) {
    for (int column = thread_y(); column < kScoreColumns; column += 16) {
      const int x = x0 + thread_x();
      slice[column * (kScoreSlice + 1) + thread_x()] = x < d ? load(column, x) : 0.0f;
    }
    barrier();
    const int count = d - x0 < kScoreSlice ? d - x0 : kScoreSlice;
    for (int x = 0; x < count; ++x) {
      float column[kScoreColumns / 16];
      for (int c = 0; c < kScoreColumns / 16; ++c) {
        column[c] = slice[(thread_x() + 16 * c) * (kScoreSlice + 1) + x];
      }
      for (int i = 0; i < kRows; ++i) {
        const float row = rows[(thread_y() + 16 * i) * stride + x0 + x];
        for (int c = 0; c < kScoreColumns / 16; ++c) {
          acc[i][c] = numerics::fma(row, column[c], acc[i][c]);
        }
      }
    }
    barrier();
  }
  for (int i = 0; i < kRows; ++i) {
    for (int c = 0; c < kScoreColumns / 16; ++c) acc[i][c] = acc[i][c] + 0.0f;
  }
}

// acc[i][c] goes on over columns j in [0, count), rising: weight (row, j) by element x of column j.
// Row i sees the columns in [low[i], high[i]) only. slice: kSlice * 16 * kColumns floats.
template <int kRows, int kColumns, int kSlice, typename Load>
RLK_DEVICE void weighted_sum(const float* weights, std::int64_t stride, int count, int d,
                             const std::int64_t (&low)[kRows], const std::int64_t (&high)[kRows],
                             float* slice, const Load& load, float (&acc)[kRows][kColumns]) {
  constexpr int kWidthD = 16 * kColumns;
  for (int j0 = 0; j0 < count; j0 += kSlice) {
    const int n = count - j0 < kSlice ? count - j0 : kSlice;
    for (int j = thread() / 32; j < n; j += kAttentionThreads / 32) {
      for (int x = thread() % 32; x < kWidthD; x += 32) {
        slice[j * kWidthD + x] = x < d ? load(j0 + j, x) : 0.0f;
      }
    }
    barrier();
    for (int j = 0; j < n; ++j) {
      float column[kColumns];
      for (int c = 0; c < kColumns; ++c) column[c] = slice[j * kWidthD + thread_x() + 16 * c];
      for (int i = 0; i < kRows; ++i) {
        if (j0 + j < low[i] || j0 + j >= high[i]) continue;
        const float weight = weights[(thread_y() + 16 * i) * stride + j0 + j];
        for (int c = 0; c < kColumns; ++c) {
          acc[i][c] = numerics::fma(weight, column[c], acc[i][c]);
        }
      }
    }
    barrier();
  }
}

// The operation over the 16 threads of a row.
RLK_DEVICE float row_max(float x) {
  for (int mask = 1; mask < 16; mask *= 2) x = larger(x, shuffle_xor(x, mask));
  return x;
}
RLK_DEVICE float row_tree(float lane) {  // neighbour tree of 16 lanes
  for (int mask = 1; mask < 16; mask *= 2) lane = lane + shuffle_xor(lane, mask);
  return lane + 0.0f;
}

// Calls body.operator()<kColumns>() with 16 * kColumns >= d.
template <typename Body>
void with_head_dim(std::int64_t d, const Body& body) {
  if (d > kMaxHeadDim) {
    fail(ErrorCode::kUnsupported, "attention on a GPU: head_dim is {}, at most {}", d, kMaxHeadDim);
  }
  if (d <= 64) {
    body.template operator()<4>();
  } else if (d <= 128) {
    body.template operator()<8>();
  } else {
    body.template operator()<16>();
  }
}

}  // namespace rlk::gpu
