#include "rlk/rl/rl_config_keys.h"

#include <array>
#include <cmath>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "rlk/core/error.h"

namespace rlk {
namespace {

using Kind = ConfigRule::Kind;

constexpr ConfigRule kAny{};
constexpr ConfigRule kNotEmpty{Kind::kNotEmpty};
constexpr ConfigRule kPath{Kind::kPath};
constexpr ConfigRule kPathNotEmpty{Kind::kPathNotEmpty};
constexpr ConfigRule from(double low) { return {Kind::kFrom, low}; }
constexpr ConfigRule above(double low) { return {Kind::kAbove, low}; }
constexpr ConfigRule closed(double low, double high) { return {Kind::kClosed, low, high}; }
constexpr ConfigRule left_open(double low, double high) { return {Kind::kLeftOpen, low, high}; }
constexpr ConfigRule right_open(double low, double high) { return {Kind::kRightOpen, low, high}; }
constexpr ConfigRule power_of_two(double low, double high) {
  return {Kind::kPowerOfTwo, low, high};
}

// The name of a key is the name of its member.
#define RLK_KEY(member) #member, [](RlConfig & c) -> ConfigSlot { return &c.member; }

constexpr ConfigKey kKeys[] = {
    {RLK_KEY(seed), closed(0, 9007199254740991.0),
     "Seed of everything random: order of prompts, sampling, supervised batches."},
    {RLK_KEY(steps), from(0), "RL steps. 0 only evaluates."},
    {RLK_KEY(route), kAny,
     "strict: contract kernels for every operator, in both engines. production: each engine picks "
     "what a fast engine would."},

    {RLK_KEY(model.path), kPathNotEmpty,
     "Hugging Face folder: config.json, model.safetensors (or shards with an index), "
     "tokenizer.json, generation_config.json."},

    {RLK_KEY(contract.version), closed(1, 1), "Version of the contract."},
    {RLK_KEY(contract.profile), kAny, "The multiply-accumulate primitive of matrix products."},
    {RLK_KEY(contract.leaves), power_of_two(1, 64),
     "Leaves of the tree that sums row-parallel products: the largest tensor-parallel degree."},
    {RLK_KEY(contract.kv_block), closed(16, 4096), "Attention: keys per block, a multiple of 16."},
    {RLK_KEY(contract.kv_split), from(16), "Attention: keys per split, a multiple of kv_block."},
    {RLK_KEY(contract.norm_lanes), power_of_two(16, 1024), "Lanes of the sums in RMSNorm."},
    {RLK_KEY(contract.softmax_lanes), closed(16, 16),
     "Lanes of the sum of exponentials in an attention split."},
    {RLK_KEY(contract.vocab_padded), from(0),
     "Vocabulary with padding. 0: rounded up to 16 * leaves."},
    {RLK_KEY(contract.token_block), from(1), "Tokens per block of a sum over tokens."},
    {RLK_KEY(contract.grad_group), from(16),
     "Tokens that close a group of weight gradients, a multiple of 16."},
    {RLK_KEY(contract.grad_slots), power_of_two(1, 65536),
     "Gradient slots of an optimizer step, normally the data-parallel degree."},

    {RLK_KEY(modes.rollout), kAny,
     "Operators of the rollout engine that do not run as `route` says, and how."},
    {RLK_KEY(modes.trainer), kAny,
     "Operators of the trainer that do not run as `route` says, and how."},

    {RLK_KEY(data.train), kPathNotEmpty, "Training prompts, one JSON object per line."},
    {RLK_KEY(data.heldout), kPath, "Held-out prompts, in the same form. Empty: no evaluation."},
    {RLK_KEY(data.fields.prompt), kNotEmpty,
     "Field of a line with the prompt: text, or a list of {\"role\", \"content\"} messages. A dot "
     "goes into an object."},
    {RLK_KEY(data.fields.answer), kNotEmpty, "Field with the answer."},
    {RLK_KEY(data.fields.verifier), kNotEmpty,
     "Field with the name of the verifier. A line may lack it, see data.verifier."},
    {RLK_KEY(data.answer_after), kAny,
     "Keep only what follows the last such marker in the answer (gsm8k: ####)."},
    {RLK_KEY(data.verifier), kAny,
     "Verifier of lines that name none: exact, share, last_number, countdown, regex or command."},
    {RLK_KEY(data.command), kAny,
     "Program and arguments of the verifier `command`: JSON lines in on stdin, scores out on "
     "stdout."},
    {RLK_KEY(data.command_dir), kPath, "Where it runs. Empty: the folder of this file."},
    {RLK_KEY(data.command_timeout_s), left_open(0, 3600), "Longest wait for one score, seconds."},
    {RLK_KEY(data.limit), from(0), "Use the first so many prompts of each file. 0: all."},
    {RLK_KEY(data.message_template), kNotEmpty,
     "How each message of a prompt that is a list is written; {role} and {content} are filled in."},
    {RLK_KEY(data.prompt_template), kNotEmpty, "What the model gets; {prompt} is filled in."},

    {RLK_KEY(rollout.prompts_per_step), from(1), "Prompts of one RL step."},
    {RLK_KEY(rollout.samples_per_prompt), from(2), "Responses per prompt: the group of GRPO."},
    {RLK_KEY(rollout.max_new_tokens), from(1), "Longest response in tokens, its stop token too."},
    {RLK_KEY(rollout.temperature), left_open(0, 100), "Logits are divided by it."},
    {RLK_KEY(rollout.top_k), from(0), "Sample among the k likeliest tokens. 0: off."},
    {RLK_KEY(rollout.top_p), left_open(0, 1),
     "Sample among the likeliest tokens that together reach this probability. 1: off."},
    {RLK_KEY(rollout.min_p), right_open(0, 1),
     "Drop tokens below this share of the likeliest one's probability. 0: off."},
    {RLK_KEY(rollout.stop_token_ids), from(0),
     "Tokens that end a response. Empty: eos_token_id of the model."},
    {RLK_KEY(rollout.max_num_seqs), from(1), "Sequences that run at once."},
    {RLK_KEY(rollout.max_num_batched_tokens), from(1), "Tokens of one forward pass."},
    {RLK_KEY(rollout.page_size), power_of_two(1, 4096), "Positions of one KV page."},
    {RLK_KEY(rollout.num_pages), from(0),
     "KV pages. 0: enough for max_num_seqs sequences of full length."},
    {RLK_KEY(rollout.prefix_cache), kAny, "Share full pages of equal prefixes."},
    {RLK_KEY(rollout.graphs), kAny,
     "On a GPU: launch the model of a decode step as one recorded graph. Changes no bit."},
    {RLK_KEY(rollout.vendor_products), kAny,
     "In profile sm90 on a GPU: the vendor's library (a file, or a name that the loader finds, as "
     "libcublasLt.so.13) that products of few rows are left to, where it is seen to give our bytes "
     "and to be faster. Changes no bit. Empty: none."},
    {RLK_KEY(rollout.backend), kNotEmpty,
     "Kernels: cpu, cuda or hip (those of contract.profile on the GPU), or one by its own "
     "name: cpu.avx2, cuda.sm90, reference."},
    {RLK_KEY(rollout.threads), closed(0, 1024), "Threads. 0: one per hardware thread."},

    {RLK_KEY(trainer.micro_batch_tokens), from(1), "Tokens of one packed batch."},
    {RLK_KEY(trainer.learning_rate), from(0), "Learning rate after the warm-up."},
    {RLK_KEY(trainer.lr_schedule), kAny,
     "From the end of the warm-up to the last step: constant, or down to 0 along a line or half a "
     "cosine."},
    {RLK_KEY(trainer.warmup_steps), from(0), "Optimizer steps in which the learning rate rises."},
    {RLK_KEY(trainer.adam_beta1), right_open(0, 1), "Decay of the mean of gradients."},
    {RLK_KEY(trainer.adam_beta2), right_open(0, 1), "Decay of the mean of squared gradients."},
    {RLK_KEY(trainer.adam_eps), above(0), "Added to the root of the mean of squares."},
    {RLK_KEY(trainer.weight_decay), from(0),
     "Decoupled weight decay; biases and norm weights have none."},
    {RLK_KEY(trainer.max_grad_norm), from(0), "Gradients are scaled to this norm. 0: never."},
    {RLK_KEY(trainer.minibatches), from(1), "Optimizer steps per RL step."},
    {RLK_KEY(trainer.backend), kNotEmpty, "As rollout.backend."},
    {RLK_KEY(trainer.threads), closed(0, 1024), "Threads. 0: one per hardware thread."},

    {RLK_KEY(loss.clip_low), closed(0, 1), "Ratios below 1 - clip_low are clipped."},
    {RLK_KEY(loss.clip_high), from(0), "Ratios above 1 + clip_high are clipped."},
    {RLK_KEY(loss.kl), kAny, "Estimator of the KL divergence from the starting weights."},
    {RLK_KEY(loss.kl_coef), from(0), "Weight of the KL term."},
    {RLK_KEY(loss.averaging), kAny,
     "token: every token of the step weighs the same. sample: every sample does."},
    {RLK_KEY(loss.advantage_eps), from(0), "Added to the standard deviation of a group's rewards."},
    {RLK_KEY(loss.advantage_ddof), closed(0, 1),
     "The standard deviation divides by samples_per_prompt minus this."},
    {RLK_KEY(loss.entropy_coef), from(0), "Weight of the entropy bonus."},

    {RLK_KEY(eval.every), from(0),
     "Evaluate on held-out prompts every so many steps. 0: only before the first step and after "
     "the last."},
    {RLK_KEY(eval.prompts), from(0), "Use the first so many held-out prompts. 0: all."},
    {RLK_KEY(eval.samples_per_prompt), from(1), "Responses per held-out prompt."},
    {RLK_KEY(eval.temperature), closed(0, 100), "0: the likeliest token each time."},

    {RLK_KEY(checkpoint.every), from(0),
     "Write a checkpoint every so many steps. 0: only after the last."},
    {RLK_KEY(checkpoint.keep), from(0), "Newest checkpoints that stay. 0: all."},

    {RLK_KEY(sft.data), kPath,
     "Prompts with answers for the supervised warm-up (`rlk sft`). Empty: data.train."},
    {RLK_KEY(sft.steps), from(1), "Optimizer steps."},
    {RLK_KEY(sft.batch_samples), from(1), "Samples per optimizer step."},
    {RLK_KEY(sft.learning_rate), from(0), "Learning rate after the warm-up."},
    {RLK_KEY(sft.lr_schedule), kAny, "As trainer.lr_schedule."},
    {RLK_KEY(sft.warmup_steps), from(0), "Optimizer steps in which the learning rate rises."},
};

#undef RLK_KEY

bool is_power_of_two(double value) {
  const auto n = static_cast<std::uint64_t>(value);
  return n > 0 && (n & (n - 1)) == 0;
}

}  // namespace

bool ConfigRule::allows(double value) const {
  if (!std::isfinite(value)) return false;
  switch (kind) {
    case Kind::kFrom: return value >= low;
    case Kind::kAbove: return value > low;
    case Kind::kClosed: return value >= low && value <= high;
    case Kind::kLeftOpen: return value > low && value <= high;
    case Kind::kRightOpen: return value >= low && value < high;
    case Kind::kPowerOfTwo: return value >= low && value <= high && is_power_of_two(value);
    default: return true;
  }
}

std::string ConfigRule::text() const {
  const auto number = [](double value) {
    return std::abs(value) < 1e18 && value == std::floor(value)
               ? fmt::format("{}", static_cast<std::int64_t>(value))
               : fmt::format("{}", value);
  };
  const std::string l = number(low);
  const std::string h = number(high);
  switch (kind) {
    case Kind::kFrom: return fmt::format(">= {}", l);
    case Kind::kAbove: return fmt::format("> {}", l);
    case Kind::kClosed:
      return low == high ? fmt::format("= {}", l) : fmt::format("in [{}, {}]", l, h);
    case Kind::kLeftOpen: return fmt::format("in ({}, {}]", l, h);
    case Kind::kRightOpen: return fmt::format("in [{}, {})", l, h);
    case Kind::kPowerOfTwo: return fmt::format("power of two, {} to {}", l, h);
    case Kind::kNotEmpty:
    case Kind::kPathNotEmpty: return "not empty";
    default: return "";
  }
}

std::string_view ConfigKey::section() const {
  const std::size_t dot = path.find('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::span<const ConfigKey> config_keys() { return kKeys; }

template <>
std::span<const RlConfig::Route> config_choices() {
  static constexpr std::array kAll = {RlConfig::Route::kStrict, RlConfig::Route::kProduction};
  return kAll;
}
template <>
std::span<const RlConfig::LrSchedule> config_choices() {
  using E = RlConfig::LrSchedule;
  static constexpr std::array kAll = {E::kConstant, E::kLinear, E::kCosine};
  return kAll;
}
template <>
std::span<const RlConfig::Kl> config_choices() {
  using E = RlConfig::Kl;
  static constexpr std::array kAll = {E::kNone, E::kK1, E::kK2, E::kK3};
  return kAll;
}
template <>
std::span<const RlConfig::Averaging> config_choices() {
  static constexpr std::array kAll = {RlConfig::Averaging::kToken, RlConfig::Averaging::kSample};
  return kAll;
}
template <>
std::span<const Profile> config_choices() {
  return kAllProfiles;
}

std::string config_value_json(const ConfigSlot& slot) {
  return std::visit(
      [](const auto* value) {
        using T = std::remove_cvref_t<decltype(*value)>;
        nlohmann::json json;
        if constexpr (std::is_enum_v<T>) {
          json = to_string(*value);
        } else {
          json = *value;
        }
        return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      },
      slot);
}

}  // namespace rlk
