// Context: what every operator call takes first. Modes decide which kernels may run, provenance
// records which did.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rlk/device/device.h"
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
  // The calls of `other` once more, but not their times.
  void count_again(const Provenance& other);

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
  // admission: what strict mode may run. With kernels of a device every call is only given to the
  // device: the host sees results, and learns of faults, in synchronize().
  // Errors  kNotAdmitted: an operator in mode strict whose kernel has no admission, and why;
  //         kNotAvailable: the device that the kernels need, a profile they do not run, or an
  //         environment in which a strict operator cannot keep its word (core/doctor.h).
  Context(const Contract& contract, Modes modes, int num_threads = 0,
          const KernelTable* contract_kernels = nullptr,
          const Admission& admission = Admission::own_kernels());
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Contract& contract() const { return contract_; }
  Exec& exec() { return exec_; }
  ThreadPool& pool() { return pool_; }
  Workspace& workspace() { return workspace_; }
  Workspace& small_workspace() { return small_workspace_; }  // in small_memory()
  Provenance& provenance() { return provenance_; }
  Mode mode(Op op) const { return modes_[static_cast<int>(op)]; }
  const Modes& modes() const { return modes_; }

  // Where the tensors of a call live: host memory, or memory that the device reaches too. Small
  // arrays that the host writes or reads around every call go into the second: ids, offsets,
  // log-probabilities.
  Memory& memory() const { return memory_; }
  Memory& small_memory() const { return small_memory_; }
  bool on_device() const { return queue_ != nullptr; }

  // Waits until all calls so far are done. Without a device they are.
  // Errors  kNonFinite: the first call that met a number the contract forbids.
  void synchronize();

  // After an error: waits, and forgets the faults of all calls so far. What the device says now it
  // has said before.
  void abandon() noexcept;

  // Calls that were recorded once and can be given to the device again as a whole, by one launch.
  // They read the memory that they read when they were recorded, and what it holds then; index
  // arrays that are mirrored are copied anew, from small_memory().
  class Recording;
  // Whether record() may be called: every operator runs on a device.
  bool can_record() const;
  // Records the calls that `work` makes; none of them runs, and the host sees none of their
  // results. The same calls, of the same shapes, must have run before: so that nothing has to
  // be allocated. `work` must not wait for the device.
  // Errors  those of `work`; kNotAvailable: what a recording may not do, with the call;
  //         kUnsupported: more than device::Queue::kFaultCells calls.
  Recording record(const std::function<void()>& work);
  // Gives the calls to the device, as if they were made here: their faults are errors of
  // synchronize(), with their nodes, and they count in the provenance, without time. The checks of
  // arguments that stand before a kernel are not made again: the caller answers for what the host
  // has written since.
  void replay(Recording& recording);

  // The copy in device memory of an index array without gaps, made once until synchronize(): so
  // until then the host leaves such an array as it is. Without a device, and of one with gaps, `t`.
  ConstTensorView mirror(const ConstTensorView& t);

  // Before a call is given to the device: its fault, if it has one, is an error of synchronize(),
  // unless `fault` is null.
  void expect_fault(Op op, const char* fault);

  // The table that computes `op` here; in mode audit the production table.
  const KernelTable& table(Op op) const { return *tables_[static_cast<int>(op)]; }
  const KernelTable& contract_table() const { return *contract_kernels_; }

  // Why mode auto runs the production kernel for `op`; empty otherwise.
  const std::string& fallback_reason(Op op) const {
    return fallback_reasons_[static_cast<int>(op)];
  }

  // The error of a call whose row fault().row() holds what `fault` says.
  [[noreturn]] void fail_faulty(Op op, const char* fault) const;

  // Where the model is, for messages: "layer 3 q_norm". Operators put it before their own name.
  void set_node(int layer, const char* node) {
    layer_ = layer;
    node_ = node;
  }
  std::string where(Op op) const;

 private:
  // A call that the device may still be working on.
  struct PendingCall {
    Op op;
    int layer;
    const char* node;
    const char* fault;
  };
  struct Mirror {
    const void* host;
    std::size_t size_bytes;
    void* device;
  };
  std::vector<PendingCall> take_pending();

  Contract contract_;
  Modes modes_;
  const KernelTable* contract_kernels_;
  std::array<const KernelTable*, kNumOps> tables_;
  std::array<std::string, kNumOps> fallback_reasons_;
  std::unique_ptr<device::Queue> queue_;
  std::vector<PendingCall> pending_;
  std::vector<Mirror> mirrors_;  // of index arrays, in a frame of their own
  device::Workspace mirror_memory_;
  std::optional<device::Workspace::Frame> mirror_frame_;
  Memory& memory_;
  Memory& small_memory_;
  ThreadPool pool_;
  Workspace workspace_;
  Workspace small_workspace_;
  Fault fault_;
  Exec exec_;
  Provenance provenance_;
  bool recording_ = false;
  int layer_ = -1;
  const char* node_ = nullptr;
};

// At the head of a step of an engine: if an error leaves the scope, the calls so far are abandoned.
class AbandonOnError {
 public:
  explicit AbandonOnError(Context& ctx) : ctx_(ctx), num_errors_(std::uncaught_exceptions()) {}
  ~AbandonOnError() {
    if (std::uncaught_exceptions() > num_errors_) ctx_.abandon();
  }
  AbandonOnError(const AbandonOnError&) = delete;
  AbandonOnError& operator=(const AbandonOnError&) = delete;

 private:
  Context& ctx_;
  int num_errors_;
};

class Context::Recording {
 public:
  Recording(Recording&&) = default;
  Recording& operator=(Recording&&) = default;

 private:
  friend class Context;
  Recording() = default;

  std::unique_ptr<device::Graph> graph_;
  std::vector<PendingCall> pending_;
  Provenance provenance_;
};

}  // namespace rlk
