#include "rlk/ops/audit.h"

#include <cstring>

#include "rlk/kernels/outputs.h"

namespace rlk {
namespace {

// Calls visit(pointer) for every element of the view, in row-major order.
template <typename Visit>
void for_each_element(const ConstTensorView& v, const Visit& visit) {
  const auto size = static_cast<std::int64_t>(size_of(v.dtype));
  const char* base = static_cast<const char*>(v.data);
  const auto& n = v.layout.shape;
  const auto& step = v.layout.stride;
  for (std::int64_t i = 0; i < n[0]; ++i) {
    for (std::int64_t j = 0; j < n[1]; ++j) {
      for (std::int64_t k = 0; k < n[2]; ++k) {
        for (std::int64_t m = 0; m < n[3]; ++m) {
          visit(base + size * (i * step[0] + j * step[1] + k * step[2] + m * step[3]));
        }
      }
    }
  }
}

}  // namespace

Tensor gather(const ConstTensorView& view, Memory& memory) {
  const auto shape = view.layout.shape.begin();
  Tensor out(view.dtype, std::vector<std::int64_t>(shape, shape + view.layout.rank), memory);
  const std::size_t size = size_of(view.dtype);
  char* to = out.data<char>();
  for_each_element(view, [&](const char* from) {
    std::memcpy(to, from, size);
    to += size;
  });
  return out;
}

void drop_zero_signs(const TensorView& open_sum) {
  for_each_element(open_sum, [](const char* at) {
    float x;
    std::memcpy(&x, at, sizeof x);
    if (x == 0.0f) std::memset(const_cast<char*>(at), 0, sizeof x);
  });
}

void Audit::redirect(const char* name, TensorView& view) {
  if (!view) return;
  pairs_.push_back({view, gather(view, memory_), is_open_sum(name)});
  view = pairs_.back().copy.view();
}

void Audit::compare(std::int64_t& compared, std::int64_t& mismatches) const {
  for (const Pair& pair : pairs_) {
    const std::size_t size = size_of(pair.original.dtype);
    Tensor theirs = gather(pair.original);
    Tensor ours = pair.copy;
    if (pair.open_sum) {
      drop_zero_signs(theirs);
      drop_zero_signs(ours);
    }
    compared += ours.size();
    for (std::size_t at = 0; at < ours.size_bytes(); at += size) {
      mismatches += std::memcmp(theirs.data<char>() + at, ours.data<char>() + at, size) != 0;
    }
  }
}

}  // namespace rlk
