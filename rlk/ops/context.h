// Context: what every operator call takes first. Modes decide which kernels may run, provenance
// records which did.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rlk/kernels/kernel_table.h"
#include "rlk/ops/admission.h"

namespace rlk {

// strict  admitted kernels only; anything else stops the run
// audit   the production kernel's result is used, the contract kernel runs beside it, and
//         differences are recorded
// auto    the contract's kernel where it is admitted, else the production kernel
// off     the production kernel
enum class Mode : std::uint8_t { kStrict, kAudit, kAuto, kOff };
const char* to_string(Mode mode);
Mode parse_mode(std::string_view name);
Op parse_op(std::string_view name);  // Error kInvalidArgument names the nearest operator

using Modes = std::array<Mode, kNumOps>;
Modes all_ops(Mode mode);

// What ran: one entry per operator, implementation, mode and shape class.
struct CallStats {
  std::int64_t count = 0;
  std::int64_t time_ns = 0;
  std::int64_t audit_compared = 0;  // mode audit: output elements held against the contract's
  std::int64_t audit_mismatches = 0;
};
struct CallKey {
  Op op;
  const char* backend;
  Mode mode;
  std::string shape_class;  // leading dimension rounded up to a power of two, then the others
  auto operator<=>(const CallKey&) const = default;
};

class Provenance {
 public:
  void record(Op op, const char* backend, Mode mode, const ConstTensorView& shape,
              const CallStats& call);
  std::vector<std::pair<CallKey, CallStats>> calls() const;
  void clear() { calls_.clear(); }

 private:
  struct Slot {
    Op op;
    const char* backend;
    Mode mode;
    std::array<std::int64_t, 3> dims;
    auto operator<=>(const Slot&) const = default;
  };
  static Slot slot(Op op, const char* backend, Mode mode, const ConstTensorView& shape);
  std::map<Slot, CallStats> calls_;
};

// One per engine and thread of control. Not shared between threads.
class Context {
 public:
  // num_threads 0: one per hardware thread. contract_kernels: the table strict mode runs, by
  // default the fastest for this CPU; tests pass reference_kernels() or one instruction set.
  // admission: what strict mode may run.
  // Errors  kNotAdmitted: an operator in mode strict whose kernel has no admission, and why.
  Context(const Contract& contract, Modes modes, int num_threads = 0,
          const KernelTable* contract_kernels = nullptr,
          const Admission& admission = Admission::own_kernels());
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Contract& contract() const { return contract_; }
  Exec& exec() { return exec_; }
  ThreadPool& pool() { return pool_; }
  Workspace& workspace() { return workspace_; }
  Provenance& provenance() { return provenance_; }
  Mode mode(Op op) const { return modes_[static_cast<int>(op)]; }
  const Modes& modes() const { return modes_; }

  // The table that computes `op` here; in mode audit the production table.
  const KernelTable& table(Op op) const { return *tables_[static_cast<int>(op)]; }
  const KernelTable& contract_table() const { return *contract_kernels_; }

  // Why mode auto runs the production kernel for `op`; empty otherwise.
  const std::string& fallback_reason(Op op) const {
    return fallback_reasons_[static_cast<int>(op)];
  }

  // Where the model is, for messages: "layer 3 q_norm". Operators put it before their own name.
  void set_node(int layer, const char* node) {
    layer_ = layer;
    node_ = node;
  }
  std::string where(Op op) const;

 private:
  Contract contract_;
  Modes modes_;
  const KernelTable* contract_kernels_;
  std::array<const KernelTable*, kNumOps> tables_;
  std::array<std::string, kNumOps> fallback_reasons_;
  ThreadPool pool_;
  Workspace workspace_;
  Fault fault_;
  Exec exec_;
  Provenance provenance_;
  int layer_ = -1;
  const char* node_ = nullptr;
};

}  // namespace rlk
