// A library with the functions of cuBLASLt that are used, for memory of the host: it multiplies in
// plain loops what its descriptions say, with matrices that lie column behind column. It takes what
// the documentation names and nothing else. The variable FAKE_CUBLASLT_FAILS names a call that
// fails, FAKE_CUBLASLT_HAS_NO_ALGORITHM says that the heuristic finds none.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kSuccess = 0, kInvalidValue = 7, kInternalError = 14;
constexpr int kRealF32 = 0, kRealBF16 = 14, kComputeF32 = 68;
constexpr int kTransA = 3, kTransB = 4, kMaxWorkspaceBytes = 1;
constexpr std::uint64_t kAlgorithm = 0x616c676f;
constexpr std::size_t kWorkspaceBytes = 4096;

struct Desc {
  std::int32_t trans_a = 0, trans_b = 0;
};
struct Matrix {
  int type;
  std::uint64_t rows, columns;
  std::int64_t leading;
};
struct Preference {
  std::uint64_t max_workspace_bytes = 0;
};
struct Result {
  std::uint64_t algorithm[8];
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

bool fails(const char* call) {
  const char* name = std::getenv("FAKE_CUBLASLT_FAILS");
  return name != nullptr && std::strcmp(name, call) == 0;
}

float read(const Matrix& m, const void* data, std::uint64_t row, std::uint64_t column) {
  const std::uint64_t at = row + column * static_cast<std::uint64_t>(m.leading);
  float x = 0;
  if (m.type == kRealF32) {
    std::memcpy(&x, static_cast<const char*>(data) + 4 * at, 4);
  } else {
    std::uint32_t bits = 0;
    std::memcpy(reinterpret_cast<char*>(&bits) + 2, static_cast<const char*>(data) + 2 * at, 2);
    std::memcpy(&x, &bits, 4);
  }
  return x;
}

void write(const Matrix& m, void* data, std::uint64_t row, std::uint64_t column, float x) {
  const std::uint64_t at = row + column * static_cast<std::uint64_t>(m.leading);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, 4);
  if (m.type == kRealF32) {
    std::memcpy(static_cast<char*>(data) + 4 * at, &bits, 4);
  } else {
    bits += 0x7fff + (bits >> 16 & 1);
    std::memcpy(static_cast<char*>(data) + 2 * at, reinterpret_cast<char*>(&bits) + 2, 2);
  }
}

// Sizes m, n, k of a description, or false where they do not fit together.
bool sizes_of(const Desc& desc, const Matrix& a, const Matrix& b, const Matrix& d,
              std::uint64_t sizes[3]) {
  const bool ta = desc.trans_a == 1, tb = desc.trans_b == 1;
  sizes[0] = ta ? a.columns : a.rows;
  sizes[1] = tb ? b.rows : b.columns;
  sizes[2] = ta ? a.rows : a.columns;
  return sizes[2] == (tb ? b.columns : b.rows) && d.rows == sizes[0] && d.columns == sizes[1] &&
         a.type == b.type;
}

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() { return 139901; }

const char* cublasLtGetStatusString(int status) {
  return status == kInvalidValue ? "an invalid value" : "an internal error";
}

int cublasLtCreate(void** handle) {
  if (fails("cublasLtCreate")) return kInternalError;
  *handle = new int(1);
  return kSuccess;
}
int cublasLtDestroy(void* handle) {
  delete static_cast<int*>(handle);
  return kSuccess;
}

int cublasLtMatmulDescCreate(void** desc, int compute_type, int scale_type) {
  if (compute_type != kComputeF32 || scale_type != kRealF32) return kInvalidValue;
  *desc = new Desc;
  return kSuccess;
}
int cublasLtMatmulDescDestroy(void* desc) {
  delete static_cast<Desc*>(desc);
  return kSuccess;
}
int cublasLtMatmulDescSetAttribute(void* desc, int attribute, const void* value, std::size_t size) {
  if (size != 4 || (attribute != kTransA && attribute != kTransB)) return kInvalidValue;
  Desc& d = *static_cast<Desc*>(desc);
  std::memcpy(attribute == kTransA ? &d.trans_a : &d.trans_b, value, size);
  return kSuccess;
}

int cublasLtMatrixLayoutCreate(void** layout, int type, std::uint64_t rows, std::uint64_t columns,
                               std::int64_t leading) {
  if ((type != kRealF32 && type != kRealBF16) || leading < static_cast<std::int64_t>(rows)) {
    return kInvalidValue;
  }
  *layout = new Matrix{type, rows, columns, leading};
  return kSuccess;
}
int cublasLtMatrixLayoutDestroy(void* layout) {
  delete static_cast<Matrix*>(layout);
  return kSuccess;
}

int cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = new Preference;
  return kSuccess;
}
int cublasLtMatmulPreferenceDestroy(void* preference) {
  delete static_cast<Preference*>(preference);
  return kSuccess;
}
int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value,
                                         std::size_t size) {
  if (attribute != kMaxWorkspaceBytes || size != 8) return kInvalidValue;
  std::memcpy(&static_cast<Preference*>(preference)->max_workspace_bytes, value, size);
  return kSuccess;
}

#if !defined(FAKE_CUBLASLT_WITHOUT_HEURISTIC)
int cublasLtMatmulAlgoGetHeuristic(void*, void* desc, void* a, void* b, void*, void* d,
                                   void* preference, int requested, Result* results,
                                   int* returned) {
  std::uint64_t sizes[3];
  if (requested < 1 || !sizes_of(*static_cast<Desc*>(desc), *static_cast<Matrix*>(a),
                                 *static_cast<Matrix*>(b), *static_cast<Matrix*>(d), sizes)) {
    return kInvalidValue;
  }
  if (static_cast<Preference*>(preference)->max_workspace_bytes < kWorkspaceBytes) {
    return kInvalidValue;
  }
  *returned = std::getenv("FAKE_CUBLASLT_HAS_NO_ALGORITHM") == nullptr ? 1 : 0;
  results[0] = {{kAlgorithm}, kWorkspaceBytes, kSuccess, 1.0f, {}};
  return kSuccess;
}
#endif

int cublasLtMatmul(void*, void* desc, const void* alpha, const void* a, void* a_layout,
                   const void* b, void* b_layout, const void* beta, const void*, void*, void* d,
                   void* d_layout, const void* algorithm, void* workspace, std::size_t bytes,
                   void*) {
  if (fails("cublasLtMatmul")) return kInternalError;
  const Matrix &am = *static_cast<Matrix*>(a_layout), &bm = *static_cast<Matrix*>(b_layout),
               &dm = *static_cast<Matrix*>(d_layout);
  const Desc& operation = *static_cast<Desc*>(desc);
  std::uint64_t sizes[3], chosen = 0;
  std::memcpy(&chosen, algorithm, sizeof chosen);
  const bool scales =
      *static_cast<const float*>(alpha) == 1 && *static_cast<const float*>(beta) == 0;
  if (!sizes_of(operation, am, bm, dm, sizes) || chosen != kAlgorithm || !scales || !workspace ||
      bytes < kWorkspaceBytes) {
    return kInvalidValue;
  }
  for (std::uint64_t j = 0; j < sizes[1]; ++j) {
    for (std::uint64_t i = 0; i < sizes[0]; ++i) {
      float sum = 0;
      for (std::uint64_t k = 0; k < sizes[2]; ++k) {
        const float x = operation.trans_a == 1 ? read(am, a, k, i) : read(am, a, i, k);
        const float y = operation.trans_b == 1 ? read(bm, b, j, k) : read(bm, b, k, j);
        sum += x * y;
      }
      write(dm, d, i, j, sum);
    }
  }
  return kSuccess;
}

}  // extern "C"
