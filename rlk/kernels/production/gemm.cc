// Matrix products as fast engines choose them. Few rows: our own tiles on the weight in panels,
// which read it once at memory speed. More rows: oneDNN where the CPU multiplies bf16 itself
// (AVX512_BF16, AMX), OpenBLAS on f32 copies elsewhere. F32 calls are OpenBLAS's. Where one ends
// and the other begins was measured (`rlk bench`). The libraries run on one thread each: the pool
// shares the product among its own.
#include "rlk/kernels/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "rlk/kernels/production/onednn.h"
#include "rlk/kernels/production/panel_isa.h"
#include "rlk/kernels/production/table.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/bf16.h"

namespace rlk::production {
namespace {

using numerics::to_bf16;
using numerics::to_f32;

// Columns that a library call computes at once.
constexpr std::int64_t kSlice = 1024;

// A weight in every form that the choice by rows may want.
struct Weight {
  std::int64_t n, k;
  Tensor panels;  // pairs, as i32
  std::vector<std::shared_ptr<OnednnWeight>> slices;
  Tensor wide;  // f32 [n, k]
};

const PanelIsa* panel_isa() {
  return available(Isa::kAvx512) ? &kPanelAvx512 : available(Isa::kAvx2) ? &kPanelAvx2 : nullptr;
}

// Rows below which the panels are faster than a library. Reading a large weight takes a library's
// time anyway; for a small one OpenBLAS, which packs it in every call, is never faster.
std::int64_t panel_rows(std::int64_t n, std::int64_t k) {
  const bool large = n * k >= 256 * 1024;
  if (panel_isa() == nullptr) return 0;
  if (onednn_bf16()) return large ? 6 : 16;
  return large ? 32 : std::numeric_limits<std::int64_t>::max();
}

std::int64_t up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

// Elements per piece of a loop, so that a piece is worth handing to another thread.
std::int64_t grain(double ns_per_item) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(8000.0 / ns_per_item));
}

// Panel p: by the vector kernel where rows lie without gaps, by pairs of k where columns do.
void fill_panel(const ConstTensorView& w, std::int64_t first, std::int64_t rows,
                std::uint32_t* panel) {
  const std::int64_t k = w.shape(1);
  std::int64_t pair = 0;
  if (w.stride(1) == 1) {
    pair = k / 2;
    panel_isa()->pack(panel, w.at<std::uint16_t>(first), w.stride(0), rows, pair);
  }
  const std::int64_t step = w.stride(0);
  for (; pair < (k + 1) / 2; ++pair) {
    const std::uint16_t* low = w.at<std::uint16_t>(first, 2 * pair);
    const std::uint16_t* high = low + w.stride(1);
    std::uint32_t* to = panel + pair * kPanelColumns;
    if (2 * pair + 1 == k) {
      for (std::int64_t j = 0; j < rows; ++j) to[j] = low[j * step];
    } else if (step == 1) {
      for (std::int64_t j = 0; j < rows; ++j) {
        to[j] = low[j] | static_cast<std::uint32_t>(high[j]) << 16;
      }
    } else {
      for (std::int64_t j = 0; j < rows; ++j) {
        to[j] = low[j * step] | static_cast<std::uint32_t>(high[j * step]) << 16;
      }
    }
  }
}

// Columns past the last are never looked at: whatever lies there stays.
void fill_panels(Exec& exec, const ConstTensorView& w, Weight* out) {
  const std::int64_t size = (out->k + 1) / 2 * kPanelColumns;
  const std::int64_t count = up(out->n, kPanelColumns) / kPanelColumns;
  if (out->panels.size() != count * size) out->panels = Tensor(DType::kI32, {count * size});
  auto* panels = static_cast<std::uint32_t*>(out->panels.view().data);
  exec.pool.parallel_for(count, grain(0.2 * static_cast<double>(size)),
                         [&](std::int64_t begin, std::int64_t end, int) {
                           for (std::int64_t p = begin; p < end; ++p) {
                             const std::int64_t first = p * kPanelColumns;
                             fill_panel(w, first,
                                        std::min<std::int64_t>(kPanelColumns, out->n - first),
                                        panels + p * size);
                           }
                         });
}

void fill_slices(Exec& exec, const ConstTensorView& w, Weight* out) {
  const std::int64_t count = up(out->n, kSlice) / kSlice;
  if (std::ssize(out->slices) != count) {
    for (std::int64_t n = 0; n < out->n; n += kSlice) {
      out->slices.push_back(make_onednn_weight(std::min(kSlice, out->n - n), out->k));
    }
  }
  exec.pool.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      fill_onednn_weight(*out->slices[static_cast<std::size_t>(i)], w.at<bf16>(i * kSlice),
                         w.stride(0), w.stride(1));
    }
  });
}

float widened(float x) { return x; }
float widened(bf16 x) { return to_f32(x); }

template <typename T>
void widen(float* out, const T* from, std::int64_t stride, std::int64_t n) {
  if (stride == 1) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = widened(from[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = widened(from[i * stride]);
  }
}

void widen_row(float* out, const ConstTensorView& x, std::int64_t row) {
  x.dtype == DType::kF32 ? widen(out, x.at<float>(row), x.stride(1), x.shape(1))
                         : widen(out, x.at<bf16>(row), x.stride(1), x.shape(1));
}

void fill_wide(Exec& exec, const ConstTensorView& w, Weight* out) {
  if (out->wide.size() != out->n * out->k) out->wide = Tensor(DType::kF32, {out->n, out->k});
  float* wide = out->wide.data<float>();
  exec.pool.parallel_for(out->n, grain(0.5 * static_cast<double>(out->k)),
                         [&](std::int64_t begin, std::int64_t end, int) {
                           for (std::int64_t n = begin; n < end; ++n) {
                             widen_row(wide + n * out->k, w, n);
                           }
                         });
}

void fill(Exec& exec, const ConstTensorView& w, bool panels, bool library, Weight* out) {
  if (out->n != w.shape(0) || out->k != w.shape(1)) *out = {w.shape(0), w.shape(1), {}, {}, {}};
  if (out->n == 0 || out->k == 0) return;
  if (w.dtype == DType::kF32) return fill_wide(exec, w, out);
  if (panels && panel_isa() != nullptr) fill_panels(exec, w, out);
  if (library && onednn_bf16()) fill_slices(exec, w, out);
  if (library && !onednn_bf16()) fill_wide(exec, w, out);
}

// Tasks are some rows by some panels; a thread widens the rows it works on.
void run_panels(Exec& exec, const GemmArgs& args, const Weight& w, std::int64_t first,
                std::int64_t rows) {
  constexpr std::int64_t kRows = 60;
  const std::int64_t lda = up(w.k, 2);
  const std::int64_t groups = up(w.n, kPanelColumns) / kPanelColumns;
  const std::int64_t chunks = up(rows, kRows) / kRows;
  Workspace::Frame frame(exec.workspace);
  const std::int64_t size = up(std::min(rows, kRows) * lda, 16);
  float* scratch = frame.take<float>(size * exec.pool.num_threads());
  const std::int64_t task_rows = std::clamp<std::int64_t>(rows, 4, kRows);
  const double ns = 0.02 * static_cast<double>(task_rows * kPanelColumns * w.k);
  exec.pool.parallel_for(
      chunks * groups, grain(ns), [&](std::int64_t begin, std::int64_t end, int thread) {
        float* a = scratch + thread * size;
        while (begin < end) {
          const std::int64_t chunk = begin / groups;
          const std::int64_t last = std::min(end, (chunk + 1) * groups);
          const std::int64_t row = first + chunk * kRows;
          const std::int64_t column = begin % groups * kPanelColumns;
          PanelProduct product;
          product.rows = std::min(kRows, rows - chunk * kRows);
          for (std::int64_t r = 0; r < product.rows; ++r) {
            a[r * lda + lda - 1] = 0.0f;
            widen_row(a + r * lda, args.a, row + r);
          }
          product.a = a;
          product.lda = lda;
          product.panels =
              static_cast<const std::uint32_t*>(w.panels.view().data) + column * ((w.k + 1) / 2);
          product.k = w.k;
          product.c_is_f32 = args.c.dtype == DType::kF32;
          product.c =
              static_cast<char*>(args.c.data) +
              (row * args.c.stride(0) + column) * static_cast<std::int64_t>(size_of(args.c.dtype));
          product.ldc = args.c.stride(0);
          product.bias = args.bias ? args.bias.at<std::uint16_t>(column) : nullptr;
          product.columns = std::min(w.n, column + (last - begin) * kPanelColumns) - column;
          panel_isa()->product(product);
          begin = last;
        }
      });
}

// Rows of a library call: as many as leave every thread one.
std::int64_t chunk_rows(std::int64_t m, std::int64_t slices, double ns, int threads) {
  if (threads == 1 || ns < 16000.0) return 256;
  for (std::int64_t rows : {256, 128, 64}) {
    if (m / rows * slices >= 2 * threads) return rows;
  }
  return 32;
}

// One call of a library: some rows by one slice of columns.
struct Call {
  std::int64_t row, rows, slice;
  const OnednnProduct* product;
};

void copy_rows(char* to, std::int64_t to_stride, const char* from, std::int64_t from_stride,
               std::int64_t rows, std::int64_t size) {
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * to_stride, from + r * from_stride, static_cast<std::size_t>(size));
  }
}

// oneDNN has fast products for operands without gaps only: others pass through scratch.
class OnednnRun {
 public:
  OnednnRun(Exec& exec, const GemmArgs& args, const Weight& w, std::int64_t m)
      : exec_(exec), args_(args), w_(w), frame_(exec.workspace) {
    const double ns = 4e-3 * static_cast<double>(m) * static_cast<double>(w.n * w.k);
    const auto slices = static_cast<std::int64_t>(w.slices.size());
    const std::int64_t chunk = chunk_rows(m, slices, ns, exec.pool.num_threads());
    step_ = ns < 16000.0 ? m : 1;
    calls_ = frame_.take<Call>((m / chunk + 2) * slices);
    const auto element = static_cast<std::int64_t>(size_of(args.c.dtype));
    for (std::int64_t row = 0; row < m;) {
      // Tails in steps of 32 rows, so that few shapes are ever met.
      const std::int64_t left = m - row;
      const std::int64_t rows = left >= chunk ? chunk : left >= 32 ? left / 32 * 32 : left;
      for (std::int64_t s = 0; s < slices; ++s) {
        const std::int64_t n = std::min(kSlice, w.n - s * kSlice);
        const auto& product =
            find_product({rows, n, w.k, args.c.dtype == DType::kF32, static_cast<bool>(args.bias)});
        library_size_ = std::max(library_size_, up(scratch_bytes(product), 64));
        if (copies_a()) a_size_ = std::max(a_size_, up(rows * w.k * 2, 64));
        if (copies_c(n)) c_size_ = std::max(c_size_, up(rows * n * element, 64));
        calls_[count_++] = {row, rows, s, &product};
      }
      row += rows;
    }
    scratch_ = frame_.take<char>((library_size_ + a_size_ + c_size_) * exec.pool.num_threads());
  }

  void run_all() {
    exec_.pool.parallel_for(count_, step_, [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t i = begin; i < end; ++i) run_call(calls_[i], thread);
    });
  }

 private:
  bool copies_a() const { return args_.a.shape(0) > 1 && args_.a.stride(0) != w_.k; }
  bool copies_c(std::int64_t n) const { return args_.c.shape(0) > 1 && args_.c.stride(0) != n; }

  void run_call(const Call& call, int thread) {
    const std::int64_t column = call.slice * kSlice;
    const std::int64_t n = std::min(kSlice, w_.n - column);
    const auto element = static_cast<std::int64_t>(size_of(args_.c.dtype));
    char* library = scratch_ + thread * (library_size_ + a_size_ + c_size_);
    const char* a = static_cast<const char*>(args_.a.data) + call.row * args_.a.stride(0) * 2;
    if (copies_a()) {
      char* dense_a = library + library_size_;
      copy_rows(dense_a, w_.k * 2, a, args_.a.stride(0) * 2, call.rows, w_.k * 2);
      a = dense_a;
    }
    char* c = static_cast<char*>(args_.c.data) + (call.row * args_.c.stride(0) + column) * element;
    char* to = copies_c(n) ? library + library_size_ + a_size_ : c;
    run(*call.product, a, *w_.slices[static_cast<std::size_t>(call.slice)],
        args_.bias ? args_.bias.at<bf16>(column) : nullptr, to, library);
    if (to != c) copy_rows(c, args_.c.stride(0) * element, to, n * element, call.rows, n * element);
  }

  Exec& exec_;
  const GemmArgs& args_;
  const Weight& w_;
  Workspace::Frame frame_;
  Call* calls_;
  std::int64_t count_ = 0;
  std::int64_t step_ = 1;
  std::int64_t library_size_ = 64, a_size_ = 0, c_size_ = 0;  // scratch of one thread, in bytes
  char* scratch_;
};

template <typename T>
void store_row(T* c, const float* from, const ConstTensorView& bias, std::int64_t column,
               std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float shift = !bias                       ? 0.0f
                        : bias.dtype == DType::kF32 ? *bias.at<float>(column + i)
                                                    : to_f32(*bias.at<bf16>(column + i));
    if constexpr (std::is_same_v<T, float>) {
      c[i] = from[i] + shift;
    } else {
      c[i] = to_bf16(from[i] + shift);
    }
  }
}

// Some rows by one slice of columns, by sgemm. F32 rows of A and of C take part where they lie.
void run_openblas(Exec& exec, const GemmArgs& args, const Weight& w, std::int64_t m) {
  const double ns = 0.03 * static_cast<double>(m) * static_cast<double>(w.n * w.k);
  const std::int64_t slices = up(w.n, kSlice) / kSlice;
  const std::int64_t chunk = chunk_rows(m, slices, ns, exec.pool.num_threads());
  const std::int64_t count = up(m, chunk) / chunk * slices;
  const std::int64_t size = chunk * (w.k + kSlice);
  const bool in_place_a = args.a.dtype == DType::kF32;
  const bool in_place_c = args.c.dtype == DType::kF32 && !args.bias;
  Workspace::Frame frame(exec.workspace);
  float* scratch = frame.take<float>(size * exec.pool.num_threads());
  const std::int64_t step = ns < 16000.0 ? count : 1;
  exec.pool.parallel_for(count, step, [&](std::int64_t begin, std::int64_t end, int thread) {
    use_one_library_thread();
    float* copy = scratch + thread * size;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i / slices * chunk;
      const std::int64_t rows = std::min(chunk, m - row);
      const std::int64_t column = i % slices * kSlice;
      const std::int64_t n = std::min(kSlice, w.n - column);
      if (!in_place_a && (i == begin || column == 0)) {
        for (std::int64_t r = 0; r < rows; ++r) widen_row(copy + r * w.k, args.a, row + r);
      }
      const float* a = in_place_a ? args.a.at<float>(row) : copy;
      const std::int64_t lda = in_place_a ? std::max(args.a.stride(0), w.k) : w.k;
      float* c = in_place_c ? args.c.at<float>(row, column) : copy + chunk * w.k;
      const std::int64_t ldc = in_place_c ? std::max(args.c.stride(0), n) : n;
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(rows),
                  static_cast<int>(n), static_cast<int>(w.k), 1.0f, a, static_cast<int>(lda),
                  w.wide.data<float>() + column * w.k, static_cast<int>(w.k), 0.0f, c,
                  static_cast<int>(ldc));
      for (std::int64_t r = 0; r < (in_place_c ? 0 : rows); ++r) {
        args.c.dtype == DType::kF32
            ? store_row(args.c.at<float>(row + r, column), c + r * n, args.bias, column, n)
            : store_row(args.c.at<bf16>(row + r, column), c + r * n, args.bias, column, n);
      }
    }
  });
}

bool dense(const ConstTensorView& x, int dim) { return x.shape(dim) == 1 || x.stride(dim) == 1; }

// A matrix that the libraries can take: rows that do not overlap, without gaps inside, and strides
// that are 32-bit numbers.
bool plain(const ConstTensorView& x) {
  return dense(x, 1) && (x.shape(0) == 1 || (x.stride(0) >= x.shape(1) &&
                                             x.stride(0) <= std::numeric_limits<int>::max()));
}

constexpr char kOwner = 0;  // its address names this backend
const void* owner() { return &kOwner; }

}  // namespace

void pack_weight(Exec& exec, const PackWeightArgs& args) {
  PackedWeight& packed = *args.packed;
  if (packed.owner != owner() || !packed.data) {
    packed.owner = owner();
    packed.data = std::make_shared<Weight>();
  }
  packed.n = args.w.shape(0);
  packed.k = args.w.shape(1);
  packed.dtype = args.w.dtype;
  fill(exec, args.w, true, true, static_cast<Weight*>(packed.data.get()));
}

void gemm(Exec& exec, const GemmArgs& args) {
  const std::int64_t m = args.c.shape(0);
  const std::int64_t n = args.c.shape(1);
  const std::int64_t k = args.a.shape(1);
  if (m == 0 || n == 0) return;
  if (k == 0 || !plain(args.c) || !plain(args.a) || (args.bias && !dense(args.bias, 0))) {
    GemmArgs chain = args;
    chain.leaf_tree = false;
    return reference::gemm(exec, chain);
  }
  const bool f32 = args.b.dtype == DType::kF32;
  const bool onednn = onednn_bf16() && !f32;
  const std::int64_t last = onednn ? m % 32 : m;  // rows that may go to the panels
  const bool panels = !f32 && last > 0 && last < panel_rows(n, k);
  const std::int64_t library_rows = panels ? m - last : m;

  const Weight* w = nullptr;
  if (args.packed_b && args.packed_b->owner == owner()) {
    w = static_cast<const Weight*>(args.packed_b->data.get());
    RLK_ASSERT(w->n == n && w->k == k);
  } else {
    thread_local Weight unpacked;
    fill(exec, args.b, panels, library_rows > 0, &unpacked);
    w = &unpacked;
  }
  if (library_rows > 0) {
    onednn ? OnednnRun(exec, args, *w, library_rows).run_all()
           : run_openblas(exec, args, *w, library_rows);
  }
  if (panels) run_panels(exec, args, *w, library_rows, m - library_rows);
}

}  // namespace rlk::production
