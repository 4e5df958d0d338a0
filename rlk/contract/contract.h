// The numerical execution contract as data: everything that fixes a bit, and nothing else.
// docs/contract.md says what each field means; kernels/reference executes it literally.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rlk {

// The multiply-accumulate primitive inside matrix products.
enum class Profile : std::uint8_t { kPortable, kSm90, kCdna3, kCdna2 };
inline constexpr std::array kAllProfiles = {Profile::kPortable, Profile::kSm90, Profile::kCdna3,
                                            Profile::kCdna2};

const char* to_string(Profile profile);
Profile parse_profile(std::string_view name);  // Error kInvalidArgument lists the names

struct Contract {
  // forward
  int version = 1;
  Profile profile = Profile::kPortable;
  int leaves = 8;                 // leaf tree of row-parallel products; a power of two
  int kv_block = 128;             // attention: keys per block; a multiple of 16
  int kv_split = 1024;            // attention: keys per split; a multiple of kv_block
  int norm_lanes = 256;           // lane sums (RMSNorm, attention D); a power of two
  int softmax_lanes = 16;         // lanes of l inside an attention split; a power of two
  std::int64_t vocab_padded = 0;  // 0: the vocabulary rounded up to 16 * leaves

  // backward
  int token_block = 64;   // token sums: tokens per block
  int grad_group = 8192;  // weight gradients: tokens that close a group of samples
  int grad_slots = 1;     // gradient slots of an optimizer step; a power of two

  bool operator==(const Contract&) const = default;
};

// Throws kInvalidArgument naming the field when a value breaks its rule.
void validate(const Contract& contract);

// The padded vocabulary that `contract` gives a model with vocab_size real columns.
std::int64_t vocab_padded(const Contract& contract, std::int64_t vocab_size);

// Canonical JSON: sorted keys, no spaces, with the versions of the primitives and the list of
// rounding points. Two contracts are equal exactly when their canonical JSON is.
std::string canonical_json(const Contract& contract);

// Reads the fields of `json_text` over the defaults. Unknown keys and wrong types are kFormat
// errors that name `source` and the key.
Contract parse_contract(std::string_view json_text, std::string_view source);

// SHA-256 of the canonical JSON of the fields that forward bits (gradient bits) depend on.
// Engines compare forward digests before the first token, backward digests where gradients or
// checkpoints meet. (The model digest is in model/; deployment cannot change bits.)
std::string forward_digest(const Contract& contract);
std::string backward_digest(const Contract& contract);

// One line per field that differs: "kv_block: 128 != 64".
std::vector<std::string> differences(const Contract& a, const Contract& b);

}  // namespace rlk
