// What conformance vectors are made of: their memory, and the trial they go through. For
// verify/conform*.cc only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "rlk/core/digest.h"
#include "rlk/kernels/inputs.h"
#include "rlk/kernels/outputs.h"
#include "rlk/ops/admission.h"

namespace rlk::conformance {

// splitmix64. Nothing here depends on the C library, so that vectors are the same everywhere.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  double normal();  // mean 0, variance 1, |x| < 3.5: a sum of four uniform numbers

 private:
  std::uint64_t state_;
};

// Numbers on which a wrong order or rounding shows.
enum class Family : std::uint8_t {
  kNormal,
  kCancelling,  // neighbours of opposite sign and nearly equal size, now and then a small one
  kWide,        // exponents from 2^-20 to 2^20
  kSubnormal,   // products underflow; some ordinary numbers between
  kZeros,       // zeros of both signs, some ordinary numbers between
  kHuge,        // around 2^20
  kTiny,        // around 2^-60
  kMixed,       // each row of another family
};
const char* to_string(Family family);
// Counts through the families.
Family family_of(std::int64_t i);

// How a tensor lies in memory: without gaps, unaligned with gaps between rows, or unaligned with
// gaps between elements too.
enum class Lie : std::uint8_t { kDense, kGaps, kSpread };

// The tensors of one vector. Every table starts from the same bytes: restore() undoes a call.
class Memory {
 public:
  explicit Memory(std::uint64_t seed) : rng_(seed) {}

  Rng& rng() { return rng_; }
  TensorView random(DType dtype, std::vector<std::int64_t> sizes, Family family,
                    Lie lie = Lie::kDense, double scale = 1);
  // Holds a pattern that is NaN: an element that is not written shows.
  TensorView unwritten(DType dtype, std::vector<std::int64_t> sizes, Lie lie = Lie::kDense);
  TensorView f32(const std::vector<float>& values);
  TensorView i32(const std::vector<std::int32_t>& values);
  TensorView i64(const std::vector<std::int64_t>& values);
  TensorView f64(const std::vector<double>& values);
  // [0, n0, n0 + n1, ..]
  TensorView offsets(const std::vector<std::int32_t>& lengths);

  // From here on restore() gives these bytes.
  void keep() { kept_ = storage_; }
  void restore();
  const std::deque<Tensor>& storage() const { return storage_; }

 private:
  TensorView make(DType dtype, const std::vector<std::int64_t>& sizes, Lie lie);

  Rng rng_;
  std::deque<Tensor> storage_;
  std::deque<Tensor> kept_;
};

struct Output {
  std::string name;
  TensorView view;
};
using Call = std::function<void(const KernelTable&, Exec&)>;

// One operator with all candidates. The vector functions call run() once per vector.
class Trial {
 public:
  Trial(Op op, const Contract& contract, std::vector<const KernelTable*> candidates, int threads);
  // Computes no reference and judges nothing: feeds what the one candidate computes to `digest`.
  Trial(Op op, const Contract& contract, const KernelTable& candidate, int threads, Sha256* digest);

  const Contract& contract() const { return contract_; }
  // The same with short blocks, so that short sequences have many block and split boundaries.
  Contract short_blocks() const;

  template <typename Args>
  void run(const std::string& name, void (*KernelTable::*field)(Exec&, const Args&),
           const Args& args, Memory& memory) {
    run(name, field, args, memory, contract_, [](const KernelTable&, Exec&, Args&) {});
  }
  // prepare(table, exec, args) comes before the call and may change the arguments.
  template <typename Args, typename Prepare>
  void run(const std::string& name, void (*KernelTable::*field)(Exec&, const Args&),
           const Args& args, Memory& memory, const Contract& contract, const Prepare& prepare) {
    if (contract.profile != Profile::kPortable && is_product(op_) &&
        storage_of(args) == DType::kF32) {
      return;  // storage f32 is for profile portable
    }
    std::vector<Output> outputs;
    Args listed = args;
    for_each_output(listed, [&](const char* output, const TensorView& view) {
      if (view) outputs.push_back({output, view});
    });
    run_all(name, contract, memory, outputs, [&](const KernelTable& table, Exec& exec) {
      Args prepared = args;
      prepare(table, exec, prepared);
      (table.*field)(exec, prepared);
    });
  }

  std::vector<AdmissionEntry> entries() const;

 private:
  // Operators whose sums are made of mac.
  static bool is_product(Op op) {
    return op == Op::gemm || op == Op::gemm_backward_weight || op == Op::attention ||
           op == Op::attention_backward || op == Op::linear_logp || op == Op::linear_logp_backward;
  }
  // Of a product: the type of its first operand.
  template <typename Args>
  static DType storage_of(Args args) {
    DType dtype = DType::kI64;
    for_each_input(args, [&](const char*, const ConstTensorView& t) {
      if (dtype == DType::kI64 && t) dtype = t.dtype;
    });
    return dtype;
  }

  struct Outcome {
    std::int64_t fault_row = -1;
    std::vector<Tensor> outputs;
    std::deque<Tensor> memory;
  };
  struct Candidate {
    const KernelTable* table;
    AdmissionEntry entry;
  };

  void run_all(const std::string& name, const Contract& contract, Memory& memory,
               const std::vector<Output>& outputs, const Call& call);
  Outcome outcome(const KernelTable& table, ThreadPool& pool, const Contract& contract,
                  Memory& memory, const std::vector<Output>& outputs, const Call& call);

  Op op_;
  Contract contract_;
  std::vector<Candidate> candidates_;
  ThreadPool single_{1};
  ThreadPool pool_;
  Workspace workspace_;
  Sha256* digest_ = nullptr;
};

// Calls every vector of the operator.
#define RLK_OP(name, Args) void name##_vectors(Trial& trial);
RLK_OPS(RLK_OP)
#undef RLK_OP

}  // namespace rlk::conformance
