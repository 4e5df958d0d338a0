// Tensors: non-owning views with int64 shapes and strides, and an owner of aligned memory.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "rlk/core/dtype.h"
#include "rlk/core/memory.h"

namespace rlk {

inline constexpr int kMaxRank = 4;

// Shape and strides, both counted in elements. Unused trailing dimensions have size 1.
struct Layout {
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{1, 1, 1, 1};
  std::array<std::int64_t, kMaxRank> stride{0, 0, 0, 0};

  Layout() = default;
  // Row-major, without gaps.
  explicit Layout(std::initializer_list<std::int64_t> sizes);
  explicit Layout(const std::vector<std::int64_t>& sizes);

  std::int64_t size() const;
  bool contiguous() const;
  std::string to_string() const;  // "[3, 64]"
};

// A view that may read only. data == nullptr means "absent" for optional arguments.
struct ConstTensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Layout layout;

  explicit operator bool() const { return data != nullptr; }
  std::int64_t shape(int i) const { return layout.shape[i]; }
  std::int64_t stride(int i) const { return layout.stride[i]; }
  int rank() const { return layout.rank; }

  // Pointer to element (i, j, k, ...) as T. The caller has checked dtype.
  template <typename T>
  const T* at(std::int64_t i = 0, std::int64_t j = 0, std::int64_t k = 0) const {
    return static_cast<const T*>(data) + i * layout.stride[0] + j * layout.stride[1] +
           k * layout.stride[2];
  }
};

// A view that may write.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Layout layout;

  explicit operator bool() const { return data != nullptr; }
  operator ConstTensorView() const { return {data, dtype, layout}; }  // NOLINT: as T* to const T*
  std::int64_t shape(int i) const { return layout.shape[i]; }
  std::int64_t stride(int i) const { return layout.stride[i]; }
  int rank() const { return layout.rank; }

  template <typename T>
  T* at(std::int64_t i = 0, std::int64_t j = 0, std::int64_t k = 0) const {
    return static_cast<T*>(data) + i * layout.stride[0] + j * layout.stride[1] +
           k * layout.stride[2];
  }
};

// Views over memory the caller owns, row-major without gaps.
template <typename T>
TensorView view(T* data, std::initializer_list<std::int64_t> sizes) {
  return {data, DTypeOf<T>::value, Layout(sizes)};
}
template <typename T>
ConstTensorView view(const T* data, std::initializer_list<std::int64_t> sizes) {
  return {data, DTypeOf<T>::value, Layout(sizes)};
}
template <typename T>
ConstTensorView vector_view(const Array<T>& v) {
  return view(v.data(), {std::ssize(v)});
}

// A matrix with rows and columns exchanged.
ConstTensorView transposed(ConstTensorView t);

// Rows [begin, end) of dimension 0.
TensorView rows(const TensorView& t, std::int64_t begin, std::int64_t end);
ConstTensorView rows(const ConstTensorView& t, std::int64_t begin, std::int64_t end);

// Columns [begin, end) of the last dimension.
TensorView columns(const TensorView& t, std::int64_t begin, std::int64_t end);
ConstTensorView columns(const ConstTensorView& t, std::int64_t begin, std::int64_t end);

// [T, heads * d] seen as [T, heads, d]; the last dimension must be without gaps.
TensorView split_heads(const TensorView& t, std::int64_t heads);
ConstTensorView split_heads(const ConstTensorView& t, std::int64_t heads);

// 64-byte aligned, zero-initialised memory with a shape. Copies live where the original does.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::initializer_list<std::int64_t> sizes, Memory& memory = host_memory());
  Tensor(DType dtype, const std::vector<std::int64_t>& sizes, Memory& memory = host_memory());
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;
  Tensor(const Tensor& other);
  Tensor& operator=(const Tensor& other);
  ~Tensor();

  TensorView view() { return {data_, dtype_, layout_}; }
  ConstTensorView view() const { return {data_, dtype_, layout_}; }
  operator TensorView() { return view(); }             // NOLINT: an owner is used as its view
  operator ConstTensorView() const { return view(); }  // NOLINT

  template <typename T>
  T* data() {
    return static_cast<T*>(data_);
  }
  template <typename T>
  const T* data() const {
    return static_cast<const T*>(data_);
  }
  DType dtype() const { return dtype_; }
  const Layout& layout() const { return layout_; }
  std::int64_t shape(int i) const { return layout_.shape[i]; }
  std::int64_t size() const { return data_ ? layout_.size() : 0; }
  std::size_t size_bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype_); }
  bool empty() const { return data_ == nullptr; }
  void fill_zero();
  // Takes all bytes of a tensor of the same size, which may live elsewhere.
  void copy_from(const Tensor& other);

 private:
  void* data_ = nullptr;
  Memory* memory_ = &host_memory();
  DType dtype_ = DType::kF32;
  Layout layout_;
};

}  // namespace rlk
