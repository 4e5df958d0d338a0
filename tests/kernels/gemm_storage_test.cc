// Products in both storage types, any strides and sizes, against the reference, byte for byte; and
// a row alone against the row in any batch.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <limits>
#include <vector>

#include "backends.h"
#include "rlk/kernels/kernel_table.h"
#include "test_data.h"

namespace rlk::test {
namespace {

constexpr DType kTypes[] = {DType::kBF16, DType::kF32};

Kind kind_of(std::int64_t seed) { return kAllKinds[seed % std::ssize(kAllKinds)]; }

// Every `apart`-th number of each row, `columns` of them.
template <typename View>
View every(View t, std::int64_t columns, std::int64_t apart) {
  t.layout.shape[1] = columns;
  t.layout.stride[1] = apart;
  return t;
}

// From the second number of the storage on: no pointer is aligned for a vector.
TensorView shifted(Tensor& storage, std::int64_t m, std::int64_t n, std::int64_t stride) {
  TensorView t{storage.data<char>() + size_of(storage.dtype()), storage.dtype(), Layout{m, n}};
  t.layout.stride[0] = stride;
  return t;
}

struct Problem {
  ConstTensorView a, b, bias;
  bool leaf_tree = false;
  std::array<std::int64_t, 3> segments{0, 0, 0};
};

void run(const KernelTable& kernels, Exec& exec, const Problem& p, const TensorView& c,
         bool packed = false) {
  PackedWeight weight;
  GemmArgs args;
  args.c = c;
  args.a = p.a;
  args.b = p.b;
  args.bias = p.bias;
  args.leaf_tree = p.leaf_tree;
  args.segments = p.segments[0] > 0 ? p.segments : std::array<std::int64_t, 3>{p.a.shape(1), 0, 0};
  if (packed) {
    kernels.pack_weight(exec, {&weight, p.b});
    args.packed_b = &weight;
  }
  kernels.gemm(exec, args);
}

// c starts as NaN, so that an element that is not written is seen.
Tensor result(const KernelTable& kernels, Exec& exec, const Problem& p, DType dtype,
              bool packed = false) {
  Tensor c(dtype, {p.a.shape(0), p.b.shape(0)});
  if (c.size() > 0) std::memset(c.view().data, 0xff, c.size_bytes());
  run(kernels, exec, p, c, packed);
  return c;
}

TEST(GemmStorage, EqualsTheReferenceInF32ForOddShapes) {
  TestExec one, two({}, 2);
  std::int64_t seed = 0;
  for (const std::int64_t m : {0, 1, 2, 9, 33, 130}) {
    for (const std::int64_t n : {1, 17, 64, 97}) {
      for (const std::int64_t k : {0, 1, 16, 75, 300}) {
        ++seed;
        const Tensor a = random_tensor(DType::kF32, {m, k}, seed, kind_of(seed));
        const Tensor b = random_tensor(DType::kF32, {n, k}, seed + 1000, kind_of(seed));
        const Tensor bias = random_tensor(DType::kF32, {n}, seed + 2000, kind_of(seed));
        Problem p{a, b, seed % 3 == 0 ? bias.view() : ConstTensorView{}};
        p.leaf_tree = seed % 2 == 0;
        if (p.leaf_tree && k == 300) p.segments = {200, 33, 67};
        const Tensor expected = result(reference_kernels(), one, p, DType::kF32);
        for (const Isa isa : isas()) {
          for (const bool packed : {false, true}) {
            TestExec& exec = packed ? two : one;
            EXPECT_TRUE(
                same_bytes(expected, result(cpu_kernels(isa), exec, p, DType::kF32, packed)))
                << to_string(isa) << " " << m << "x" << n << "x" << k << " packed " << packed;
          }
        }
      }
    }
  }
}

// More weights than gemm uses in place, too: packed panels are copied then.
TEST(GemmStorage, EqualsTheReferenceInF32OverSeveralBlocks) {
  const Tensor a = random_tensor(DType::kF32, {270, 500}, 1, Kind::kMixed);
  const Tensor b = random_tensor(DType::kF32, {550, 500}, 2, Kind::kCancelling);
  TestExec one;
  for (const bool tree : {false, true}) {
    const Problem p{a, b, {}, tree, {500, 0, 0}};
    const Tensor expected = result(cpu_kernels(), one, p, DType::kF32);
    // The reference for some rows: all of them would take it too long.
    for (const std::int64_t m : {0, 134, 135, 269}) {
      Tensor row(DType::kF32, {1, 550});
      run(reference_kernels(), one, {rows(p.a, m, m + 1), b, {}, tree, {500, 0, 0}}, row);
      EXPECT_EQ(std::memcmp(row.data<float>(), expected.view().at<float>(m), row.size_bytes()), 0);
    }
    for (const Isa isa : isas()) {
      if (isa == Isa::kScalar) continue;  // slow, and cut into blocks by the same code
      for (const int threads : {1, 3}) {
        TestExec exec({}, threads);
        for (const bool packed : {false, true}) {
          EXPECT_TRUE(same_bytes(expected, result(cpu_kernels(isa), exec, p, DType::kF32, packed)))
              << to_string(isa) << " threads " << threads << " packed " << packed;
        }
      }
    }
  }
}

TEST(GemmStorage, ReadsAndWritesAnyStridesAndWritesNothingBetween) {
  constexpr std::int64_t kM = 37, kN = 41, kK = 70;
  TestExec exec({}, 2);
  for (const DType storage : kTypes) {
    const Tensor a_wide = random_tensor(storage, {kM, 3 * kK}, 1, Kind::kWide);
    const Tensor a_tall = random_tensor(storage, {kK, kM}, 2, Kind::kCancelling);
    const Tensor b_wide = random_tensor(storage, {kN, 2 * kK}, 3, Kind::kNormal);
    const Tensor b_tall = random_tensor(storage, {kK, kN}, 4, Kind::kNormal);
    const Tensor bias = random_tensor(storage, {1, 5 * kN}, 5);
    ConstTensorView apart = bias;
    apart.layout = Layout{kN};
    apart.layout.stride[0] = 5;
    for (const ConstTensorView& a : {every(a_wide.view(), kK, 3), transposed(a_tall.view())}) {
      for (const ConstTensorView& b : {every(b_wide.view(), kK, 2), transposed(b_tall.view())}) {
        for (const DType dtype : {storage, DType::kF32}) {
          Tensor expected(dtype, {kM, 3 * kN + 2});
          run(reference_kernels(), exec, {a, b, apart}, every(expected.view(), kN, 3));
          for (const Isa isa : isas()) {
            for (const bool packed : {false, true}) {
              Tensor c(dtype, {kM, 3 * kN + 2});
              run(cpu_kernels(isa), exec, {a, b, apart}, every(c.view(), kN, 3), packed);
              EXPECT_TRUE(same_bytes(expected, c)) << to_string(isa) << " packed " << packed;
            }
          }
        }
      }
    }
  }
}

TEST(GemmStorage, TakesPointersThatAreAlignedForOneNumberOnly) {
  TestExec exec;
  for (const DType storage : kTypes) {
    Tensor a = random_tensor(storage, {20, 80}, 1), b = random_tensor(storage, {40, 80}, 2);
    const Problem p{shifted(a, 19, 75, 77), shifted(b, 39, 75, 79), {}};
    Tensor expected(storage, {20, 45});
    run(reference_kernels(), exec, p, shifted(expected, 19, 39, 43));
    for (const Isa isa : isas()) {
      Tensor c(storage, {20, 45});
      run(cpu_kernels(isa), exec, p, shifted(c, 19, 39, 43));
      EXPECT_TRUE(same_bytes(expected, c)) << to_string(isa);
    }
  }
}

TEST(GemmStorage, StoresTheOneNaN) {
  TestExec exec;
  const float inf = std::numeric_limits<float>::infinity();
  for (const DType storage : kTypes) {
    Tensor a = random_tensor(storage, {3, 40}, 1), b = random_tensor(storage, {70, 40}, 2);
    const auto put = [&](Tensor& t, std::int64_t i, float x) {
      storage == DType::kF32 ? t.data<float>()[i] = x
                             : (t.data<bf16>()[i] = numerics::to_bf16(x), 0.0f);
    };
    put(a, 45, inf);
    put(b, 40 * 33 + 5, 0.0f);
    for (const DType dtype : {storage, DType::kF32}) {
      const Tensor expected = result(reference_kernels(), exec, {a, b, {}}, dtype);
      for (const Isa isa : isas()) {
        EXPECT_TRUE(same_bytes(expected, result(cpu_kernels(isa), exec, {a, b, {}}, dtype)));
      }
    }
  }
}

// Address space that costs memory only where it is touched.
class Reserve {
 public:
  explicit Reserve(std::size_t size)
      : size_(size),
        data_(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Reserve() {
    if (data_ != MAP_FAILED) munmap(data_, size_);
  }
  bool failed() const { return data_ == MAP_FAILED; }
  TensorView matrix(DType dtype, std::int64_t m, std::int64_t n, std::int64_t row_stride,
                    std::int64_t column_stride) const {
    TensorView t{data_, dtype, Layout{m, n}};
    t.layout.stride = {row_stride, column_stride, 0, 0};
    return t;
  }

 private:
  std::size_t size_;
  void* data_;
};

TEST(GemmStorage, ReachesElementsPastTwoToThe31) {
  constexpr std::int64_t kM = 3, kN = 35, kK = 5;
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 11, kNear = (std::int64_t{1} << 29) + 3;
  TestExec exec;
  for (const DType storage : kTypes) {
    const std::size_t element = size_of(storage);
    const Reserve a_memory(element * (2 * kFar + kK)), b_memory(element * (kK * kNear + kN));
    const Reserve c_memory(element * (2 * kFar + kN));
    if (a_memory.failed() || b_memory.failed() || c_memory.failed()) GTEST_SKIP() << "no space";
    const TensorView a = a_memory.matrix(storage, kM, kK, kFar, 1);
    const TensorView b = b_memory.matrix(storage, kN, kK, 1, kNear);
    const TensorView c = c_memory.matrix(storage, kM, kN, kFar, 1);
    const Tensor near_a = random_tensor(storage, {kM, kK}, 1);
    const Tensor near_b = random_tensor(storage, {kK, kN}, 2);
    for (std::int64_t m = 0; m < kM; ++m) {
      std::memcpy(static_cast<char*>(a.data) + static_cast<std::size_t>(m * kFar) * element,
                  near_a.data<char>() + static_cast<std::size_t>(m * kK) * element, kK * element);
    }
    for (std::int64_t k = 0; k < kK; ++k) {
      std::memcpy(static_cast<char*>(b.data) + static_cast<std::size_t>(k * kNear) * element,
                  near_b.data<char>() + static_cast<std::size_t>(k * kN) * element, kN * element);
    }
    const Tensor expected =
        result(reference_kernels(), exec, {near_a, transposed(near_b.view()), {}}, storage);
    for (const Isa isa : isas()) {
      for (const bool packed : {false, true}) {
        run(cpu_kernels(isa), exec, {a, b, {}}, c, packed);
        for (std::int64_t m = 0; m < kM; ++m) {
          EXPECT_EQ(
              std::memcmp(static_cast<char*>(c.data) + static_cast<std::size_t>(m * kFar) * element,
                          expected.data<char>() + static_cast<std::size_t>(m * kN) * element,
                          kN * element),
              0)
              << to_string(isa) << " row " << m;
        }
      }
    }
  }
}

TEST(GemmStorage, GradientsEqualTheReferenceInF32AndForAnyStrides) {
  TestExec one;
  const std::vector<std::int64_t> ends{17, 20, 270};
  const Tensor cu = cu_seqlens({100, 0, 200});
  for (const DType storage : kTypes) {
    for (const std::array<std::int64_t, 2>& size :
         {std::array<std::int64_t, 2>{1, 1}, {35, 65}, {130, 7}, {70, 300}}) {
      const std::int64_t n = size[0], k = size[1];
      const Tensor dy = random_tensor(storage, {300, n}, 1, Kind::kCancelling);
      const Tensor x = random_tensor(storage, {300, k}, 2, Kind::kWide);
      const Tensor dy_tall = random_tensor(storage, {n, 300}, 3),
                   x_wide = random_tensor(storage, {300, 2 * k}, 4);
      for (const bool strided : {false, true}) {
        const ConstTensorView dys = strided ? transposed(dy_tall.view()) : dy.view();
        const ConstTensorView xs = strided ? every(x_wide.view(), k, 2) : x.view();
        const OpCall call = [&](const KernelTable& kernels, Exec& exec) {
          std::vector<Tensor> out;
          out.push_back(random_tensor(DType::kF32, {n, k}, 5));
          out.push_back(random_tensor(DType::kF32, {n, k}, 6));
          out.push_back(random_tensor(DType::kF32, {n}, 7));
          kernels.gemm_backward_weight(exec, {out[0], out[1], dys, xs, view(ends.data(), {3})});
          kernels.bias_backward(exec, {out[2], dys, cu});
          return out;
        };
        expect_the_reference_everywhere(call, "n " + std::to_string(n), {}, {1, 3});
      }
    }
  }
}

// The first m rows of a batch, for every m; the rows are those of the largest batch.
TEST(GemmInvariance, EveryBatchSizeUpTo257GivesARowTheSameBits) {
  constexpr std::int64_t kM = 257, kN = 40, kK = 100;
  for (const DType storage : kTypes) {
    const Tensor a = random_tensor(storage, {kM, kK}, 1, Kind::kCancelling);
    const Tensor b = random_tensor(storage, {kN, kK}, 2, Kind::kWide);
    for (const bool tree : {false, true}) {
      const Problem all{a, b, {}, tree, {60, 20, 20}};
      TestExec one;
      const Tensor expected = result(reference_kernels(), one, all, storage);
      for (int threads = 1; threads <= 8; ++threads) {
        TestExec exec({}, threads);
        for (const Isa isa : isas()) {
          for (std::int64_t m = threads; m <= kM; m += 8) {
            if (isa == Isa::kScalar && m > 64) continue;  // slow
            Problem p = all;
            p.a = rows(all.a, 0, m);
            const Tensor c = result(cpu_kernels(isa), exec, p, storage, m % 3 == 0);
            ASSERT_EQ(std::memcmp(c.data<char>(), expected.data<char>(), c.size_bytes()), 0)
                << to_string(isa) << " threads " << threads << " m " << m << " tree " << tree;
          }
        }
      }
    }
  }
}

TEST(GemmInvariance, NeighboursAndTheOrderOfRowsDoNotReachARow) {
  constexpr std::int64_t kM = 61, kN = 70, kK = 130;
  TestExec exec({}, 2);
  for (const DType storage : kTypes) {
    const Tensor a = random_tensor(storage, {kM, kK}, 1, Kind::kCancelling);
    const Tensor b = random_tensor(storage, {kN, kK}, 2, Kind::kWide);
    const std::size_t a_row = static_cast<std::size_t>(kK) * size_of(storage);
    const std::size_t c_row = static_cast<std::size_t>(kN) * size_of(storage);
    // Row m goes to row 7 m mod 61; then every other row holds NaN.
    Tensor moved(storage, {kM, kK});
    for (std::int64_t m = 0; m < kM; ++m) {
      std::memcpy(moved.data<char>() + static_cast<std::size_t>(7 * m % kM) * a_row,
                  a.data<char>() + static_cast<std::size_t>(m) * a_row, a_row);
    }
    Tensor lone = moved;
    for (std::int64_t m = 1; m < kM; m += 2) {
      std::memset(lone.data<char>() + static_cast<std::size_t>(m) * a_row, 0xff, a_row);
    }
    for (const Isa isa : isas()) {
      const Tensor c = result(cpu_kernels(isa), exec, {a, b, {}}, storage);
      const Tensor of_moved = result(cpu_kernels(isa), exec, {moved, b, {}}, storage);
      const Tensor of_lone = result(cpu_kernels(isa), exec, {lone, b, {}}, storage);
      for (std::int64_t m = 0; m < kM; ++m) {
        const std::size_t at = static_cast<std::size_t>(7 * m % kM) * c_row;
        const char* row = c.data<char>() + static_cast<std::size_t>(m) * c_row;
        ASSERT_EQ(std::memcmp(row, of_moved.data<char>() + at, c_row), 0) << to_string(isa);
        if (7 * m % kM % 2 != 0) continue;
        ASSERT_EQ(std::memcmp(row, of_lone.data<char>() + at, c_row), 0) << to_string(isa);
      }
    }
  }
}

TEST(GemmTwin, RoundedPartialSumsOrOperandsGiveOtherBits) {
  constexpr std::int64_t kM = 5, kN = 40, kK = 320;
  TestExec exec;
  const Tensor a = random_tensor(DType::kF32, {kM, kK}, 1, Kind::kCancelling);
  const Tensor b = random_tensor(DType::kF32, {kN, kK}, 2, Kind::kWide);
  const Tensor c = result(cpu_kernels(), exec, {a, b, {}}, DType::kF32);
  Tensor partial(DType::kF32, {kM, kN}), operands(DType::kF32, {kM, kN});
  for (std::int64_t i = 0; i < partial.size(); ++i) {
    float sum = 0.0f, rounded = 0.0f;
    for (std::int64_t k = 0; k < kK; ++k) {
      const float x = value(a, i / kN * kK + k), y = value(b, i % kN * kK + k);
      if (k % 160 == 0) sum = numerics::round_bf16(sum);
      sum = std::fma(x, y, sum);
      rounded = std::fma(numerics::round_bf16(x), numerics::round_bf16(y), rounded);
    }
    partial.data<float>()[i] = sum;
    operands.data<float>()[i] = rounded;
  }
  EXPECT_FALSE(same_bits(c, partial));
  EXPECT_FALSE(same_bits(c, operands));
}

}  // namespace
}  // namespace rlk::test
