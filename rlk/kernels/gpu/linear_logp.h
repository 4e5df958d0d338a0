// linear_logp as products and log-sum-exp on tiles of whole rows of logits. A few hundred rows fill
// a GPU, and a whole row needs no other text for filters.
#pragma once

#include "rlk/kernels/gpu/token_window.h"
#include "rlk/kernels/linear_logp.h"

namespace rlk::gpu {

// logprob and logprob_backward of rows that are first_row and following of the caller's call: a
// fault names those.
void logprob_of_rows(Exec& exec, const LogprobArgs& args, std::int64_t first_row);
void logprob_backward_of_rows(Exec& exec, const LogprobBackwardArgs& args, std::int64_t first_row);

// The products of a profile.
struct Products {
  void (*gemm)(Exec&, const GemmArgs&);
  void (*gemm_backward_weight_in_window)(Exec&, const GemmBackwardWeightArgs&, const TokenWindow&);
  std::int64_t mac_width;
};

// Of a tile of logits and their gradients. A plan: no bit depends on it.
inline constexpr std::int64_t kTileBytes = 3 * kLinearLogpBytes;

void linear_logp_of(const Products& products, Exec& exec, const LinearLogpArgs& args,
                    std::int64_t tile_bytes = kTileBytes);
void linear_logp_backward_of(const Products& products, Exec& exec,
                             const LinearLogpBackwardArgs& args,
                             std::int64_t tile_bytes = kTileBytes);

}  // namespace rlk::gpu
