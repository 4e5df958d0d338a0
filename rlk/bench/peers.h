// Vendor libraries, opened at run time and never linked: one that is not installed is only said to
// be so. For rlk/bench/*.cc only.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "rlk/bench/bench.h"

namespace rlk::bench {

// c[m,n] = sum_k a[m,k] * b[k,n], f32; c without gaps. One stride of a and of b is 1.
struct Sgemm {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row, b_col;
  float* c;
};

struct Peer {
  BenchLibrary library;
  std::function<void(int threads)> set_threads;
  std::function<void(const Sgemm&)> sgemm;
  bool installed() const { return !library.version.empty(); }
};

using Peers = std::vector<Peer>;

// OpenBLAS, BLIS, oneDNN.
Peers open_peers();

}  // namespace rlk::bench
