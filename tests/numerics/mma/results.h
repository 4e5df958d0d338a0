// Reads raw results of devices (tests/goldens/mma/README.md) and holds them against the models.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "rlk/numerics/mma/mac.h"
#include "tests/numerics/mma/data.h"

namespace rlk::numerics::mma {

inline std::vector<float> model_results(const ResultHeader& header) {
  const std::string instruction(header.instruction,
                                strnlen(header.instruction, sizeof(header.instruction)));
  const Inputs in(static_cast<Family>(header.family), header.seed, header.rows, header.columns,
                  header.k);
  return with_mac(parse_profile(instruction.substr(0, instruction.find(' '))), [&](auto mac) {
    return in.each([&](float c, const bf16* a, const bf16* b) {
      return chain(mac, c, Strided{a}, Strided{b}, 0, in.k);
    });
  });
}

// The number of results in `file` that are not the model's; -1 where it breaks the format.
inline std::int64_t count_wrong(const std::string& file) {
  std::int64_t wrong = 0;
  for (std::size_t at = 0; at < file.size();) {
    ResultHeader header;
    if (file.size() - at < sizeof(header)) return -1;
    std::memcpy(&header, file.data() + at, sizeof(header));
    at += sizeof(header);
    if (std::memcmp(header.magic, kResultMagic, sizeof(kResultMagic)) != 0) return -1;
    const std::vector<float> want = model_results(header);
    if ((file.size() - at) / sizeof(float) < want.size()) return -1;
    std::vector<float> got(want.size());
    std::memcpy(got.data(), file.data() + at, got.size() * sizeof(float));
    at += got.size() * sizeof(float);
    wrong += count_different(got, want);
  }
  return wrong;
}

}  // namespace rlk::numerics::mma
