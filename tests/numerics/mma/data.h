// Inputs of the models' tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "rlk/numerics/bf16.h"
#include "rlk/numerics/mma/families.h"
#include "tests/numerics/data.h"

namespace rlk::numerics::mma {

// One family as a product D[rows, columns] = A * B^T + C.
struct Inputs {
  Inputs(Family family, std::uint64_t seed, std::int64_t rows, std::int64_t columns, std::int64_t k)
      : rows(rows),
        columns(columns),
        k(k),
        a(static_cast<std::size_t>(rows * k)),
        b(static_cast<std::size_t>(columns * k)),
        c(static_cast<std::size_t>(rows * columns)) {
    fill_family(family, seed, rows, columns, k, a.data(), b.data(), c.data());
  }

  // f(c, a, b) of every element, row by row; a and b point to k elements.
  template <typename F>
  std::vector<float> each(const F& f) const {
    std::vector<float> d(c.size());
    for (std::int64_t m = 0; m < rows; ++m) {
      for (std::int64_t n = 0; n < columns; ++n) {
        d[m * columns + n] = f(c[m * columns + n], a.data() + m * k, b.data() + n * k);
      }
    }
    return d;
  }

  std::int64_t rows, columns, k;
  std::vector<bf16> a, b;
  std::vector<float> c;
};

inline std::int64_t count_different(const std::vector<float>& x, const std::vector<float>& y) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < x.size(); ++i) count += bits(x[i]) != bits(y[i]) ? 1 : 0;
  return count;
}

// Operands of one group: the pairs given, +0 behind them.
struct Group {
  Group(std::initializer_list<std::pair<double, double>> products) {
    int i = 0;
    for (const auto& [x, y] : products) {
      a[i] = to_bf16(static_cast<float>(x));
      b[i++] = to_bf16(static_cast<float>(y));
    }
  }
  bf16 a[16] = {};
  bf16 b[16] = {};
};

// Exponent of the encoding: subnormals and zero have that of the smallest normal number.
inline int encoded_exponent(double x) {
  return x == 0 || !std::isfinite(x) ? -126 : std::max(std::ilogb(x), -126);
}

}  // namespace rlk::numerics::mma
