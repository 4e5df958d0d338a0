// The table of functions of the vendor's products, what they are asked for, and errors, on a
// library that stands in for cuBLASLt.
#include "rlk/device/vendor_products.h"

#include <bit>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "rlk/core/error.h"
#include "tests/io/error_matchers.h"

namespace rlk::device {
namespace {

const ProductLibrary& fake() {
  static const ProductLibrary kFake(FAKE_CUBLASLT);
  return kFake;
}

// Small whole numbers: every sum of products is exact, in either type.
Tensor numbers(DType dtype, std::int64_t n, std::int64_t m, std::int64_t seed) {
  Tensor t(dtype, {n, m}, managed_memory());
  for (std::int64_t i = 0; i < t.size(); ++i) {
    const float x = static_cast<float>((seed * 31 + i * 7) % 5 - 2);
    if (dtype == DType::kF32) {
      t.data<float>()[i] = x;
    } else {
      t.data<bf16>()[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
    }
  }
  return t;
}

float at(const ConstTensorView& t, std::int64_t i, std::int64_t j) {
  if (t.dtype == DType::kF32) return *t.at<float>(i, j);
  return std::bit_cast<float>(std::uint32_t{t.at<bf16>(i, j)->bits} << 16);
}

TEST(VendorProducts, SayTheVersionOfTheLibrary) { EXPECT_EQ(fake().version(), "13.99.1"); }

TEST(VendorProducts, AreThoseOfEveryLayout) {
  constexpr std::int64_t kM = 3, kN = 5, kK = 7;
  Stream stream;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const bool a_turned : {false, true}) {
      for (const bool b_turned : {false, true}) {
        const Tensor a = numbers(dtype, a_turned ? kK : kM, a_turned ? kM : kK, 1);
        const Tensor b = numbers(dtype, b_turned ? kK : kN, b_turned ? kN : kK, 2);
        const ConstTensorView a_view = a_turned ? transposed(a) : a.view();
        const ConstTensorView b_view = b_turned ? transposed(b) : b.view();
        Tensor d(dtype, {kM, kN}, managed_memory());
        const VendorProduct product(fake(), d, a_view, b_view);
        product.run(d.data<char>(), a_view.data, b_view.data, stream);
        stream.synchronize();
        for (std::int64_t i = 0; i < kM; ++i) {
          for (std::int64_t j = 0; j < kN; ++j) {
            float want = 0;
            for (std::int64_t k = 0; k < kK; ++k) want += at(a_view, i, k) * at(b_view, j, k);
            EXPECT_EQ(at(d, i, j), want) << to_string(dtype) << a_turned << b_turned;
          }
        }
      }
    }
  }
}

TEST(VendorProducts, ErrorsNameTheLibraryAndTheCall) {
  expect_error(ErrorCode::kNotAvailable, {"libnone.so.9", "cannot be opened"},
               [] { ProductLibrary("libnone.so.9"); });
  expect_error(ErrorCode::kNotAvailable,
               {FAKE_CUBLASLT_WITHOUT_HEURISTIC, "has no cublasLtMatmulAlgoGetHeuristic"},
               [] { ProductLibrary(FAKE_CUBLASLT_WITHOUT_HEURISTIC); });
  const Tensor a = numbers(DType::kBF16, 3, 7, 1), b = numbers(DType::kBF16, 5, 7, 2);
  Tensor d(DType::kBF16, {3, 5}, managed_memory());
  const auto make = [&] { VendorProduct(fake(), d, a, b); };
  setenv("FAKE_CUBLASLT_FAILS", "cublasLtCreate", 1);
  expect_error(ErrorCode::kNotAvailable, {FAKE_CUBLASLT, "cublasLtCreate", "internal error", "14"},
               make);
  unsetenv("FAKE_CUBLASLT_FAILS");
  setenv("FAKE_CUBLASLT_HAS_NO_ALGORITHM", "1", 1);
  expect_error(ErrorCode::kNotAvailable, {FAKE_CUBLASLT, "no algorithm for 3 x 5 x 7"}, make);
  unsetenv("FAKE_CUBLASLT_HAS_NO_ALGORITHM");
  const VendorProduct product(fake(), d, a, b);
  Stream stream;
  setenv("FAKE_CUBLASLT_FAILS", "cublasLtMatmul", 1);
  expect_error(ErrorCode::kNotAvailable, {FAKE_CUBLASLT, "cublasLtMatmul", "internal error"},
               [&] { product.run(d.data<char>(), a.data<char>(), b.data<char>(), stream); });
  unsetenv("FAKE_CUBLASLT_FAILS");
}

TEST(VendorProducts, RefuseViewsTheyCannotDescribe) {
  const Tensor a = numbers(DType::kBF16, 3, 14, 1), b = numbers(DType::kF32, 5, 7, 2);
  Tensor d(DType::kBF16, {3, 5}, managed_memory());
  ConstTensorView every_second = a;
  every_second.layout.shape[1] = 7;
  every_second.layout.stride[1] = 2;
  const Tensor b16 = numbers(DType::kBF16, 5, 7, 2);
  const ConstTensorView whole = columns(a.view(), 0, 7);
  const auto expect_refused = [](const std::vector<std::string>& words, const ConstTensorView& d,
                                 const ConstTensorView& a, const ConstTensorView& b) {
    expect_error(ErrorCode::kUnsupported, words, [&] { VendorProduct(fake(), d, a, b); });
  };
  expect_refused({"a has strides [14, 2]"}, d, every_second, b16);
  expect_refused({"b is F32", "expected BF16"}, d, whole, b);
  expect_refused({"b has shape [5, 7]", "expected 14 columns"}, d, a, b16);
  const Tensor wide(DType::kBF16, {3, 6}, managed_memory());
  expect_refused({"d has shape [3, 6]", "expected [3, 5]"}, wide, whole, b16);
  const Tensor turned(DType::kBF16, {5, 3}, managed_memory());
  expect_refused({"d has strides [1, 3]"}, transposed(turned), whole, b16);
  const Tensor whole_numbers(DType::kI32, {3, 5}, managed_memory());
  expect_refused({"d is I32", "expected BF16 or F32"}, whole_numbers, whole, b16);
}

}  // namespace
}  // namespace rlk::device
