// Chains of every model for a panel of columns, over the vector type V of the including file: what
// they share. A block of kColumnDepth rows of B is made ready once and used by all rows of A.

using rlk::numerics::mma::ColumnChains;
using rlk::numerics::mma::ColumnsIsa;
using rlk::numerics::mma::kColumnDepth;

constexpr int kPanel = 2 * V::kWidth;

// Products k in [0, kColumnDepth) of a panel; rows that lie past the end are +0.
struct BlockB {
  const float* data;
  std::int64_t stride;

  V::F low(int k) const { return V::load(data + k * stride); }
  V::F high(int k) const { return V::load(data + k * stride + V::kWidth); }
};

template <typename Model>
void chains(const ColumnChains& args) {
  alignas(64) float b_end[kColumnDepth * kPanel];
  alignas(64) float a_copy[kColumnDepth];
  Model model;
  for (std::int64_t k = 0; k < args.k; k += kColumnDepth) {
    const std::int64_t left = args.k - k;
    const int depth = static_cast<int>(left < kColumnDepth ? left : kColumnDepth);
    BlockB b{args.b + k * args.b_stride, args.b_stride};
    if (depth < kColumnDepth) {
      for (int i = 0; i < kColumnDepth; ++i) {
        V::store(b_end + i * kPanel, i < depth ? b.low(i) : V::zero());
        V::store(b_end + i * kPanel + V::kWidth, i < depth ? b.high(i) : V::zero());
      }
      b = {b_end, kPanel};
    }
    model.set_columns(b);
    for (std::int64_t m = 0; m < args.rows; ++m) {
      const float* a = args.a + m * args.a_row + k * args.a_step;
      if (depth < kColumnDepth || args.a_step != 1) {
        for (int i = 0; i < kColumnDepth; ++i) a_copy[i] = i < depth ? a[i * args.a_step] : 0.0f;
        a = a_copy;
      }
      model.step(args.acc + m * args.acc_stride, a, (depth + Model::kWidth - 1) / Model::kWidth);
    }
  }
}

// Exponents as the vectors add them: biased by 127, subnormals 1. Two marks stand so far outside
// that they still show in a sum of two. Sums are biased by 254.
constexpr int kZeroExponent = -8000;
constexpr int kSpecialExponent = 16000;  // NaN and infinity
constexpr int kNothing = -2000;          // a sum below it has a factor that is zero

inline V::I exponent_of(V::F x) {
  const V::I magnitude = V::shift_left<1>(V::as_int(x));
  const V::I field = V::shift_right<24>(magnitude);
  const V::I finite = V::max(field, V::set(1));
  const V::I some = V::select_equal(field, V::set(255), V::set(kSpecialExponent), finite);
  return V::select_equal(magnitude, V::set(0), V::set(kZeroExponent), some);
}
// In the low and in the high 16 bits.
inline V::I exponent_pair(V::I low, V::I high) {
  return V::bits_or(V::bits_and(low, V::set(0xffff)), V::shift_left<16>(high));
}

// The exponents of all products of a block, columns j and j + V::kWidth in one word.
class Exponents {
 public:
  void set_columns(const BlockB& b) {
    for (int k = 0; k < kColumnDepth; ++k) {
      V::store(b_ + k * V::kWidth, exponent_pair(exponent_of(b.low(k)), exponent_of(b.high(k))));
    }
  }
  void set_row(const float* a) {
    for (int k = 0; k < kColumnDepth; k += V::kWidth) {
      const V::I e = exponent_of(V::load(a + k));
      V::store(a_ + k, exponent_pair(e, e));
    }
  }
  // The largest of products [begin, begin + count).
  V::I largest(int begin, int count) const {
    V::I e = product(begin);
    for (int k = begin + 1; k < begin + count; ++k) e = V::max16(e, product(k));
    return e;
  }
  static V::I low(V::I pair) { return V::shift_right_signed<16>(V::shift_left<16>(pair)); }
  static V::I high(V::I pair) { return V::shift_right_signed<16>(pair); }

 private:
  V::I product(int k) const { return V::add16(V::broadcast(a_ + k), V::load(b_ + k * V::kWidth)); }

  alignas(64) std::int32_t b_[kColumnDepth * V::kWidth];
  alignas(64) std::int32_t a_[kColumnDepth];
};

// 2^e where `biased` is e + 254 + more and lies in the range of f32.
inline V::F power_of_two(V::I biased) { return V::as_float(V::shift_left<23>(biased)); }
inline V::I exponent_field(V::F x) {
  return V::bits_and(V::shift_right<23>(V::as_int(x)), V::set(255));
}

// Where all products are zero the result is c, and no -0: else it is `result`. `outside` has its
// sign bit where neither is right.
inline V::F with_nothing(V::I product_exponent, V::F c, V::F result, V::I* outside) {
  const V::I none = V::set(kNothing);
  *outside =
      V::select_less(product_exponent, none, V::sub(V::set(254), exponent_field(c)), *outside);
  return V::as_float(
      V::select_less(product_exponent, none, V::as_int(V::add(c, V::zero())), V::as_int(result)));
}

// `result` with the lanes outside computed by the scalar model from c and the group's operands.
using Column = float (*)(float c, const float* a, const float* b, std::int64_t stride);
__attribute__((noinline)) V::F repaired(V::F result, V::I outside, V::F c, Column column,
                                        const float* a, const float* b, std::int64_t stride) {
  alignas(64) float before[V::kWidth], after[V::kWidth];
  alignas(64) std::int32_t lane[V::kWidth];
  V::store(before, c);
  V::store(after, result);
  V::store(lane, outside);
  for (int j = 0; j < V::kWidth; ++j) {
    if (lane[j] < 0) after[j] = column(before[j], a, b + j, stride);
  }
  return V::load(after);
}
