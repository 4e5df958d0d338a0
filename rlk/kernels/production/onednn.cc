#include "rlk/kernels/production/onednn.h"

#include <cblas.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>

namespace rlk::production {
namespace {

using dnnl::memory;
using Dims = memory::dims;
constexpr auto kBf16 = memory::data_type::bf16;
constexpr auto kF32 = memory::data_type::f32;

dnnl::engine& engine() {
  static dnnl::engine kEngine(dnnl::engine::kind::cpu, 0);
  return kEngine;
}

dnnl::stream& stream() {
  thread_local dnnl::stream kStream(engine());
  return kStream;
}

// One layout serves every number of rows: the one preferred for this many.
constexpr std::int64_t kLayoutRows = 256;

memory::desc weight_layout(std::int64_t n, std::int64_t k) {
  const dnnl::matmul::desc desc({{kLayoutRows, k}, kBf16, Dims{k, 1}},
                                {{k, n}, kBf16, memory::format_tag::any},
                                {{kLayoutRows, n}, kBf16, Dims{n, 1}});
  return dnnl::matmul::primitive_desc(desc, engine()).weights_desc();
}

}  // namespace

bool onednn_bf16() {
  static const bool kNative = [] {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & wanted) == wanted;
  }();
  return kNative;
}

// oneDNN asks its OpenMP runtime for the number of threads; which runtime that is, the loader
// knows.
void use_one_library_thread() {
  thread_local bool done = false;
  if (done) return;
  done = true;
  using SetThreads = void (*)(int);
  if (auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
}

struct OnednnWeight {
  memory::desc desc;
  memory data;
};

struct OnednnProduct {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul primitive;
};

namespace {

template <typename Shape, typename Make>
const OnednnProduct& find(const Shape& shape, const Make& make) {
  static std::mutex mutex;
  static std::map<Shape, OnednnProduct> products;  // addresses stay
  const std::lock_guard lock(mutex);
  const auto found = products.find(shape);
  if (found != products.end()) return found->second;
  use_one_library_thread();
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::primitive_desc desc = make(attr);
  return products.emplace(shape, OnednnProduct{desc, dnnl::matmul(desc)}).first->second;
}

}  // namespace

std::shared_ptr<OnednnWeight> make_onednn_weight(std::int64_t n, std::int64_t k) {
  use_one_library_thread();
  const memory::desc desc = weight_layout(n, k);
  return std::make_shared<OnednnWeight>(OnednnWeight{desc, memory(desc, engine())});
}

void fill_onednn_weight(OnednnWeight& weight, const void* w, std::int64_t n_stride,
                        std::int64_t k_stride) {
  use_one_library_thread();
  const auto dims = weight.desc.dims();
  memory from({dims, kBf16, Dims{k_stride, n_stride}}, engine(), const_cast<void*>(w));
  dnnl::reorder(from, weight.data).execute(stream(), from, weight.data);
  stream().wait();
}

const OnednnProduct& find_product(const OnednnShape& s) {
  return find(s, [&](dnnl::primitive_attr& attr) {
    const memory::desc a({s.m, s.k}, kBf16, Dims{s.k, 1});
    const memory::desc c({s.m, s.n}, s.c_is_f32 ? kF32 : kBf16, Dims{s.n, 1});
    const memory::desc w = weight_layout(s.n, s.k);
    if (!s.bias) return dnnl::matmul::primitive_desc({a, w, c}, attr, engine());
    const memory::desc bias({1, s.n}, kBf16, Dims{s.n, 1});
    return dnnl::matmul::primitive_desc({a, w, bias, c}, attr, engine());
  });
}

std::int64_t scratch_bytes(const OnednnProduct& product) {
  return static_cast<std::int64_t>(product.desc.scratchpad_desc().get_size());
}

namespace {

memory wrap(const memory::desc& desc, const void* data) {
  return memory(desc, engine(), const_cast<void*>(data));
}

}  // namespace

void run(const OnednnProduct& product, const void* a, const OnednnWeight& w, const void* bias,
         void* c, void* scratch) {
  use_one_library_thread();
  std::unordered_map<int, memory> args{
      {DNNL_ARG_SRC, wrap(product.desc.src_desc(), a)},
      {DNNL_ARG_WEIGHTS, w.data},
      {DNNL_ARG_DST, wrap(product.desc.dst_desc(), c)},
      {DNNL_ARG_SCRATCHPAD, wrap(product.desc.scratchpad_desc(), scratch)}};
  if (bias != nullptr) args.emplace(DNNL_ARG_BIAS, wrap(product.desc.bias_desc(), bias));
  product.primitive.execute(stream(), args);
}

const OnednnProduct& find_sum(const OnednnSumShape& s) {
  return find(s, [&](dnnl::primitive_attr& attr) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
    return dnnl::matmul::primitive_desc({{{s.n, s.t}, kBf16, Dims{1, s.n}},
                                         {{s.t, s.k}, kBf16, Dims{s.k, 1}},
                                         {{s.n, s.k}, kF32, Dims{s.k, 1}}},
                                        attr, engine());
  });
}

void run_sum(const OnednnProduct& product, const void* a, const void* b, void* c, void* scratch) {
  use_one_library_thread();
  product.primitive.execute(stream(),
                            {{DNNL_ARG_SRC, wrap(product.desc.src_desc(), a)},
                             {DNNL_ARG_WEIGHTS, wrap(product.desc.weights_desc(), b)},
                             {DNNL_ARG_DST, wrap(product.desc.dst_desc(), c)},
                             {DNNL_ARG_SCRATCHPAD, wrap(product.desc.scratchpad_desc(), scratch)}});
}

}  // namespace rlk::production
