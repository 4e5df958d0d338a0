// What a case competes with: vendor libraries, opened at run time and never linked, so that one
// that is not installed is only said to be so, and route production. For rlk/bench/*.cc only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rlk/bench/bench.h"
#include "rlk/device/vendor_products.h"

namespace rlk::bench {

struct Contender;
struct Engines;
struct Prepared;

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
  const device::ProductLibrary* products = nullptr;  // on a GPU, in place of sgemm
  bool installed() const { return !library.version.empty(); }
};

using Peers = std::vector<Peer>;

// OpenBLAS, BLIS, oneDNN.
Peers open_peers();
// cuBLASLt: from this file, or where it is installed.
Peers open_gpu_peers(const std::string& file);

// c[m, n] = sum_k a[m, k] * b[n, k], as in GemmArgs; on a CPU all are f32.
struct PeerProduct {
  TensorView c;
  ConstTensorView a, b;
};
// Adds to the note of a case that it has no such peer, and why.
void note_missing(std::string& note, const std::string& peer, const std::string& reason);
// Products by each library. Each call takes the next of `turns`, and gives all products in it; the
// layouts are the same in every turn. `owner` has the data.
void add_products(Engines& e, double work, const std::vector<std::vector<PeerProduct>>& turns,
                  const std::shared_ptr<void>& owner, Prepared& out);
// Our call by route production, where there is one.
void add_production(Engines& e, std::function<void(Context&)> call, Prepared& out);

}  // namespace rlk::bench
