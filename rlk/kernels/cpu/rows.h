// What the drivers of row by row operators share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rlk/core/tensor.h"
#include "rlk/kernels/cpu/rows_isa.h"
#include "rlk/kernels/cpu/storage.h"
#include "rlk/kernels/exec.h"

namespace rlk::cpu {

// Items per piece of a parallel loop, so that a piece is worth handing to another thread.
inline std::int64_t grain(double ns_per_item) {
  constexpr double kPieceNs = 16000.0;
  const double items = kPieceNs / std::max(ns_per_item, 0.01);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(items));
}

// The functions for storage type T.
template <typename T>
const StorageRows<T>& storage_rows(Isa isa) {
  if constexpr (sizeof(T) == 2) {
    return rows_isa(isa).bf16;
  } else {
    return rows_isa(isa).f32;
  }
}

// Calls body(begin, end) on pieces of [0, num_rows), a row taking `ns`.
template <typename Body>
void for_row_ranges(Exec& exec, std::int64_t num_rows, double ns, const Body& body) {
  exec.pool.parallel_for(num_rows, grain(ns),
                         [&](std::int64_t begin, std::int64_t end, int) { body(begin, end); });
}

// Elements of a row are neighbours: what the vector kernels need. Other views go to the reference.
template <typename... Views>
bool dense(int dim, const Views&... views) {
  return ((!views || views.shape(dim) == 1 || views.stride(dim) == 1) && ...);
}

// Calls run(rows, begin, end) on pieces of [0, num_tokens) that start at whole vectors, and reports
// the bad token that it returns, if any.
template <typename Rows>
void for_each_token(Exec& exec, std::int64_t num_tokens, const Rows& rows,
                    std::int64_t (*run)(const Rows&, std::int64_t, std::int64_t)) {
  exec.pool.parallel_for(num_tokens, grain(4.0) / 16 * 16,
                         [&](std::int64_t begin, std::int64_t end, int) {
                           const std::int64_t bad = run(rows, begin, end);
                           if (bad >= 0) exec.fault.report(bad);
                         });
}

}  // namespace rlk::cpu
