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
                        std::int64_t time_ns) {
  CallStats& stats = calls_[slot(op, backend, mode, shape)];
  ++stats.count;
  stats.time_ns += time_ns;
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
                 const KernelTable* contract_kernels)
    : contract_(contract),
      modes_(modes),
      contract_kernels_(contract_kernels ? contract_kernels : &cpu_kernels()),
      pool_(num_threads),
      exec_{pool_, workspace_, contract_, fault_} {
  validate(contract_);
  if (contract_.profile != Profile::kPortable) {
    fail(ErrorCode::kNotAvailable, "contract.profile = {}: the CPU runs profile portable only",
         to_string(contract_.profile));
  }
  for (int i = 0; i < kNumOps; ++i) {
    if (modes_[i] == Mode::kAudit) {
      fail(ErrorCode::kUnsupported, "mode audit of operator {} is not built; use strict or off",
           to_string(static_cast<Op>(i)));
    }
    tables_[i] = modes_[i] == Mode::kOff ? &production_kernels() : contract_kernels_;
  }
}

std::string Context::where(Op op) const {
  std::string text;
  if (layer_ >= 0) text += fmt::format("layer {} ", layer_);
  if (node_) text += fmt::format("{}: ", node_);
  return text + to_string(op);
}

}  // namespace rlk
