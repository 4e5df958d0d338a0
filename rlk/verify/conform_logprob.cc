// Conformance vectors of log-probabilities and sampling.
#include <algorithm>
#include <limits>

#include "rlk/verify/conform_vectors.h"

namespace rlk::conformance {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Temperatures and filters, alone and together.
std::vector<SamplingParams> all_params(std::int64_t vocab_size) {
  const auto v = static_cast<std::int32_t>(vocab_size);
  return {{},
          {0.7f, 0, 1, 0},
          {0, 0, 1, 0},
          {2.5f, 0, 1, 0},
          {0.01f, 0, 1, 0},
          {100.0f, 0, 1, 0},
          {1, 1, 1, 0},
          {1, 3, 1, 0},
          {1, v, 1, 0},
          {1, v + 1, 1, 0},
          {1, 0, 0.9f, 0},
          {1, 0, 0.1f, 0},
          {1, 0, 1e-6f, 0},
          {1, 0, 0.999999f, 0},
          {1, 0, 1, 0.1f},
          {1, 0, 1, 1.0f},
          {1, 0, 1, 1e-6f},
          {0.8f, 5, 0.95f, 0.02f},
          {0, 2, 0.5f, 0.5f}};
}

struct Row {
  const char* name;
  std::vector<float> head;  // in place of the first logits
};

// Ends of the range, masks, ties: rows in which the plain sum would be lost. Where `head` is
// shorter than the row, the rest is random.
const std::vector<Row>& special_rows() {
  static const std::vector<Row> kRows = {
      {"masked", {1.5f, -0x1p31f, -kInfinity, 2.0f, -0x1p31f}},
      {"barely no mask", {-0x1p29f, -0x1p29f, -0x1p30f, -0x1p28f}},
      {"largest", {0x1p29f, 0x1p28f, 0x1p29f, -0x1p29f}},
      {"ties", {3.0f, 3.0f, 3.0f, 3.0f, -1.0f, 3.0f}},
      {"one dominates", {200.0f, 1.0f, -3.0f}},
      {"large arguments", {4096.0f, 4095.9f, 4097.5f, -4096.0f}},
      {"zeros", {0.0f, -0.0f, 0.0f, -0.0f}},
      {"neighbours", {0x1.000002p3f, 0x1.000004p3f, 0x1.000006p3f, 0x1p3f}}};
  return kRows;
}

// logits [rows, vocab_size], some special, and for each row the largest one's index.
struct Logits {
  TensorView logits;
  std::vector<std::int32_t> largest;
};

Logits make_logits(Memory& memory, std::int64_t rows, std::int64_t vocab_size, Family family,
                   std::int64_t first_special) {
  Logits out;
  const double scale = family == Family::kHuge ? 0x1p-8 : 3.0;
  out.logits = memory.random(kF32, {rows, vocab_size}, family, Lie::kGaps, scale);
  for (std::int64_t t = 0; t < rows; ++t) {
    float* row = out.logits.at<float>(t);
    if (t % 2 == 1) {
      const Row& special =
          special_rows()[static_cast<std::size_t>(t / 2 + first_special) % special_rows().size()];
      for (std::int64_t j = 0; j < vocab_size && j < std::ssize(special.head); ++j) {
        row[j] = special.head[static_cast<std::size_t>(j)];
      }
    }
    out.largest.push_back(static_cast<std::int32_t>(std::max_element(row, row + vocab_size) - row));
  }
  return out;
}

// Calls visit(name, memory, logits, params) where params is one per row.
template <typename Visit>
void for_each_batch(const Visit& visit) {
  std::int64_t i = 0;
  const auto add = [&](std::int64_t vocab_size, Family family) {
    Memory memory(static_cast<std::uint64_t>(4000 + i));
    const std::vector<SamplingParams> params = all_params(vocab_size);
    const Logits logits = make_logits(memory, std::ssize(params), vocab_size, family, i);
    ++i;
    visit(fmt::format("vocabulary {}, {}", vocab_size, to_string(family)), memory, logits, params);
  };
  for (const std::int64_t v : {1, 2, 3, 15, 16, 17, 31, 64, 127, 128, 129, 1000}) {
    add(v, Family::kNormal);
  }
  for (int f = 0; f < 8; ++f) add(67, family_of(f));
  for (int f = 0; f < 3; ++f) add(259, Family::kNormal);
  add(4099, Family::kNormal);
}

// Rows and targets that are refused, each behind a good row.
struct Bad {
  const char* name;
  std::vector<float> logits;
  std::int32_t target;
  SamplingParams params;
};

std::vector<Bad> bad_rows() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  return {{"NaN", {1, nan, 2, 0}, 0, {}},
          {"+inf", {1, kInfinity, 2, 0}, 0, {}},
          {"above 2^30", {1, 0x1.000002p30f, 2, 0}, 0, {}},
          {"above 2^30 by the temperature", {1, 0x1p29f, 2, 0}, 0, {0.25f, 0, 1, 0}},
          {"all masked", {-0x1p31f, -kInfinity, -0x1p31f, -0x1p31f}, 0, {}},
          {"a masked target", {1, -0x1p31f, 2, 0}, 1, {}},
          {"a target behind the vocabulary", {1, 2, 3, 0}, 4, {}},
          {"a negative target", {1, 2, 3, 0}, -1, {}},
          {"a target that top-k removed", {1, 2, 3, 0}, 0, {1, 2, 1, 0}},
          {"a target that top-p removed", {1, 2, 9, 0}, 0, {1, 0, 0.5f, 0}},
          {"a target that min-p removed", {1, 2, 9, 0}, 0, {1, 0, 1, 0.5f}}};
}

}  // namespace

void logprob_vectors(Trial& trial) {
  std::int64_t i = 0;
  for_each_batch([&](const std::string& name, Memory& memory, const Logits& logits,
                     const std::vector<SamplingParams>& params) {
    const std::int64_t rows = std::ssize(params);
    std::vector<std::int32_t> targets = logits.largest;
    for (std::size_t t = 4; t < targets.size(); t += 5) targets[t] = kIgnoreIndex;
    LogprobArgs args;
    args.logp = memory.unwritten(kF32, {rows});
    if (i++ % 3 != 1) args.entropy = memory.unwritten(kF32, {rows});
    args.logits = logits.logits;
    args.targets = memory.i32(targets);
    args.params = params.data();
    args.num_params = rows;
    trial.run(name, &KernelTable::logprob, args, memory);
    args.num_params = 1;
    trial.run(name + ", temperature 1", &KernelTable::logprob, args, memory);
    args.params = &params[3];
    trial.run(name + ", temperature 2.5", &KernelTable::logprob, args, memory);
  });
  const SamplingParams plain;
  for (const Bad& bad : bad_rows()) {
    Memory memory(1);
    LogprobArgs args;
    args.logp = memory.unwritten(kF32, {2});
    args.logits = memory.random(kF32, {2, 4}, Family::kNormal);
    std::copy(bad.logits.begin(), bad.logits.end(), const_cast<float*>(args.logits.at<float>(1)));
    args.targets = memory.i32({0, bad.target});
    const SamplingParams params[] = {plain, bad.params};
    args.params = params;
    args.num_params = 2;
    trial.run(bad.name, &KernelTable::logprob, args, memory);
    args.targets = memory.i32({0, kIgnoreIndex});
    trial.run(std::string(bad.name) + ", ignored", &KernelTable::logprob, args, memory);
  }
  Memory memory(2);
  LogprobArgs empty;
  empty.logp = memory.unwritten(kF32, {0});
  empty.logits = memory.unwritten(kF32, {0, 9});
  empty.targets = memory.i32({});
  empty.params = &plain;
  trial.run("no rows", &KernelTable::logprob, empty, memory);
}

void logprob_backward_vectors(Trial& trial) {
  std::int64_t i = 0;
  for_each_batch([&](const std::string& name, Memory& memory, const Logits& logits,
                     const std::vector<SamplingParams>& params) {
    const std::int64_t rows = std::ssize(params);
    std::vector<std::int32_t> targets = logits.largest;
    for (std::size_t t = 4; t < targets.size(); t += 5) targets[t] = kIgnoreIndex;
    const std::int64_t padded = (logits.logits.shape(1) + 15) / 16 * 16 + (i % 2) * 16;
    LogprobBackwardArgs args;
    args.dlogits = memory.unwritten(i % 4 == 1 ? kF32 : kBF16, {rows, padded},
                                    i % 2 ? Lie::kGaps : Lie::kDense);
    args.logits = logits.logits;
    args.targets = memory.i32(targets);
    args.g = memory.random(kF32, {rows}, i % 4 == 3 ? Family::kWide : Family::kNormal);
    const bool entropy = i++ % 3 != 1;
    if (entropy) args.g_entropy = memory.random(kF32, {rows}, Family::kNormal);
    for (std::int64_t t = 2; t < rows; t += 7) {
      *const_cast<float*>(args.g.at<float>(t)) = 0;
      if (entropy && t % 2) *const_cast<float*>(args.g_entropy.at<float>(t)) = 0;
    }
    args.params = params.data();
    args.num_params = rows;
    trial.run(name + (entropy ? ", entropy" : ""), &KernelTable::logprob_backward, args, memory);
    // With what the table's own forward keeps.
    std::vector<std::int32_t> words(static_cast<std::size_t>(rows * kLogprobStateWords));
    std::vector<float> logp(static_cast<std::size_t>(rows)), h = logp;
    trial.run(name + ", state", &KernelTable::logprob_backward, args, memory, trial.contract(),
              [&](const KernelTable& table, Exec& exec, LogprobBackwardArgs& a) {
                LogprobArgs forward;
                forward.logp = view(logp.data(), {rows});
                if (i % 2) forward.entropy = view(h.data(), {rows});
                forward.logits = a.logits;
                forward.targets = a.targets;
                forward.params = a.params;
                forward.num_params = a.num_params;
                forward.state = view(words.data(), {rows, kLogprobStateWords});
                table.logprob(exec, forward);
                a.state = forward.state;
              });
    args.num_params = 1;
    trial.run(name + ", temperature 1", &KernelTable::logprob_backward, args, memory);
  });
  const SamplingParams plain;
  for (const Bad& bad : bad_rows()) {
    Memory memory(1);
    LogprobBackwardArgs args;
    args.dlogits = memory.unwritten(kBF16, {2, 16});
    args.logits = memory.random(kF32, {2, 4}, Family::kNormal);
    std::copy(bad.logits.begin(), bad.logits.end(), const_cast<float*>(args.logits.at<float>(1)));
    args.targets = memory.i32({0, bad.target});
    args.g = memory.f32({1, 1});
    const SamplingParams params[] = {plain, bad.params};
    args.params = params;
    args.num_params = 2;
    trial.run(bad.name, &KernelTable::logprob_backward, args, memory);
    args.g = memory.f32({1, 0});
    trial.run(std::string(bad.name) + ", no gradient", &KernelTable::logprob_backward, args,
              memory);
  }
}

void log_softmax_vectors(Trial& trial) {
  for_each_batch([&](const std::string& name, Memory& memory, const Logits& logits,
                     const std::vector<SamplingParams>& params) {
    const std::int64_t rows = std::ssize(params), vocab_size = logits.logits.shape(1);
    LogSoftmaxArgs args;
    args.y = memory.unwritten(kF32, {rows, vocab_size}, Lie::kGaps);
    args.logits = logits.logits;
    args.params = params.data();
    args.num_params = rows;
    trial.run(name, &KernelTable::log_softmax, args, memory);
    args.num_params = 1;
    trial.run(name + ", temperature 1", &KernelTable::log_softmax, args, memory);
    args.y = logits.logits;
    trial.run(name + ", in place", &KernelTable::log_softmax, args, memory);
  });
  for (const Bad& bad : bad_rows()) {
    Memory memory(1);
    LogSoftmaxArgs args;
    args.y = memory.unwritten(kF32, {2, 4});
    args.logits = memory.random(kF32, {2, 4}, Family::kNormal);
    std::copy(bad.logits.begin(), bad.logits.end(), const_cast<float*>(args.logits.at<float>(1)));
    const SamplingParams params[] = {{}, bad.params};
    args.params = params;
    args.num_params = 2;
    trial.run(bad.name, &KernelTable::log_softmax, args, memory);
  }
}

void log_softmax_backward_vectors(Trial& trial) {
  std::int64_t i = 0;
  for_each_batch([&](const std::string& name, Memory& memory, const Logits& logits,
                     const std::vector<SamplingParams>& params) {
    const std::int64_t rows = std::ssize(params), vocab_size = logits.logits.shape(1);
    const Family families[] = {Family::kNormal, Family::kCancelling, Family::kWide};
    LogSoftmaxBackwardArgs args;
    args.dlogits = memory.unwritten(i % 2 ? kF32 : kBF16, {rows, vocab_size + i % 5},
                                    i % 3 ? Lie::kGaps : Lie::kDense);
    args.logits = logits.logits;
    args.dy = memory.random(kF32, {rows, vocab_size}, families[i % 3], Lie::kGaps);
    ++i;
    args.params = params.data();
    args.num_params = rows;
    trial.run(name, &KernelTable::log_softmax_backward, args, memory);
    args.num_params = 1;
    trial.run(name + ", temperature 1", &KernelTable::log_softmax_backward, args, memory);
  });
  for (const float dy : {kInfinity, std::numeric_limits<float>::quiet_NaN(), 0x1p127f}) {
    Memory memory(1);
    LogSoftmaxBackwardArgs args;
    const SamplingParams plain;
    args.dlogits = memory.unwritten(kBF16, {2, 4});
    args.logits = memory.f32({1, 2, 3, 4, 1, 2, 3, -0x1p31f});
    args.logits.layout = Layout{2, 4};
    args.dy = memory.f32({1, 2, 3, 4, 0x1p127f, 2, dy, kInfinity});
    args.dy.layout = Layout{2, 4};
    args.params = &plain;
    trial.run(fmt::format("dy {}", dy), &KernelTable::log_softmax_backward, args, memory);
  }
}

void sample_vectors(Trial& trial) {
  std::uint64_t seed = 0;
  for_each_batch([&](const std::string& name, Memory& memory, const Logits& logits,
                     const std::vector<SamplingParams>& params) {
    const std::int64_t rows = std::ssize(params);
    std::vector<SampleKey> keys;
    for (std::int64_t t = 0; t < rows; ++t) {
      keys.push_back({++seed, seed << 40, static_cast<std::uint32_t>(t * 1000)});
    }
    SampleArgs args;
    args.token_ids = memory.unwritten(DType::kI32, {rows});
    args.logits = logits.logits;
    args.params = params.data();
    args.keys = keys.data();
    trial.run(name, &KernelTable::sample, args, memory);
  });
  const SampleKey keys[2] = {{1, 2, 3}, {4, 5, 6}};
  for (const Bad& bad : bad_rows()) {
    Memory memory(1);
    SampleArgs args;
    args.token_ids = memory.unwritten(DType::kI32, {2});
    args.logits = memory.random(kF32, {2, 4}, Family::kNormal);
    std::copy(bad.logits.begin(), bad.logits.end(), const_cast<float*>(args.logits.at<float>(1)));
    const SamplingParams params[] = {{}, bad.params};
    args.params = params;
    args.keys = keys;
    trial.run(bad.name, &KernelTable::sample, args, memory);
  }
}

}  // namespace rlk::conformance
