// The stored digests of conformance, one per profile: what every CPU and build computes.
#pragma once

#include <fstream>
#include <string>

#include "rlk/contract/contract.h"

namespace rlk::test {

// Empty where the file has no line of that profile.
inline std::string golden_digest(Profile profile) {
  std::ifstream in(RLK_SOURCE_DIR "/tests/goldens/conform_digests.txt");
  std::string name, digest;
  while (in >> name >> digest) {
    if (name == to_string(profile)) return digest;
  }
  return "";
}

}  // namespace rlk::test
