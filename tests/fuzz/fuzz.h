// What the fuzz targets share: outside bytes either load, and then keep what the parser promises,
// or are refused with rlk::Error that names their source. Anything else is a bug.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "rlk/core/error.h"

namespace rlk::fuzz {

inline constexpr const char* kSource = "fuzzed-input";

inline std::string_view text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

[[noreturn]] inline void broken(const char* promise) {
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

inline void promise(bool kept, const char* what) {
  if (!kept) broken(what);
}

template <typename Parse>
int loads_or_refuses(Parse&& parse) {
  try {
    parse();
  } catch (const Error& error) {
    promise(std::string_view(error.what()).find(kSource) != std::string_view::npos,
            "an error names its source");
  }
  return 0;
}

}  // namespace rlk::fuzz
