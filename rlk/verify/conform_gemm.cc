// Conformance vectors of the products.
#include "rlk/verify/conform_vectors.h"

namespace rlk::conformance {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

struct Product {
  std::int64_t m, n, k;
  std::array<std::int64_t, 3> segments{0, 0, 0};  // not 0: a leaf tree
};

class GemmVectors {
 public:
  explicit GemmVectors(Trial& trial) : trial_(trial) {}

  // Both storage types, packed and not; type of c, bias and memory in turn.
  void add(const Product& p, Family family) {
    for (const DType storage : {kBF16, kF32}) {
      for (const bool packed : {false, true}) run(p, family, storage, packed);
    }
    ++i_;
  }

 private:
  void run(const Product& p, Family family, DType storage, bool packed) {
    const Lie lie = i_ % 2 ? Lie::kGaps : Lie::kDense;
    const bool bias = i_ % 3 == 0;
    const bool transpose = i_ % 5 == 2;
    const DType dtype = i_ % 4 < 2 ? kF32 : storage;
    Memory memory(static_cast<std::uint64_t>(1000 + i_));
    GemmArgs args;
    args.c = memory.unwritten(dtype, {p.m, p.n}, lie);
    args.a = memory.random(storage, {p.m, p.k}, family, lie);
    args.b = transpose ? transposed(memory.random(storage, {p.k, p.n}, family, lie))
                       : memory.random(storage, {p.n, p.k}, family, lie);
    if (bias) args.bias = memory.random(storage, {p.n}, Family::kNormal);
    args.leaf_tree = p.segments[0] > 0;
    args.segments = args.leaf_tree ? p.segments : std::array<std::int64_t, 3>{p.k, 0, 0};
    PackedWeight weight;
    trial_.run(fmt::format("m {} n {} k {} ({}), {}, {} to {}, {}{}{}{}", p.m, p.n, p.k,
                           args.leaf_tree ? fmt::format("leaf tree over {}, {}, {}", p.segments[0],
                                                        p.segments[1], p.segments[2])
                                          : "one chain",
                           to_string(family), to_string(storage), to_string(dtype),
                           lie == Lie::kGaps ? "gaps" : "dense", bias ? ", bias" : "",
                           transpose ? ", transposed b" : "", packed ? ", packed" : ""),
               &KernelTable::gemm, args, memory, trial_.contract(),
               [&](const KernelTable& table, Exec& exec, GemmArgs& a) {
                 weight = {};
                 if (!packed || !table.pack_weight) return;
                 table.pack_weight(exec, {&weight, a.b});
                 a.packed_b = &weight;
               });
  }

  Trial& trial_;
  std::int64_t i_ = 0;
};

// Samples that make the groups that end at `ends`: one a group, or several, one of them empty.
std::vector<std::int32_t> sample_lengths(std::int64_t tokens, std::vector<std::int64_t> ends,
                                         std::int64_t i) {
  if (ends.empty() || ends.back() != tokens) ends.push_back(tokens);
  std::vector<std::int32_t> lengths;
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    if (i % 3 != 0 && end - begin > 2) {
      const std::int64_t first = (end - begin) / 3;
      lengths.push_back(static_cast<std::int32_t>(first));
      lengths.push_back(0);
      begin += first;
    }
    lengths.push_back(static_cast<std::int32_t>(end - begin));
    begin = end;
  }
  return lengths;
}

}  // namespace

void gemm_vectors(Trial& trial) {
  GemmVectors vectors(trial);
  std::int64_t i = 0;
  for (const std::int64_t m : {1, 2, 7, 9, 16, 33}) {
    for (const std::int64_t n : {1, 17, 64}) {
      for (const std::int64_t k : {1, 16, 129}) vectors.add({m, n, k}, family_of(i++));
    }
  }
  for (int f = 0; f < 8; ++f) vectors.add({5, 35, 75}, family_of(f));
  for (int f = 0; f < 8; ++f) vectors.add({3, 20, 300, {300, 0, 0}}, family_of(f));
  // Sizes of 0, and around blocks of K, of rows and of columns.
  for (const Product& p : std::initializer_list<Product>{{0, 8, 16},
                                                         {4, 8, 0},
                                                         {15, 65, 15},
                                                         {8, 63, 17},
                                                         {65, 97, 31},
                                                         {1, 97, 127},
                                                         {1, 33, 128},
                                                         {6, 16, 511},
                                                         {12, 48, 513},
                                                         {2, 300, 40},
                                                         {150, 20, 24},
                                                         {1, 70, 1025},
                                                         {30, 530, 513}}) {  // a large weight
    vectors.add(p, Family::kMixed);
  }
  const std::int64_t leaves = trial.contract().leaves;
  for (const std::array<std::int64_t, 3>& s : {std::array<std::int64_t, 3>{1, 0, 0},
                                               {7, 0, 0},
                                               {leaves - 1, 0, 0},
                                               {leaves, 0, 0},
                                               {leaves + 1, 0, 0},
                                               {16 * leaves, 0, 0},
                                               {16 * leaves + 5, 0, 0},
                                               {64, 32, 32},
                                               {200, 17, 33},
                                               {96, 0, 96},
                                               {96, 96, 0},
                                               {1100, 0, 0},
                                               {2050, 0, 0}}) {
    if (s[0] < 1) continue;
    const std::int64_t k = s[0] + s[1] + s[2];
    for (const std::int64_t m : {1, 8, 13}) {
      vectors.add({m, k > 1000 ? 17 : 33, k, s}, family_of(i++));
    }
  }
}

void gemm_backward_weight_vectors(Trial& trial) {
  std::int64_t i = 0;
  const auto run = [&](std::int64_t tokens, const std::vector<std::int64_t>& ends, std::int64_t n,
                       std::int64_t k, Family family) {
    for (const DType storage : {kBF16, kF32}) {
      const Lie lie = i % 4 < 2 ? Lie::kGaps : Lie::kDense;
      Memory memory(static_cast<std::uint64_t>(++i));
      GemmBackwardWeightArgs args;
      args.dw = memory.random(kF32, {n, k}, family);
      args.chain = memory.random(kF32, {n, k}, family);
      args.dy = memory.random(storage, {tokens, n}, family, lie);
      args.x = memory.random(storage, {tokens, k}, family, lie);
      args.group_ends = memory.i64(ends);
      const std::vector<std::int32_t> samples = sample_lengths(tokens, ends, i);
      if (trial.contract().profile != Profile::kPortable) {
        args.cu_seqlens = memory.offsets(samples);
      }
      trial.run(fmt::format("{} tokens of {} samples, {} group ends, n {} k {}, {}, {}, {}", tokens,
                            samples.size(), ends.size(), n, k, to_string(family),
                            to_string(storage), lie == Lie::kGaps ? "gaps" : "dense"),
                &KernelTable::gemm_backward_weight, args, memory);
    }
  };
  for (const std::int64_t tokens : {0, 1, 2, 15, 16, 17, 63, 65, 129}) {
    std::vector<std::vector<std::int64_t>> groups = {{}};
    if (tokens > 0) groups.push_back({tokens});
    if (tokens > 2) groups.push_back({1, tokens / 2, tokens - 1});
    for (const std::vector<std::int64_t>& ends : groups) {
      run(tokens, ends, 17, 33, family_of(i));
      run(tokens, ends, 1, 64, family_of(i));
      run(tokens, ends, 67, 3, family_of(i));
    }
  }
  for (int f = 0; f < 8; ++f) run(40, {16, 32}, 35, 49, family_of(f));
  run(520, {300}, 20, 24, Family::kMixed);
  run(9, {4}, 130, 260, Family::kMixed);
}

}  // namespace rlk::conformance
