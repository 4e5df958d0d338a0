#include "rlk/ops/context.h"

#include <algorithm>
#include <bit>

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

// Empty when `table` may run `op` under the contract. Packing is a plan and needs no admission.
std::string why_refused(Op op, const KernelTable& table, const Admission& admission) {
  if (op == Op::pack_weight || admission.admitted(op, table.backend)) return "";
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
      pool_(num_threads),
      exec_{pool_, workspace_, contract_, fault_} {
  validate(contract_);
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
    if (mode == Mode::kAuto) fallback_reasons_[i] = refusal;
    const bool contract = mode == Mode::kStrict || (mode == Mode::kAuto && refusal.empty());
    tables_[i] = contract ? contract_kernels_ : &production_kernels();
  }
}

std::string Context::where(Op op) const {
  std::string text;
  if (layer_ >= 0) text += fmt::format("layer {} ", layer_);
  if (node_) text += fmt::format("{}: ", node_);
  return text + to_string(op);
}

}  // namespace rlk
