// Conformance vectors of linear_logp: sizes around the blocks of rows and columns that a backend
// may use, leaf boundaries, padded columns, groups, filters, ignored rows.
#include <fmt/format.h>

#include <algorithm>

#include "rlk/numerics/bf16.h"
#include "rlk/verify/conform_vectors.h"

namespace rlk::conformance {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

struct Size {
  std::int64_t rows, hidden_size, vocab_size, vocab_padded;
};
constexpr Size kSizes[] = {{1, 1, 1, 1},       {2, 16, 3, 128},    {7, 17, 128, 128},
                           {9, 64, 129, 256},  {33, 40, 300, 384}, {5, 257, 1000, 1024},
                           {6, 8, 1025, 1152}, {300, 12, 31, 128}, {5, 24, 2049, 2176},
                           {3, 9, 4100, 4224}, {0, 16, 33, 128}};

enum class Params { kOne, kPlain, kTemperatures, kFilters };

struct Case {
  Memory memory;
  LinearLogpBackwardArgs args;
  std::vector<SamplingParams> params;
  PackedWeight forward, backward;

  explicit Case(std::uint64_t seed) : memory(seed) {}
};

std::vector<SamplingParams> make_params(Params kind, std::int64_t rows, std::int64_t vocab_size) {
  if (kind == Params::kOne) return {SamplingParams{}};
  std::vector<SamplingParams> out(static_cast<std::size_t>(rows));
  const auto v = static_cast<std::int32_t>(vocab_size);
  const SamplingParams some[] = {{0.7f, 0, 1, 0},  {1, v / 2 + 1, 1, 0}, {1, 0, 0.999f, 0},
                                 {2, 0, 1, 1e-5f}, {0, 1, 0.1f, 0.5f},   {1, 0, 1, 0}};
  for (std::size_t t = 0; t < out.size(); ++t) {
    if (kind == Params::kTemperatures)
      out[t].temperature = 0.5f + 0.25f * static_cast<float>(t % 5);
    if (kind == Params::kFilters) out[t] = some[t % std::size(some)];
  }
  return out;
}

double element(const ConstTensorView& t, std::int64_t i, std::int64_t k) {
  return static_cast<double>(t.dtype == kF32 ? *t.at<float>(i, k)
                                             : numerics::to_f32(*t.at<bf16>(i, k)));
}

// Targets are the likeliest tokens of their rows, so that no filter removes them.
std::vector<std::int32_t> likeliest(const LinearLogpArgs& a) {
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < a.hidden.shape(0); ++t) {
    std::int32_t best = 0;
    double best_z = -1e300;
    for (std::int64_t j = 0; j < a.vocab_size; ++j) {
      double z = 0;
      for (std::int64_t k = 0; k < a.hidden.shape(1); ++k) {
        z += element(a.hidden, t, k) * element(a.head, j, k);
      }
      if (z > best_z) best_z = z, best = static_cast<std::int32_t>(j);
    }
    ids.push_back(t % 6 == 4 ? kIgnoreIndex : best);
  }
  return ids;
}

void fill(Case& c, const Size& s, DType storage, Family family, Params kind, std::int64_t i) {
  const Lie lie = i % 2 ? Lie::kGaps : Lie::kDense;
  LinearLogpArgs& a = c.args.forward;
  a.logp = c.memory.unwritten(kF32, {s.rows});
  if (i % 3 != 1) a.entropy = c.memory.unwritten(kF32, {s.rows});
  a.hidden = c.memory.random(storage, {s.rows, s.hidden_size}, family, lie);
  const TensorView head =
      c.memory.random(storage, {s.vocab_padded, s.hidden_size}, Family::kNormal, lie, 0.5);
  for (std::int64_t j = s.vocab_size; j < s.vocab_padded; ++j) {
    if (storage == kF32) {
      std::fill_n(head.at<float>(j), s.hidden_size, 0.0f);
    } else {
      std::fill_n(head.at<bf16>(j), s.hidden_size, bf16{});
    }
  }
  a.head = head;
  a.vocab_size = s.vocab_size;
  a.targets = c.memory.i32(likeliest(a));
  c.params = make_params(kind, s.rows, s.vocab_size);
  a.params = c.params.data();
  a.num_params = std::ssize(c.params);

  c.args.d_hidden = c.memory.unwritten(storage, {s.rows, s.hidden_size}, lie);
  c.args.dw = c.memory.random(kF32, {s.vocab_padded, s.hidden_size}, Family::kNormal, lie);
  c.args.chain = c.memory.random(kF32, {s.vocab_padded, s.hidden_size}, Family::kNormal, lie);
  c.args.group_ends = c.memory.i64(i % 4 == 0 ? std::vector<std::int64_t>{}
                                              : std::vector<std::int64_t>{s.rows / 3, s.rows});
  const auto rows = static_cast<std::int32_t>(s.rows);
  c.args.cu_seqlens = c.memory.offsets({rows / 4, 0, rows / 3, rows - rows / 4 - rows / 3});
  c.args.g = c.memory.random(kF32, {s.rows}, Family::kNormal);
  if (i % 3 == 0) c.args.g_entropy = c.memory.random(kF32, {s.rows}, Family::kNormal);
  for (std::int64_t t = 1; t < s.rows; t += 5) *const_cast<float*>(c.args.g.at<float>(t)) = 0;
}

// visit(name, case, packed)
template <typename Visit>
void for_each_case(const Visit& visit) {
  std::int64_t i = 0;
  const auto add = [&](const Size& s, DType storage, Family family, Params kind) {
    static constexpr const char* kNames[] = {"one params", "plain", "temperatures", "filters"};
    for (const bool packed : {false, true}) {
      Case c(static_cast<std::uint64_t>(6000 + i));
      fill(c, s, storage, family, kind, i);
      visit(fmt::format("[{}, {}] x {} of {}, {}, {}, {}{}", s.rows, s.hidden_size, s.vocab_size,
                        s.vocab_padded, to_string(storage), to_string(family),
                        kNames[static_cast<int>(kind)], packed ? ", packed" : ""),
            c, packed);
    }
    ++i;
  };
  for (const DType storage : {kBF16, kF32}) {
    for (const Size& s : kSizes) add(s, storage, Family::kNormal, static_cast<Params>(i % 4));
    for (int f = 0; f < 6; ++f) {
      add({20, 24, 200, 256}, storage, family_of(f), static_cast<Params>(f % 4));
    }
    add({40, 16, 77, 128}, storage, Family::kNormal, Params::kFilters);
  }
}

void pack(Case& c, const KernelTable& table, Exec& exec, LinearLogpArgs& a) {
  c.forward = {};
  c.backward = {};
  if (!table.pack_weight) return;
  table.pack_weight(exec, {&c.forward, rows(a.head, 0, a.vocab_size)});
  table.pack_weight(exec, {&c.backward, transposed(a.head)});
  a.packed_forward = &c.forward;
  a.packed_backward = &c.backward;
}

}  // namespace

void linear_logp_vectors(Trial& trial) {
  for_each_case([&](const std::string& name, Case& c, bool packed) {
    trial.run(name, &KernelTable::linear_logp, c.args.forward, c.memory, trial.contract(),
              [&](const KernelTable& table, Exec& exec, LinearLogpArgs& a) {
                if (packed) pack(c, table, exec, a);
              });
  });
  // A row that no logit survives.
  Case c(7000);
  fill(c, {6, 8, 40, 128}, kBF16, Family::kNormal, Params::kOne, 0);
  *const_cast<bf16*>(c.args.forward.hidden.at<bf16>(3, 2)) = bf16{0x7f80};
  trial.run("an infinite hidden state", &KernelTable::linear_logp, c.args.forward, c.memory);
}

void linear_logp_backward_vectors(Trial& trial) {
  for_each_case([&](const std::string& name, Case& c, bool packed) {
    // Every other time with what the table's own forward keeps.
    const std::int64_t num_rows = c.args.forward.hidden.shape(0);
    std::vector<std::int32_t> words(static_cast<std::size_t>(num_rows * kLogprobStateWords) + 1);
    trial.run(name, &KernelTable::linear_logp_backward, c.args, c.memory, trial.contract(),
              [&](const KernelTable& table, Exec& exec, LinearLogpBackwardArgs& a) {
                if (!packed) return;
                pack(c, table, exec, a.forward);
                a.forward.state = view(words.data(), {num_rows, kLogprobStateWords});
                std::vector<float> logp(words.size());
                LinearLogpArgs forward = a.forward;
                forward.logp = view(logp.data(), {num_rows});
                forward.entropy = {};
                table.linear_logp(exec, forward);
              });
  });
}

}  // namespace rlk::conformance
