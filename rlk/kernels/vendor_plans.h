// Products of the GPU vendor's library in place of ours. A plan: one of the library's algorithms
// runs only for shapes for which it was seen to give our bytes, and only where it is faster.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "rlk/core/dtype.h"
#include "rlk/kernels/exec.h"

namespace rlk {

// Products c[m, n] = a[m, k] b[n, k]^T of few rows m, with one chain over k and no bias; a and b
// bf16, c bf16 or f32.
struct VendorShape {
  std::int64_t n, k;
  DType c;
  auto operator<=>(const VendorShape&) const = default;
};

// An algorithm of the library beside our own kernel.
struct VendorTrial {
  std::int64_t most_rows = 0;  // for products with so many rows, down to those of the trial before
  std::string algorithm;       // "66/10": the library's numbers of it and of its tile
  std::int64_t vectors = 0;    // products that were compared
  std::string difference;      // the first one; empty: none
  double us = 0, our_us = 0;   // of a call with most_rows rows; 0: not timed
  bool chosen = false;
};

struct VendorPlan {
  VendorShape shape;
  std::string library;  // "libcublasLt.so.13 13.1.0"
  std::string failure;  // why there are no trials
  std::vector<VendorTrial> trials;
};

// What is tried, in one line for each number of rows.
std::vector<std::string> to_lines(const VendorPlan& plan);

// How times are taken, and what they have to be.
struct VendorEffort {
  // Calls take turns on so many bytes of weights, at most on 64 weights: more than a level 2 cache
  // has, so that they come from memory.
  std::int64_t rotated_bytes = 300'000'000;
  int repeats = 7;
  double worth = 0.97;  // what takes at most this share of our time is chosen
};

// Tries what exec.gpu->products has for `shape`, once in a process; from then on gemm of profile
// sm90, where it runs with this library and shape, gives its products to what was chosen. Numbers
// that are not finite are compared as such: the library's NaN has other bits than the contract's.
// Not while a stream is captured. Takes memory for one weight, or rotated_bytes. Never fails:
// `failure` says why nothing could be tried.
const VendorPlan& try_vendor_products(Exec& exec, const VendorShape& shape,
                                      const VendorEffort& effort = {});

}  // namespace rlk
