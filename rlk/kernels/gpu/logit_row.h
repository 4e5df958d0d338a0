// A row of logits as the distribution it stands for: temperature, then min-p, top-k, top-p (see
// kernels/reference/token_filter.h), found by one block. Other blocks may have read parts of the
// row before (row_parts.h); then what they found is used, with the same result.
#pragma once

#include <bit>

#include "rlk/kernels/gpu/block_reduce.h"
#include "rlk/kernels/gpu/views.h"
#include "rlk/kernels/logprob.h"
#include "rlk/numerics/log_sum_exp.h"

namespace rlk::gpu {

inline constexpr int kRowThreads = 512;  // one block a row, or a part of one

using numerics::LogitStatus;
using numerics::LogSumExp;

// Larger for tokens that come earlier in the order of the filters, descending z with ties by lower
// id; no two are equal. 52 bits: ids are below 2^20.
RLK_HD inline std::uint64_t order_key(float z, std::int64_t id) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(z + 0.0f);  // -0 is +0
  const std::uint32_t rising = (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
  return std::uint64_t{rising} << 20 | static_cast<std::uint64_t>(numerics::kMaxVocab - 1 - id);
}

struct LogitRow {
  ReduceBytes* shared;
  const float* logits;
  std::int64_t stride;
  std::int64_t vocab_size;
  float scale;  // 1 / f32(T)
  float z_max = 0.0f;
  float min_difference = -numerics::kInfinity;  // of z - z_max
  std::uint64_t last_kept = 0;
  const std::int32_t* ids = nullptr;  // the tokens that may take part, where not all may
  std::int64_t num_ids = 0;

  // Whether a z of the row is left by its mask and by min_difference.
  RLK_DEVICE bool is_near(float z) const { return z >= -0x1p30f && z - z_max >= min_difference; }
  // z of token j; -inf where it takes no part.
  RLK_DEVICE float z(std::int64_t j) const {
    const float z = logits[j * stride] * scale;
    return is_near(z) && order_key(z, j) >= last_kept ? z : -numerics::kInfinity;
  }

  // Calls visit(j, z) for this thread's tokens that take part. Several are looked at together;
  // those that take part, few as a rule, are read again.
  template <typename Visit>
  RLK_DEVICE void for_each(const Visit& visit) const {
    constexpr int kInFlight = 4;
    const int count = static_cast<int>(ids != nullptr ? num_ids : vocab_size);
    for (int i = thread(); i < count; i += kInFlight * kRowThreads) {
      float logit[kInFlight];
      RLK_UNROLL
      for (int l = 0; l < kInFlight; ++l) {
        const int at = i + l * kRowThreads;
        logit[l] = at < count ? logits[id_at(at) * stride] : -0x1.fffffep127f;
      }
      std::uint32_t near = 0;
      RLK_UNROLL
      for (int l = 0; l < kInFlight; ++l) {
        const bool is = i + l * kRowThreads < count && is_near(logit[l] * scale);
        near |= is ? std::uint32_t{1} << l : 0;
      }
      for (int l = 0; near >> l != 0; ++l) {
        if ((near >> l & 1) == 0) continue;
        const std::int64_t j = id_at(i + l * kRowThreads);
        const float value = z(j);
        if (value != -numerics::kInfinity) visit(j, value);
      }
    }
  }

 private:
  RLK_DEVICE std::int64_t id_at(int i) const { return ids != nullptr ? ids[i] : i; }
};

// Calls visit(j, x, n) with the n <= 4 logits x of tokens j, j + 1, .. for this thread's packs of
// [begin, end); begin is a multiple of 4. Four packs are read at a time.
inline constexpr int kPackStep = 4 * kRowThreads;
template <typename Visit>
RLK_DEVICE void for_each_pack(const LogitRow& row, int begin, int end, const Visit& visit) {
  constexpr int kInFlight = 4;
  if (row.stride == 1 && reinterpret_cast<std::uintptr_t>(row.logits) % 16 == 0) {
    const int whole = end / 4 * 4;
    for (int j = begin + 4 * thread(); j < whole; j += kInFlight * kPackStep) {
      float x[kInFlight][4];
      RLK_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        const int at = j + i * kPackStep;
        if (at < whole) Pack<float, 4>::read(row.logits + at).get(x[i]);
      }
      RLK_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        const int at = j + i * kPackStep;
        if (at < whole) visit(at, x[i], 4);
      }
    }
    begin = whole;
  }
  for (int j = begin + 4 * thread(); j < end; j += kPackStep) {
    const int n = end - j < 4 ? end - j : 4;
    float x[4];
    RLK_UNROLL
    for (int l = 0; l < 4; ++l) x[l] = l < n ? row.logits[(j + l) * row.stride] : 0.0f;
    visit(j, x, n);
  }
}

// What a row, or a part of it, is before any filter.
struct RowState {
  float z_max = -numerics::kInfinity;
  float not_finite = 0.0f;  // NaN where a logit is not finite, else 0

  RLK_HD void add(float logit, float z) {
    not_finite = numerics::fma(logit, 0.0f, not_finite);
    z_max = z > z_max ? z : z_max;
  }
  // Something takes part, and nothing is an error. (A finite logit has a z that is no NaN.)
  RLK_HD bool good() const { return not_finite == 0.0f && z_max >= -0x1p30f && z_max <= 0x1p30f; }
};
RLK_HD inline RowState merge_states(const RowState& a, const RowState& b) {
  return {a.z_max < b.z_max ? b.z_max : a.z_max, a.not_finite + b.not_finite};
}

// Of the tokens [begin, end), by the block; here and below each thread gets the result.
RLK_DEVICE RowState state_of(const LogitRow& row, int begin, int end) {
  RowState state;
  for_each_pack(row, begin, end, [&](int, const float(&x)[4], int n) {
    RLK_UNROLL
    for (int l = 0; l < 4; ++l) {
      if (l < n) state.add(x[l], x[l] * row.scale);
    }
  });
  return block_reduce<kRowThreads>(state, row.shared, merge_states);
}

RLK_DEVICE LogSumExp log_sum_exp(const LogitRow& row) {
  LogSumExp sum;
  row.for_each([&](std::int64_t, float z) { sum.add(z); });
  return block_reduce<kRowThreads>(sum, row.shared, [](LogSumExp a, const LogSumExp& b) {
    a.merge(b);
    return a;
  });
}

RLK_HD inline float scale_of(const SamplingParams& params) {
  return params.temperature == 0.0f ? 1.0f : 1.0f / params.temperature;
}

// Whether some tokens may be left out of the row.
RLK_HD inline bool filters(const SamplingParams& params) {
  return params.temperature != 0.0f &&
         (params.min_p > 0.0f || params.top_k > 0 || params.top_p < 1.0f);
}

// The sums of a row between forward and backward, in kLogprobStateWords; of a row that forward did
// not look at, or that is an error, all 0.
RLK_DEVICE void write_state(const Ref<std::int32_t>& state, std::int64_t t, const LogSumExp& sum) {
  state(t, 0) = std::bit_cast<std::int32_t>(sum.z_max);
  state(t, 1) = sum.bin;
  for (int k = 0; k < 4; ++k) {
    const std::int64_t s = sum.s[static_cast<std::size_t>(k)];
    state(t, 2 + 2 * k) = static_cast<std::int32_t>(s);
    state(t, 3 + 2 * k) = static_cast<std::int32_t>(s >> 32);
  }
}
RLK_DEVICE LogSumExp read_state(const Ref<const std::int32_t>& state, std::int64_t t) {
  LogSumExp sum;
  sum.z_max = std::bit_cast<float>(state(t, 0));
  sum.bin = state(t, 1);
  for (int k = 0; k < 4; ++k) {
    const auto low = static_cast<std::uint32_t>(state(t, 2 + 2 * k));
    const auto high = static_cast<std::uint32_t>(state(t, 3 + 2 * k));
    sum.s[static_cast<std::size_t>(k)] = static_cast<std::int64_t>(std::uint64_t{high} << 32 | low);
  }
  sum.any = sum.s[0] != 0;  // the term of z_max is there
  return sum;
}

// A host array, in device memory.
template <typename T>
const T* on_device(Exec& exec, device::Workspace::Frame& frame, const T* host, std::int64_t count) {
  T* const data = frame.take<T>(count);
  device::copy(data, host, sizeof(T) * static_cast<std::size_t>(count), exec.gpu->stream());
  return data;
}

}  // namespace rlk::gpu
