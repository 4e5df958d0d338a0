// The configuration of `rlk rl` and `rlk sft`: plain structs, read from JSON. One table in
// rl_config_keys.cc names every key with its type, range and meaning; parsing, --help-config and
// docs/rl_config.md all come from it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rlk/contract/contract.h"

namespace rlk {

struct RlConfig {
  enum class Route { kStrict, kProduction };
  enum class LrSchedule { kConstant, kLinear, kCosine };
  enum class Kl { kNone, kK1, kK2, kK3 };
  enum class Averaging { kToken, kSample };
  // Operator name to mode (strict, audit, auto, off). The operators check the names.
  using Modes = std::map<std::string, std::string>;

  struct Model {
    std::string path;
    bool operator==(const Model&) const = default;
  };
  struct ModeOverrides {
    Modes rollout;
    Modes trainer;
    bool operator==(const ModeOverrides&) const = default;
  };
  struct Data {
    struct Fields {  // dots go into objects: reward_model.ground_truth
      std::string prompt = "prompt";
      std::string answer = "answer";
      std::string verifier = "verifier";  // may be absent from a line
      bool operator==(const Fields&) const = default;
    };
    std::string train;
    std::string heldout;
    Fields fields;
    std::string answer_after;          // keep what follows the last such marker
    std::string verifier;              // for lines that name none
    std::vector<std::string> command;  // program and arguments of the verifier `command`
    std::string command_dir;           // where it runs; empty: the folder of the config
    double command_timeout_s = 30.0;
    std::int64_t limit = 0;  // 0: all lines
    std::string message_template = "{content}";
    std::string prompt_template = "{prompt}";
    bool operator==(const Data&) const = default;
  };
  struct Rollout {
    int prompts_per_step = 32;
    int samples_per_prompt = 8;
    int max_new_tokens = 64;
    double temperature = 1.0;
    int top_k = 0;                    // 0: off
    double top_p = 1.0;               // 1: off
    double min_p = 0.0;               // 0: off
    std::vector<int> stop_token_ids;  // empty: those of the model
    int max_num_seqs = 64;
    int max_num_batched_tokens = 512;
    int page_size = 16;
    int num_pages = 0;  // 0: enough for max_num_seqs sequences of full length
    bool prefix_cache = true;
    bool graphs = true;           // on a GPU
    std::string vendor_products;  // a library; empty: none
    std::string backend = "cpu";
    int threads = 0;  // 0: one per hardware thread
    bool operator==(const Rollout&) const = default;
  };
  struct Trainer {
    int micro_batch_tokens = 2048;
    double learning_rate = 1e-5;
    LrSchedule lr_schedule = LrSchedule::kConstant;
    int warmup_steps = 0;  // optimizer steps
    double adam_beta1 = 0.9;
    double adam_beta2 = 0.95;
    double adam_eps = 1e-8;
    double weight_decay = 0.0;
    double max_grad_norm = 1.0;  // 0: no clipping
    int minibatches = 1;         // optimizer steps per RL step
    std::string backend = "cpu";
    int threads = 0;  // 0: one per hardware thread
    bool operator==(const Trainer&) const = default;
  };
  struct Loss {
    double clip_low = 0.2;   // lo = 1 - clip_low
    double clip_high = 0.2;  // hi = 1 + clip_high
    Kl kl = Kl::kNone;
    double kl_coef = 0.0;
    Averaging averaging = Averaging::kToken;
    double advantage_eps = 1e-6;
    int advantage_ddof = 1;
    double entropy_coef = 0.0;
    bool operator==(const Loss&) const = default;
  };
  struct Eval {
    int every = 0;    // 0: only before the first and after the last step
    int prompts = 0;  // 0: all held-out prompts
    int samples_per_prompt = 1;
    double temperature = 0.0;  // 0: greedy
    bool operator==(const Eval&) const = default;
  };
  struct Checkpoint {
    int every = 0;  // 0: only after the last step
    int keep = 2;   // older ones are deleted; 0 keeps all
    bool operator==(const Checkpoint&) const = default;
  };
  struct Sft {
    std::string data;  // empty: data.train
    int steps = 100;
    int batch_samples = 32;
    double learning_rate = 1e-3;
    LrSchedule lr_schedule = LrSchedule::kConstant;
    int warmup_steps = 0;
    bool operator==(const Sft&) const = default;
  };

  Model model;
  std::uint64_t seed = 1;  // below 2^53, so that every JSON reader keeps it
  int steps = 100;
  Route route = Route::kStrict;
  Contract contract;
  ModeOverrides modes;
  Data data;
  Rollout rollout;
  Trainer trainer;
  Loss loss;
  Eval eval;
  Checkpoint checkpoint;
  Sft sft;

  bool operator==(const RlConfig&) const = default;
};

const char* to_string(RlConfig::Route route);
const char* to_string(RlConfig::LrSchedule schedule);
const char* to_string(RlConfig::Kl kl);
const char* to_string(RlConfig::Averaging averaging);

// Reads, completes with defaults and validates. Relative paths in the file (model.path, data.train,
// data.heldout, data.command_dir, sft.data) become absolute ones: relative to `base_dir`, the
// folder of the file. Errors  kIo the file cannot be read; kFormat not JSON, an unknown key (with
// the nearest known
//         one), a wrong type; kInvalidArgument a value outside its range or against another value.
//         Each names `source`, the key, the value and what is allowed.
RlConfig load_rl_config(const std::string& path);
RlConfig parse_rl_config(std::string_view json_text, std::string_view source,
                         const std::string& base_dir);

// One override as a command line gives it: "rollout.temperature=0.7". A value that is not JSON is
// taken as text ("route=production"). Paths are relative to `base_dir`. Does not check the rules
// between keys: call validate() after the last override.
void apply_override(RlConfig& config, std::string_view assignment, const std::string& base_dir);

// The ranges of all keys and the rules between them. kInvalidArgument, naming `source`.
void validate(const RlConfig& config, std::string_view source);

// Canonical JSON of all keys: sorted, no spaces, absolute paths. parse_rl_config reads it back to
// an equal config.
std::string to_json(const RlConfig& config);

// Every key with type, default, range and meaning: as plain text for a terminal of 100 columns, and
// as the Markdown of docs/rl_config.md.
std::string config_help();
std::string config_markdown();

}  // namespace rlk
