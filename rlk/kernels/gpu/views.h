// Typed views for kernels, and reading and writing numbers of the storage type (bf16 or f32).
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "rlk/core/tensor.h"
#include "rlk/kernels/gpu/gpu.h"
#include "rlk/numerics/bf16.h"
#include "rlk/numerics/ieee.h"

namespace rlk::gpu {

// Element (i, j, k) of a tensor in device memory; `data` is null where it is absent.
template <typename T>
struct Ref {
  T* data = nullptr;
  std::int64_t stride[3] = {0, 0, 0};

  RLK_HD explicit operator bool() const { return data != nullptr; }
  RLK_HD T& operator()(std::int64_t i = 0, std::int64_t j = 0, std::int64_t k = 0) const {
    return data[i * stride[0] + j * stride[1] + k * stride[2]];
  }
};

template <typename T>
Ref<T> ref(const TensorView& t) {
  return {static_cast<T*>(t.data), {t.stride(0), t.stride(1), t.stride(2)}};
}
template <typename T>
Ref<const T> ref(const ConstTensorView& t) {
  return {static_cast<const T*>(t.data), {t.stride(0), t.stride(1), t.stride(2)}};
}

// Exact.
RLK_HD inline float load(bf16 x) { return numerics::to_f32(x); }
RLK_HD inline float load(float x) { return x; }

// The rounding to storage.
RLK_HD inline void store(bf16& to, float x) { to = numerics::to_bf16(x); }
RLK_HD inline void store(float& to, float x) { to = numerics::canonical_nan(x); }
template <typename T>
RLK_HD float round_to(float x) {
  T stored;
  store(stored, x);
  return load(stored);
}

// Number i of an array of f32 or else bf16 numbers.
RLK_HD inline void store_at(void* data, bool is_f32, std::int64_t i, float x) {
  if (is_f32) {
    store(static_cast<float*>(data)[i], x);
  } else {
    store(static_cast<bf16*>(data)[i], x);
  }
}

// Calls body.operator()<T>() with the storage type of the call.
template <typename Body>
void with_storage(DType dtype, const Body& body) {
  if (dtype == DType::kF32) {
    body.template operator()<float>();
  } else {
    body.template operator()<bf16>();
  }
}

// W neighbours of a row, moved at once where they lie aligned. They are held as words: from single
// bf16 numbers the compiler makes stores of two bytes.
template <typename T, int W>
struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) Pack {
  static constexpr bool kPairs = sizeof(T) == 2 && W > 1;  // two numbers a word
  using Word = std::conditional_t<sizeof(T) == 2 && W == 1, std::uint16_t, std::uint32_t>;
  Word word[sizeof(T) * W / sizeof(Word)];

  RLK_HD static Pack read(const T* at) { return *reinterpret_cast<const Pack*>(at); }
  RLK_HD void write(T* at) const { *reinterpret_cast<Pack*>(at) = *this; }

  // Exact.
  RLK_HD void get(float (&x)[W]) const {
    RLK_UNROLL
    for (int i = 0; i < W; ++i) {
      if constexpr (kPairs) {
        const std::uint32_t pair = word[i / 2];
        x[i] = std::bit_cast<float>(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
      } else {
        x[i] = load(std::bit_cast<T>(word[i]));
      }
    }
  }

  // The rounding to storage.
  RLK_HD static Pack of(const float (&x)[W]) {
    Pack pack;
    if constexpr (kPairs) {
      // numerics::to_bf16, with one branch for the NaN of the whole pack: `all` is NaN where a
      // number is. (Where infinities make it one the branch does no harm.)
      float all = 0.0f;
      RLK_UNROLL
      for (int i = 0; i < W; i += 2) {
        all = numerics::fma(x[i], x[i + 1], all);
        pack.word[i / 2] = bf16_pair(x[i], x[i + 1]);
      }
      if (all != all) {
        RLK_UNROLL
        for (int i = 0; i < W; i += 2) {
          pack.word[i / 2] = std::uint32_t{numerics::to_bf16(x[i]).bits} |
                             std::uint32_t{numerics::to_bf16(x[i + 1]).bits} << 16;
        }
      }
    } else {
      RLK_UNROLL
      for (int i = 0; i < W; ++i) {
        T stored;
        store(stored, x[i]);
        pack.word[i] = std::bit_cast<Word>(stored);
      }
    }
    return pack;
  }
};

// Whether every row of the view can be moved in packs of W (that is, up to 16 bytes at a time).
template <int W>
bool packs(const ConstTensorView& t) {
  if (!t) return true;
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  const std::int64_t align = size * W < 16 ? size * W : 16;
  bool yes = reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(align) == 0;
  const int last = t.rank() - 1;
  for (int d = 0; d < t.rank(); ++d) {
    if (t.shape(d) == 1) continue;
    yes = yes && (d == last ? t.stride(d) == 1 : t.stride(d) * size % align == 0);
  }
  return yes;
}

// x[k .. k+W) of a row of n with the given stride; +0 from n on.
template <int W, typename T>
RLK_HD void load_pack(const T* row, std::int64_t stride, std::int64_t k, std::int64_t n,
                      bool packed, float (&x)[W]) {
  if (packed && k + W <= n) {
    Pack<T, W>::read(row + k).get(x);
  } else {
    for (int i = 0; i < W; ++i) x[i] = k + i < n ? load(row[(k + i) * stride]) : 0.0f;
  }
}

template <int W, typename T>
RLK_HD void store_pack(T* row, std::int64_t stride, std::int64_t k, std::int64_t n, bool packed,
                       const float (&x)[W]) {
  if (packed && k + W <= n) {
    Pack<T, W>::of(x).write(row + k);
  } else {
    for (int i = 0; i < W; ++i) {
      if (k + i < n) store(row[(k + i) * stride], x[i]);
    }
  }
}

}  // namespace rlk::gpu
