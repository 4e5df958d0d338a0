// Chains of the Hopper model for a panel of columns, over the vector type V of the including file.
//
// Inside the fast range this is the model exactly, on f32 and int32:
// - a * b is exact (8 by 8 bits) unless it lies below 2^-126; then it is, with E >= -100, below one
//   unit of 2^(E-25) before and after the multiplication by 2^(25-E), which else is exact too;
// - the conversion to an integer cuts toward zero. A product is below 2^27 units and c below 2^26,
// so
//   16 products fit in 31 bits; only adding c may overflow, which the signs show;
// - the integer is rounded toward zero to f32 and multiplied by 2^(E-25): exact, since the result
// is
//   normal, or infinite where it reaches 2^128.
// Lanes with an E outside -100..126, an operand that is NaN or infinite, or an overflow of the
// sum are computed again by the scalar model. A lane of zeros only is +0 either way.

using rlk::numerics::mma::HopperA;
using rlk::numerics::mma::HopperGroup;

constexpr int kGroup = rlk::numerics::mma::kHopperWidth;
constexpr std::int64_t kStrideB = 4 * V::kWidth;  // of k, in 16-bit words

// Exponents of products are biased by 254 = 2 * 127.
constexpr int kLowest = -100 + 254;
constexpr int kHighest = 126 + 254;

// What one vector of columns needs in one group.
struct Columns {
  V::I product_exponent;
  V::I outside;  // sign bit: not in the fast range
  V::F scale;    // 2^(25-E)
  V::F unit;     // 2^(E-25)
  V::I sum;
};

inline void align(Columns* x, V::F c, V::I product_exponent) {
  const V::I exponent_c =
      V::add(V::bits_and(V::shift_right<23>(V::as_int(c)), V::set(255)), V::set(127));
  const V::I e = V::max(product_exponent, exponent_c);
  x->product_exponent = product_exponent;
  x->outside = V::bits_or(V::sub(e, V::set(kLowest)), V::sub(V::set(kHighest), e));
  const V::I clamped = V::max(e, V::set(kLowest));
  x->scale = V::as_float(V::shift_left<23>(V::sub(V::set(25 + 127 + 254), clamped)));
  x->unit = V::as_float(V::shift_left<23>(V::sub(clamped, V::set(25 - 127 + 254))));
  x->sum = V::set(0);
}

inline void add_product(Columns* x, V::F a, V::F b) {
  x->sum = V::add(x->sum, V::cut(V::mul(V::mul(a, b), x->scale)));
}

inline V::F finish(Columns* x, V::F c) {
  const V::I term = V::cut(V::mul(c, x->scale));
  const V::I sum = V::add(x->sum, term);
  x->outside = V::bits_or(x->outside, V::sign_differs_from_both(sum, x->sum, term));
  return V::mul(V::to_float_toward_zero(sum), x->unit);
}

// The lanes outside the fast range, by the scalar model. `c` holds the accumulators before the
// group.
__attribute__((noinline)) void repair(float* result, const Columns& x, V::F c, const HopperA* a,
                                      const std::uint16_t* b, HopperGroup group) {
  alignas(64) float before[V::kWidth];
  alignas(64) std::int32_t outside[V::kWidth], exponent[V::kWidth];
  V::store(before, c);
  V::store(outside, x.outside);
  V::store(exponent, x.product_exponent);
  for (int j = 0; j < V::kWidth; ++j) {
    const bool all_zero = exponent[j] < kLowest - 2000 && before[j] == 0.0f;
    if (outside[j] < 0 && !all_zero) result[j] = group(before[j], a, b + 2 * j, kStrideB);
  }
}

// One group of one row.
inline void step(float* acc, const HopperA* a, const std::uint16_t* b, HopperGroup group) {
  const std::uint16_t* const exponents = b + 2 * V::kWidth;
  V::I e = V::add16(V::broadcast(a[0].exponents), V::load(exponents));
  for (int k = 1; k < kGroup; ++k) {
    e = V::max16(e, V::add16(V::broadcast(a[k].exponents), V::load(exponents + k * kStrideB)));
  }
  const V::F c0 = V::load(acc);
  const V::F c1 = V::load(acc + V::kWidth);
  Columns x0, x1;
  align(&x0, c0, V::shift_right_signed<16>(V::shift_left<16>(e)));
  align(&x1, c1, V::shift_right_signed<16>(e));
  for (int k = 0; k < kGroup; ++k) {
    const V::I pair = V::load(b + k * kStrideB);
    const V::F value = V::broadcast(a[k].value);
    add_product(&x0, value, V::as_float(V::shift_left<16>(pair)));
    add_product(&x1, value, V::as_float(V::bits_and(pair, V::set(-65536))));
  }
  V::store(acc, finish(&x0, c0));
  V::store(acc + V::kWidth, finish(&x1, c1));
  if (V::any_negative(V::bits_or(x0.outside, x1.outside))) {
    repair(acc, x0, c0, a, b, group);
    repair(acc + V::kWidth, x1, c1, a, b + 1, group);
  }
}

// Rows inside, so that a group of the panel stays in the first cache and chains overlap.
void product(float* acc, std::int64_t acc_stride, const HopperA* a, std::int64_t a_stride,
             const std::uint16_t* b, std::int64_t rows, std::int64_t groups, HopperGroup group) {
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t m = 0; m < rows; ++m) {
      step(acc + m * acc_stride, a + m * a_stride + g * kGroup, b + g * kGroup * kStrideB, group);
    }
  }
}
