// SHA-256 digests, as lower-case hex.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rlk {

// Feeds bytes piece by piece; hex() ends the digest.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(const void* data, std::size_t size_bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  std::string hex();

 private:
  void* context_;
};

std::string sha256_hex(std::string_view text);

}  // namespace rlk
