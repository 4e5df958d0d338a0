#include "rlk/contract/contract.h"

#include <nlohmann/json.hpp>

#include "rlk/core/digest.h"
#include "rlk/core/error.h"

namespace rlk {
namespace {

using nlohmann::json;

// mac is the version of the model (numerics/mma/); the mac of `portable` is IEEE fma and has none.
constexpr struct {
  Profile profile;
  const char* name;
  const char* mac;
} kProfiles[] = {
    {Profile::kPortable, "portable", nullptr},
    {Profile::kSm90, "sm90", "mac.sm90/1"},
    {Profile::kCdna3, "cdna3", "mac.cdna3/1"},
    {Profile::kCdna2, "cdna2", "mac.cdna2/1"},
};

// Fixed sequences of operations; a changed sequence gets a new name here and in docs/contract.md.
constexpr const char* kForwardPrimitives[] = {
    "exp/1",     "exp2_64/1", "exp2m/1",   "exp2p/1",         "log/1",
    "gumbel/1",  "log1p64/1", "rope_table/1",   "sampling_filters/1",
};
constexpr const char* kBackwardPrimitives[] = {"adamw/1", "grad_norm/1", "grpo_loss/1"};

// Where a value is rounded to BF16. Everything between two of these is f32.
constexpr const char* kForwardRoundings[] = {
    "attention.p", "attention.y", "embedding.y", "linear.y", "residual_add.y",
    "rms_norm.y",  "rope.y",      "swiglu.g",    "swiglu.u", "swiglu.y",
};
constexpr const char* kBackwardRoundings[] = {
    "attention.ds", "attention.dk", "attention.dq",    "attention.dv", "linear.dx",
    "logits.dz",    "rms_norm.dx",  "residual_add.dr", "rope.dx",      "swiglu.dg",
    "swiglu.du",
};

// Every integer field, once. Forward fields reach a log-probability; the others only gradients.
struct Field {
  const char* name;
  bool forward;
  std::int64_t (*get)(const Contract&);
  void (*set)(Contract&, std::int64_t);
};
#define RLK_FIELD(name, forward)                             \
  Field {                                                    \
    #name, forward,                                          \
        [](const Contract& c) -> std::int64_t { return c.name; }, \
        [](Contract& c, std::int64_t v) { c.name = static_cast<decltype(c.name)>(v); } \
  }
constexpr Field kFields[] = {
    RLK_FIELD(version, true),       RLK_FIELD(leaves, true),       RLK_FIELD(kv_block, true),
    RLK_FIELD(kv_split, true),      RLK_FIELD(norm_lanes, true),   RLK_FIELD(softmax_lanes, true),
    RLK_FIELD(vocab_padded, false), RLK_FIELD(token_block, false), RLK_FIELD(grad_group, false),
    RLK_FIELD(grad_slots, false),
};
#undef RLK_FIELD

json to_json(const Contract& c, bool forward_only) {
  json j;
  j["profile"] = to_string(c.profile);
  for (const Field& f : kFields) {
    if (f.forward || !forward_only) j[f.name] = f.get(c);
  }
  j["primitives"] = kForwardPrimitives;
  for (const auto& p : kProfiles) {
    if (p.profile == c.profile && p.mac) j["primitives"].push_back(p.mac);
  }
  j["roundings"] = kForwardRoundings;
  if (!forward_only) {
    for (const char* p : kBackwardPrimitives) j["primitives"].push_back(p);
    for (const char* r : kBackwardRoundings) j["roundings"].push_back(r);
  }
  return j;
}

bool power_of_two(std::int64_t x) { return x > 0 && (x & (x - 1)) == 0; }

void require(bool ok, const char* field, std::int64_t value, const char* rule) {
  if (!ok) fail(ErrorCode::kInvalidArgument, "contract.{} = {}: must be {}", field, value, rule);
}

}  // namespace

const char* to_string(Profile profile) {
  for (const auto& p : kProfiles) {
    if (p.profile == profile) return p.name;
  }
  return "unknown";
}

Profile parse_profile(std::string_view name) {
  for (const auto& p : kProfiles) {
    if (p.name == name) return p.profile;
  }
  fail(ErrorCode::kInvalidArgument,
       "contract.profile = \"{}\": must be one of portable, sm90, cdna3, cdna2", name);
}

void validate(const Contract& c) {
  require(c.version == 1, "version", c.version, "1, the only version this build knows");
  require(power_of_two(c.leaves) && c.leaves <= 64, "leaves", c.leaves, "a power of two up to 64");
  require(c.kv_block > 0 && c.kv_block % 16 == 0 && c.kv_block <= 4096, "kv_block", c.kv_block,
          "a multiple of 16 up to 4096");
  require(c.kv_split >= c.kv_block && c.kv_split % c.kv_block == 0, "kv_split", c.kv_split,
          "a multiple of kv_block");
  require(power_of_two(c.norm_lanes) && c.norm_lanes >= 16 && c.norm_lanes <= 1024, "norm_lanes",
          c.norm_lanes, "a power of two from 16 to 1024");
  require(c.softmax_lanes == 16, "softmax_lanes", c.softmax_lanes, "16 in version 1");
  require(c.vocab_padded >= 0 && c.vocab_padded % (16 * c.leaves) == 0, "vocab_padded",
          c.vocab_padded, "0 or a multiple of 16 * leaves");
  require(c.token_block > 0, "token_block", c.token_block, "positive");
  require(c.grad_group > 0 && c.grad_group % 16 == 0, "grad_group", c.grad_group,
          "a positive multiple of 16");
  require(power_of_two(c.grad_slots), "grad_slots", c.grad_slots, "a power of two");
}

std::int64_t vocab_padded(const Contract& contract, std::int64_t vocab_size) {
  const std::int64_t step = 16 * static_cast<std::int64_t>(contract.leaves);
  const std::int64_t least = (vocab_size + step - 1) / step * step;
  if (contract.vocab_padded == 0) return least;
  if (contract.vocab_padded < vocab_size) {
    fail(ErrorCode::kContract, "contract.vocab_padded = {} is below the vocabulary of {}",
         contract.vocab_padded, vocab_size);
  }
  return contract.vocab_padded;
}

std::string canonical_json(const Contract& contract) { return to_json(contract, false).dump(); }

Contract parse_contract(std::string_view json_text, std::string_view source) {
  json j;
  try {
    j = json::parse(json_text);
  } catch (const json::parse_error& e) {
    fail(ErrorCode::kFormat, "{}: not JSON: {}", source, e.what());
  }
  if (!j.is_object()) fail(ErrorCode::kFormat, "{}: contract is not a JSON object", source);
  Contract c;
  for (const auto& [key, value] : j.items()) {
    if (key == "profile") {
      if (!value.is_string()) fail(ErrorCode::kFormat, "{}: profile is not a string", source);
      c.profile = parse_profile(value.get<std::string>());
      continue;
    }
    if (key == "primitives" || key == "roundings") continue;  // compared below
    const Field* found = nullptr;
    for (const Field& f : kFields) {
      if (key == f.name) found = &f;
    }
    if (!found) fail(ErrorCode::kFormat, "{}: unknown contract field \"{}\"", source, key);
    if (!value.is_number_integer()) {
      fail(ErrorCode::kFormat, "{}: contract field {} is {}, expected an integer", source, key,
           value.dump());
    }
    const auto number = value.get<std::int64_t>();
    found->set(c, number);
    const bool too_large = value.is_number_unsigned() && number < 0;
    if (too_large || found->get(c) != number) {
      fail(ErrorCode::kFormat, "{}: contract field {} is {}, too large for any contract", source,
           key, value.dump());
    }
  }
  validate(c);
  const json ours = to_json(c, false);
  for (const char* key : {"primitives", "roundings"}) {
    if (j.contains(key) && j[key] != ours[key]) {
      fail(ErrorCode::kContract, "{}: contract field {} is {}, this build has {}", source, key,
           j[key].dump(), ours[key].dump());
    }
  }
  return c;
}

std::string forward_digest(const Contract& c) { return sha256_hex(to_json(c, true).dump()); }
std::string backward_digest(const Contract& c) { return sha256_hex(canonical_json(c)); }

std::vector<std::string> differences(const Contract& a, const Contract& b) {
  std::vector<std::string> lines;
  if (a.profile != b.profile) {
    lines.push_back(fmt::format("profile: {} != {}", to_string(a.profile), to_string(b.profile)));
  }
  for (const Field& f : kFields) {
    if (f.get(a) != f.get(b)) {
      lines.push_back(fmt::format("{}: {} != {}", f.name, f.get(a), f.get(b)));
    }
  }
  return lines;
}

}  // namespace rlk
