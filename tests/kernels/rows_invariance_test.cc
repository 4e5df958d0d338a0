// What a row's bits do not depend on: how many other rows there are and what they hold, the order
// of rows, threads, instruction set, and where the row lies. One test for all row by row operators.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "rlk/numerics/math.h"
#include "tests/kernels/backends.h"

namespace rlk::test {
namespace {

constexpr std::int64_t kRows = 257;
constexpr std::int64_t kN = 72;  // rows that no vector width divides
constexpr std::int64_t kLongN = 300;

// An operator on rows: fills `out`, whose row t may depend on row t of the inputs alone. All inputs
// have kRows rows; those of one number per row have one column.
struct RowOp {
  std::string name;
  std::vector<std::int64_t> in_columns;
  std::vector<std::int64_t> out_columns;
  bool f32 = false;  // the operator's tensors are f32 in any case
  std::function<void(const KernelTable&, Exec&, std::vector<TensorView>& in,
                     std::vector<TensorView>& out)>
      run;
};

TensorView with_head(const TensorView& v) {
  TensorView out{v.data, v.dtype, Layout{v.shape(0), 1, v.shape(1)}};
  out.layout.stride = {v.stride(0), v.shape(1), v.stride(1), 0};
  return out;
}
TensorView column(const TensorView& v) {
  TensorView out{v.data, v.dtype, Layout{v.shape(0)}};
  out.layout.stride = {v.stride(0), 0, 0, 0};
  return out;
}

// Tables that all rows share, and the position or token that a row's first number stands for.
struct Shared {
  Tensor w16 = random_tensor(DType::kBF16, {kLongN}, 90);
  Tensor w32 = random_tensor(DType::kF32, {kLongN}, 90);
  Tensor cos = random_tensor(DType::kF32, {32, kN / 2}, 91, Kind::kNormal, 0.3);
  Tensor sin = random_tensor(DType::kF32, {32, kN / 2}, 92, Kind::kNormal, 0.3);
  const Tensor& w(DType dtype) const { return dtype == DType::kBF16 ? w16 : w32; }
};

Tensor whole_numbers(const TensorView& v, std::int64_t below) {
  Tensor out(DType::kI32, {v.shape(0)});
  for (std::int64_t t = 0; t < v.shape(0); ++t) {
    const float x = v.dtype == DType::kBF16 ? numerics::to_f32(*v.at<bf16>(t)) : *v.at<float>(t);
    out.data<std::int32_t>()[t] =
        static_cast<std::int32_t>(std::fmod(std::fabs(x) * 1000.0f, static_cast<float>(below)));
  }
  return out;
}

std::vector<RowOp> row_ops(const Shared& shared) {
  using Views = std::vector<TensorView>;
  std::vector<RowOp> ops;
  ops.push_back({"embedding", {1}, {kN}, false, [](auto& k, Exec& e, Views& in, Views& out) {
                   const Tensor table = random_tensor(out[0].dtype, {50, kN}, 93, Kind::kMixed);
                   k.embedding(e, {out[0], table, whole_numbers(in[0], 50)});
                 }});
  ops.push_back(
      {"residual_add", {kN, kN}, {kN}, false, [](auto& k, Exec& e, Views& in, Views& out) {
         k.residual_add(e, {out[0], in[0], in[1]});
       }});
  ops.push_back(
      {"rms_norm",
       {kLongN},
       {kLongN, 1},
       false,
       [&shared](auto& k, Exec& e, Views& in, Views& out) {
         Tensor q(DType::kF32, {in[0].shape(0), 1});
         k.rms_norm(e, {with_head(out[0]), q, with_head(in[0]), shared.w(in[0].dtype), 1e-6f});
         for (std::int64_t t = 0; t < q.shape(0); ++t) {
           if (out[1].dtype == DType::kF32) *out[1].at<float>(t) = value(q, t);
         }
       }});
  ops.push_back({"rms_norm with residual",
                 {kN, kN},
                 {kN, kN},
                 false,
                 [&shared](auto& k, Exec& e, Views& in, Views& out) {
                   const ConstTensorView weight = columns(shared.w(in[0].dtype).view(), 0, kN);
                   k.rms_norm(e, {with_head(out[0]),
                                  {},
                                  with_head(in[0]),
                                  weight,
                                  1e-6f,
                                  with_head(in[1]),
                                  with_head(out[1])});
                 }});
  ops.push_back({"rms_norm_backward",
                 {kLongN, kLongN, 1},
                 {kLongN},
                 false,
                 [&shared](auto& k, Exec& e, Views& in, Views& out) {
                   Tensor q(DType::kF32, {in[0].shape(0), 1});
                   const Tensor whole = whole_numbers(in[2], 1000);
                   for (std::int64_t t = 0; t < q.shape(0); ++t) {
                     q.data<float>()[t] =
                         0.1f + 0.001f * static_cast<float>(whole.data<std::int32_t>()[t]);
                   }
                   k.rms_norm_backward(e, {with_head(out[0]), with_head(in[0]), with_head(in[1]),
                                           shared.w(in[0].dtype), q});
                 }});
  const auto rope = [&shared](void (*KernelTable::*field)(Exec&, const RopeArgs&)) {
    return [&shared, field](const KernelTable& k, Exec& e, Views& in, Views& out) {
      (k.*field)(e, {with_head(out[0]), with_head(in[0]), shared.cos, shared.sin,
                     whole_numbers(in[1], 32)});
    };
  };
  ops.push_back({"rope", {kN, 1}, {kN}, false, rope(&KernelTable::rope)});
  ops.push_back({"rope_backward", {kN, 1}, {kN}, false, rope(&KernelTable::rope_backward)});
  ops.push_back({"swiglu", {kN, kN}, {kN}, false, [](auto& k, Exec& e, Views& in, Views& out) {
                   k.swiglu(e, {out[0], in[0], in[1]});
                 }});
  ops.push_back({"swiglu_backward",
                 {kN, kN, kN},
                 {kN, kN},
                 false,
                 [](auto& k, Exec& e, Views& in, Views& out) {
                   k.swiglu_backward(e, {out[0], out[1], in[0], in[1], in[2]});
                 }});
  ops.push_back({"ratio", {1, 1}, {1}, true, [](auto& k, Exec& e, Views& in, Views& out) {
                   k.ratio(e, {column(out[0]), column(in[0]), column(in[1]), {}});
                 }});
  ops.push_back(
      {"kl", {1, 1}, {1, 1}, true, [](auto& k, Exec& e, Views& in, Views& out) {
         k.kl(e, {column(out[0]), column(out[1]), column(in[0]), column(in[1]), {}, Kl::kK3});
       }});
  ops.push_back({"ppo_loss",
                 {1, 1, 1, 1, 1, 1, 1, 1},
                 {1, 1, 1, 1},
                 true,
                 [](auto& k, Exec& e, Views& in, Views& out) {
                   PpoLossArgs args;
                   args.policy.g = column(out[0]);
                   args.policy.logp = column(in[0]);
                   args.policy.old = column(in[1]);
                   args.policy.ref = column(in[2]);
                   args.policy.advantage = column(in[3]);
                   args.policy.weight = column(in[4]);
                   args.policy.kl_type = Kl::kK3;
                   args.policy.beta = 0.1f;
                   args.value = column(in[5]);
                   args.old_value = column(in[6]);
                   args.returns = column(in[7]);
                   args.g_value = column(out[1]);
                   args.v_loss = column(out[2]);
                   args.g_entropy = column(out[3]);
                   k.ppo_loss(e, args);
                 }});
  return ops;
}

// The outputs for the rows `pick` of the inputs, computed in one call and put in a [rows, columns]
// tensor each. `apart` spreads elements, `shift` moves the tensors off their alignment.
std::vector<Tensor> call(const RowOp& op, const std::vector<Tensor>& inputs,
                         const std::vector<std::int64_t>& pick, const KernelTable& kernels,
                         int threads, std::int64_t apart = 1, std::int64_t shift = 0) {
  const DType dtype = inputs[0].dtype();
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const auto rows = static_cast<std::int64_t>(pick.size());
  std::vector<Tensor> storage;
  const auto make = [&](std::int64_t columns) {
    const std::int64_t stride = columns * apart + 3 * shift;
    storage.push_back(Tensor(dtype, {rows * stride + shift + 1}));
    TensorView v{storage.back().data<char>() + shift * size, dtype, Layout{rows, columns}};
    v.layout.stride = {stride, apart, 0, 0};
    return v;
  };
  const auto copy = [&](const TensorView& to, std::int64_t r, const ConstTensorView& from,
                        std::int64_t f) {
    for (std::int64_t c = 0; c < to.shape(1); ++c) {
      std::memcpy(
          static_cast<char*>(to.data) + size * (r * to.stride(0) + c * to.stride(1)),
          static_cast<const char*>(from.data) + size * (f * from.stride(0) + c * from.stride(1)),
          static_cast<std::size_t>(size));
    }
  };
  std::vector<TensorView> in, out;
  for (const Tensor& t : inputs) {
    in.push_back(make(t.shape(1)));
    for (std::int64_t r = 0; r < rows; ++r)
      copy(in.back(), r, t, pick[static_cast<std::size_t>(r)]);
  }
  for (const std::int64_t columns : op.out_columns) out.push_back(make(columns));
  TestExec exec({}, threads);
  op.run(kernels, exec, in, out);
  std::vector<Tensor> results;
  for (const TensorView& v : out) {
    results.push_back(Tensor(dtype, {rows, v.shape(1)}));
    for (std::int64_t r = 0; r < rows; ++r) copy(results.back(), r, v, r);
  }
  return results;
}

// Row r of what is, row pick[r] of what all rows at once gave.
void expect_rows(const std::vector<Tensor>& results, const std::vector<Tensor>& all,
                 const std::vector<std::int64_t>& pick, const std::string& what) {
  for (std::size_t o = 0; o < all.size(); ++o) {
    const std::size_t bytes = static_cast<std::size_t>(all[o].shape(1)) * size_of(all[o].dtype());
    for (std::size_t r = 0; r < pick.size(); ++r) {
      ASSERT_EQ(std::memcmp(results[o].data<char>() + r * bytes,
                            all[o].data<char>() + static_cast<std::size_t>(pick[r]) * bytes, bytes),
                0)
          << what << ", output " << o << ", row " << r;
    }
  }
}

std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = begin; i < end; ++i) out.push_back(i);
  return out;
}

void for_each_op(const std::function<void(const RowOp&, const std::vector<Tensor>&)>& test) {
  const Shared shared;
  for (const RowOp& op : row_ops(shared)) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      if (op.f32 && dtype == DType::kBF16) continue;
      std::vector<Tensor> inputs;
      for (const std::int64_t columns : op.in_columns) {
        inputs.push_back(random_tensor(dtype, {kRows, columns}, inputs.size() + 1,
                                       op.f32 ? Kind::kNormal : Kind::kMixed));
      }
      test(op, inputs);
    }
  }
}

TEST(RowsInvariance, ARowHasTheSameBitsInABatchOfAnySize) {
  for_each_op([](const RowOp& op, const std::vector<Tensor>& inputs) {
    const auto all = call(op, inputs, range(0, kRows), reference_kernels(), 1);
    for (const Isa isa : isas()) {
      const bool every = isa == isas().back() && inputs[0].dtype() == DType::kBF16;
      for (std::int64_t n = 1; n <= kRows; n = every || op.f32 ? n + 1 : n + 61) {
        expect_rows(call(op, inputs, range(0, n), cpu_kernels(isa), 1), all, range(0, n),
                    fmt::format("{} {}, {} rows", op.name, to_string(isa), n));
      }
    }
  });
}

TEST(RowsInvariance, NeighboursOrderThreadsAndPlaceDoNotMatter) {
  for_each_op([](const RowOp& op, const std::vector<Tensor>& inputs) {
    const auto all = call(op, inputs, range(0, kRows), reference_kernels(), 1);
    std::vector<std::int64_t> mixed;  // each row many times beside others, in another order
    for (std::int64_t i = 0; i < 4 * kRows; ++i) mixed.push_back(i * 101 % kRows);
    const std::vector<std::int64_t> falling(mixed.rbegin(), mixed.rend());
    for (const Isa isa : isas()) {
      const std::string what = op.name + " " + to_string(isa);
      for (int threads = 1; threads <= 8; ++threads) {
        expect_rows(call(op, inputs, mixed, cpu_kernels(isa), threads), all, mixed, what);
      }
      expect_rows(call(op, inputs, falling, cpu_kernels(isa), 2), all, falling, what);
      expect_rows(call(op, inputs, range(5, 90), cpu_kernels(isa), 2, 1, 1), all, range(5, 90),
                  what);
      expect_rows(call(op, inputs, range(5, 90), cpu_kernels(isa), 2, 3, 1), all, range(5, 90),
                  what);
    }
  });
}

// Kernels that are wrong in a way that shows: a row's bits depend on its neighbour.
TEST(RowsTwin, ARowThatSeesItsNeighbourGivesOtherBytes) {
  for_each_op([](const RowOp& op, const std::vector<Tensor>& inputs) {
    const auto all = call(op, inputs, range(0, kRows), cpu_kernels(), 1);
    std::vector<Tensor> shifted = inputs;  // the first input comes from the row before
    const std::size_t bytes =
        static_cast<std::size_t>(inputs[0].shape(1)) * size_of(inputs[0].dtype());
    for (std::size_t t = 1; t < kRows; ++t) {
      std::memcpy(shifted[0].data<char>() + t * bytes, inputs[0].data<char>() + (t - 1) * bytes,
                  bytes);
    }
    const auto wrong = call(op, shifted, range(0, kRows), cpu_kernels(), 1);
    EXPECT_FALSE(same_bytes(wrong[0], all[0])) << op.name;
  });
}

TEST(ResidualAddTwin, ASecondRoundingOnTheWayGivesOtherBytes) {
  const Tensor a = random_tensor(DType::kBF16, {kRows, kN}, 1);
  const Tensor b = random_tensor(DType::kBF16, {kRows, kN}, 2);
  Tensor wrong(DType::kBF16, {kRows, kN});
  for (std::int64_t i = 0; i < wrong.size(); ++i) {
    // Through a type with 11 bits of precision, as f16 has.
    const float sum = value(a, i) + value(b, i);
    const float scale = sum * 0x1.002p+13f;
    wrong.data<bf16>()[i] = numerics::to_bf16(scale - (scale - sum));
  }
  for (const Isa isa : isas()) {
    Tensor y(DType::kBF16, {kRows, kN});
    TestExec exec;
    cpu_kernels(isa).residual_add(exec, {y, a, b});
    EXPECT_FALSE(same_bytes(y, wrong)) << to_string(isa);
  }
}

TEST(MergeHeadsTwin, OneFoldOverAllHeadsGivesOtherBytes) {
  const Tensor partial = random_tensor(DType::kF32, {16, kN}, 1, Kind::kWide);
  Tensor wrong(DType::kF32, {kN});
  for (std::int64_t h = 0; h < 16; ++h) {
    for (std::int64_t k = 0; k < kN; ++k) wrong.data<float>()[k] += value(partial, h * kN + k);
  }
  for (const Isa isa : isas()) {
    Tensor dw(DType::kF32, {kN});
    TestExec exec;
    cpu_kernels(isa).merge_heads(exec, {dw, partial});
    EXPECT_FALSE(same_bytes(dw, wrong)) << to_string(isa);
  }
}

}  // namespace
}  // namespace rlk::test
