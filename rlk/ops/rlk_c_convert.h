// From the structs of rlk.h to the C++ ones. For rlk_c.cc only.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include "rlk/ops/linear_logp.h"
#include "rlk/ops/rlk.h"

// The handle of rlk.h; it owns the packed form.
struct rlk_packed_weight {
  rlk::PackedWeight weight;
};

namespace rlk::c {

// A field more or less in a C++ struct stops the build here until rlk.h follows.
inline constexpr std::size_t kView = sizeof(TensorView);
static_assert(sizeof(ConstTensorView) == kView);
#define RLK_FIELDS(Struct, size_bytes) \
  static_assert(sizeof(Struct) == (size_bytes), #Struct " has other fields than rlk.h")

// Arrays of these are passed on as they are.
static_assert(sizeof(rlk_sampling_params) == sizeof(SamplingParams) &&
              offsetof(rlk_sampling_params, temperature) == offsetof(SamplingParams, temperature) &&
              offsetof(rlk_sampling_params, top_k) == offsetof(SamplingParams, top_k) &&
              offsetof(rlk_sampling_params, top_p) == offsetof(SamplingParams, top_p) &&
              offsetof(rlk_sampling_params, min_p) == offsetof(SamplingParams, min_p));
static_assert(sizeof(rlk_sample_key) == sizeof(SampleKey) &&
              offsetof(rlk_sample_key, seed) == offsetof(SampleKey, seed) &&
              offsetof(rlk_sample_key, request) == offsetof(SampleKey, request) &&
              offsetof(rlk_sample_key, position) == offsetof(SampleKey, position));
static_assert(RLK_IGNORE_INDEX == kIgnoreIndex);
static_assert(RLK_KL_NONE == static_cast<int>(Kl::kNone) &&
              RLK_KL_K1 == static_cast<int>(Kl::kK1) && RLK_KL_K2 == static_cast<int>(Kl::kK2) &&
              RLK_KL_K3 == static_cast<int>(Kl::kK3));
static_assert(RLK_F32 == static_cast<int>(DType::kF32) &&
              RLK_BF16 == static_cast<int>(DType::kBF16) &&
              RLK_F16 == static_cast<int>(DType::kF16) &&
              RLK_I32 == static_cast<int>(DType::kI32) &&
              RLK_I64 == static_cast<int>(DType::kI64) && RLK_F64 == static_cast<int>(DType::kF64));

// The size of a struct's first version.
template <typename Struct>
inline constexpr std::size_t kFirstSize = sizeof(Struct);
template <>
inline constexpr std::size_t kFirstSize<rlk_rms_norm_args> = offsetof(rlk_rms_norm_args, residual);
template <>
inline constexpr std::size_t kFirstSize<rlk_gemm_backward_weight_args> =
    offsetof(rlk_gemm_backward_weight_args, cu_seqlens);
template <>
inline constexpr std::size_t kFirstSize<rlk_context_options> = offsetof(rlk_context_options,
                                                                        backend);

// Copies the caller's struct as far as the caller knows it. A caller of a later version may only
// use what this library knows: whatever lies beyond must be 0.
template <typename Struct>
Struct load(const char* op, const Struct* args) {
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  if (!args) fail(ErrorCode::kInvalidArgument, "{}: args is NULL", op);
  const std::size_t size = args->struct_size;
  if (size < sizeof(Struct) && size != kFirstSize<Struct>) {
    fail(ErrorCode::kInvalidArgument, "{}: struct_size is {}, expected at least {}", op, size,
         sizeof(Struct));
  }
  if (size > 4 * sizeof(Struct) + 4096) {
    fail(ErrorCode::kInvalidArgument, "{}: struct_size is {}, but the struct has {} bytes", op,
         size, sizeof(Struct));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(args);
  for (std::size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      fail(ErrorCode::kUnsupported, "{}: byte {} of the arguments is a field of a later version",
           op, i);
    }
  }
  Struct copy{};
  std::memcpy(&copy, args, size < sizeof(Struct) ? size : sizeof(Struct));
  return copy;
}

// Checks and converts the fields of one call. Owns what the converted arguments point at.
class Fields {
 public:
  explicit Fields(const char* op) : op_(op) {}

  // An absent tensor keeps its shape: one without elements needs no memory.
  TensorView tensor(const char* name, const rlk_tensor& t) const {
    if (t.dtype < RLK_F32 || t.dtype > RLK_F64) {
      fail(ErrorCode::kDtype, "{}: {} has dtype {}, expected {} to {}", op_, name, t.dtype,
           static_cast<int>(RLK_F32), static_cast<int>(RLK_F64));
    }
    if (t.rank < 0 || t.rank > kMaxRank) {
      fail(ErrorCode::kShape, "{}: {} has rank {}, expected 0 to {}", op_, name, t.rank, kMaxRank);
    }
    TensorView view;
    view.data = t.data;
    view.dtype = static_cast<DType>(t.dtype);
    view.layout.rank = t.rank;
    std::int64_t size = 1;
    for (int d = 0; d < t.rank; ++d) {
      const std::int64_t n = t.shape[d];
      if (n < 0 || n > kMaxSize) {
        fail(ErrorCode::kShape, "{}: dimension {} of {} has size {}, expected 0 to 2^48", op_, d,
             name, n);
      }
      const bool overflow = __builtin_mul_overflow(size, n, &size) || size > kMaxSize;
      std::int64_t reach = 0;
      if (overflow || (n > 1 && (__builtin_mul_overflow(n - 1, t.stride[d], &reach) ||
                                 reach > kMaxSize || reach < -kMaxSize))) {
        fail(ErrorCode::kShape, "{}: {} spans more than 2^48 elements", op_, name);
      }
      view.layout.shape[d] = n;
      view.layout.stride[d] = t.stride[d];
    }
    return view;
  }

  const ConstTensorView* tensors(const char* name, const rlk_tensor* t, std::int64_t n) {
    if (n < 0 || n > kMaxSize || (n > 0 && !t)) {
      fail(ErrorCode::kInvalidArgument, "{}: {} {} at {}", op_, n, name,
           t ? "an address" : "address NULL");
    }
    for (std::int64_t i = 0; i < n; ++i) views_.push_back(tensor(name, t[i]));
    return views_.data();
  }

  const PackedWeight* packed(const rlk_packed_weight* p) const { return p ? &p->weight : nullptr; }
  PackedWeight* packed(const char* name, rlk_packed_weight* p) const {
    return const_cast<PackedWeight*>(packed(&required(name, p)));
  }
  const SamplingParams* params(const rlk_sampling_params* p) const {
    return reinterpret_cast<const SamplingParams*>(p);
  }
  const SampleKey* keys(const rlk_sample_key* k) const {
    return reinterpret_cast<const SampleKey*>(k);
  }
  template <typename T>
  T& required(const char* name, T* pointer) const {
    if (!pointer) fail(ErrorCode::kInvalidArgument, "{}: {} is NULL", op_, name);
    return *pointer;
  }
  std::int64_t in_range(const char* name, std::int64_t x, std::int64_t low,
                        std::int64_t high) const {
    if (x < low || x > high) {
      fail(ErrorCode::kInvalidArgument, "{}: {} is {}, expected {} to {}", op_, name, x, low, high);
    }
    return x;
  }

 private:
  static constexpr std::int64_t kMaxSize = std::int64_t{1} << 48;

  const char* op_;
  std::vector<ConstTensorView> views_;
};

}  // namespace rlk::c
