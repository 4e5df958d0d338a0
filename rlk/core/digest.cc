#include "rlk/core/digest.h"

#include <openssl/evp.h>

#include "rlk/core/error.h"

namespace rlk {
namespace {
EVP_MD_CTX* as_context(void* p) { return static_cast<EVP_MD_CTX*>(p); }
}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  RLK_ASSERT(context_ && EVP_DigestInit_ex(as_context(context_), EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() { EVP_MD_CTX_free(as_context(context_)); }

void Sha256::update(const void* data, std::size_t size_bytes) {
  RLK_ASSERT(EVP_DigestUpdate(as_context(context_), data, size_bytes) == 1);
}

std::string Sha256::hex() {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int n = 0;
  RLK_ASSERT(EVP_DigestFinal_ex(as_context(context_), bytes, &n) == 1);
  std::string text;
  for (unsigned int i = 0; i < n; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

std::string sha256_hex(std::string_view text) {
  Sha256 digest;
  digest.update(text);
  return digest.hex();
}

}  // namespace rlk
