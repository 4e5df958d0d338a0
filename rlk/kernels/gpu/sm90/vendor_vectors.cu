#include "rlk/kernels/gpu/sm90/vendor_vectors.h"

#include "rlk/kernels/gpu/elements.h"
#include "rlk/numerics/philox.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr std::uint32_t kSign = 0x8000, kInfinity = 0x7f80, kNan = 0x7fc0, kHuge = 0x7f40;

RLK_DEVICE std::uint32_t random(int what, std::int64_t row, std::int64_t k) {
  return numerics::philox4x32_10(
      {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(row), 0, 0},
      {static_cast<std::uint32_t>(what), 0})[0];
}

// A bf16 number of any sign with an exponent from `least` on, of `count`.
RLK_DEVICE std::uint32_t number(std::uint32_t bits, int least, int count) {
  const std::uint32_t exponent =
      static_cast<std::uint32_t>(127 + least) + (bits >> 16) % static_cast<std::uint32_t>(count);
  return (bits & (kSign | 0x7f)) | exponent << 7;
}

RLK_DEVICE std::uint32_t vector_bits(VectorFamily family, int operand, std::int64_t row,
                                     std::int64_t i, std::int64_t k) {
  const std::uint32_t bits = random(operand, row, i);
  const std::uint32_t near = number(bits, -3, 4);
  switch (family) {
    case VectorFamily::kNear: return near;
    case VectorFamily::kWide: return number(bits, -20, 41);
    case VectorFamily::kTiny: return number(bits, -68, 6);
    case VectorFamily::kZeros: return (bits & kSign) | ((bits >> 16) % 8 == 0 ? 0x3f80u : 0u);
    case VectorFamily::kCancelling: {
      const std::int64_t mirror = k - 1 - i;
      const std::int64_t first = i < mirror ? i : mirror;
      if (i == mirror || random(2, 0, first) % 2 == 0) return near;
      const std::uint32_t large = number(random(operand, row, first), operand == 0 ? 8 : 0, 6);
      return operand == 0 && i > mirror ? large ^ kSign : large;
    }
    case VectorFamily::kNotFinite: {
      const std::uint32_t chosen = random(3, row, operand);
      if (static_cast<std::int64_t>(chosen % static_cast<std::uint32_t>(k)) != i) return near;
      const std::uint32_t special[] = {near, kInfinity, kNan, kHuge};
      return special[row % 4] | (bits & kSign);
    }
  }
  return 0;
}

RLK_KERNEL(kElementThreads)
fill_kernel(VectorFamily family, int operand, bf16* to, std::int64_t rows, std::int64_t k) {
  const std::int64_t at = block_x() * kElementThreads + thread();
  if (at >= rows * k) return;
  const std::int64_t row = divide(at, k);
  to[at].bits = static_cast<std::uint16_t>(vector_bits(family, operand, row, at - row * k, k));
}

// Whether these are the bits of a NaN of so many bits.
RLK_DEVICE bool is_nan(std::uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }
RLK_DEVICE std::uint32_t as_f32(std::uint16_t bits) { return std::uint32_t{bits} << 16; }
RLK_DEVICE std::uint32_t as_f32(std::uint32_t bits) { return bits; }

template <typename Bits>
RLK_KERNEL(kElementThreads)
difference_kernel(const Bits* x, const Bits* y, std::int64_t count, std::int64_t base,
                  unsigned long long* first) {
  const std::int64_t i = block_x() * kElementThreads + thread();
  if (i >= count) return;
  const std::uint32_t a = as_f32(x[i]), b = as_f32(y[i]);
  if (a == b || (is_nan(a) && is_nan(b))) return;
  atomic_min(first, static_cast<unsigned long long>(base + i));
}

}  // namespace

const char* to_string(VectorFamily family) {
  constexpr const char* kNames[] = {"near", "wide", "cancelling", "tiny", "zeros", "not finite"};
  return kNames[static_cast<int>(family)];
}

void fill_vectors(Exec& exec, VectorFamily family, int operand, bf16* to, std::int64_t rows,
                  std::int64_t k) {
  launch(exec, {ceil_div(rows * k, kElementThreads)}, kElementThreads, 0, fill_kernel, family,
         operand, to, rows, k);
}

void note_difference(Exec& exec, const void* x, const void* y, std::int64_t count, DType dtype,
                     std::int64_t product, unsigned long long* first) {
  const auto run = [&]<typename Bits>(Bits) {
    launch(exec, {ceil_div(count, kElementThreads)}, kElementThreads, 0, difference_kernel<Bits>,
           static_cast<const Bits*>(x), static_cast<const Bits*>(y), count, product << 40, first);
  };
  dtype == DType::kF32 ? run(std::uint32_t{}) : run(std::uint16_t{});
}

}  // namespace rlk::gpu::sm90
