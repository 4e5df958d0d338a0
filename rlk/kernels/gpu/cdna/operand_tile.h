// Tiles of operands on their way from device memory through registers to shared memory, from where
// a wave takes fragments for mfma_32x32x8.
//
// In shared memory a row of a tile holds kStep values of k in chunks of 16 bytes. The instruction
// wants 4 values of k from lanes 0 to 31 and the next 4 from lanes 32 to 63, so a chunk holds those
// that one half of the wave needs for two instructions:
//
//   chunk 2 b      k 16 b + 0 .. 3,  16 b + 8 .. 11
//   chunk 2 b + 1  k 16 b + 4 .. 7,  16 b + 12 .. 15
//
// Which chunk lies where depends on the row, such that eight rows with numbers of all residues
// modulo 8 lie in different banks.
#pragma once

#include <cstdint>

#include "rlk/core/dtype.h"
#include "rlk/kernels/gpu/cdna/mfma.h"

namespace rlk::gpu::cdna {

struct alignas(16) Chunk {
  Half4 half[2];
};

// 8 or 16 bytes from device memory, aligned.
template <int kCount>
RLK_DEVICE void load_quads(const char* at, Half4* quads) {
  struct alignas(kCount * sizeof(Half4)) {
    Half4 quad[kCount];
  } x;
  __builtin_memcpy(&x, __builtin_assume_aligned(at, sizeof(x)), sizeof(x));
  RLK_UNROLL
  for (int i = 0; i < kCount; ++i) quads[i] = x.quad[i];
}

// Element (i, k) of an operand lies at i * stride + k, or with kIMajor at i + k * stride.
struct Operand {
  const bf16* data;
  std::int64_t stride;  // a multiple of 8
  int size;             // of i; with kIMajor a multiple of 8
};

template <int kStep>
struct Layout {
  static constexpr int kChunks = kStep / 8;  // of a row
  static_assert(kChunks == 4 || kChunks == 8);

  RLK_DEVICE static int at(int row, int chunk) {
    if constexpr (kChunks == 8) return row * 8 + (chunk ^ row % 8);
    // Two rows fill the banks once. Rows 4 apart are on different sides, for the writes of i-major
    // operands.
    const int place = row ^ (row / 4 % 2);
    return place * 4 + (chunk ^ place / 2 % 4);
  }
};

// What becomes of values of k from `end` on.
enum class Padding : std::uint8_t {
  kZero,
  kNegativeZeroGroups,  // whole groups of 4 are -0 (see kNegativeZero), the rest of a group is +0
};

// kRows rows of an operand, fetched by kThreads threads, in parts that a thread can take one after
// the other. A part of a k-major operand is 8 values of k of a row; one of an i-major operand is
// 4 rows by 4 values of k, turned over in registers.
template <int kRows, int kThreads, int kStep, bool kIMajor>
class TileFetch {
 public:
  static constexpr int kWidth = kIMajor ? 4 : 1;  // rows of a part
  static constexpr int kParts = kRows * kStep / kThreads / (kIMajor ? 16 : 8);
  static_assert(kParts * kThreads * (kIMajor ? 16 : 8) == kRows * kStep);
  struct Part {
    Half4 quad[kIMajor ? 4 : 2];  // as they lie in memory
  };

  // `i0` and the operand are the same in all lanes.
  RLK_DEVICE TileFetch(const Operand& x, int i0) {
    stride_ = x.stride * 2;
    base_ = reinterpret_cast<const char*>(x.data) + (kIMajor ? i0 * std::int64_t{2} : i0 * stride_);
    const int last = x.size - 1 - i0;  // rows beyond read it; nobody looks at their sums
    RLK_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const int i = row_of(part);
      const int row = i < last ? i : last / kWidth * kWidth;
      start_[part] = kIMajor ? row * 2u : static_cast<std::uint32_t>(row * stride_);
    }
  }

  // Of the values k .. k + kStep; from `end` > k on anything.
  RLK_DEVICE void load(Part& x, int part, int k, int end) const {
    const char* const base = base_ + k * (kIMajor ? stride_ : std::int64_t{2});
    if constexpr (kIMajor) {
      RLK_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int at = quad_of(part) * 4 + j;
        const auto offset = static_cast<std::uint32_t>(at * stride_);
        load_quads<1>(base + (start_[part] + (k + at < end ? offset : 0)), x.quad + j);
      }
    } else {
      const int at = chunk_of() * 8;
      load_quads<2>(base + (start_[part] + (k + at < end ? at * 2u : 0)), x.quad);
    }
  }

  // `count` values of k of the step are there; of a k-major operand a multiple of 8.
  RLK_DEVICE void put(const Part& x, Chunk* shared, int part, int count, Padding padding) const {
    const int row = row_of(part);
    if constexpr (kIMajor) {
      const int quad = quad_of(part);
      const int left = count - quad * 4;
      const bool negative = left <= 0 && padding == Padding::kNegativeZeroGroups;
      const short fill = negative ? kNegativeZero : short{0};
      Half4 from[4];
      RLK_UNROLL
      for (int j = 0; j < 4; ++j) from[j] = j < left ? x.quad[j] : Half4{fill, fill, fill, fill};
      const int chunk = quad / 4 * 2 + quad % 2;
      RLK_UNROLL
      for (int i = 0; i < 4; ++i) {
        shared[Layout<kStep>::at(row + i, chunk)].half[quad / 2 % 2] =
            Half4{from[0][i], from[1][i], from[2][i], from[3][i]};
      }
    } else {
      const int chunk = chunk_of();
      const bool inside = chunk * 8 < count;
      const int block = chunk / 2 * 2;
      shared[Layout<kStep>::at(row, block)].half[chunk % 2] = inside ? x.quad[0] : Half4{};
      shared[Layout<kStep>::at(row, block + 1)].half[chunk % 2] = inside ? x.quad[1] : Half4{};
    }
  }

 private:
  static constexpr int kRowChunks = kStep / 8;
  static constexpr int kRowGroups = kRows / 4;

  // Of an i-major operand, 8 threads take a row's 32 values of k, the next 8 the neighbouring rows.
  RLK_DEVICE static int row_of(int part) {
    const int i = part * kThreads + thread();
    return kIMajor ? i / 8 % kRowGroups * 4 : i / kRowChunks;
  }
  RLK_DEVICE static int chunk_of() { return thread() % kRowChunks; }
  RLK_DEVICE static int quad_of(int part) {
    const int i = part * kThreads + thread();
    return i / (8 * kRowGroups) * 8 + i % 8;
  }

  const char* base_;
  std::int64_t stride_;  // bytes
  std::uint32_t start_[kParts];
};

// The sums of a wave: kTilesM * 32 rows of the result by kTilesN * 32 columns. The instruction's
// rows are columns of the result, so that a lane's sums are neighbours in memory.
template <int kTilesM, int kTilesN, int kStep>
struct WaveTile {
  struct Fragments {
    Chunk a[kTilesM];
    Chunk b[kTilesN];
  };
  static constexpr int kCount = kTilesM * kTilesN;
  Float16 acc[kCount];  // i * kTilesN + j: tile (i, j)

  RLK_DEVICE void clear() {
    RLK_UNROLL
    for (int i = 0; i < kCount; ++i) acc[i] = Float16{};
  }

  // Values of k 16 block .. 16 block + 15 of the rows from m0 and n0 on of two tiles.
  RLK_DEVICE static void read(Fragments& x, const Chunk* a, int m0, const Chunk* b, int n0,
                              int block) {
    const int lane = thread() % kWave;
    const int chunk = 2 * block + lane / 32;
    RLK_UNROLL
    for (int i = 0; i < kTilesM; ++i) {
      x.a[i] = a[Layout<kStep>::at(m0 + i * 32 + lane % 32, chunk)];
    }
    RLK_UNROLL
    for (int j = 0; j < kTilesN; ++j) {
      x.b[j] = b[Layout<kStep>::at(n0 + j * 32 + lane % 32, chunk)];
    }
  }

  // Its first or its second 8 values. kFirst: the sums begin here.
  template <bool kFirst = false>
  RLK_DEVICE void multiply(const Fragments& x, int half) {
    RLK_UNROLL
    for (int i = 0; i < kTilesM; ++i) {
      RLK_UNROLL
      for (int j = 0; j < kTilesN; ++j) {
        Float16& sums = acc[i * kTilesN + j];
        sums = mfma_32x32x8(x.b[j].half[half], x.a[i].half[half], kFirst ? Float16{} : sums);
      }
    }
  }

  // Calls visit(tile, part, m, n) for the quadruples of a lane's sums, acc[tile][part * 4 ..]: row
  // m, columns n .. n + 3.
  template <typename Visit>
  RLK_DEVICE static void for_each_quad(int m0, int n0, const Visit& visit) {
    const int lane = thread() % kWave;
    RLK_UNROLL
    for (int tile = 0; tile < kCount; ++tile) {
      RLK_UNROLL
      for (int part = 0; part < 4; ++part) {
        visit(tile, part, m0 + tile / kTilesN * 32 + lane % 32,
              n0 + tile % kTilesN * 32 + row_32(lane, part * 4));
      }
    }
  }
};

}  // namespace rlk::gpu::cdna
