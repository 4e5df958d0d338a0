#include "rlk/ops/context.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "rlk/core/doctor.h"
#include "rlk/core/error.h"

namespace rlk {
namespace {

constexpr const char* kModeNames[] = {"strict", "audit", "auto", "off"};

// Levenshtein distance, for "did you mean".
int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i) + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const int change = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// Empty when `table` may run `op` under the contract.
std::string why_refused(Op op, const KernelTable& table, const Admission& admission) {
  if (admission.admitted(op, table.backend)) return "";
  const AdmissionEntry* entry = admission.find(op, table.backend);
  return entry ? fmt::format("{} was refused: {}", table.backend, entry->reason)
               : fmt::format("{} has no admission on this device and build", table.backend);
}

}  // namespace

const char* to_string(Mode mode) { return kModeNames[static_cast<int>(mode)]; }

Mode parse_mode(std::string_view name) {
  for (int i = 0; i < 4; ++i) {
    if (name == kModeNames[i]) return static_cast<Mode>(i);
  }
  fail(ErrorCode::kInvalidArgument, "mode \"{}\": must be strict, audit, auto or off", name);
}

Op parse_op(std::string_view name) {
  Op nearest = Op::embedding;
  int least = 1 << 20;
  for (int i = 0; i < kNumOps; ++i) {
    const int distance = edit_distance(name, to_string(static_cast<Op>(i)));
    if (distance == 0) return static_cast<Op>(i);
    if (distance < least) {
      least = distance;
      nearest = static_cast<Op>(i);
    }
  }
  fail(ErrorCode::kInvalidArgument, "unknown operator \"{}\"; the nearest is \"{}\"", name,
       to_string(nearest));
}

Modes all_ops(Mode mode) {
  Modes modes;
  modes.fill(mode);
  return modes;
}

Provenance::Slot Provenance::slot(Op op, const char* backend, Mode mode,
                                  const ConstTensorView& shape) {
  Slot s{op, backend, mode, {0, 0, 0}};
  for (int d = 0; d < std::min(shape.rank(), 3); ++d) s.dims[d] = shape.shape(d);
  s.dims[0] = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(s.dims[0])));
  return s;
}

void Provenance::record(Op op, const char* backend, Mode mode, const ConstTensorView& shape,
                        const CallStats& call) {
  CallStats& stats = calls_[slot(op, backend, mode, shape)];
  stats.count += call.count;
  stats.time_ns += call.time_ns;
  stats.audit_compared += call.audit_compared;
  stats.audit_mismatches += call.audit_mismatches;
}

void Provenance::count_again(const Provenance& other) {
  for (const auto& [slot, stats] : other.calls_) calls_[slot].count += stats.count;
}

std::vector<std::pair<CallKey, CallStats>> Provenance::calls() const {
  std::vector<std::pair<CallKey, CallStats>> out;
  for (const auto& [s, stats] : calls_) {
    std::string shape_class = fmt::format("<={}", s.dims[0]);
    for (int d = 1; d < 3 && s.dims[d]; ++d) shape_class += fmt::format("x{}", s.dims[d]);
    out.push_back({{s.op, s.backend, s.mode, shape_class}, stats});
  }
  return out;
}

Context::Context(const Contract& contract, Modes modes, int num_threads,
                 const KernelTable* contract_kernels, const Admission& admission)
    : contract_(contract),
      modes_(modes),
      contract_kernels_(contract_kernels ? contract_kernels : &cpu_kernels()),
      queue_(contract_kernels_->on_device ? std::make_unique<device::Queue>() : nullptr),
      memory_(queue_ ? device::managed_memory() : host_memory()),
      small_memory_(queue_ ? device::pinned_memory() : host_memory()),
      pool_(num_threads),
      workspace_(memory_),
      small_workspace_(small_memory_),
      exec_{pool_, workspace_, contract_, fault_, queue_.get()} {
  if (queue_) queue_->collects_faults = true;
  validate(contract_);
  if (std::find(modes_.begin(), modes_.end(), Mode::kStrict) != modes_.end()) {
    require_strict_environment(contract_kernels_->on_device);
  }
  if (!contract_kernels_->runs(contract_.profile)) {
    fail(ErrorCode::kNotAvailable, "contract.profile = {}: backend {} does not run it",
         to_string(contract_.profile), contract_kernels_->backend);
  }
  for (int i = 0; i < kNumOps; ++i) {
    const Op op = static_cast<Op>(i);
    const Mode mode = modes_[i];
    const std::string refusal = why_refused(op, *contract_kernels_, admission);
    if (mode == Mode::kStrict && !refusal.empty()) {
      fail(ErrorCode::kNotAdmitted, "{}: {}; `rlk conform` tries for admission", to_string(op),
           refusal);
    }
    if (mode == Mode::kAudit && contract_kernels_ == &production_kernels()) {
      fail(ErrorCode::kInvalidArgument,
           "{}: mode audit would hold backend {} against itself; expected another backend",
           to_string(op), contract_kernels_->backend);
    }
    if (mode == Mode::kAuto) fallback_reasons_[i] = refusal;
    const bool contract = mode == Mode::kStrict || (mode == Mode::kAuto && refusal.empty());
    tables_[i] = contract ? contract_kernels_ : &production_kernels();
  }
}

ConstTensorView Context::mirror(const ConstTensorView& t) {
  if (!queue_ || !t || !t.layout.contiguous() || t.layout.size() == 0) return t;
  const std::size_t size = static_cast<std::size_t>(t.layout.size()) * size_of(t.dtype);
  const auto found = std::find_if(mirrors_.begin(), mirrors_.end(), [&](const Mirror& m) {
    return m.host == t.data && m.size_bytes >= size;
  });
  ConstTensorView out = t;
  if (found != mirrors_.end()) {
    out.data = found->device;
    return out;
  }
  if (!mirror_frame_) mirror_frame_.emplace(mirror_memory_);
  void* const copy = mirror_frame_->take<char>(static_cast<std::int64_t>(size));
  device::copy(copy, t.data, size, queue_->stream());
  mirrors_.push_back({t.data, size, copy});
  out.data = copy;
  return out;
}

void Context::expect_fault(Op op, const char* fault) {
  if (!queue_) return;
  if (std::ssize(pending_) == device::Queue::kFaultCells) {
    if (recording_) fail(ErrorCode::kUnsupported, "{}: the recording is too long", where(op));
    synchronize();
  }
  queue_->use_fault_cell(std::ssize(pending_));
  pending_.push_back({op, layer_, node_, fault});
}

// The calls so far; no mirror of theirs is used again.
std::vector<Context::PendingCall> Context::take_pending() {
  mirrors_.clear();
  mirror_frame_.reset();
  queue_->use_fault_cell(0);
  return std::exchange(pending_, {});
}

void Context::synchronize() {
  if (!queue_) return;
  const std::vector<std::int64_t> rows = queue_->take_faults(std::ssize(pending_));
  const std::vector<PendingCall> calls = take_pending();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (rows[i] < 0 || !calls[i].fault) continue;
    fault_.clear();
    fault_.report(rows[i]);
    set_node(calls[i].layer, calls[i].node);
    fail_faulty(calls[i].op, calls[i].fault);
  }
}

void Context::abandon() noexcept {
  if (!queue_) return;
  const std::size_t count = take_pending().size();
  try {
    queue_->take_faults(static_cast<std::int64_t>(count));
  } catch (const Error&) {
  }
}

bool Context::can_record() const {
  return queue_ && std::all_of(tables_.begin(), tables_.end(),
                               [](const KernelTable* table) { return table->on_device; });
}

Context::Recording Context::record(const std::function<void()>& work) {
  RLK_ASSERT(can_record());
  synchronize();  // the recorded calls have the first fault cells, and mirrors of their own
  Provenance others = std::exchange(provenance_, {});
  Recording recording;
  recording_ = true;
  try {
    recording.graph_ = std::make_unique<device::Graph>(queue_->stream(), work);
  } catch (...) {
    recording_ = false;
    take_pending();
    provenance_ = std::move(others);
    throw;
  }
  recording_ = false;
  recording.pending_ = take_pending();
  recording.provenance_ = std::exchange(provenance_, std::move(others));
  return recording;
}

void Context::replay(Recording& recording) {
  synchronize();  // as in record()
  recording.graph_->launch(queue_->stream());
  pending_ = recording.pending_;
  provenance_.count_again(recording.provenance_);
}

void Context::fail_faulty(Op op, const char* fault) const {
  fail(ErrorCode::kNonFinite, "{}: row {}: {}", where(op), fault_.row(), fault);
}

std::string Context::where(Op op) const {
  std::string text;
  if (layer_ >= 0) text += fmt::format("layer {} ", layer_);
  if (node_) text += fmt::format("{}: ", node_);
  return text + to_string(op);
}

}  // namespace rlk
