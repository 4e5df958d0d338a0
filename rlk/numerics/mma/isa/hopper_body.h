// The Hopper model for a panel of columns. Included after columns_body.h.
//
// Inside the fast range this is the model exactly, on f32 and int32:
// - a * b is exact (8 by 8 bits) unless it lies below 2^-126; then it is, with E >= -100, below one
//   unit of 2^(E-25) before and after the multiplication by 2^(25-E), which else is exact too;
// - the conversion to an integer cuts toward zero. A product is below 2^27 units and c below 2^26,
//   so 16 products fit in 31 bits; only adding c may overflow, which the signs show;
// - the integer is rounded toward zero to f32 and multiplied by 2^(E-25): exact, since the result
//   is normal, or infinite where it reaches 2^128.
// Lanes with an E outside -100..126, an operand that is NaN or infinite, or an overflow of the
// sum are computed again by the scalar model.

class Hopper {
 public:
  static constexpr int kWidth = 16;

  void set_columns(const BlockB& b) {
    b_ = b;
    exponents_.set_columns(b);
  }

  void step(float* acc, const float* a, int) {
    exponents_.set_row(a);
    const V::I e = exponents_.largest(0, kWidth);
    const V::F c0 = V::load(acc), c1 = V::load(acc + V::kWidth);
    Half x0(c0, Exponents::low(e)), x1(c1, Exponents::high(e));
    for (int k = 0; k < kWidth; ++k) {
      const V::F value = V::broadcast(a + k);
      x0.add(value, b_.low(k));
      x1.add(value, b_.high(k));
    }
    V::F y0 = x0.finish(c0), y1 = x1.finish(c1);
    if (V::any_negative(V::bits_or(x0.outside, x1.outside))) {
      const auto column = rlk::numerics::mma::hopper_column;
      y0 = repaired(y0, x0.outside, c0, column, a, b_.data, b_.stride);
      y1 = repaired(y1, x1.outside, c1, column, a, b_.data + V::kWidth, b_.stride);
    }
    V::store(acc, y0);
    V::store(acc + V::kWidth, y1);
  }

 private:
  static constexpr int kLowest = -100 + 254;
  static constexpr int kHighest = 126 + 254;

  // One vector of columns.
  struct Half {
    V::I product_exponent;
    V::I outside;  // sign bit: not in the fast range
    V::F scale;    // 2^(25-E)
    V::F unit;     // 2^(E-25)
    V::I sum;

    Half(V::F c, V::I e) : product_exponent(e), sum(V::set(0)) {
      const V::I largest = V::max(e, V::add(exponent_field(c), V::set(127)));
      outside = V::bits_or(V::sub(largest, V::set(kLowest)), V::sub(V::set(kHighest), largest));
      const V::I clamped = V::max(largest, V::set(kLowest));
      scale = power_of_two(V::sub(V::set(25 + 127 + 254), clamped));
      unit = power_of_two(V::sub(clamped, V::set(25 - 127 + 254)));
    }
    void add(V::F a, V::F b) { sum = V::add(sum, V::cut(V::mul(V::mul(a, b), scale))); }
    V::F finish(V::F c) {
      const V::I term = V::cut(V::mul(c, scale));
      const V::I all = V::add(sum, term);
      outside = V::bits_or(outside, V::sign_differs_from_both(all, sum, term));
      const V::F result = V::mul(V::to_float_toward_zero(all), unit);
      return with_nothing(product_exponent, c, result, &outside);
    }
  };

  BlockB b_{};
  Exponents exponents_;
};
