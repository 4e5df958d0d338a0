// The fast products of profile sm90 give the bytes of the ones for any stride, on shapes that are
// too large for the reference. Operands that lie two bytes off are read by the latter, which
// conformance holds against the reference.
#include <array>
#include <utility>

#include "tests/gpu/gpu_test.h"

namespace rlk {
namespace {

using test::Kind;
using test::random_tensor;
using test::same_bits;
using test::TestExec;

class OnSm90 : public test::OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    if (device::selected().architecture != "sm_90") GTEST_SKIP() << "the GPU is no sm_90";
  }
};
using Sm90ProductsInvariance = OnSm90;
using Sm90ProductsTwin = OnSm90;

const KernelTable& table() { return on_host_memory(gpu_kernels(Profile::kSm90)); }

Contract contract() {
  Contract contract;
  contract.profile = Profile::kSm90;
  return contract;
}

// The numbers of a matrix, where the copy engine finds them or two bytes off.
class Matrix {
 public:
  Matrix(const Tensor& x, bool aligned)
      : rows_(x.shape(0)), columns_(x.shape(1)), memory_(DType::kBF16, {x.size() + 8}) {
    first_ = memory_.data<bf16>() + (aligned ? 0 : 1);
    std::copy_n(x.data<bf16>(), x.size(), first_);
  }
  ConstTensorView view() const {
    return rlk::view(static_cast<const bf16*>(first_), {rows_, columns_});
  }

 private:
  std::int64_t rows_, columns_;
  Tensor memory_;
  bf16* first_;
};

struct Shape {
  std::int64_t m, n, k;
};

TEST_F(Sm90ProductsInvariance, AProductDoesNotDependOnTheKernel) {
  for (const Shape& s : {Shape{1, 6144, 512},
                         {7, 200, 4096},
                         {33, 4096, 520},
                         {64, 1000, 1024},
                         {40, 4096, 1024},
                         {5, 203, 2048},
                         {65, 264, 1024},
                         {300, 520, 2048},
                         {257, 2048, 328}}) {
    const Tensor a = random_tensor(DType::kBF16, {s.m, s.k}, 1, Kind::kMixed);
    const Tensor b = random_tensor(DType::kBF16, {s.n, s.k}, 2, Kind::kCancelling);
    for (const bool leaf_tree : {false, true}) {
      Tensor c[2] = {Tensor(DType::kF32, {s.m, s.n}), Tensor(DType::kF32, {s.m, s.n})};
      for (const bool aligned : {false, true}) {
        const Matrix x(a, aligned), y(b, aligned);
        GemmArgs args;
        args.c = c[aligned];
        args.a = x.view();
        args.b = y.view();
        args.leaf_tree = leaf_tree;
        args.segments = {s.k, 0, 0};
        TestExec exec(contract());
        table().gemm(exec, args);
      }
      EXPECT_TRUE(same_bits(c[0], c[1])) << s.m << " x " << s.n << " x " << s.k;
    }
  }
}

struct Gradient {
  Tensor dw, chain;
};

Gradient gradient(const Tensor& dy, const Tensor& x, const Tensor& cu_seqlens,
                  const std::vector<std::int64_t>& ends, bool aligned) {
  const std::int64_t n = dy.shape(1), k = x.shape(1);
  Gradient out{random_tensor(DType::kF32, {n, k}, 3), random_tensor(DType::kF32, {n, k}, 4)};
  const Matrix a(dy, aligned), b(x, aligned);
  GemmBackwardWeightArgs args;
  args.dw = out.dw;
  args.chain = out.chain;
  args.dy = a.view();
  args.x = b.view();
  args.group_ends = view(ends.data(), {static_cast<std::int64_t>(ends.size())});
  args.cu_seqlens = cu_seqlens;
  TestExec exec(contract());
  table().gemm_backward_weight(exec, args);
  return out;
}

TEST_F(Sm90ProductsInvariance, AWeightGradientDoesNotDependOnTheKernel) {
  const Tensor dy = random_tensor(DType::kBF16, {1000, 200}, 1, Kind::kCancelling);
  const Tensor x = random_tensor(DType::kBF16, {1000, 328}, 2, Kind::kMixed);
  const std::vector<std::vector<std::int32_t>> samples = {
      {1000},
      {64, 128, 808},
      {1, 15, 17, 0, 300, 667},
      {500, 500},
      {5, 16, 3, 30, 1, 1, 1, 1, 142, 100, 100, 100, 100, 400}};
  const std::vector<std::vector<std::int64_t>> ends = {
      {}, {0, 64, 192}, {1, 33, 33, 1000}, {500}, {24, 57}};
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Tensor offsets = test::cu_seqlens(samples[i]);
    const Gradient slow = gradient(dy, x, offsets, ends[i], false);
    const Gradient fast = gradient(dy, x, offsets, ends[i], true);
    EXPECT_TRUE(same_bits(fast.dw, slow.dw)) << i;
    EXPECT_TRUE(same_bits(fast.chain, slow.chain)) << i;
  }
}

TEST_F(Sm90ProductsTwin, AWeightGradientWithoutItsSamplesIsAnother) {
  const Tensor dy = random_tensor(DType::kBF16, {200, 64}, 1, Kind::kCancelling);
  const Tensor x = random_tensor(DType::kBF16, {200, 64}, 2, Kind::kCancelling);
  const Gradient samples = gradient(dy, x, test::cu_seqlens({7, 50, 143}), {}, true);
  const Gradient one = gradient(dy, x, test::cu_seqlens({200}), {}, true);
  EXPECT_FALSE(same_bits(samples.chain, one.chain));
}

struct LinearLogp {
  Tensor logp, entropy, d_hidden;
  Gradient head;
};

LinearLogp linear_logp(const Tensor& hidden, const Tensor& head, const std::vector<float>& g,
                       const std::vector<std::int32_t>& targets, bool entropy, bool aligned) {
  const std::int64_t rows = hidden.shape(0), k = hidden.shape(1), padded = head.shape(0);
  LinearLogp out{Tensor(DType::kF32, {rows}),
                 Tensor(DType::kF32, {rows}),
                 Tensor(DType::kBF16, {rows, k}),
                 {Tensor(DType::kF32, {padded, k}), Tensor(DType::kF32, {padded, k})}};
  const Matrix x(hidden, aligned);
  const Tensor ids = test::i32_tensor(targets), weights = test::f32_tensor(g);
  const Tensor offsets = test::cu_seqlens({100, static_cast<std::int32_t>(rows) - 100});
  const std::int64_t end = 100;
  const SamplingParams params{.temperature = 0.75f};
  Tensor state(DType::kI32, {rows, kLogprobStateWords});
  LinearLogpBackwardArgs args;
  args.forward.logp = out.logp;
  if (entropy) args.forward.entropy = out.entropy;
  args.forward.hidden = x.view();
  args.forward.head = head;
  args.forward.vocab_size = padded - 28;
  args.forward.targets = ids;
  args.forward.params = &params;
  args.forward.state = state;
  TestExec exec(contract());
  table().linear_logp(exec, args.forward);
  args.d_hidden = out.d_hidden;
  args.dw = out.head.dw;
  args.chain = out.head.chain;
  args.group_ends = view(&end, {1});
  args.cu_seqlens = offsets;
  args.g = weights;
  if (entropy) args.g_entropy = weights;
  table().linear_logp_backward(exec, args);
  return out;
}

TEST_F(Sm90ProductsInvariance, LinearLogpDoesNotDependOnTheKernel) {
  constexpr std::int64_t kRows = 300, kHidden = 136;
  struct Case {
    double scale;
    std::int64_t padded;
  };
  // The last has more tiles than two for each processor.
  for (const auto& [scale, padded] : {Case{0.05, 1280}, {1.0, 1280}, {40.0, 1280}, {0.3, 20480}}) {
    std::vector<std::int32_t> targets;
    std::vector<float> g;
    for (int t = 0; t < kRows; ++t) {
      targets.push_back(t % 9 == 4 ? kIgnoreIndex : static_cast<int>(t * 4111 % (padded - 28)));
      g.push_back(t % 7 == 3 ? 0.0f : 0.01f * static_cast<float>(t - 100));
    }
    const Tensor hidden = random_tensor(DType::kBF16, {kRows, kHidden}, 5);
    Tensor head = random_tensor(DType::kBF16, {padded, kHidden}, 6, Kind::kNormal, scale);
    std::fill_n(head.data<bf16>() + (padded - 28) * kHidden, 28 * kHidden, bf16{});
    for (const bool entropy : {false, true}) {
      const LinearLogp slow = linear_logp(hidden, head, g, targets, entropy, false);
      const LinearLogp fast = linear_logp(hidden, head, g, targets, entropy, true);
      EXPECT_TRUE(same_bits(fast.logp, slow.logp)) << scale;
      EXPECT_TRUE(same_bits(fast.entropy, slow.entropy)) << scale;
      EXPECT_TRUE(same_bits(fast.d_hidden, slow.d_hidden)) << scale;
      EXPECT_TRUE(same_bits(fast.head.dw, slow.head.dw)) << scale;
      EXPECT_TRUE(same_bits(fast.head.chain, slow.head.chain)) << scale;
    }
  }
}

// Rows whose logits are columns of a matrix; the target is the largest. Its log-probability is the
// sum of all others, to 24 bits.
class RowsOfLogits {
 public:
  static constexpr std::int64_t kRows = 64;

  explicit RowsOfLogits(std::int64_t vocab_size)
      : hidden_(DType::kBF16, {kRows, kRows}),
        head_(DType::kBF16, {vocab_size, kRows}),
        targets_(DType::kI32, {kRows}) {
    hidden_.fill_zero();
    targets_.fill_zero();
    for (int t = 0; t < kRows; ++t) hidden_.data<bf16>()[t * kRows + t] = numerics::to_bf16(1.0f);
  }
  void set(std::int64_t row, std::int64_t column, double z) {
    bf16* const of_row = head_.data<bf16>() + row;
    of_row[column * kRows] = numerics::to_bf16(static_cast<float>(z));
    std::int32_t& target = targets_.data<std::int32_t>()[row];
    if (numerics::to_f32(of_row[column * kRows]) > numerics::to_f32(of_row[target * kRows])) {
      target = static_cast<std::int32_t>(column);
    }
  }
  // Of the first `vocab_size` columns: log-probabilities and entropies.
  std::pair<Tensor, Tensor> run(std::int64_t vocab_size, bool aligned) const {
    const Matrix x(hidden_, aligned);
    std::pair<Tensor, Tensor> out{Tensor(DType::kF32, {kRows}), Tensor(DType::kF32, {kRows})};
    const SamplingParams params;
    LinearLogpArgs args;
    args.logp = out.first;
    args.entropy = out.second;
    args.hidden = x.view();
    args.head = head_;
    args.vocab_size = vocab_size;
    args.targets = targets_;
    args.params = &params;
    TestExec exec(contract());
    table().linear_logp(exec, args);
    return out;
  }

 private:
  Tensor hidden_, head_, targets_;
};

TEST_F(Sm90ProductsInvariance, SumsOfLogitsFarApartDoNotDependOnTheKernel) {
  constexpr std::int64_t kVocabSize = 1000;
  RowsOfLogits rows(kVocabSize);
  // Row t: a standard deviation of t / 2, around -64 to 63.
  const Tensor normal = random_tensor(DType::kF32, {kVocabSize, RowsOfLogits::kRows}, 7);
  for (int t = 0; t < RowsOfLogits::kRows; ++t) {
    for (std::int64_t j = 0; j < kVocabSize; ++j) {
      const double x = normal.data<float>()[j * RowsOfLogits::kRows + t];
      rows.set(t, j, x * (0.5 * t) + t * 37 % 128 - 64);
    }
  }
  const auto fast = rows.run(kVocabSize, true), slow = rows.run(kVocabSize, false);
  EXPECT_TRUE(same_bits(fast.first, slow.first));
  EXPECT_TRUE(same_bits(fast.second, slow.second));
}

TEST_F(Sm90ProductsTwin, ALogitOfTheLowestBinCountsAndOneBelowDoesNot) {
  constexpr std::int64_t kVocabSize = 400;
  RowsOfLogits rows(kVocabSize);
  // 0 and below the four bins, but for the last: 2^-10, 2^-24 and 2^-39 of bins 1 to 3, and 2^-58.
  constexpr std::array<double, 4> kLast = {-7.0, -16.5, -27.0, -40.0};
  for (int t = 0; t < RowsOfLogits::kRows; ++t) {
    for (std::int64_t j = 0; j < kVocabSize; ++j) rows.set(t, j, j == 3 * t ? 0.0 : -300.0);
    rows.set(t, kVocabSize - 1, kLast[static_cast<std::size_t>(t % 4)]);
  }
  const auto all = rows.run(kVocabSize, true), but_one = rows.run(kVocabSize - 1, true);
  for (int t = 0; t < RowsOfLogits::kRows; ++t) {
    EXPECT_EQ(but_one.first.data<float>()[t], 0.0f) << t;
    const float logp = all.first.data<float>()[t];
    EXPECT_EQ(logp < 0.0f, t % 4 != 3) << t;
  }
}

}  // namespace
}  // namespace rlk
