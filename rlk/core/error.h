// Errors at the boundary: what was wrong, where, what was expected, what was found.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace rlk {

enum class ErrorCode {
  kInvalidArgument,  // a value outside what the callee accepts
  kShape,            // sizes that do not fit together
  kDtype,            // an element type the callee does not take
  kFormat,           // bytes of a file that do not follow their format
  kIo,               // the operating system refused (open, write, full disk)
  kUnsupported,      // a well-formed request for something that is not built
  kNotAvailable,     // a device, library or package that this machine lacks
  kNonFinite,        // NaN or infinity where the contract demands a number
  kNotAdmitted,      // strict mode met an implementation without admission
  kContract,         // two parties follow different contracts, models or weights
  kInterrupted,      // the user asked to stop
};

const char* to_string(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Throws Error with a message in fmt's syntax:
//   fail(ErrorCode::kShape, "rms_norm: w has {} elements, hidden_size is {}", n, hidden_size);
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void assert_failed(const char* condition, const char* file, int line);

}  // namespace rlk

// Our own bug, never a caller's mistake: prints where and stops the process.
#define RLK_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::rlk::assert_failed(#condition, __FILE__, __LINE__))
