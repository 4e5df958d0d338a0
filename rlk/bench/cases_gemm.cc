// gemm and gemm_backward_weight on a CPU, against the vendor's F32 product of the same size.
#include <array>

#include <fmt/format.h>

#include "rlk/bench/calls.h"

namespace rlk::bench {
namespace {

// Weights of few rows are read at memory speed: calls take turns on enough of them.
constexpr std::int64_t kRotatedBytes = std::int64_t{64} << 20;
constexpr std::int64_t kFewRows = 32;

const char* storage_name(DType dtype) { return dtype == DType::kF32 ? "f32" : "bf16"; }

Case make_case(ProductShape s, bool quick) {
  const char* form = s.input_gradient ? "input_gradient" : s.leaf_tree ? "tree" : "chain";
  if (s.m <= kFewRows) s.rotated_bytes = kRotatedBytes;
  Case c;
  c.shape = fmt::format("{}x{}x{}", s.m, s.n, s.k);
  c.name = fmt::format("gemm/{}/{}/{}", storage_name(s.storage), form, c.shape);
  c.op = "gemm";
  c.unit = kGflops;
  c.quick = quick;
  c.prepare = [s](Engines& e) { return prepare_product(e, s); };
  return c;
}

}  // namespace

void add_gemm_cases(Cases& cases) {
  constexpr std::array<std::array<std::int64_t, 3>, 5> kLarge{{{1024, 1024, 1024},
                                                               {512, 4096, 1024},
                                                               {512, 1024, 4096},
                                                               {2048, 2048, 2048},
                                                               {128, 1024, 4096}}};
  for (const DType storage : {DType::kBF16, DType::kF32}) {
    for (const auto& [m, n, k] : kLarge) {
      for (const bool tree : {false, true}) {
        // gate and up are wide chains, down is a deep tree.
        const bool usual = tree == (n <= k);
        const bool quick = m == 512 && (usual || storage == DType::kBF16);
        Case c = make_case({m, n, k, storage, tree}, quick);
        if (m >= 512) c.target = 0.95;
        cases.push_back(std::move(c));
      }
    }
  }
  for (const std::int64_t m : {1, 2, 4, 8, 16, 32}) {
    Case c = make_case({m, 4096, 1024}, true);
    c.group = "gemm, 1 to 32 rows";
    c.group_target = 1.3;
    cases.push_back(c);
  }
  for (const std::int64_t m : {1, 8}) {
    cases.push_back(make_case({m, 4096, 1024, DType::kF32}, false));
    cases.push_back(make_case({m, 1024, 4096, DType::kBF16, true}, false));
  }
  // What one row takes against OpenBLAS alone.
  Case c = make_case({1, 4096, 1024}, true);
  c.name = "gemm/bf16/chain/1x4096x1024/openblas";
  c.against = "openblas";
  c.target = 2.0;
  cases.push_back(c);
  // The demo's products.
  for (const auto& [m, n, k] : std::initializer_list<std::array<std::int64_t, 3>>{
           {8, 192, 64}, {1024, 192, 64}, {1024, 64, 192}}) {
    cases.push_back(make_case({m, n, k}, true));
  }
}

void add_gradient_gemm_cases(Cases& cases) {
  constexpr std::array<std::array<std::int64_t, 3>, 3> kShapes{
      {{1024, 1024, 1024}, {512, 4096, 1024}, {512, 1024, 4096}}};
  for (const DType storage : {DType::kBF16, DType::kF32}) {
    for (const auto& [tokens, n, k] : kShapes) {
      const bool quick = storage == DType::kBF16 && n == k;
      cases.push_back(make_case({tokens, k, n, storage, true, true}, quick));
      const WeightGradientShape s{tokens, n, k, storage};
      Case c;
      c.shape = fmt::format("{}x{}x{}", tokens, n, k);
      c.name = fmt::format("gemm_backward_weight/{}/{}", storage_name(storage), c.shape);
      c.op = "gemm_backward_weight";
      c.unit = kGflops;
      c.quick = quick;
      c.prepare = [s](Engines& e) { return prepare_weight_gradient(e, s); };
      cases.push_back(std::move(c));
    }
  }
}

}  // namespace rlk::bench
