// The CDNA3 model for a panel of columns. Included after columns_body.h.
//
// Inside the fast range this is the model exactly, on f32, int32 and f64:
// - products are cut as in the Hopper model: below 2^26 units of 2^(e-24), so 8 fit in 29 bits;
// - in units of 2^(E-32) P is P * 2^(8-(E-e)) and c is floor(c * 2^(24-E)) * 2^8, both below 2^38:
//   exact in f64, and so is their sum T, and T without its bits beyond the 32nd, toward minus
//   infinity. An E - e beyond 100 floors P to 0 or -1, as 100 does;
// - T is rounded to f32, nearest even, and multiplied by 2^(E-32): exact, since a result that is
//   not zero is at least one unit, which is normal, or infinite where it reaches 2^128.
// Lanes with an e outside -94..126 or an operand that is NaN or infinite are computed again by the
// scalar model.

class Cdna3 {
 public:
  static constexpr int kWidth = 8;

  void set_columns(const BlockB& b) {
    b_ = b;
    exponents_.set_columns(b);
  }

  void step(float* acc, const float* a, int groups) {
    exponents_.set_row(a);
    V::F c0 = V::load(acc), c1 = V::load(acc + V::kWidth);
    for (int g = 0; g < groups; ++g) group(&c0, &c1, a, g * kWidth);
    V::store(acc, c0);
    V::store(acc + V::kWidth, c1);
  }

 private:
  static constexpr int kLowest = -94 + 254;
  static constexpr int kHighest = 126 + 254;

  // One vector of columns.
  struct Half {
    V::I product_exponent;
    V::I clamped;
    V::I outside;  // sign bit: not in the fast range
    V::F scale;    // 2^(24-e)
    V::I sum;

    explicit Half(V::I e) : product_exponent(e), sum(V::set(0)) {
      outside = V::bits_or(V::sub(e, V::set(kLowest)), V::sub(V::set(kHighest), e));
      clamped = V::max(e, V::set(kLowest));
      scale = power_of_two(V::sub(V::set(24 + 127 + 254), clamped));
    }
    void add(V::F a, V::F b) { sum = V::add(sum, V::cut(V::mul(V::mul(a, b), scale))); }
    V::F finish(V::F c) {
      const V::I field = exponent_field(c);
      outside = V::bits_or(outside, V::sub(V::set(254), field));
      const V::I largest = V::max(clamped, V::add(field, V::set(127)));
      const V::I distance = V::min(V::sub(largest, clamped), V::set(100));
      const V::F scale_p = power_of_two(V::sub(V::set(8 + 127), distance));
      const V::F scale_c = power_of_two(V::sub(V::set(24 + 127 + 254), largest));
      const V::F unit = power_of_two(V::sub(largest, V::set(32 - 127 + 254)));
      const V::F total =
          V::join(sum_of(V::low(sum), V::low(scale_p), V::low(c), V::low(scale_c)),
                  sum_of(V::high(sum), V::high(scale_p), V::high(c), V::high(scale_c)));
      return with_nothing(product_exponent, c, V::mul(total, unit), &outside);
    }

   private:
    static V::D sum_of(V::D products, V::D scale_p, V::D c, V::D scale_c) {
      const V::D p = V::floor(V::mul(products, scale_p));
      const V::D acc = V::mul(V::floor(V::mul(c, scale_c)), V::set_double(256));
      return V::floor_32_bits(V::add(p, acc));
    }
  };

  void group(V::F* c0, V::F* c1, const float* a, int begin) const {
    const V::I e = exponents_.largest(begin, kWidth);
    Half x0(Exponents::low(e)), x1(Exponents::high(e));
    for (int k = begin; k < begin + kWidth; ++k) {
      const V::F value = V::broadcast(a + k);
      x0.add(value, b_.low(k));
      x1.add(value, b_.high(k));
    }
    V::F y0 = x0.finish(*c0), y1 = x1.finish(*c1);
    if (V::any_negative(V::bits_or(x0.outside, x1.outside))) {
      const auto column = rlk::numerics::mma::cdna3_column;
      const float* b = b_.data + begin * b_.stride;
      y0 = repaired(y0, x0.outside, *c0, column, a + begin, b, b_.stride);
      y1 = repaired(y1, x1.outside, *c1, column, a + begin, b + V::kWidth, b_.stride);
    }
    *c0 = y0;
    *c1 = y1;
  }

  BlockB b_{};
  Exponents exponents_;
};
