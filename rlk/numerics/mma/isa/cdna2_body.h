// The CDNA2 model for a panel of columns. Included after columns_body.h.
//
// IEEE operations with the CPU's own flushing: FTZ gives a zero of the result's sign, as fl does.
// It looks at the result before or after rounding, which is the same here: a product of bf16 or a
// sum of flushed numbers that lies below 2^-126 is exact, or so small that both round it away.
// Operands are flushed by integer operations, since DAZ would keep their sign. The thread's mode
// is put back at the end.

class Cdna2 {
 public:
  static constexpr int kWidth = 4;

  void set_columns(const BlockB& b) {
    for (int k = 0; k < kColumnDepth; ++k) {
      V::store(b_ + k * kPanel, flushed_operand(b.low(k)));
      V::store(b_ + k * kPanel + V::kWidth, flushed_operand(b.high(k)));
    }
  }

  void step(float* acc, const float* a, int groups) {
    alignas(64) float x[kColumnDepth];
    for (int k = 0; k < kColumnDepth; k += V::kWidth)
      V::store(x + k, flushed_operand(V::load(a + k)));
    V::F c0 = flushed_operand(V::load(acc)), c1 = flushed_operand(V::load(acc + V::kWidth));
    for (int k = 0; k < groups * kWidth; k += kWidth) {
      c0 = V::add(c0, quad(x + k, b_ + k * kPanel));
      c1 = V::add(c1, quad(x + k, b_ + k * kPanel + V::kWidth));
    }
    V::store(acc, V::canonical_nan(c0));
    V::store(acc + V::kWidth, V::canonical_nan(c1));
  }

 private:
  // Subnormals become +0.
  static V::F flushed_operand(V::F x) {
    const V::I bits = V::as_int(x);
    const V::I small = V::select_equal(V::shift_left<1>(bits), V::set(0), bits, V::set(0));
    return V::as_float(V::select_equal(exponent_field(x), V::set(0), small, bits));
  }
  static V::F quad(const float* a, const float* b) {
    const auto p = [&](int i) { return V::mul(V::broadcast(a + i), V::load(b + i * kPanel)); };
    return V::add(V::add(p(0), p(1)), V::add(p(2), p(3)));
  }

  alignas(64) float b_[kColumnDepth * kPanel];
};

// A function of its own, so that no operation leaves the stretch between the two modes.
__attribute__((noinline)) void cdna2_flushing(const ColumnChains& args) { chains<Cdna2>(args); }

void cdna2_chains(const ColumnChains& args) {
  constexpr unsigned kMode = 0x9f80;  // nearest even, no exceptions, FTZ
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kMode);
  cdna2_flushing(args);
  _mm_setcsr(before);
}
