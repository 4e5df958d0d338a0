// What the attention drivers ask of an instruction set: raw pointers and sizes, so that a file
// compiled with other flags shares no code with the rest.
#pragma once

#include <cstdint>

#include "rlk/kernels/cpu/row_list.h"

namespace rlk::production {

using Bf16RowList = cpu::RowList<std::uint16_t>;

inline constexpr int kAttentionPad = 16;  // leading dimensions of f32 scratch are multiples
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kFlashKeys = 128;                           // keys of a block
inline constexpr int kFlashStride = kFlashKeys + kAttentionPad;  // no multiple of a cache way
inline constexpr int kFlashRows = 48;  // rows whose scores are in scratch at a time

// Rows of queries that share a KV head, in order of position, and their running softmax.
struct FlashTile {
  int rows;
  int d;
  int ld;          // d rounded up to kAttentionPad
  float c;         // log2(e) / sqrt(d)
  const float* q;  // [rows, ld]
  float* m;        // [rows], of scores in base 2
  float* l;        // [rows]
  float* o;        // [rows, ld]
  float* kt;       // scratch [d, kFlashStride]
  float* v;        // scratch [kFlashKeys, ld]
  float* s;        // scratch [kFlashRows, kFlashStride]
};

struct FlashBlock {
  const std::uint16_t* const* k;  // [n] rows of d bf16
  const std::uint16_t* const* v;  // [n]
  int n;
  const int* visible;  // [rows], keys of the block that each row sees, never falling
};

// One query position of a sequence: the query heads of one KV head against all keys.
struct DecodeRow {
  int heads;
  int d;
  int ld;
  float c;
  const std::uint16_t* const* q;  // [heads]
  const std::uint16_t* const* k;  // [n]
  const std::uint16_t* const* v;  // [n]
  int n;
  float* wide_q;            // scratch [heads, ld]
  float* s;                 // scratch [heads, n rounded up to kAttentionPad]
  float* o;                 // scratch [heads, ld]
  float* m;                 // out [heads]
  float* l;                 // out [heads]
  std::uint16_t* const* y;  // out [heads]
};

struct AttentionIsa {
  // out[r, 0..ld) = f32 of row r, zeros past d
  void (*widen_rows)(float* out, std::int64_t ld, Bf16RowList rows, int n, int d);
  // Online softmax: goes on with the rows through one block.
  void (*flash_block)(const FlashTile& tile, const FlashBlock& block);
  void (*flash_end)(const FlashTile& tile, std::uint16_t* const* y);
  // All scores, one softmax, then the values.
  void (*decode)(const DecodeRow& row);
};

extern const AttentionIsa kAttentionScalar;
extern const AttentionIsa kAttentionAvx2;
extern const AttentionIsa kAttentionAvx512;

}  // namespace rlk::production
