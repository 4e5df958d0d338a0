#include "rlk/kernels/gpu/linear_logp.h"

#include <algorithm>
#include <utility>

#include "rlk/device/device.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/kernels/linear_logp_rows.h"

namespace rlk::gpu {
namespace {

constexpr Products kPortable{gemm, gemm_backward_weight_in_window, 1};

// At least `least`; where there are many, what fills tiles of products.
std::int64_t tile_rows(std::int64_t tile_bytes, std::int64_t bytes_per_row, std::int64_t least) {
  constexpr std::int64_t kWhole = 128;
  const std::int64_t count = tile_bytes / std::max<std::int64_t>(1, bytes_per_row);
  return std::max(least, count < kWhole ? count : count / kWhole * kWhole);
}

TensorView logits_of(const Products& products, Exec& exec, const LinearLogpArgs& tile,
                     float* memory) {
  GemmArgs product;
  product.c = view(memory, {tile.hidden.shape(0), tile.vocab_size});
  product.a = tile.hidden;
  product.b = rows(tile.head, 0, tile.vocab_size);
  product.packed_b = tile.packed_forward;
  product.segments = {tile.hidden.shape(1), 0, 0};
  products.gemm(exec, product);
  return product.c;
}

void hidden_gradient(const Products& products, Exec& exec, const TensorView& d_hidden,
                     const ConstTensorView& dlogits, const LinearLogpArgs& forward) {
  GemmArgs product;
  product.c = d_hidden;
  product.a = dlogits;
  product.b = forward.head;
  std::swap(product.b.layout.shape[0], product.b.layout.shape[1]);
  std::swap(product.b.layout.stride[0], product.b.layout.stride[1]);
  product.packed_b = forward.packed_backward;
  product.leaf_tree = true;
  product.segments = {forward.head.shape(0), 0, 0};
  products.gemm(exec, product);
}

}  // namespace

void linear_logp_of(const Products& products, Exec& exec, const LinearLogpArgs& args,
                    std::int64_t tile_bytes) {
  const std::int64_t num_tokens = args.hidden.shape(0);
  const std::int64_t tile = std::min(num_tokens, tile_rows(tile_bytes, args.vocab_size * 4, 1));
  device::Workspace::Frame frame(exec.gpu->workspace());
  float* const memory = frame.take<float>(tile * args.vocab_size);
  for (std::int64_t begin = 0; begin < num_tokens; begin += tile) {
    const LinearLogpArgs part = rows_of(args, begin, std::min(begin + tile, num_tokens));
    const TensorView logits = logits_of(products, exec, part, memory);
    logprob_of_rows(
        exec,
        {part.logp, part.entropy, logits, part.targets, part.params, part.num_params, part.state},
        begin);
  }
}

// A tile holds the rows whose groups of mac begin in its window, and those to which the last of
// these may reach: they are computed again by the next tile.
void linear_logp_backward_of(const Products& products, Exec& exec,
                             const LinearLogpBackwardArgs& args, std::int64_t tile_bytes) {
  const LinearLogpArgs& all = args.forward;
  const std::int64_t num_tokens = all.hidden.shape(0), vocab_padded = all.head.shape(0);
  const std::int64_t reach = products.mac_width - 1;
  const std::int64_t bytes =
      static_cast<std::int64_t>(4 + size_of(all.hidden.dtype)) * vocab_padded;
  const std::int64_t tile =
      std::min(num_tokens, tile_rows(tile_bytes, bytes, 2 * products.mac_width));
  device::Workspace::Frame frame(exec.gpu->workspace());
  float* const memory = frame.take<float>(tile * all.vocab_size);
  char* const d_memory =
      frame.take<char>(tile * vocab_padded * static_cast<std::int64_t>(size_of(all.hidden.dtype)));
  std::int64_t begin = 0;
  do {  // groups close even where none of their samples has a row
    const std::int64_t end = std::min(begin + tile, num_tokens);
    const std::int64_t window_end = end == num_tokens ? end : end - reach;
    const LinearLogpArgs part = rows_of(all, begin, end);
    TensorView dlogits = view(reinterpret_cast<float*>(d_memory), {end - begin, vocab_padded});
    dlogits.dtype = all.hidden.dtype;
    if (begin < end) {
      const TensorView logits = logits_of(products, exec, part, memory);
      const ConstTensorView no_entropy{};
      logprob_backward_of_rows(exec,
                               {dlogits, logits, part.targets, rows(args.g, begin, end),
                                args.g_entropy ? rows(args.g_entropy, begin, end) : no_entropy,
                                part.params, part.num_params, part.state},
                               begin);
      hidden_gradient(products, exec, rows(args.d_hidden, begin, end), dlogits, part);
    }
    products.gemm_backward_weight_in_window(
        exec, {args.dw, args.chain, dlogits, part.hidden, args.group_ends, args.cu_seqlens},
        {begin, window_end, num_tokens});
    begin = window_end;
  } while (begin < num_tokens);
}

void linear_logp(Exec& exec, const LinearLogpArgs& args) { linear_logp_of(kPortable, exec, args); }

void linear_logp_backward(Exec& exec, const LinearLogpBackwardArgs& args) {
  linear_logp_backward_of(kPortable, exec, args);
}

}  // namespace rlk::gpu
