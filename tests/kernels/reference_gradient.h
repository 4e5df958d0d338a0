// Gradients by central differences in double, to judge the backward kernels with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "test_data.h"

namespace rlk::test {

using Values = std::vector<double>;

inline Values numeric_gradient(const std::function<double(const Values&)>& f, Values x) {
  Values gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    const double h = 1e-5 * std::max(1.0, std::fabs(at));
    x[i] = at + h;
    const double above = f(x);
    x[i] = at - h;
    const double below = f(x);
    x[i] = at;
    gradient[i] = (above - below) / (2.0 * h);
  }
  return gradient;
}

// Every element within `tolerance` of the largest expected one: a few bf16 roundings.
inline void expect_close(const Tensor& actual, const Values& expected, double tolerance = 0.015) {
  ASSERT_EQ(actual.size(), static_cast<std::int64_t>(expected.size()));
  double largest = 0.0;
  for (const double x : expected) largest = std::max(largest, std::fabs(x));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(value(actual, static_cast<std::int64_t>(i)), expected[i], tolerance * largest)
        << "element " << i;
  }
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace rlk::test
