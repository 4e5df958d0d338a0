#include "rlk/device/vendor_products.h"

#include <dlfcn.h>

#include <type_traits>

#include "rlk/core/error.h"

namespace rlk::device {
namespace {

// What the documentation of cuBLASLt says of its C interface; the numbers of library_types.h,
// cublas_api.h and cublasLt.h. All handles are pointers to structs of the library.
using Status = int;
constexpr Status kSuccess = 0;
using Handle = void*;
constexpr int kRealF32 = 0;        // of cudaDataType_t
constexpr int kRealBF16 = 14;      // of cudaDataType_t
constexpr int kComputeF32 = 68;    // of cublasComputeType_t
constexpr int kDescTransA = 3;     // of cublasLtMatmulDescAttributes_t
constexpr int kDescTransB = 4;     // of cublasLtMatmulDescAttributes_t
constexpr int kPlain = 0;          // of cublasOperation_t
constexpr int kTransposed = 1;     // of cublasOperation_t
constexpr int kPrefWorkspace = 1;  // of cublasLtMatmulPreferenceAttributes_t, uint64_t

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

const ProductLibrary& product_library() {
#if defined(__HIP_PLATFORM_AMD__)
  fail(ErrorCode::kNotAvailable, "products: no library of this vendor is known here");
#else
  static const ProductLibrary kOpened = [] {
    std::string reasons;
    try {
      return ProductLibrary("libcublasLt.so.13");
    } catch (const Error& e) {
      reasons = e.what();
    }
    try {
      return ProductLibrary("libcublasLt.so.12");
    } catch (const Error& e) {
      fail(ErrorCode::kNotAvailable, "{}; {}", reasons, e.what());
    }
  }();
  return kOpened;
#endif
}

// The library's matrices are columns one behind the other, so a row-major x is its transpose there,
// and d^T = b a^T is what is asked for.
struct VendorProduct::Plan {
  explicit Plan(const ProductLibrary& from) : library(from), call(*from.functions_) {}
  ~Plan() {
    if (preference) static_cast<void>(call.preference_destroy(preference));
    for (Handle layout : {a, b, d}) {
      if (layout) static_cast<void>(call.layout_destroy(layout));
    }
    if (desc) static_cast<void>(call.desc_destroy(desc));
    if (handle) static_cast<void>(call.destroy(handle));
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // The layout of x[rows, k] as the library sees it, and whether it has to be transposed there to
  // have k as its second index.
  Handle layout_of(const char* name, const ConstTensorView& x, bool* k_is_first) const {
    *k_is_first = x.stride(1) == 1;
    if (!*k_is_first && x.stride(0) != 1) {
      fail(ErrorCode::kUnsupported, "products: {} has strides [{}, {}], expected one of them 1",
           name, x.stride(0), x.stride(1));
    }
    const int first = *k_is_first ? 1 : 0;
    Handle layout = nullptr;
    library.check(
        call.layout_create(&layout, type_of(x.dtype), static_cast<std::uint64_t>(x.shape(first)),
                           static_cast<std::uint64_t>(x.shape(1 - first)), x.stride(1 - first)),
        "cublasLtMatrixLayoutCreate");
    return layout;
  }
  void set_operation(int attribute, bool transposed) const {
    const std::int32_t operation = transposed ? kTransposed : kPlain;
    library.check(call.desc_set(desc, attribute, &operation, sizeof operation),
                  "cublasLtMatmulDescSetAttribute");
  }

  const ProductLibrary& library;
  const ProductLibrary::Functions& call;
  Handle handle = nullptr, desc = nullptr, a = nullptr, b = nullptr, d = nullptr,
         preference = nullptr;
  HeuristicResult chosen{};
  Buffer workspace;
};

VendorProduct::VendorProduct(const ProductLibrary& library, const ConstTensorView& d,
                             const ConstTensorView& a, const ConstTensorView& b)
    : plan_(std::make_unique<Plan>(library)) {
  check_views(d, a, b);
  Plan& p = *plan_;
  library.check(p.call.create(&p.handle), "cublasLtCreate");
  library.check(p.call.desc_create(&p.desc, kComputeF32, kRealF32), "cublasLtMatmulDescCreate");
  bool a_k_is_first = false, b_k_is_first = false, d_is_dense = false;
  p.a = p.layout_of("a", a, &a_k_is_first);
  p.b = p.layout_of("b", b, &b_k_is_first);
  p.d = p.layout_of("d", d, &d_is_dense);
  p.set_operation(kDescTransA, b_k_is_first);   // the library's first operand is b
  p.set_operation(kDescTransB, !a_k_is_first);  // and its second a^T
  library.check(p.call.preference_create(&p.preference), "cublasLtMatmulPreferenceCreate");
  library.check(
      p.call.preference_set(p.preference, kPrefWorkspace, &kWorkspaceBytes, sizeof kWorkspaceBytes),
      "cublasLtMatmulPreferenceSetAttribute");
  int found = 0;
  library.check(p.call.get_heuristic(p.handle, p.desc, p.b, p.a, p.d, p.d, p.preference, 1,
                                     &p.chosen, &found),
                "cublasLtMatmulAlgoGetHeuristic");
  if (found < 1) {
    fail(ErrorCode::kNotAvailable, "products: {} has no algorithm for {} x {} x {}", library.path(),
         d.shape(0), d.shape(1), a.shape(1));
  }
  library.check(p.chosen.state, "cublasLtMatmulAlgoGetHeuristic");
  p.workspace = Buffer(p.chosen.workspace_bytes);
}

VendorProduct::~VendorProduct() = default;

void VendorProduct::run(void* d, const void* a, const void* b, Stream& stream) const {
  const Plan& p = *plan_;
  const float one = 1, zero = 0;
  p.library.check(p.call.matmul(p.handle, p.desc, &one, b, p.b, a, p.a, &zero, d, p.d, d, p.d,
                                &p.chosen.algorithm, p.workspace.data(), p.workspace.size_bytes(),
                                stream.native()),
                  "cublasLtMatmul");
}

}  // namespace rlk::device
