// Matrix products of the GPU vendor's library, cuBLASLt: what our own are measured beside. Their
// order of additions is the library's; which of them has the contract's is tried
// (kernels/vendor_plans.h).
//
// The library is opened when it is first needed, so that a program without one runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "rlk/core/tensor.h"
#include "rlk/device/device.h"

namespace rlk::device {

// The functions of libcublasLt.so that are used.
class ProductLibrary {
 public:
  // Errors  kNotAvailable: `path` cannot be opened, or lacks a function; names both.
  explicit ProductLibrary(const std::string& path);
  ~ProductLibrary();
  ProductLibrary(const ProductLibrary&) = delete;
  ProductLibrary& operator=(const ProductLibrary&) = delete;

  const std::string& path() const { return path_; }
  std::string version() const;  // "13.1.0"

 private:
  friend class VendorProduct;
  struct Functions;

  void check(int status, const char* call) const;

  std::string path_;
  std::unique_ptr<Functions> functions_;
};

// The library `path`; empty: the newest of libcublasLt.so.13 and .12 that can be opened. Each is
// opened once, and stays.
// Errors  kNotAvailable: it cannot be opened, or neither can, and why; without a path: a HIP build.
const ProductLibrary& product_library(const std::string& path = "");

// Which of its algorithms the library's heuristic may name.
enum class Sums : std::uint8_t {
  kAny,
  kWhole,  // none that adds partial sums of a result, or needs scratch memory
};

// d[m, n] = sum_k a[m, k] * b[n, k], summed in f32, by the algorithms that the library's heuristic
// names for these shapes.
class VendorProduct {
 public:
  // Views of the shapes above, of which only type and layout count here: a and b of one type, bf16
  // or f32, one stride of each 1; d bf16 or f32 with rows without gaps. most: so many algorithms.
  // Errors  kUnsupported: other views, with which, expected and got; kNotAvailable: a call of the
  // library fails, or it has no algorithm for them.
  VendorProduct(const ProductLibrary& library, const ConstTensorView& d, const ConstTensorView& a,
                const ConstTensorView& b, Sums sums = Sums::kAny, int most = 1);
  ~VendorProduct();
  VendorProduct(const VendorProduct&) = delete;
  VendorProduct& operator=(const VendorProduct&) = delete;

  int num_algorithms() const;             // 1 or more, the heuristic's first choice first
  std::string name(int algorithm) const;  // "66/10": the library's numbers of it and of its tile

  // Only enqueues. Memory that the device reaches, 256-byte aligned, for kWhole 16-byte aligned:
  // the heuristic has counted on it. Errors  kNotAvailable naming library and call.
  void run(void* d, const void* a, const void* b, Stream& stream) const;
  // By one of the algorithms, the first `rows` rows of d and a. Not all of them take fewer rows.
  void run(int algorithm, std::int64_t rows, void* d, const void* a, const void* b,
           Stream& stream) const;

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace rlk::device
