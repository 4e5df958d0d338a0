// A library with the functions of cuBLASLt that are used, for memory of the host: it multiplies
// what its descriptions say, with matrices that lie column behind column. It takes what the
// documentation names and nothing else. The variable FAKE_CUBLASLT_FAILS names a call that fails,
// FAKE_CUBLASLT_HAS_NO_ALGORITHM says that the heuristic finds none, FAKE_CUBLASLT_ALGORITHMS
// which it finds:
//   plain   one sum in f32, with scratch memory; the default
//   chain   the sums of profile sm90
//   halves  those of either half of k, added: it says of itself that it adds no partial sums
//   split   the same, and it says so
//   slow    chain, taking its time
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "rlk/numerics/mma/hopper.h"

// What a stream of the emulator does: without it products are computed at once.
extern "C" {
using Enqueue = void (*)(void* stream, std::function<void()> work);
Enqueue fake_cublaslt_enqueue = nullptr;
}

namespace {

constexpr int kSuccess = 0, kInvalidValue = 7, kInternalError = 14;
constexpr int kRealF32 = 0, kRealBF16 = 14, kComputeF32 = 68;
constexpr int kTransA = 3, kTransB = 4, kMaxWorkspaceBytes = 1, kReductions = 3, kAlignment = 5;
constexpr std::uint64_t kAlgorithm = 0x616c676f;  // and the number of its name
constexpr const char* kNames[] = {"plain", "chain", "halves", "split", "slow"};
enum { kPlain, kChain, kHalves, kSplit, kSlow, kCount };
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
  std::uint32_t reductions = 7;
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

std::uint32_t bits_of(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, 4);
  return bits;
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
  std::uint32_t bits = bits_of(x);
  if (m.type == kRealF32) {
    std::memcpy(static_cast<char*>(data) + 4 * at, &bits, 4);
  } else if (x != x) {
    const std::uint16_t nan = 0x7fff;  // as the chip rounds its own
    std::memcpy(static_cast<char*>(data) + 2 * at, &nan, 2);
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

struct Call {
  Desc desc;
  Matrix a, b, d;
  const void *a_data, *b_data;
  void* d_data;
};

// The chain of profile sm90 over k in [begin, end).
float chain(const std::vector<rlk::bf16>& x, const std::vector<rlk::bf16>& y, std::size_t begin,
            std::size_t end) {
  float sum = 0;
  for (std::size_t k = begin; k < end; k += 16) {
    rlk::bf16 p[16] = {}, q[16] = {};
    for (std::size_t i = 0; i < 16 && k + i < end; ++i) p[i] = x[k + i], q[i] = y[k + i];
    sum = rlk::numerics::mma::hopper_group(sum, p, q);
  }
  return sum;
}

float product(const Call& c, std::uint64_t i, std::uint64_t j, std::uint64_t size, int name) {
  std::vector<float> x, y;
  for (std::uint64_t k = 0; k < size; ++k) {
    x.push_back(c.desc.trans_a == 1 ? read(c.a, c.a_data, k, i) : read(c.a, c.a_data, i, k));
    y.push_back(c.desc.trans_b == 1 ? read(c.b, c.b_data, j, k) : read(c.b, c.b_data, k, j));
  }
  if (name == kPlain) {
    float sum = 0;
    for (std::uint64_t k = 0; k < size; ++k) sum += x[k] * y[k];
    return sum;
  }
  std::vector<rlk::bf16> p, q;
  for (const float z : x) p.push_back({static_cast<std::uint16_t>(bits_of(z) >> 16)});
  for (const float z : y) q.push_back({static_cast<std::uint16_t>(bits_of(z) >> 16)});
  if (name == kChain || name == kSlow) return chain(p, q, 0, size);
  const std::size_t half = size / 32 * 16;
  return chain(p, q, 0, half) + chain(p, q, half, size);
}

void multiply(const Call& c, int name) {
  if (name == kSlow) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::uint64_t sizes[3];
  sizes_of(c.desc, c.a, c.b, c.d, sizes);
  for (std::uint64_t j = 0; j < sizes[1]; ++j) {
    for (std::uint64_t i = 0; i < sizes[0]; ++i) {
      write(c.d, c.d_data, i, j, product(c, i, j, sizes[2], name));
    }
  }
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
  Preference& p = *static_cast<Preference*>(preference);
  if (size != (attribute == kMaxWorkspaceBytes ? 8 : 4)) return kInvalidValue;
  if (attribute == kMaxWorkspaceBytes) {
    std::memcpy(&p.max_workspace_bytes, value, size);
  } else if (attribute == kReductions) {
    std::memcpy(&p.reductions, value, size);
  } else if (attribute < kAlignment || attribute > kAlignment + 3) {
    return kInvalidValue;
  }
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
  const Preference& p = *static_cast<Preference*>(preference);
  *returned = 0;
  if (std::getenv("FAKE_CUBLASLT_HAS_NO_ALGORITHM") != nullptr) return kSuccess;
  const char* const names = std::getenv("FAKE_CUBLASLT_ALGORITHMS");
  for (int i = 0; i < kCount && *returned < requested; ++i) {
    if (std::strstr(names ? names : "plain", kNames[i]) == nullptr) continue;
    const std::size_t workspace_bytes = i == kPlain ? kWorkspaceBytes : 0;
    if (workspace_bytes > p.max_workspace_bytes || (i == kSplit && p.reductions == 0)) continue;
    results[(*returned)++] = {
        {kAlgorithm, static_cast<std::uint64_t>(i)}, workspace_bytes, kSuccess, 1.0f, {}};
  }
  return kSuccess;
}
#endif

int cublasLtMatmulAlgoConfigGetAttribute(const void* algorithm, int attribute, void* value,
                                         std::size_t size, std::size_t* written) {
  if (size != 4 || (attribute != 0 && attribute != 1)) return kInvalidValue;
  std::uint64_t data[2];
  std::memcpy(data, algorithm, sizeof data);
  const auto number = static_cast<std::int32_t>(attribute == 0 ? 99 : data[1]);
  std::memcpy(value, &number, size);
  *written = size;
  return kSuccess;
}

int cublasLtMatmul(void*, void* desc, const void* alpha, const void* a, void* a_layout,
                   const void* b, void* b_layout, const void* beta, const void*, void*, void* d,
                   void* d_layout, const void* algorithm, void* workspace, std::size_t bytes,
                   void* stream) {
  if (fails("cublasLtMatmul")) return kInternalError;
  const Call call{*static_cast<Desc*>(desc),
                  *static_cast<Matrix*>(a_layout),
                  *static_cast<Matrix*>(b_layout),
                  *static_cast<Matrix*>(d_layout),
                  a,
                  b,
                  d};
  std::uint64_t sizes[3], chosen[2];
  std::memcpy(chosen, algorithm, sizeof chosen);
  const bool scales =
      *static_cast<const float*>(alpha) == 1 && *static_cast<const float*>(beta) == 0;
  const bool has_room = chosen[1] != kPlain || (workspace && bytes >= kWorkspaceBytes);
  if (!sizes_of(call.desc, call.a, call.b, call.d, sizes) || chosen[0] != kAlgorithm || !scales ||
      !has_room) {
    return kInvalidValue;
  }
  const auto work = [call, name = static_cast<int>(chosen[1])] { multiply(call, name); };
  if (fake_cublaslt_enqueue) {
    fake_cublaslt_enqueue(stream, work);
  } else {
    work();
  }
  return kSuccess;
}

}  // extern "C"
