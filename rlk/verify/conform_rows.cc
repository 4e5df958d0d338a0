// Conformance vectors of the operators that work row by row.
#include <cmath>
#include <limits>

#include "rlk/numerics/bf16.h"
#include "rlk/verify/conform_vectors.h"

namespace rlk::conformance {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

// Numbers of tokens: none, one, and a few that no vector width divides.
constexpr std::int64_t kTokens[] = {0, 1, 5};
// Row sizes around every vector width and lane count.
constexpr std::int64_t kSizes[] = {1, 2, 15, 16, 17, 31, 33, 64, 127, 128, 129, 300};

// How the tensors of one vector are stored, and the type that stands for the contract's BF16.
struct Form {
  Lie lie;
  DType dtype;
};
// Counts through the forms;
Form form_of(std::int64_t i) {
  return {i % 3 == 0 ? Lie::kDense : i % 3 == 1 ? Lie::kGaps : Lie::kSpread, i % 2 ? kF32 : kBF16};
}
std::string to_string(const Form& form) {
  const char* lie = form.lie == Lie::kDense ? "dense" : form.lie == Lie::kGaps ? "gaps" : "spread";
  return fmt::format("{}, {}", lie, rlk::to_string(form.dtype));
}

// Calls visit(name, tokens, size, family, form, memory) for all sizes, families in turn; and for
// one size with all families.
template <typename Visit>
void for_each_matrix(const Visit& visit) {
  std::int64_t i = 0;
  const auto add = [&](std::int64_t tokens, std::int64_t n, Family family) {
    for (const Form form : {form_of(i), form_of(i + 1)}) {
      Memory memory(static_cast<std::uint64_t>(i + 1));
      visit(fmt::format("{} tokens of {}, {}, {}", tokens, n, to_string(family), to_string(form)),
            tokens, n, family, form, memory);
    }
    ++i;
  };
  for (const std::int64_t n : kSizes) {
    for (const std::int64_t tokens : kTokens) add(tokens, n, family_of(i));
  }
  for (int f = 0; f < 8; ++f) add(7, 67, family_of(f));
}

// As above, with heads and the sizes around the contract's lanes.
template <typename Visit>
void for_each_norm(const Contract& contract, const Visit& visit) {
  std::int64_t i = 0;
  const auto add = [&](std::int64_t tokens, std::int64_t heads, std::int64_t n, Family family) {
    for (const Form form : {form_of(i), form_of(i + 1)}) {
      Memory memory(static_cast<std::uint64_t>(i + 1));
      visit(fmt::format("{} tokens, {} heads of {}, {}, {}", tokens, heads, n, to_string(family),
                        to_string(form)),
            std::vector<std::int64_t>{tokens, heads, n}, family, form, memory);
    }
    ++i;
  };
  const std::int64_t lanes = contract.norm_lanes;
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{2}, std::int64_t{15}, std::int64_t{16},
                               std::int64_t{17}, std::int64_t{64}, std::int64_t{128}, lanes - 1,
                               lanes, lanes + 1, 2 * lanes - 1, 2 * lanes + 1, 4 * lanes + 3}) {
    if (n < 1) continue;
    for (const std::int64_t heads : {1, 3}) add(i % 3 == 0 ? 4 : 1, heads, n, family_of(i));
  }
  for (int f = 0; f < 8; ++f) add(6, 1, 3 * lanes + 7, family_of(f));
  add(0, 1, 64, Family::kNormal);
  add(0, 2, 64, Family::kNormal);
}

// f32 like a norm's 1 / sqrt(..): positive, of any size.
TensorView inverse_norms(Memory& memory, std::int64_t tokens, std::int64_t heads) {
  const TensorView q = memory.random(kF32, {tokens, heads}, Family::kWide);
  for (std::int64_t i = 0; i < tokens * heads; ++i) {
    float& x = q.at<float>()[i];
    x = std::fabs(x) + 0x1p-30f;
  }
  return q;
}

}  // namespace

void embedding_vectors(Trial& trial) {
  for_each_matrix([&](const std::string& name, std::int64_t tokens, std::int64_t n, Family family,
                      Form form, Memory& memory) {
    std::vector<std::int32_t> ids = {2, 0, 3, 3, 1, 0, 2};
    ids.resize(static_cast<std::size_t>(tokens));
    EmbeddingArgs args;
    args.y = memory.unwritten(form.dtype, {tokens, n}, form.lie);
    args.table = memory.random(form.dtype, {4, n}, family, form.lie);
    args.ids = memory.i32(ids);
    trial.run(name, &KernelTable::embedding, args, memory);
  });
  for (const std::int32_t id : {-1, 4, std::numeric_limits<std::int32_t>::max()}) {
    Memory memory(1);
    EmbeddingArgs args;
    args.y = memory.unwritten(kBF16, {3, 20});
    args.table = memory.random(kBF16, {4, 20}, Family::kNormal);
    args.ids = memory.i32({0, id, id});
    trial.run(fmt::format("id {}", id), &KernelTable::embedding, args, memory);
  }
}

void embedding_backward_vectors(Trial& trial) {
  for_each_matrix([&](const std::string& name, std::int64_t tokens, std::int64_t n, Family family,
                      Form form, Memory& memory) {
    // Rows that occur many times, once and never.
    const std::int64_t many = tokens * 5;
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < many; ++t) ids.push_back(t % 3 == 0 ? 4 : t % 11 == 1 ? 2 : 0);
    EmbeddingBackwardArgs args;
    args.dtable = memory.random(kF32, {5, n}, family, form.lie);
    args.dy = memory.random(form.dtype, {many, n}, family, form.lie);
    args.ids = memory.i32(ids);
    trial.run(name, &KernelTable::embedding_backward, args, memory);
  });
}

void copy_rows_vectors(Trial& trial) {
  std::int64_t i = 0;
  for_each_matrix([&](const std::string& name, std::int64_t tokens, std::int64_t n, Family family,
                      Form form, Memory& memory) {
    // Rows from anywhere, to every other row; or one of the two as they stand.
    std::vector<std::int64_t> from, to;
    for (std::int64_t t = 0; t < tokens; ++t) {
      from.push_back(t % 4 == 3 ? -1 : (t * 7 + 2) % tokens);
      to.push_back(2 * t + t % 2);
    }
    CopyRowsArgs args;
    args.y = memory.random(form.dtype, {2 * tokens + 1, n}, family, form.lie);
    args.x = memory.random(form.dtype, {tokens, n}, family, form.lie);
    if (i % 3 != 1) args.from = memory.i64(from);
    if (i % 3 != 2) args.to = memory.i64(to);
    args.bounded = ++i % 2 == 0;
    trial.run(name, &KernelTable::copy_rows, args, memory);
  });
  for (const float large : {0x1p56f, -0x1p70f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    Memory memory(1);
    const TensorView x = memory.random(kF32, {5, 19}, Family::kNormal);
    *x.at<float>(3, 17) = large;
    CopyRowsArgs args;
    args.x = x;
    args.from = memory.i64({1, 0, 3, 2, 3});
    args.bounded = true;
    trial.run(fmt::format("a value of {}", large), &KernelTable::copy_rows, args, memory);
  }
}

void residual_add_vectors(Trial& trial) {
  for (const char* alias : {"", ", y is a", ", y is b"}) {
    for_each_matrix([&](const std::string& name, std::int64_t tokens, std::int64_t n, Family family,
                        Form form, Memory& memory) {
      ResidualAddArgs args;
      const TensorView a = memory.random(form.dtype, {tokens, n}, family, form.lie);
      const TensorView b = memory.random(form.dtype, {tokens, n}, family, form.lie);
      args.a = a;
      args.b = b;
      args.y = *alias == 0       ? memory.unwritten(form.dtype, {tokens, n}, form.lie)
               : alias[7] == 'a' ? a
                                 : b;
      trial.run(name + alias, &KernelTable::residual_add, args, memory);
    });
  }
}

void rms_norm_vectors(Trial& trial) {
  std::int64_t i = 0;
  for_each_norm(trial.contract(), [&](const std::string& name, std::vector<std::int64_t> sizes,
                                      Family family, Form form, Memory& memory) {
    RmsNormArgs args;
    const TensorView x = memory.random(form.dtype, sizes, family, form.lie);
    args.x = x;
    args.w = memory.random(form.dtype, {sizes[2]}, i % 3 ? Family::kNormal : Family::kWide);
    const bool alias = i % 5 == 3;
    args.y = alias ? x : memory.unwritten(form.dtype, sizes, form.lie);
    if (i % 3 != 1) args.q = memory.unwritten(kF32, {sizes[0], sizes[1]});
    args.eps = i % 2 ? 1e-6f : 1e-5f;
    const bool residual = i % 7 < 2;
    if (residual) {
      const TensorView r = memory.random(form.dtype, sizes, family, form.lie);
      args.residual = r;
      args.residual_out = i % 2 ? r : memory.unwritten(form.dtype, sizes, form.lie);
    }
    ++i;
    trial.run(name + (alias ? ", y is x" : "") + (residual ? ", with residual" : ""),
              &KernelTable::rms_norm, args, memory);
  });
  for (const std::int64_t n : {17, 256, 600}) {
    Memory memory(static_cast<std::uint64_t>(n));
    RmsNormArgs args;
    args.x = memory.random(kBF16, {5, 2, n}, Family::kNormal);
    // Squares that are just too large, in the middle of a batch.
    *const_cast<bf16*>(args.x.at<bf16>(2, 1, n / 2)) = numerics::to_bf16(0x1p64f);
    args.w = memory.random(kBF16, {n}, Family::kNormal);
    args.y = memory.unwritten(kBF16, {5, 2, n});
    args.eps = 1e-6f;
    trial.run(fmt::format("a row of {} that overflows", n), &KernelTable::rms_norm, args, memory);
  }
}

void rms_norm_backward_vectors(Trial& trial) {
  std::int64_t i = 0;
  for_each_norm(trial.contract(), [&](const std::string& name, std::vector<std::int64_t> sizes,
                                      Family family, Form form, Memory& memory) {
    RmsNormBackwardArgs args;
    args.x = memory.random(form.dtype, sizes, family, form.lie);
    const TensorView dy = memory.random(form.dtype, sizes, family, form.lie);
    args.dy = dy;
    args.w = memory.random(form.dtype, {sizes[2]}, Family::kNormal);
    // Rows of huge numbers have small 1 / sqrt(..): keeps the cube of q in range.
    args.q = inverse_norms(memory, sizes[0], sizes[1]);
    const bool alias = i++ % 5 == 3;
    args.dx = alias ? dy : memory.unwritten(form.dtype, sizes, form.lie);
    trial.run(name + (alias ? ", dx is dy" : ""), &KernelTable::rms_norm_backward, args, memory);
  });
}

namespace {

// Lengths of samples around the blocks of a token sum.
std::vector<std::vector<std::int32_t>> token_lengths(int token_block) {
  const std::int32_t b = std::min(token_block, 256);
  return {{0}, {1}, {b - 1}, {b}, {b + 1}, {1, b, 0, b + 1, 3}, {2 * b - 1, 1}, {2 * b + 1, b}};
}

std::int64_t sum(const std::vector<std::int32_t>& lengths) {
  std::int64_t total = 0;
  for (const std::int32_t n : lengths) total += n;
  return total;
}

}  // namespace

void rms_norm_backward_weight_vectors(Trial& trial) {
  std::int64_t i = 0;
  for (const Contract& contract : {trial.contract(), trial.short_blocks()}) {
    for (const std::vector<std::int32_t>& lengths : token_lengths(contract.token_block)) {
      for (const std::int64_t heads : {1, 3}) {
        const std::int64_t n = i % 3 == 0 ? 17 : i % 3 == 1 ? 1 : 64;
        const Family family = family_of(i);
        const Form form = form_of(i);
        Memory memory(static_cast<std::uint64_t>(++i));
        const std::int64_t tokens = sum(lengths);
        RmsNormBackwardWeightArgs args;
        args.dw = memory.random(kF32, {heads, n}, family);
        args.dy = memory.random(form.dtype, {tokens, heads, n}, family, form.lie);
        args.x = memory.random(form.dtype, {tokens, heads, n}, family, form.lie);
        args.q = inverse_norms(memory, tokens, heads);
        args.cu_seqlens = memory.offsets(lengths);
        trial.run(fmt::format("{} samples, {} tokens, {} heads of {}, blocks of {}, {}, {}",
                              lengths.size(), tokens, heads, n, contract.token_block,
                              to_string(family), to_string(form)),
                  &KernelTable::rms_norm_backward_weight, args, memory, contract,
                  [](const KernelTable&, Exec&, RmsNormBackwardWeightArgs&) {});
      }
    }
  }
}

void bias_backward_vectors(Trial& trial) {
  std::int64_t i = 0;
  for (const Contract& contract : {trial.contract(), trial.short_blocks()}) {
    for (const std::vector<std::int32_t>& lengths : token_lengths(contract.token_block)) {
      for (const std::int64_t n : {1, 17, 67}) {
        const Family family = family_of(i);
        const Form form = form_of(i);
        Memory memory(static_cast<std::uint64_t>(++i));
        BiasBackwardArgs args;
        args.dbias = memory.random(kF32, {n}, family);
        args.dy = memory.random(form.dtype, {sum(lengths), n}, family, form.lie);
        args.cu_seqlens = memory.offsets(lengths);
        trial.run(
            fmt::format("{} samples, {} tokens of {}, blocks of {}, {}, {}", lengths.size(),
                        sum(lengths), n, contract.token_block, to_string(family), to_string(form)),
            &KernelTable::bias_backward, args, memory, contract,
            [](const KernelTable&, Exec&, BiasBackwardArgs&) {});
      }
    }
  }
}

void merge_heads_vectors(Trial& trial) {
  std::int64_t i = 0;
  for (const std::int64_t heads : {1, 2, 3, 7, 8, 9, 16, 17}) {
    for (const std::int64_t n : {1, 16, 67}) {
      const Family family = family_of(i);
      Memory memory(static_cast<std::uint64_t>(++i));
      MergeHeadsArgs args;
      args.dw = memory.unwritten(kF32, {n});
      args.partial = memory.random(kF32, {heads, n}, family);
      trial.run(fmt::format("{} heads of {}, {}", heads, n, to_string(family)),
                &KernelTable::merge_heads, args, memory);
    }
  }
}

namespace {

void rope_both(Trial& trial, void (*KernelTable::*field)(Exec&, const RopeArgs&)) {
  std::int64_t i = 0;
  const auto run = [&](std::int64_t tokens, std::int64_t heads, std::int64_t d, Family family,
                       double scale) {
    const Form form = form_of(i);
    const bool alias = i % 5 == 2;
    Memory memory(static_cast<std::uint64_t>(++i));
    RopeArgs args;
    const TensorView x = memory.random(form.dtype, {tokens, heads, d}, family, form.lie, scale);
    args.x = x;
    args.y = alias ? x : memory.unwritten(form.dtype, {tokens, heads, d}, form.lie);
    args.cos = memory.random(kF32, {11, d / 2}, Family::kNormal, Lie::kDense, 0.28);
    args.sin = memory.random(kF32, {11, d / 2}, Family::kNormal, Lie::kDense, 0.28);
    std::vector<std::int32_t> positions;
    for (std::int64_t t = 0; t < tokens; ++t) {
      positions.push_back(static_cast<std::int32_t>(memory.rng().below(11)));
    }
    args.positions = memory.i32(positions);
    trial.run(fmt::format("{} tokens, {} heads of {}, {} by {}, {}{}", tokens, heads, d,
                          to_string(family), scale, to_string(form), alias ? ", y is x" : ""),
              field, args, memory);
  };
  for (const std::int64_t d : {2, 6, 16, 30, 32, 34, 64, 128, 256}) {
    for (const std::int64_t heads : {1, 3}) {
      for (const std::int64_t tokens : kTokens) run(tokens, heads, d, family_of(i), 1);
    }
  }
  for (int f = 0; f < 8; ++f) run(6, 2, 64, family_of(f), 1);
  for (const double scale : {0x1p54, 0x1p58, 0x1p120}) run(6, 2, 64, Family::kNormal, scale);
}

}  // namespace

void rope_vectors(Trial& trial) { rope_both(trial, &KernelTable::rope); }
void rope_backward_vectors(Trial& trial) { rope_both(trial, &KernelTable::rope_backward); }

namespace {

// Gates at which exp changes its course, in place of the first numbers.
void put_edges(const TensorView& g) {
  const float edges[] = {0.0f,      -0.0f,  88.0f,   -88.0f, 103.9f, -103.9f,  0x1p100f,
                         -0x1p100f, 1e-30f, -1e-30f, 17.3f,  -17.3f, 0x1p-133f};
  if (g.shape(0) == 0) return;
  for (std::int64_t i = 0; i < g.shape(1) && i < std::ssize(edges); ++i) {
    if (g.dtype == kBF16) {
      *g.at<bf16>(0, i) = numerics::to_bf16(edges[i]);
    } else {
      *g.at<float>(0, i) = edges[i];
    }
  }
}

}  // namespace

void swiglu_vectors(Trial& trial) {
  for_each_matrix([&](const std::string& name, std::int64_t tokens, std::int64_t n, Family family,
                      Form form, Memory& memory) {
    SwigluArgs args;
    const TensorView g = memory.random(form.dtype, {tokens, n}, family, form.lie);
    put_edges(g);
    args.g = g;
    args.u = memory.random(form.dtype, {tokens, n}, family, form.lie);
    args.y = memory.unwritten(form.dtype, {tokens, n}, form.lie);
    trial.run(name, &KernelTable::swiglu, args, memory);
  });
}

void swiglu_backward_vectors(Trial& trial) {
  for (const bool alias : {false, true}) {
    for_each_matrix([&](const std::string& name, std::int64_t tokens, std::int64_t n, Family family,
                        Form form, Memory& memory) {
      SwigluBackwardArgs args;
      const TensorView g = memory.random(form.dtype, {tokens, n}, family, form.lie);
      const TensorView u = memory.random(form.dtype, {tokens, n}, family, form.lie);
      put_edges(g);
      args.g = g;
      args.u = u;
      args.dy = memory.random(form.dtype, {tokens, n}, family, form.lie);
      args.dg = alias ? g : memory.unwritten(form.dtype, {tokens, n}, form.lie);
      args.du = alias ? u : memory.unwritten(form.dtype, {tokens, n}, form.lie);
      trial.run(name + (alias ? ", dg is g, du is u" : ""), &KernelTable::swiglu_backward, args,
                memory);
    });
  }
}

}  // namespace rlk::conformance
