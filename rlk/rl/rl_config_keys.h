// The table of configuration keys: the one place that names them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rlk/rl/rl_config.h"

namespace rlk {

// Where a key's value lives in a config; its type is the key's type.
using ConfigSlot =
    std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*,
                 std::vector<int>*, std::vector<std::string>*, RlConfig::Modes*, RlConfig::Route*,
                 RlConfig::LrSchedule*, RlConfig::Kl*, RlConfig::Averaging*, Profile*>;

struct ConfigRule {
  enum class Kind {
    kAny,
    kFrom,        // >= low
    kAbove,       // > low
    kClosed,      // [low, high]
    kLeftOpen,    // (low, high]
    kRightOpen,   // [low, high)
    kPowerOfTwo,  // a power of two within [low, high]
    kNotEmpty,    // text
    kPath,        // text; resolved
    kPathNotEmpty,
  };
  Kind kind = Kind::kAny;
  double low = 0;
  double high = 0;

  bool is_path() const { return kind == Kind::kPath || kind == Kind::kPathNotEmpty; }
  bool allows(double value) const;  // of numbers
  std::string text() const;         // "in (0, 1]"; empty for kAny
};

struct ConfigKey {
  std::string_view path;  // "rollout.page_size"; also the member of RlConfig
  ConfigSlot (*slot)(RlConfig& config);
  ConfigRule rule;
  std::string_view meaning;

  std::string_view section() const;  // "rollout"; empty for keys of the root
};

// Keys of one section are consecutive.
std::span<const ConfigKey> config_keys();

// The choices of an enumeration in the order of its values.
template <typename E>
std::span<const E> config_choices();
template <>
std::span<const RlConfig::Route> config_choices();
template <>
std::span<const RlConfig::LrSchedule> config_choices();
template <>
std::span<const RlConfig::Kl> config_choices();
template <>
std::span<const RlConfig::Averaging> config_choices();
template <>
std::span<const Profile> config_choices();

// The value in a slot as compact JSON.
std::string config_value_json(const ConfigSlot& slot);

}  // namespace rlk
