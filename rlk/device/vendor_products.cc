#include "rlk/device/vendor_products.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <type_traits>
#include <vector>

#include "rlk/core/error.h"

namespace rlk::device {
namespace {

// What the documentation of cuBLASLt says of its C interface; the numbers of library_types.h,
// cublas_api.h and cublasLt.h. All handles are pointers to structs of the library.
using Status = int;
constexpr Status kSuccess = 0;
using Handle = void*;
constexpr int kRealF32 = 0;      // of cudaDataType_t
constexpr int kRealBF16 = 14;    // of cudaDataType_t
constexpr int kComputeF32 = 68;  // of cublasComputeType_t
constexpr int kDescTransA = 3;   // of cublasLtMatmulDescAttributes_t
constexpr int kDescTransB = 4;   // of cublasLtMatmulDescAttributes_t
constexpr int kPlain = 0;        // of cublasOperation_t
constexpr int kTransposed = 1;   // of cublasOperation_t
// Of cublasLtMatmulPreferenceAttributes_t; uint64_t, the others uint32_t.
constexpr int kPrefWorkspace = 1;
constexpr int kPrefReductions = 3;  // a mask of cublasLtReductionScheme_t
constexpr int kPrefAlignment = 5;   // of a in bytes; 6 to 8 of b, c and d
constexpr int kAlgorithmId = 0;     // of cublasLtMatmulAlgoConfigAttributes_t, int32_t
constexpr int kAlgorithmTile = 1;   // of cublasLtMatmulAlgoConfigAttributes_t, uint32_t

struct Algorithm {  // cublasLtMatmulAlgo_t
  std::uint64_t data[8];
};
struct HeuristicResult {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  std::size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

// What NVIDIA recommends for the chips that need most.
constexpr std::uint64_t kWorkspaceBytes = std::uint64_t{32} << 20;

int type_of(DType dtype) { return dtype == DType::kF32 ? kRealF32 : kRealBF16; }

void check_view(const char* name, const ConstTensorView& x) {
  if (x.dtype != DType::kBF16 && x.dtype != DType::kF32) {
    fail(ErrorCode::kUnsupported, "products: {} is {}, expected BF16 or F32", name,
         to_string(x.dtype));
  }
  if (x.rank() != 2) {
    fail(ErrorCode::kUnsupported, "products: {} has shape {}, expected two dimensions", name,
         x.layout.to_string());
  }
}

// Of the three views what their descriptions to the library could not say or would say wrong.
void check_views(const ConstTensorView& d, const ConstTensorView& a, const ConstTensorView& b) {
  check_view("d", d);
  check_view("a", a);
  check_view("b", b);
  if (b.dtype != a.dtype) {
    fail(ErrorCode::kUnsupported, "products: b is {}, expected {} as a is", to_string(b.dtype),
         to_string(a.dtype));
  }
  if (b.shape(1) != a.shape(1)) {
    fail(ErrorCode::kUnsupported, "products: b has shape {}, expected {} columns as a has",
         b.layout.to_string(), a.shape(1));
  }
  if (d.shape(0) != a.shape(0) || d.shape(1) != b.shape(0)) {
    fail(ErrorCode::kUnsupported, "products: d has shape {}, expected [{}, {}]",
         d.layout.to_string(), a.shape(0), b.shape(0));
  }
  if (d.stride(1) != 1) {
    fail(ErrorCode::kUnsupported, "products: d has strides [{}, {}], expected rows without gaps",
         d.stride(0), d.stride(1));
  }
}

}  // namespace

struct ProductLibrary::Functions {
  std::size_t (*get_version)();
  const char* (*get_status_string)(Status status);
  Status (*create)(Handle* handle);
  Status (*destroy)(Handle handle);
  Status (*desc_create)(Handle* desc, int compute_type, int scale_type);
  Status (*desc_destroy)(Handle desc);
  Status (*desc_set)(Handle desc, int attribute, const void* value, std::size_t size_bytes);
  Status (*layout_create)(Handle* layout, int type, std::uint64_t rows, std::uint64_t columns,
                          std::int64_t leading_dimension);
  Status (*layout_destroy)(Handle layout);
  Status (*preference_create)(Handle* preference);
  Status (*preference_destroy)(Handle preference);
  Status (*preference_set)(Handle preference, int attribute, const void* value,
                           std::size_t size_bytes);
  Status (*get_heuristic)(Handle handle, Handle desc, Handle a, Handle b, Handle c, Handle d,
                          Handle preference, int requested, HeuristicResult* results,
                          int* returned);
  Status (*get_config)(const Algorithm* algorithm, int attribute, void* value,
                       std::size_t size_bytes, std::size_t* written);
  Status (*matmul)(Handle handle, Handle desc, const void* alpha, const void* a, Handle a_layout,
                   const void* b, Handle b_layout, const void* beta, const void* c, Handle c_layout,
                   void* d, Handle d_layout, const Algorithm* algorithm, void* workspace,
                   std::size_t workspace_bytes, void* stream);
};

ProductLibrary::ProductLibrary(const std::string& path)
    : path_(path), functions_(std::make_unique<Functions>()) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    fail(ErrorCode::kNotAvailable, "products: {} cannot be opened: {}", path,
         reason ? reason : "no reason given");
  }
  const auto find = [&](auto*& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function) return;
    dlclose(library);
    fail(ErrorCode::kNotAvailable, "products: {} has no {}", path, name);
  };
  find(functions_->get_version, "cublasLtGetVersion");
  find(functions_->get_status_string, "cublasLtGetStatusString");
  find(functions_->create, "cublasLtCreate");
  find(functions_->destroy, "cublasLtDestroy");
  find(functions_->desc_create, "cublasLtMatmulDescCreate");
  find(functions_->desc_destroy, "cublasLtMatmulDescDestroy");
  find(functions_->desc_set, "cublasLtMatmulDescSetAttribute");
  find(functions_->layout_create, "cublasLtMatrixLayoutCreate");
  find(functions_->layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(functions_->preference_create, "cublasLtMatmulPreferenceCreate");
  find(functions_->preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(functions_->preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(functions_->get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(functions_->get_config, "cublasLtMatmulAlgoConfigGetAttribute");
  find(functions_->matmul, "cublasLtMatmul");
}

// It stays open: what it has registered with the driver may be in use.
ProductLibrary::~ProductLibrary() = default;

std::string ProductLibrary::version() const {
  const std::size_t version = functions_->get_version();  // 130100 is 13.1.0
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

void ProductLibrary::check(int status, const char* call) const {
  if (status == kSuccess) return;
  fail(ErrorCode::kNotAvailable, "products: {}: {} failed: {} ({})", path_, call,
       functions_->get_status_string(status), status);
}

const ProductLibrary& product_library(const std::string& path) {
  static std::mutex mutex;
  static auto& opened = *new std::map<std::string, ProductLibrary>;  // never destroyed
  const std::lock_guard lock(mutex);
  const auto open = [](const std::string& name) -> const ProductLibrary& {
    const auto found = opened.find(name);
    return found != opened.end() ? found->second : opened.try_emplace(name, name).first->second;
  };
  if (!path.empty()) return open(path);
#if defined(__HIP_PLATFORM_AMD__)
  fail(ErrorCode::kNotAvailable, "products: no library of this vendor is known here");
#else
  std::string reasons;
  try {
    return open("libcublasLt.so.13");
  } catch (const Error& e) {
    reasons = e.what();
  }
  try {
    return open("libcublasLt.so.12");
  } catch (const Error& e) {
    fail(ErrorCode::kNotAvailable, "{}; {}", reasons, e.what());
  }
#endif
}

namespace {

// A matrix as the library sees it: columns one behind the other.
struct Matrix {
  int type;
  std::int64_t rows, columns, leading_dimension;
};

}  // namespace

// The library's matrices are columns one behind the other, so a row-major x is its transpose there,
// and d^T = b a^T is what is asked for.
struct VendorProduct::Plan {
  explicit Plan(const ProductLibrary& from) : library(from), call(*from.functions_) {}
  ~Plan() {
    if (preference) static_cast<void>(call.preference_destroy(preference));
    if (desc) static_cast<void>(call.desc_destroy(desc));
    if (handle) static_cast<void>(call.destroy(handle));
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  class Layout {
   public:
    Layout(const Plan& plan, const Matrix& m) : plan_(plan) {
      plan.library.check(
          plan.call.layout_create(&layout_, m.type, static_cast<std::uint64_t>(m.rows),
                                  static_cast<std::uint64_t>(m.columns), m.leading_dimension),
          "cublasLtMatrixLayoutCreate");
    }
    ~Layout() { static_cast<void>(plan_.call.layout_destroy(layout_)); }
    Layout(const Layout&) = delete;
    Layout& operator=(const Layout&) = delete;
    operator Handle() const { return layout_; }

   private:
    const Plan& plan_;
    Handle layout_ = nullptr;
  };

  void set_operation(int attribute, bool transposed) const {
    const std::int32_t operation = transposed ? kTransposed : kPlain;
    library.check(call.desc_set(desc, attribute, &operation, sizeof operation),
                  "cublasLtMatmulDescSetAttribute");
  }
  template <typename T>
  void prefer(int attribute, T value) const {
    library.check(call.preference_set(preference, attribute, &value, sizeof value),
                  "cublasLtMatmulPreferenceSetAttribute");
  }
  // The first `rows` rows of a matrix, which are columns of the library where k is dense.
  static Matrix some_rows(Matrix m, bool k_is_first, std::int64_t rows) {
    (k_is_first ? m.columns : m.rows) = rows;
    return m;
  }

  const ProductLibrary& library;
  const ProductLibrary::Functions& call;
  Handle handle = nullptr, desc = nullptr, preference = nullptr;
  Matrix a{}, b{}, d{};
  bool a_k_is_first = false;
  std::vector<HeuristicResult> algorithms;
  Buffer workspace;
};

namespace {

// x[rows, k] as the library sees it, and whether it has to be transposed there to have k as its
// second index.
Matrix matrix_of(const char* name, const ConstTensorView& x, bool* k_is_first) {
  *k_is_first = x.stride(1) == 1;
  if (!*k_is_first && x.stride(0) != 1) {
    fail(ErrorCode::kUnsupported, "products: {} has strides [{}, {}], expected one of them 1", name,
         x.stride(0), x.stride(1));
  }
  const int first = *k_is_first ? 1 : 0;
  return {type_of(x.dtype), x.shape(first), x.shape(1 - first), x.stride(1 - first)};
}

}  // namespace

VendorProduct::VendorProduct(const ProductLibrary& library, const ConstTensorView& d,
                             const ConstTensorView& a, const ConstTensorView& b, Sums sums,
                             int most)
    : plan_(std::make_unique<Plan>(library)) {
  check_views(d, a, b);
  Plan& p = *plan_;
  library.check(p.call.create(&p.handle), "cublasLtCreate");
  library.check(p.call.desc_create(&p.desc, kComputeF32, kRealF32), "cublasLtMatmulDescCreate");
  bool b_k_is_first = false, d_is_dense = false;
  p.a = matrix_of("a", a, &p.a_k_is_first);
  p.b = matrix_of("b", b, &b_k_is_first);
  p.d = matrix_of("d", d, &d_is_dense);
  p.set_operation(kDescTransA, b_k_is_first);     // the library's first operand is b
  p.set_operation(kDescTransB, !p.a_k_is_first);  // and its second a^T
  library.check(p.call.preference_create(&p.preference), "cublasLtMatmulPreferenceCreate");
  if (sums == Sums::kAny) {
    p.prefer(kPrefWorkspace, kWorkspaceBytes);
  } else {
    p.prefer(kPrefWorkspace, std::uint64_t{0});
    p.prefer(kPrefReductions, std::uint32_t{0});
    for (int i = 0; i < 4; ++i) p.prefer(kPrefAlignment + i, std::uint32_t{16});
  }
  p.algorithms.resize(static_cast<std::size_t>(most));
  int found = 0;
  const Plan::Layout a_layout(p, p.a), b_layout(p, p.b), d_layout(p, p.d);
  library.check(p.call.get_heuristic(p.handle, p.desc, b_layout, a_layout, d_layout, d_layout,
                                     p.preference, most, p.algorithms.data(), &found),
                "cublasLtMatmulAlgoGetHeuristic");
  if (found < 1) {
    fail(ErrorCode::kNotAvailable, "products: {} has no algorithm for {} x {} x {}", library.path(),
         d.shape(0), d.shape(1), a.shape(1));
  }
  p.algorithms.resize(static_cast<std::size_t>(found));
  library.check(p.algorithms[0].state, "cublasLtMatmulAlgoGetHeuristic");
  std::size_t workspace_bytes = 0;
  for (const HeuristicResult& r : p.algorithms) {
    workspace_bytes = std::max(workspace_bytes, r.workspace_bytes);
  }
  p.workspace = Buffer(workspace_bytes);
}

VendorProduct::~VendorProduct() = default;

int VendorProduct::num_algorithms() const { return static_cast<int>(plan_->algorithms.size()); }

std::string VendorProduct::name(int algorithm) const {
  const Plan& p = *plan_;
  const auto number = [&](int attribute) {
    std::int32_t value = 0;
    std::size_t written = 0;
    p.library.check(p.call.get_config(&p.algorithms.at(algorithm).algorithm, attribute, &value,
                                      sizeof value, &written),
                    "cublasLtMatmulAlgoConfigGetAttribute");
    return value;
  };
  return fmt::format("{}/{}", number(kAlgorithmId), number(kAlgorithmTile));
}

void VendorProduct::run(void* d, const void* a, const void* b, Stream& stream) const {
  run(0, plan_->d.columns, d, a, b, stream);
}

void VendorProduct::run(int algorithm, std::int64_t rows, void* d, const void* a, const void* b,
                        Stream& stream) const {
  const Plan& p = *plan_;
  const float one = 1, zero = 0;
  const Plan::Layout a_layout(p, Plan::some_rows(p.a, p.a_k_is_first, rows)), b_layout(p, p.b),
      d_layout(p, Plan::some_rows(p.d, true, rows));
  p.library.check(p.call.matmul(p.handle, p.desc, &one, b, b_layout, a, a_layout, &zero, d,
                                d_layout, d, d_layout, &p.algorithms.at(algorithm).algorithm,
                                p.workspace.data(), p.workspace.size_bytes(), stream.native()),
                  "cublasLtMatmul");
}

}  // namespace rlk::device
