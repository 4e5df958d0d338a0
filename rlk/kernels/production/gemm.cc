// Matrix products as fast engines choose them. Few rows: our own tiles on the weight in panels,
// which read it once at memory speed. More rows: oneDNN where the CPU multiplies bf16 itself
// (AVX512_BF16, AMX), OpenBLAS on f32 copies elsewhere. Where one ends and the other begins was
// measured (bench/production_bench.cc). The libraries run on one thread each: the pool shares the
// product among its own.
#include "rlk/kernels/gemm.h"

#include <cblas.h>

#include <algorithm>
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
constexpr std::int64_t kSlice = 512;

// A weight in every form that the choice by rows may want.
struct Weight {
  std::int64_t n, k;
  std::vector<std::uint32_t> panels;
  std::vector<std::shared_ptr<OnednnWeight>> slices;
  std::vector<float> wide;  // [n, k]
};

const PanelIsa* panel_isa() {
  static const PanelIsa* kIsa = [] {
    const PanelIsa* best = nullptr;
    if (available(Isa::kAvx2)) best = &kPanelAvx2;
    if (available(Isa::kAvx512)) best = &kPanelAvx512;
    if (best == &kPanelAvx512 && onednn_bf16()) best = &kPanelAvx512Bf16;
    return best;
  }();
  return kIsa;
}

// Rows below which the panels are faster than a library.
std::int64_t panel_rows() {
  if (panel_isa() == nullptr) return 0;
  return onednn_bf16() ? 12 : 32;
}

std::int64_t up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

// Elements per piece of a loop, so that a piece is worth handing to another thread.
std::int64_t grain(double ns_per_item) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(8000.0 / ns_per_item));
}

void fill_panels(Exec& exec, const ConstTensorView& w, Weight* out) {
  const std::int64_t pairs = (out->k + 1) / 2;
  const std::int64_t count = up(out->n, kPanelColumns) / kPanelColumns;
  out->panels.resize(static_cast<std::size_t>(count * pairs * kPanelColumns));
  const double ns = 1.0 * static_cast<double>(pairs * kPanelColumns);
  exec.pool.parallel_for(count, grain(ns), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t p = begin; p < end; ++p) {
      std::uint32_t* panel = out->panels.data() + p * pairs * kPanelColumns;
      for (std::int64_t j = 0; j < kPanelColumns; ++j) {
        const std::int64_t n = p * kPanelColumns + j;
        for (std::int64_t pair = 0; pair < pairs; ++pair) {
          std::uint32_t x = 0;
          if (n < out->n) {
            x = w.at<bf16>(n, 2 * pair)->bits;
            if (2 * pair + 1 < out->k) {
              x |= static_cast<std::uint32_t>(w.at<bf16>(n, 2 * pair + 1)->bits) << 16;
            }
          }
          panel[pair * kPanelColumns + j] = x;
        }
      }
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

void widen_row(float* out, const ConstTensorView& x, std::int64_t row) {
  const bf16* from = x.at<bf16>(row);
  const std::int64_t n = x.shape(1);
  if (x.stride(1) == 1) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = to_f32(from[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = to_f32(from[i * x.stride(1)]);
  }
}

void fill_wide(Exec& exec, const ConstTensorView& w, Weight* out) {
  out->wide.resize(static_cast<std::size_t>(out->n * out->k));
  exec.pool.parallel_for(out->n, grain(0.5 * static_cast<double>(out->k)),
                         [&](std::int64_t begin, std::int64_t end, int) {
                           for (std::int64_t n = begin; n < end; ++n) {
                             widen_row(out->wide.data() + n * out->k, w, n);
                           }
                         });
}

void fill(Exec& exec, const ConstTensorView& w, bool panels, bool library, Weight* out) {
  if (out->n != w.shape(0) || out->k != w.shape(1)) *out = {w.shape(0), w.shape(1), {}, {}, {}};
  if (out->n == 0 || out->k == 0) return;
  if (panels && panel_isa() != nullptr) fill_panels(exec, w, out);
  if (library && onednn_bf16()) fill_slices(exec, w, out);
  if (library && !onednn_bf16()) fill_wide(exec, w, out);
}

void run_panels(Exec& exec, const GemmArgs& args, const Weight& w, std::int64_t row,
                std::int64_t rows) {
  constexpr std::int64_t kGroup = 4 * kPanelColumns;
  const double ns = 0.01 * static_cast<double>(std::max<std::int64_t>(rows, 4) * kGroup * w.k);
  exec.pool.parallel_for(
      up(w.n, kGroup) / kGroup, grain(ns), [&](std::int64_t begin, std::int64_t end, int) {
        const std::int64_t column = begin * kGroup;
        PanelProduct product;
        product.a = args.a.at<std::uint16_t>(row);
        product.lda = args.a.stride(0);
        product.panels = w.panels.data() + column * ((w.k + 1) / 2);
        product.k = w.k;
        product.c_is_f32 = args.c.dtype == DType::kF32;
        product.c = product.c_is_f32
                        ? static_cast<void*>(args.c.at<float>(row, column))
                        : static_cast<void*>(args.c.at<std::uint16_t>(row, column));
        product.ldc = args.c.stride(0);
        product.bias = args.bias ? args.bias.at<std::uint16_t>(column) : nullptr;
        product.rows = rows;
        product.columns = std::min(w.n, end * kGroup) - column;
        panel_isa()->product(product);
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

void run_onednn(Exec& exec, const GemmArgs& args, const Weight& w, std::int64_t m) {
  const double ns = 4e-3 * static_cast<double>(m) * static_cast<double>(w.n * w.k);
  const auto slices = static_cast<std::int64_t>(w.slices.size());
  const std::int64_t chunk = chunk_rows(m, slices, ns, exec.pool.num_threads());
  Workspace::Frame frame(exec.workspace);
  Call* calls = frame.take<Call>((m / chunk + 2) * slices);
  std::int64_t count = 0;
  std::int64_t scratch_size = 64;
  for (std::int64_t row = 0; row < m;) {
    // Tails in steps of 32 rows, so that few shapes are ever met.
    const std::int64_t left = m - row;
    const std::int64_t rows = left >= chunk ? chunk : left >= 32 ? left / 32 * 32 : left;
    for (std::int64_t s = 0; s < slices; ++s) {
      const std::int64_t n = std::min(kSlice, w.n - s * kSlice);
      const auto& product =
          find_product({rows, n, w.k, args.a.stride(0), args.c.stride(0),
                        args.c.dtype == DType::kF32, static_cast<bool>(args.bias)});
      scratch_size = std::max(scratch_size, up(scratch_bytes(product), 64));
      calls[count++] = {row, rows, s, &product};
    }
    row += rows;
  }
  char* scratch = frame.take<char>(scratch_size * exec.pool.num_threads());
  const std::int64_t step = ns < 16000.0 ? count : 1;
  exec.pool.parallel_for(count, step, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Call& call = calls[i];
      const std::int64_t column = call.slice * kSlice;
      void* c = args.c.dtype == DType::kF32
                    ? static_cast<void*>(args.c.at<float>(call.row, column))
                    : static_cast<void*>(args.c.at<bf16>(call.row, column));
      run(*call.product, args.a.at<bf16>(call.row),
          *w.slices[static_cast<std::size_t>(call.slice)],
          args.bias ? args.bias.at<bf16>(column) : nullptr, c, scratch + thread * scratch_size);
    }
  });
}

void store_row(const GemmArgs& args, std::int64_t row, std::int64_t column, const float* from,
               std::int64_t n) {
  const bf16* bias = args.bias ? args.bias.at<bf16>(column) : nullptr;
  if (args.c.dtype == DType::kF32) {
    float* c = args.c.at<float>(row, column);
    for (std::int64_t i = 0; i < n; ++i) c[i] = from[i] + (bias ? to_f32(bias[i]) : 0.0f);
  } else {
    bf16* c = args.c.at<bf16>(row, column);
    for (std::int64_t i = 0; i < n; ++i) c[i] = to_bf16(from[i] + (bias ? to_f32(bias[i]) : 0.0f));
  }
}

void run_openblas(Exec& exec, const GemmArgs& args, const Weight& w, std::int64_t m) {
  const double ns = 0.03 * static_cast<double>(m) * static_cast<double>(w.n * w.k);
  const std::int64_t slices = up(w.n, kSlice) / kSlice;
  const std::int64_t chunk = chunk_rows(m, slices, ns, exec.pool.num_threads());
  const std::int64_t count = up(m, chunk) / chunk * slices;
  const std::int64_t size = chunk * (w.k + kSlice);
  Workspace::Frame frame(exec.workspace);
  float* scratch = frame.take<float>(size * exec.pool.num_threads());
  const std::int64_t step = ns < 16000.0 ? count : 1;
  exec.pool.parallel_for(count, step, [&](std::int64_t begin, std::int64_t end, int thread) {
    use_one_library_thread();
    float* a = scratch + thread * size;
    float* c = a + chunk * w.k;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i / slices * chunk;
      const std::int64_t rows = std::min(chunk, m - row);
      const std::int64_t column = i % slices * kSlice;
      const std::int64_t n = std::min(kSlice, w.n - column);
      if (i == begin || column == 0) {
        for (std::int64_t r = 0; r < rows; ++r) widen_row(a + r * w.k, args.a, row + r);
      }
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(rows),
                  static_cast<int>(n), static_cast<int>(w.k), 1.0f, a, static_cast<int>(w.k),
                  w.wide.data() + column * w.k, static_cast<int>(w.k), 0.0f, c,
                  static_cast<int>(n));
      for (std::int64_t r = 0; r < rows; ++r) store_row(args, row + r, column, c + r * n, n);
    }
  });
}

bool dense(const ConstTensorView& x, int dim) { return x.shape(dim) == 1 || x.stride(dim) == 1; }

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
  fill(exec, args.w, true, true, static_cast<Weight*>(packed.data.get()));
}

void gemm(Exec& exec, const GemmArgs& args) {
  const std::int64_t m = args.c.shape(0);
  const std::int64_t n = args.c.shape(1);
  const std::int64_t k = args.a.shape(1);
  if (m == 0 || n == 0) return;
  if (k == 0 || !dense(args.c, 1) || !dense(args.a, 1) || (args.bias && !dense(args.bias, 0))) {
    GemmArgs chain = args;
    chain.leaf_tree = false;
    return reference::gemm(exec, chain);
  }
  const std::int64_t last = onednn_bf16() ? m % 32 : m;  // rows that may go to the panels
  const bool panels = last > 0 && last < panel_rows();
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
    onednn_bf16() ? run_onednn(exec, args, *w, library_rows)
                  : run_openblas(exec, args, *w, library_rows);
  }
  if (panels) run_panels(exec, args, *w, library_rows, m - library_rows);
}

}  // namespace rlk::production
