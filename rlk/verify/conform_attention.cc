// Conformance vectors of attention.
#include <algorithm>
#include <cstring>

#include "rlk/verify/conform_vectors.h"

namespace rlk::conformance {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

struct Sequence {
  std::int32_t keys;
  std::int32_t queries;  // the last of the keys
};

struct Heads {
  std::int64_t heads, kv_heads, d;
};

struct Problem {
  std::vector<Sequence> sequences;
  Heads shape;
  std::int64_t page_size = 0;  // 0: packed
  double q_scale = 1;
  Family family = Family::kNormal;  // of values; keys and queries are normal
  bool lse = true;
  Lie lie = Lie::kDense;
  DType storage = kBF16;
};

// Pages of all sequences, shuffled. What lies in their unfilled slots is finite and large.
void scatter(Memory& memory, const Problem& p, AttentionArgs& args) {
  std::int64_t num_pages = 0;
  std::int64_t max_pages = 1;
  for (const Sequence& s : p.sequences) {
    const std::int64_t pages = (s.keys + p.page_size - 1) / p.page_size;
    num_pages += pages;
    max_pages = std::max(max_pages, pages);
  }
  std::vector<std::int32_t> order;
  for (std::int64_t i = 0; i < num_pages; ++i) order.push_back(static_cast<std::int32_t>(i));
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(memory.rng().below(static_cast<std::int64_t>(i)))]);
  }
  const auto num_seqs = std::ssize(p.sequences);
  std::vector<std::int32_t> table(static_cast<std::size_t>(num_seqs * max_pages), 0);
  std::size_t next = 0;
  for (std::int64_t s = 0; s < num_seqs; ++s) {
    const std::int64_t keys = p.sequences[static_cast<std::size_t>(s)].keys;
    for (std::int64_t i = 0; i * p.page_size < keys; ++i) {
      table[static_cast<std::size_t>(s * max_pages + i)] = order[next++];
    }
  }
  args.kv.block_table = memory.i32(table);
  args.kv.block_table.layout = Layout{num_seqs, max_pages};
  args.kv.page_size = p.page_size;
  const std::vector<std::int64_t> size = {std::max<std::int64_t>(num_pages, 1) * p.page_size,
                                          p.shape.kv_heads, p.shape.d};
  args.kv.k = memory.random(p.storage, size, Family::kNormal, p.lie);
  args.kv.v = memory.random(p.storage, size, p.family, p.lie);
}

void pack(Memory& memory, const Problem& p, AttentionArgs& args) {
  std::vector<std::int32_t> starts;
  std::int32_t rows = 0;
  for (const Sequence& s : p.sequences) {
    starts.push_back(rows);
    rows += s.keys;
  }
  args.kv.kv_start = memory.i32(starts);
  const std::vector<std::int64_t> size = {rows, p.shape.kv_heads, p.shape.d};
  args.kv.k = memory.random(p.storage, size, Family::kNormal, p.lie);
  args.kv.v = memory.random(p.storage, size, p.family, p.lie);
}

AttentionArgs make_args(Memory& memory, const Problem& p) {
  AttentionArgs args;
  std::vector<std::int32_t> queries, keys;
  std::int64_t tokens = 0;
  for (const Sequence& s : p.sequences) {
    queries.push_back(s.queries);
    keys.push_back(s.keys);
    tokens += s.queries;
  }
  p.page_size > 0 ? scatter(memory, p, args) : pack(memory, p, args);
  args.q = memory.random(p.storage, {tokens, p.shape.heads, p.shape.d}, Family::kNormal, p.lie,
                         p.q_scale);
  args.y = memory.unwritten(p.storage, {tokens, p.shape.heads, p.shape.d}, p.lie);
  if (p.lse) args.lse = memory.unwritten(kF32, {tokens, p.shape.heads});
  args.cu_seqlens_q = memory.offsets(queries);
  args.kv_lens = memory.i32(keys);
  return args;
}

std::string name_of(const Problem& p, const Contract& contract) {
  std::string text;
  for (const Sequence& s : p.sequences) {
    text += fmt::format("{}{} of {}", text.empty() ? "queries " : ", ", s.queries, s.keys);
  }
  return fmt::format(
      "{}; {} heads, {} of keys, d {}; {}; blocks of {}, splits of {}; q by {}, v {}, {}{}{}", text,
      p.shape.heads, p.shape.kv_heads, p.shape.d,
      p.page_size > 0 ? fmt::format("pages of {}", p.page_size) : "packed", contract.kv_block,
      contract.kv_split, p.q_scale, to_string(p.family), p.lie == Lie::kGaps ? "gaps" : "dense",
      p.lse ? ", lse" : "", p.storage == kF32 ? ", F32" : "");
}

class AttentionVectors {
 public:
  explicit AttentionVectors(Trial& trial) : trial_(trial) {}

  void add(const Contract& contract, Problem p) {
    p.lie = i_ % 2 ? Lie::kGaps : Lie::kDense;
    p.lse = i_ % 3 != 1;
    std::int32_t longest = 0;
    for (const Sequence& s : p.sequences) longest = std::max(longest, s.keys);
    for (const DType storage : {kBF16, kF32}) {
      if (storage == kF32 && longest > 300) continue;  // longer ones differ in no other code
      p.storage = storage;
      Memory memory(static_cast<std::uint64_t>(2000 + i_));
      const AttentionArgs args = make_args(memory, p);
      trial_.run(name_of(p, contract), &KernelTable::attention, args, memory, contract,
                 [](const KernelTable&, Exec&, AttentionArgs&) {});
    }
    ++i_;
  }

  std::int64_t count() const { return i_; }

 private:
  Trial& trial_;
  std::int64_t i_ = 0;
};

constexpr Heads kShapes[] = {{2, 1, 32},  {4, 2, 64}, {1, 1, 128}, {3, 3, 16}, {8, 1, 32},
                             {16, 1, 16}, {2, 2, 48}, {5, 1, 256}, {2, 1, 96}};
const Heads& shape_of(std::int64_t i) {
  return kShapes[static_cast<std::size_t>(i) % std::size(kShapes)];
}

// Lengths around the contract's block and split: one, or a few queries at the end.
void add_boundaries(AttentionVectors& vectors, const Contract& contract) {
  const std::int32_t block = contract.kv_block, split = contract.kv_split;
  for (const std::int32_t edge : {block, 2 * block, split, 2 * split, split + block}) {
    if (edge > 4096) continue;
    for (const std::int32_t keys : {edge - 1, edge, edge + 1}) {
      const std::int64_t i = vectors.count();
      const Heads shape = edge > 1000 ? Heads{2, 1, 32} : shape_of(i);
      const Family family = i % 2 ? Family::kCancelling : Family::kNormal;
      vectors.add(contract, {{{keys, 1}}, shape, i % 3 == 0 ? 0 : 16, 1, family});
      vectors.add(contract, {{{keys, std::min(keys, 3)}}, shape, i % 3 == 0 ? 16 : 0, 4, family});
    }
  }
}

}  // namespace

void attention_vectors(Trial& trial) {
  AttentionVectors vectors(trial);
  const Contract& contract = trial.contract();
  const Contract small = trial.short_blocks();
  // Whole sequences and chunks of them, together and alone, packed and paged.
  for (const std::int32_t n : {1, 2, 15, 16, 17, 31, 33, 63}) {
    const std::int64_t i = vectors.count();
    vectors.add(contract, {{{n, n}}, shape_of(i), 0, 1, Family::kNormal});
    vectors.add(small, {{{n, n}}, shape_of(i + 1), 8, 1, Family::kCancelling});
    vectors.add(small, {{{n, (n + 1) / 2}, {17, 1}}, shape_of(i + 2), 0, 4, Family::kWide});
  }
  for (const std::int32_t n : {127, 128, 129}) {
    vectors.add(contract, {{{n, n}}, {2, 1, 32}, 0, 1, Family::kCancelling});
    vectors.add(contract, {{{n, 40}}, {4, 2, 16}, 16, 1, Family::kCancelling});
    vectors.add(small, {{{n, n}}, {2, 1, 16}, 64, 1, Family::kCancelling});
  }
  for (const std::int64_t page : {1, 8, 16, 32, 64, 256}) {
    vectors.add(small, {{{1, 1}, {50, 1}, {33, 7}, {100, 1}}, {4, 2, 32}, page, 2, Family::kMixed});
  }
  for (const Heads& shape : kShapes) {
    vectors.add(small, {{{70, 20}, {5, 5}, {64, 1}}, shape, 16, 1, Family::kCancelling});
    vectors.add(small, {{{30, 30}, {49, 1}}, shape, 0, 1, Family::kCancelling});
  }
  for (int f = 0; f < 8; ++f) {
    vectors.add(small, {{{60, 9}, {40, 1}}, {2, 1, 64}, f % 2 ? 16 : 0, 1, family_of(f)});
  }
  // Sharp and flat distributions; at the last, scores that are refused.
  for (const double q_scale : {0.0, 0x1p-40, 0.01, 30.0, 1000.0, 1e5, 0x1p40}) {
    vectors.add(small, {{{60, 9}, {40, 1}}, {2, 1, 32}, 16, q_scale, Family::kCancelling});
  }
  vectors.add(small, {{{3, 5}, {8, 8}}, {2, 1, 32}, 0, 1, Family::kNormal});  // queries before keys
  vectors.add(small, {{{0, 0}, {8, 2}, {5, 0}}, {2, 1, 32}, 16, 1, Family::kNormal});
  add_boundaries(vectors, contract);
  add_boundaries(vectors, small);
}

namespace {

void run_backward(Trial& trial, const Contract& contract, const std::vector<std::int32_t>& lengths,
                  const Heads& shape, Family family, std::int64_t i, DType storage) {
  Problem p{{}, shape};
  p.storage = storage;
  for (const std::int32_t n : lengths) p.sequences.push_back({n, n});
  p.family = family;
  p.q_scale = i % 3 == 2 ? 5.0 : 1.0;
  p.lie = i % 2 ? Lie::kGaps : Lie::kDense;
  Memory memory(static_cast<std::uint64_t>(3000 + i));
  const AttentionArgs forward = make_args(memory, p);
  // The inputs of the backward pass are what the contract's forward pass gives.
  ThreadPool pool(1);
  Workspace workspace;
  Fault fault;
  Exec exec{pool, workspace, contract, fault};
  reference_kernels().attention(exec, forward);
  const std::int64_t tokens = forward.q.shape(0);
  AttentionBackwardArgs args;
  args.q = forward.q;
  args.k = forward.kv.k;
  args.v = forward.kv.v;
  args.y = forward.y;
  args.lse = forward.lse;
  args.dy = memory.random(p.storage, {tokens, shape.heads, shape.d}, family, p.lie);
  args.dq = memory.unwritten(p.storage, {tokens, shape.heads, shape.d}, p.lie);
  args.dk = memory.unwritten(p.storage, {tokens, shape.kv_heads, shape.d}, p.lie);
  args.dv = memory.unwritten(p.storage, {tokens, shape.kv_heads, shape.d}, p.lie);
  args.cu_seqlens = memory.offsets(lengths);
  trial.run(name_of(p, contract), &KernelTable::attention_backward, args, memory, contract,
            [](const KernelTable&, Exec&, AttentionBackwardArgs&) {});
}

void run_backward(Trial& trial, const Contract& contract, const std::vector<std::int32_t>& lengths,
                  const Heads& shape, Family family, std::int64_t i) {
  run_backward(trial, contract, lengths, shape, family, i, kBF16);
  run_backward(trial, contract, lengths, shape, family, i, kF32);
}

}  // namespace

void attention_backward_vectors(Trial& trial) {
  const Contract& contract = trial.contract();
  const Contract small = trial.short_blocks();
  std::int64_t i = 0;
  for (const std::int32_t n : {1, 2, 15, 16, 17, 31, 33}) {
    run_backward(trial, contract, {n}, {4, 2, 32}, family_of(i), i);
    ++i;
    run_backward(trial, small, {n, 3}, shape_of(i), family_of(i), i);
    ++i;
  }
  for (const std::int32_t n : {127, 128, 129}) {
    run_backward(trial, contract, {n}, {2, 1, 16}, Family::kCancelling, i);
    ++i;
  }
  run_backward(trial, contract, {70, 1, 60}, {2, 2, 16}, Family::kNormal, i++);
  for (const Heads& shape : kShapes) {
    run_backward(trial, small, {20, 1, 17}, shape, Family::kCancelling, i++);
  }
  for (int f = 0; f < 8; ++f) {
    run_backward(trial, small, {9, 26}, {4, 1, 32}, family_of(f), i++);
  }
  run_backward(trial, small, {0, 5}, {2, 1, 32}, Family::kNormal, i++);
}

}  // namespace rlk::conformance
