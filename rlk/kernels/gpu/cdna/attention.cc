#include "rlk/kernels/gpu/cdna/attention.h"

#include "rlk/kernels/gpu/cdna/attention_kv_items.h"
#include "rlk/kernels/gpu/cdna/table.h"

namespace rlk::gpu::cdna {
namespace {

// Whether tiles of 128 rows would be full enough, and enough of them to fill a chip. Few tiles may
// take their time where there is no other split to work on, or too much state to keep.
bool are_many(const AttentionArgs& args, const Contract& contract) {
  const std::int64_t heads = args.q.shape(1);
  const std::int64_t pairs = args.q.shape(0) * heads;
  const std::int64_t rows_per_kv_head = pairs / args.kv.k.shape(1);
  if (rows_per_kv_head <= 64 * args.kv_lens.shape(0)) return false;
  const std::int64_t splits = ceil_div(max_keys(args.kv), contract.kv_split);
  return splits == 1 || pairs >= 128 * 256 || splits * pairs > (1 << 19);
}

}  // namespace

void attention(Exec& exec, const AttentionArgs& args) {
  check_is_bf16(exec, args.q);
  if (are_many(args, exec.contract) && attention_prefill(exec, args)) return;
  if (attention_decode(exec, args) || attention_prefill(exec, args)) return;
  attention_any(exec, args);
}

}  // namespace rlk::gpu::cdna
