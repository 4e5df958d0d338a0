#include "rlk/core/error.h"

#include <cstdio>
#include <cstdlib>

namespace rlk {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid_argument";
    case ErrorCode::kShape: return "shape";
    case ErrorCode::kDtype: return "dtype";
    case ErrorCode::kFormat: return "format";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kNotAvailable: return "not_available";
    case ErrorCode::kNonFinite: return "non_finite";
    case ErrorCode::kNotAdmitted: return "not_admitted";
    case ErrorCode::kContract: return "contract";
    case ErrorCode::kInterrupted: return "interrupted";
  }
  return "unknown";
}

void assert_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "rlk: internal error at %s:%d: %s does not hold\n", file, line, condition);
  std::abort();
}

}  // namespace rlk
