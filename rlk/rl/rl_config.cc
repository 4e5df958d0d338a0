#include "rlk/rl/rl_config.h"

#include <algorithm>
#include <filesystem>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include "rlk/core/error.h"
#include "rlk/io/files.h"
#include "rlk/io/json.h"
#include "rlk/rl/rl_config_keys.h"
#include "rlk/rl/verifier.h"

namespace rlk {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kModeNames[] = {"strict", "audit", "auto", "off"};

std::string absolute(const std::string& path, const std::string& base_dir) {
  if (path.empty()) return path;
  const std::string text = fs::absolute(fs::path(base_dir) / path).lexically_normal().string();
  return text.size() > 1 && text.back() == '/' ? text.substr(0, text.size() - 1) : text;
}

// "rollout.page_size" as the JSON pointer "/rollout/page_size".
json::json_pointer pointer_to(std::string_view path) {
  std::string pointer = fmt::format("/{}", path);
  for (char& c : pointer) c = c == '.' ? '/' : c;
  return json::json_pointer(pointer);
}

// Reads `key` of `reader` over the value in the slot. Types are checked here, rules by validate().
void read_slot(FieldReader& reader, std::string_view key, const ConfigSlot& slot) {
  std::visit(
      [&](auto* value) {
        using T = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_enum_v<T>) {
          std::vector<std::string> names;
          for (const T choice : config_choices<T>()) names.emplace_back(to_string(choice));
          const std::string chosen = reader.choice(key, names, to_string(*value));
          for (const T choice : config_choices<T>()) {
            if (chosen == to_string(choice)) *value = choice;
          }
        } else if constexpr (std::is_same_v<T, RlConfig::Modes>) {
          FieldReader modes = reader.object(key);
          for (const std::string& op : modes.keys()) {
            (*value)[op] = modes.choice(op, {std::begin(kModeNames), std::end(kModeNames)}, "");
          }
          modes.finish();
        } else if constexpr (std::is_same_v<T, int>) {
          std::int64_t wide = *value;
          reader.optional(key, wide);
          if (!std::in_range<int>(wide)) {
            reader.refuse(ErrorCode::kInvalidArgument, key,
                          fmt::format("{} does not fit in 32 bits", wide));
          }
          *value = static_cast<int>(wide);
        } else {
          reader.optional(key, *value);
        }
      },
      slot);
}

// A reader per object of the file, opened when the first key in it is read.
class Readers {
 public:
  explicit Readers(FieldReader root) { readers_.emplace("", std::move(root)); }

  FieldReader& at(const std::string& path) {
    const auto it = readers_.find(path);
    if (it != readers_.end()) return it->second;
    const std::size_t dot = path.rfind('.');
    FieldReader& parent = at(dot == std::string::npos ? "" : path.substr(0, dot));
    return readers_.emplace(path, parent.object(path.substr(dot + 1))).first->second;
  }

  void finish() const {
    for (const auto& entry : readers_) entry.second.finish();
  }

 private:
  std::map<std::string, FieldReader> readers_;
};

void read_document(RlConfig& config, const JsonDocument& document, const std::string& base_dir) {
  Readers readers(document.object());
  for (const ConfigKey& key : config_keys()) {
    const std::string path(key.path);
    const std::size_t dot = path.rfind('.');
    FieldReader& reader = readers.at(dot == std::string::npos ? "" : path.substr(0, dot));
    const ConfigSlot slot = key.slot(config);
    read_slot(reader, path.substr(dot + 1), slot);
    if (key.rule.is_path()) {
      std::string& value = *std::get<std::string*>(slot);
      value = absolute(value, base_dir);
    }
  }
  readers.finish();
}

void check_rule(const ConfigKey& key, const ConfigSlot& slot, std::string_view source) {
  const auto refuse = [&](const std::string& got) {
    fail(ErrorCode::kInvalidArgument, "{}: {} is {}, must be {}", source, key.path, got,
         key.rule.text());
  };
  std::visit(
      [&](const auto* value) {
        using T = std::remove_cvref_t<decltype(*value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          if (value->empty() && !key.rule.text().empty()) refuse("empty");
        } else if constexpr (std::is_same_v<T, std::vector<int>>) {
          for (const int element : *value) {
            if (!key.rule.allows(element)) refuse(fmt::format("a list with {}", element));
          }
        } else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
          if (!key.rule.allows(static_cast<double>(*value))) refuse(fmt::format("{}", *value));
        }
      },
      slot);
}

void check_rules_between_rollout_keys(const RlConfig& config, std::string_view source) {
  const RlConfig::Rollout& r = config.rollout;
  if (r.num_pages > 0 &&
      std::int64_t{r.num_pages} * r.page_size <= std::int64_t{r.max_new_tokens}) {
    fail(ErrorCode::kInvalidArgument,
         "{}: rollout.num_pages is {}: with rollout.page_size {} that is {} positions, not enough "
         "for a prompt and rollout.max_new_tokens = {}",
         source, r.num_pages, r.page_size, std::int64_t{r.num_pages} * r.page_size,
         r.max_new_tokens);
  }
  if (r.max_num_batched_tokens < r.max_num_seqs) {
    fail(ErrorCode::kInvalidArgument,
         "{}: rollout.max_num_batched_tokens is {}, must be at least rollout.max_num_seqs = {} "
         "(each "
         "sequence decodes one token)",
         source, r.max_num_batched_tokens, r.max_num_seqs);
  }
}

void check_rules_between_trainer_keys(const RlConfig& config, std::string_view source) {
  const RlConfig::Trainer& t = config.trainer;
  const std::int64_t samples =
      std::int64_t{config.rollout.prompts_per_step} * config.rollout.samples_per_prompt;
  if (t.micro_batch_tokens <= config.rollout.max_new_tokens) {
    fail(
        ErrorCode::kInvalidArgument,
        "{}: trainer.micro_batch_tokens is {}, must be above rollout.max_new_tokens = {} (a sample "
        "is never cut)",
        source, t.micro_batch_tokens, config.rollout.max_new_tokens);
  }
  if (samples % t.minibatches != 0) {
    fail(ErrorCode::kInvalidArgument,
         "{}: trainer.minibatches is {}, must divide the {} samples of a step", source,
         t.minibatches, samples);
  }
  if (std::int64_t{t.warmup_steps} > std::int64_t{config.steps} * t.minibatches &&
      config.steps > 0) {
    fail(ErrorCode::kInvalidArgument,
         "{}: trainer.warmup_steps is {}, must be at most the {} optimizer steps of the run",
         source, t.warmup_steps, std::int64_t{config.steps} * t.minibatches);
  }
  // Under other weights a sampled token may be filtered out: it has no log-probability there.
  const RlConfig::Rollout& r = config.rollout;
  const bool filters = r.top_k > 0 || r.top_p < 1 || r.min_p > 0;
  if (filters && (t.minibatches > 1 || config.loss.kl != RlConfig::Kl::kNone)) {
    fail(ErrorCode::kInvalidArgument,
         "{}: rollout.top_k, top_p and min_p are {}, {} and {}: filters need trainer.minibatches = "
         "1 and loss.kl = none, where only the weights that sampled a token score it",
         source, r.top_k, r.top_p, r.min_p);
  }
  if (config.contract.grad_slots > samples / t.minibatches) {
    fail(ErrorCode::kInvalidArgument,
         "{}: contract.grad_slots is {}, must be at most the {} samples of an optimizer step",
         source, config.contract.grad_slots, samples / t.minibatches);
  }
  if (config.sft.warmup_steps > config.sft.steps) {
    fail(ErrorCode::kInvalidArgument, "{}: sft.warmup_steps is {}, must be at most sft.steps = {}",
         source, config.sft.warmup_steps, config.sft.steps);
  }
}

void check_rules_between_other_keys(const RlConfig& config, std::string_view source) {
  if (config.loss.kl == RlConfig::Kl::kNone && config.loss.kl_coef != 0) {
    fail(ErrorCode::kInvalidArgument,
         "{}: loss.kl_coef is {}, but loss.kl is none: choose k1, k2 or k3, or set it to 0", source,
         config.loss.kl_coef);
  }
  if (config.eval.every > 0 && config.data.heldout.empty()) {
    fail(ErrorCode::kInvalidArgument, "{}: eval.every is {}, but data.heldout is empty", source,
         config.eval.every);
  }
  if (config.data.verifier == "command" && config.data.command.empty()) {
    fail(ErrorCode::kInvalidArgument, "{}: data.verifier is command, but data.command is empty",
         source);
  }
  const std::vector<std::string>& verifiers = VerifierSet::names();
  if (!config.data.verifier.empty() &&
      std::find(verifiers.begin(), verifiers.end(), config.data.verifier) == verifiers.end()) {
    fail(ErrorCode::kInvalidArgument, "{}: data.verifier is '{}', must be one of {}", source,
         config.data.verifier, fmt::join(verifiers, ", "));
  }
  if (config.data.prompt_template.find("{prompt}") == std::string::npos) {
    fail(ErrorCode::kInvalidArgument, "{}: data.prompt_template is '{}', must contain {{prompt}}",
         source, config.data.prompt_template);
  }
  if (config.data.message_template.find("{content}") == std::string::npos) {
    fail(ErrorCode::kInvalidArgument, "{}: data.message_template is '{}', must contain {{content}}",
         source, config.data.message_template);
  }
}

}  // namespace

const char* to_string(RlConfig::Route route) {
  return route == RlConfig::Route::kStrict ? "strict" : "production";
}

const char* to_string(RlConfig::LrSchedule schedule) {
  switch (schedule) {
    case RlConfig::LrSchedule::kConstant: return "constant";
    case RlConfig::LrSchedule::kLinear: return "linear";
    case RlConfig::LrSchedule::kCosine: return "cosine";
  }
  return "?";
}

const char* to_string(RlConfig::Kl kl) {
  switch (kl) {
    case RlConfig::Kl::kNone: return "none";
    case RlConfig::Kl::kK1: return "k1";
    case RlConfig::Kl::kK2: return "k2";
    case RlConfig::Kl::kK3: return "k3";
  }
  return "?";
}

const char* to_string(RlConfig::Averaging averaging) {
  return averaging == RlConfig::Averaging::kToken ? "token" : "sample";
}

RlConfig parse_rl_config(std::string_view json_text, std::string_view source,
                         const std::string& base_dir) {
  RlConfig config;
  read_document(config, JsonDocument::parse(json_text, std::string(source)), base_dir);
  if (config.data.command_dir.empty()) config.data.command_dir = absolute(".", base_dir);
  validate(config, source);
  return config;
}

RlConfig load_rl_config(const std::string& path) {
  return parse_rl_config(read_file(path), path, fs::absolute(path).parent_path().string());
}

void apply_override(RlConfig& config, std::string_view assignment, const std::string& base_dir) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    fail(ErrorCode::kInvalidArgument, "override '{}': expected key=value", assignment);
  }
  const std::string_view path = assignment.substr(0, equals);
  const std::string text(assignment.substr(equals + 1));
  std::vector<std::string> paths;
  const ConfigKey* found = nullptr;
  for (const ConfigKey& key : config_keys()) {
    paths.emplace_back(key.path);
    if (key.path == path) found = &key;
  }
  if (found == nullptr) {
    const std::string nearest = nearest_name(path, paths);
    fail(ErrorCode::kInvalidArgument, "override '{}': unknown key '{}'{}", assignment, path,
         nearest.empty() ? "" : ", nearest: '" + nearest + "'");
  }
  json value = json::parse(text, nullptr, false);
  if (value.is_discarded() || std::holds_alternative<std::string*>(found->slot(config))) {
    value = text;
  }
  json object;
  object[pointer_to(path)] = value;
  const std::string document = object.dump(-1, ' ', false, json::error_handler_t::replace);
  read_document(config, JsonDocument::parse(document, fmt::format("override '{}'", assignment)),
                base_dir);
}

void validate(const RlConfig& config, std::string_view source) {
  RlConfig copy = config;  // slots are for writing too
  for (const ConfigKey& key : config_keys()) check_rule(key, key.slot(copy), source);
  try {
    validate(config.contract);
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("{}: {}", source, e.what()));
  }
  check_rules_between_rollout_keys(config, source);
  check_rules_between_trainer_keys(config, source);
  check_rules_between_other_keys(config, source);
}

std::string to_json(const RlConfig& config) {
  RlConfig copy = config;
  json object;
  for (const ConfigKey& key : config_keys()) {
    object[pointer_to(key.path)] = json::parse(config_value_json(key.slot(copy)));
  }
  return object.dump();
}

}  // namespace rlk
