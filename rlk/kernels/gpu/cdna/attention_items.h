// Items: kRows rows of a head of k, v, q or dy on their way to shared memory. A thread moves 8
// neighbours of 4 rows, 16 bytes a row, and leaves them by rows (k of a product runs along a row)
// or by columns (k runs over the rows), such that a lane of a left operand finds two operands of
// Shape32 in 16 bytes:
//
//   by rows      of each 16 numbers of a row, those with x % 8 < 4 are one chunk of 16 bytes, the
//                others the next one
//   by columns   the same of each 16 rows of a column
//
// The chunks of a line change places from line to line so that neither side meets a bank twice.
#pragma once

#include <cstdint>

#include "rlk/kernels/gpu/cdna/attention_shapes.h"
#include "rlk/kernels/gpu/views.h"

namespace rlk::gpu::cdna {

using Octet = Pack<bf16, 8>;
struct alignas(8) Four {
  std::uint32_t word[2];
};
struct alignas(16) TwoOperands {
  Half4 of[2];
};

template <int kD, int kRows_>
struct Item {
  static_assert(kD == 64 || kD == 128);
  static_assert(kRows_ == 32 || kRows_ == 64 || kRows_ == 128);
  static constexpr int kRows = kRows_;
  static constexpr int kRowBytes = 2 * kD;
  static constexpr int kColumnBytes = 2 * kRows;
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr int kThreads = kRows / 4 * (kD / 8);

  // The thread's part: rows row0() .. + 3, elements 8 * octet() .. + 7. 16 neighbouring threads
  // have 8 octets of rows r .. r + 3 and r + 8 .. r + 11, which write to all banks.
  RLK_DEVICE static int octet() { return thread() % kThreads / 16 % (kD / 64) * 8 + thread() % 8; }
  RLK_DEVICE static int row0() {
    const int rest = thread() % kThreads / 16 / (kD / 64);
    return 4 * (rest / 2 * 4 + thread() / 8 % 2 * 2 + rest % 2);
  }

  RLK_DEVICE static void put_rows(char* to, const Octet (&x)[4]) {
    const int base = opaque(row_chunk(row0(), octet() / 2 * 2) + octet() % 2 * 8);
    RLK_UNROLL
    for (int i = 0; i < 4; ++i) {
      RLK_UNROLL
      for (int half = 0; half < 2; ++half) {
        *at<Four>(to, (base ^ ((i ^ half) << 4)) +
                          i * kRowBytes) = {{x[i].word[2 * half], x[i].word[2 * half + 1]}};
      }
    }
  }

  RLK_DEVICE static void put_columns(char* to, const Octet (&x)[4]) {
    const int base =
        opaque(column_chunk(8 * octet(), row0() / 16 * 2 + row0() / 4 % 2) + row0() / 8 % 2 * 8);
    RLK_UNROLL
    for (int i = 0; i < 8; ++i) {
      std::uint32_t word[4];
      RLK_UNROLL
      for (int j = 0; j < 4; ++j) word[j] = x[j].word[i / 2];
      Four four;
      RLK_UNROLL
      for (int j = 0; j < 2; ++j) {
        four.word[j] = i % 2 == 0 ? (word[2 * j] & 0xffffu) | word[2 * j + 1] << 16
                                  : word[2 * j] >> 16 | (word[2 * j + 1] & 0xffff0000u);
      }
      // Of column 8 octet() + i.
      const int offset =
          kRows == 32 ? (base ^ (i / 2 << 4) ^ (i % 2 * kColumnBytes)) + i / 2 * 2 * kColumnBytes
                      : (base ^ (i << 4)) + i * kColumnBytes;
      *at<Four>(to, offset) = four;
    }
  }

  // Left operands of Shape32: rows 32 tile .. of numbers 16 step .. + 15; or columns 32 tile .. of
  // rows 16 step .. + 15. base: row_base() or column_base().
  RLK_DEVICE static int row_base() {
    return opaque(row_chunk(Shape32::column(), Shape32::group()));
  }
  RLK_DEVICE static int column_base() {
    return opaque(column_chunk(Shape32::column(), Shape32::group()));
  }
  RLK_DEVICE static TwoOperands rows(const char* from, int base, int tile, int step) {
    return *at<const TwoOperands>(
        from, (base ^ (2 * step % 8 << 4)) + step / 4 * 128 + tile * (32 * kRowBytes));
  }
  RLK_DEVICE static TwoOperands columns(const char* from, int base, int tile, int step) {
    const int offset = kRows == 32 ? base ^ (step << 5) ^ (tile % 2 * kColumnBytes)
                                   : (base ^ ((2 * step ^ 4 * tile) % 8 << 4)) + step / 4 * 128;
    return *at<const TwoOperands>(from, offset + tile * (32 * kColumnBytes));
  }

  // Of Shape16, rows or columns 16 tile .. of the same 16 numbers.
  RLK_DEVICE static int row_base_16() {
    return opaque(row_chunk(Shape16::column(), Shape16::group() % 2) + Shape16::group() / 2 * 8);
  }
  RLK_DEVICE static int column_base_16() {
    return opaque(column_chunk(Shape16::column(), Shape16::group() % 2) + Shape16::group() / 2 * 8);
  }
  RLK_DEVICE static Half4 rows_16(const char* from, int base, int tile, int step) {
    return *at<const Half4>(from, (base ^ ((2 * step ^ 2 * (tile % 2)) % 8 << 4)) + step / 4 * 128 +
                                      tile * (16 * kRowBytes));
  }
  RLK_DEVICE static Half4 columns_16(const char* from, int base, int tile, int step) {
    static_assert(kRows > 32);
    return *at<const Half4>(from, (base ^ ((2 * step ^ 2 * tile) % 8 << 4)) + step / 4 * 128 +
                                      tile * (16 * kColumnBytes));
  }

 private:
  template <typename T, typename Char>
  RLK_DEVICE static T* at(Char* base, int offset) {
    return reinterpret_cast<T*>(base + offset);
  }
  // Where a chunk of a row begins, and of a column.
  RLK_DEVICE static int row_chunk(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ (row % 8) ^ (row / 8 % 4)) << 4);
  }
  RLK_DEVICE static int column_chunk(int column, int chunk) {
    if constexpr (kRows == 32) {  // two columns in a line of all banks
      const int swap = (column / 2 % 4) ^ (column / 8 % 2 * 2) ^ (column / 16 % 2);
      return (column ^ (column / 32 % 2)) * kColumnBytes + ((chunk ^ swap) << 4);
    } else {
      return column * kColumnBytes + ((chunk ^ (column % 8) ^ (column / 8 % 8)) << 4);
    }
  }
};

}  // namespace rlk::gpu::cdna
