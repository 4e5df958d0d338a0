// Matrix products of oneDNN on bf16 operands: primitives are made once per shape and kept.
#pragma once

#include <cstdint>
#include <memory>

namespace rlk::production {

// True where this CPU has bf16 products of its own (AVX512_BF16 or AMX); elsewhere oneDNN would
// emulate them.
bool onednn_bf16();

// oneDNN and OpenBLAS use the calling thread alone from here on: the pool's threads are the only
// ones, and each calls the libraries for its own part of the product.
void use_one_library_thread();

// A weight [N, K] in the layout that oneDNN prefers.
struct OnednnWeight;
std::shared_ptr<OnednnWeight> make_onednn_weight(std::int64_t n, std::int64_t k);
//   w  bf16, element (n, k) at n * n_stride + k * k_stride
void fill_onednn_weight(OnednnWeight& weight, const void* w, std::int64_t n_stride,
                        std::int64_t k_stride);

// c[m,n] = sum_k a[m,k] * w[n,k] + bias[n]; a and c without gaps
struct OnednnShape {
  std::int64_t m, n, k;
  bool c_is_f32;
  bool bias;  // bf16
  auto operator<=>(const OnednnShape&) const = default;
};
struct OnednnProduct;  // lives as long as the program
const OnednnProduct& find_product(const OnednnShape& shape);
std::int64_t scratch_bytes(const OnednnProduct& product);
void run(const OnednnProduct& product, const void* a, const OnednnWeight& w, const void* bias,
         void* c, void* scratch);

// c[n,k] = c[n,k] + sum_t a[t,n] * b[t,k], bf16 operands and f32 result without gaps
struct OnednnSumShape {
  std::int64_t n, k, t;
  auto operator<=>(const OnednnSumShape&) const = default;
};
const OnednnProduct& find_sum(const OnednnSumShape& shape);
void run_sum(const OnednnProduct& product, const void* a, const void* b, void* c, void* scratch);

}  // namespace rlk::production
