#include "rlk/core/tensor.h"

#include <utility>

#include <fmt/ranges.h>

namespace rlk {
namespace {

template <typename Sizes>
Layout row_major(const Sizes& sizes) {
  if (sizes.size() > kMaxRank) {
    fail(ErrorCode::kShape, "tensor: rank {} is above {}", sizes.size(), kMaxRank);
  }
  Layout layout;
  layout.rank = static_cast<int>(sizes.size());
  int i = 0;
  for (std::int64_t size : sizes) {
    if (size < 0) fail(ErrorCode::kShape, "tensor: dimension {} has size {}", i, size);
    layout.shape[i++] = size;
  }
  std::int64_t step = 1;
  for (int d = layout.rank - 1; d >= 0; --d) {
    layout.stride[d] = step;
    if (__builtin_mul_overflow(step, layout.shape[d], &step)) {
      fail(ErrorCode::kShape, "tensor: element count of [{}] overflows 64 bits",
           fmt::join(sizes, ", "));
    }
  }
  return layout;
}

template <typename View>
View slice(const View& t, int dim, std::int64_t begin, std::int64_t end) {
  RLK_ASSERT(0 <= begin && begin <= end && end <= t.layout.shape[dim]);
  View out = t;
  const std::int64_t offset =
      begin * t.layout.stride[dim] * static_cast<std::int64_t>(size_of(t.dtype));
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(out.data)>>,
                                  const char, char>;
  if (out.data) out.data = static_cast<Byte*>(out.data) + offset;
  out.layout.shape[dim] = end - begin;
  return out;
}

template <typename View>
View with_heads(const View& t, std::int64_t heads) {
  RLK_ASSERT(t.rank() == 2 && heads > 0 && t.shape(1) % heads == 0 && t.stride(1) == 1);
  View out = t;
  const std::int64_t d = t.shape(1) / heads;
  out.layout.rank = 3;
  out.layout.shape = {t.shape(0), heads, d, 1};
  out.layout.stride = {t.stride(0), d, 1, 0};
  return out;
}

}  // namespace

Layout::Layout(std::initializer_list<std::int64_t> sizes) : Layout(row_major(sizes)) {}
Layout::Layout(const std::vector<std::int64_t>& sizes) : Layout(row_major(sizes)) {}

std::int64_t Layout::size() const {
  std::int64_t n = 1;
  for (int d = 0; d < rank; ++d) n *= shape[d];
  return n;
}

bool Layout::contiguous() const {
  std::int64_t step = 1;
  for (int d = rank - 1; d >= 0; --d) {
    if (shape[d] != 1 && stride[d] != step) return false;
    step *= shape[d];
  }
  return true;
}

std::string Layout::to_string() const {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.begin() + rank, ", "));
}

ConstTensorView transposed(ConstTensorView t) {
  std::swap(t.layout.shape[0], t.layout.shape[1]);
  std::swap(t.layout.stride[0], t.layout.stride[1]);
  return t;
}

TensorView rows(const TensorView& t, std::int64_t begin, std::int64_t end) {
  return slice(t, 0, begin, end);
}
ConstTensorView rows(const ConstTensorView& t, std::int64_t begin, std::int64_t end) {
  return slice(t, 0, begin, end);
}
TensorView columns(const TensorView& t, std::int64_t begin, std::int64_t end) {
  return slice(t, t.rank() - 1, begin, end);
}
ConstTensorView columns(const ConstTensorView& t, std::int64_t begin, std::int64_t end) {
  return slice(t, t.rank() - 1, begin, end);
}
TensorView split_heads(const TensorView& t, std::int64_t heads) { return with_heads(t, heads); }
ConstTensorView split_heads(const ConstTensorView& t, std::int64_t heads) {
  return with_heads(t, heads);
}

Tensor::Tensor(DType dtype, std::initializer_list<std::int64_t> sizes, Memory& memory)
    : memory_(&memory), dtype_(dtype), layout_(sizes) {
  data_ = memory.take(static_cast<std::size_t>(layout_.size()) * size_of(dtype));
}
Tensor::Tensor(DType dtype, const std::vector<std::int64_t>& sizes, Memory& memory)
    : memory_(&memory), dtype_(dtype), layout_(sizes) {
  data_ = memory.take(static_cast<std::size_t>(layout_.size()) * size_of(dtype));
}
Tensor::Tensor(Tensor&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      memory_(other.memory_),
      dtype_(other.dtype_),
      layout_(other.layout_) {}
Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this != &other) {
    if (data_) memory_->give_back(data_);
    data_ = std::exchange(other.data_, nullptr);
    memory_ = other.memory_;
    dtype_ = other.dtype_;
    layout_ = other.layout_;
  }
  return *this;
}
Tensor::Tensor(const Tensor& other)
    : memory_(other.memory_), dtype_(other.dtype_), layout_(other.layout_) {
  if (other.data_) {
    data_ = memory_->take(other.size_bytes());
    copy_from(other);
  }
}
Tensor& Tensor::operator=(const Tensor& other) {
  if (this != &other) *this = Tensor(other);
  return *this;
}
Tensor::~Tensor() {
  if (data_) memory_->give_back(data_);
}

void Tensor::fill_zero() {
  if (data_) memory_->fill_zero(data_, size_bytes());
}

void Tensor::copy_from(const Tensor& other) {
  RLK_ASSERT(size_bytes() == other.size_bytes());
  // Host memory does not wait for a device that still writes the other.
  Memory& memory = memory_ == &host_memory() ? *other.memory_ : *memory_;
  if (data_) memory.copy(data_, other.data_, size_bytes());
}

}  // namespace rlk
