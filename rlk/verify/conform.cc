#include "rlk/verify/conform.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "rlk/core/error.h"
#include "rlk/numerics/bf16.h"
#include "rlk/ops/audit.h"
#include "rlk/verify/conform_vectors.h"

namespace rlk {
namespace conformance {
namespace {

// "0.5 (0x3f00)"
std::string value_text(DType dtype, const char* at) {
  switch (dtype) {
    case DType::kBF16: {
      bf16 x;
      std::memcpy(&x, at, sizeof x);
      return fmt::format("{} (0x{:04x})", numerics::to_f32(x), x.bits);
    }
    case DType::kF32: {
      float x;
      std::memcpy(&x, at, sizeof x);
      return fmt::format("{} (0x{:08x})", x, std::bit_cast<std::uint32_t>(x));
    }
    case DType::kI32: {
      std::int32_t x;
      std::memcpy(&x, at, sizeof x);
      return fmt::format("{} (0x{:08x})", x, static_cast<std::uint32_t>(x));
    }
    default: return "?";
  }
}

bool is_nan(DType dtype, const char* at) {
  if (dtype == DType::kBF16) {
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return (bits & 0x7fff) > 0x7f80;
  }
  float x;
  std::memcpy(&x, at, sizeof x);
  return dtype == DType::kF32 && std::isnan(x);
}

// "c[3, 7]"
std::string element_name(const Output& output, std::int64_t index) {
  std::string text;
  for (int d = output.view.rank() - 1; d >= 0; --d) {
    const std::int64_t size = output.view.shape(d);
    text = std::to_string(index % size) + (text.empty() ? "" : ", ") + text;
    index /= size;
  }
  return fmt::format("{}[{}]", output.name, text);
}

// The first element that differs or is NaN; empty when there is none.
std::string first_difference(const Output& output, const Tensor& ours, const Tensor& contract) {
  const std::size_t size = size_of(ours.dtype());
  for (std::int64_t i = 0; i < ours.size(); ++i) {
    const char* a = ours.data<char>() + static_cast<std::size_t>(i) * size;
    const char* b = contract.data<char>() + static_cast<std::size_t>(i) * size;
    if (std::memcmp(a, b, size) == 0 && !is_nan(ours.dtype(), a)) continue;
    return fmt::format("{} is {}, the contract's is {}", element_name(output, i),
                       value_text(ours.dtype(), a), value_text(ours.dtype(), b));
  }
  return "";
}

std::string row_text(std::int64_t row) { return row < 0 ? "no row" : fmt::format("row {}", row); }

}  // namespace

Trial::Trial(Op op, const Contract& contract, std::vector<const KernelTable*> candidates,
             int threads)
    : op_(op), contract_(contract), pool_(threads) {
  for (const KernelTable* table : candidates) {
    candidates_.push_back({table, {op, table->backend, true, 0, ""}});
  }
}

Trial::Trial(Op op, const Contract& contract, const KernelTable& candidate, int threads,
             Sha256* digest)
    : Trial(op, contract, {&candidate}, threads) {
  digest_ = digest;
}

Contract Trial::short_blocks() const {
  Contract contract = contract_;
  contract.kv_block = 16;
  contract.kv_split = 48;
  contract.token_block = 16;
  return contract;
}

Trial::Outcome Trial::outcome(const KernelTable& table, ThreadPool& pool, const Contract& contract,
                              Memory& memory, const std::vector<Output>& outputs,
                              const Call& call) {
  memory.restore();
  Fault fault;
  Exec exec{pool, workspace_, contract, fault};
  call(table, exec);
  for (const Output& output : outputs) {
    if (is_open_sum(output.name)) drop_zero_signs(output.view);
  }
  Outcome out;
  out.fault_row = fault.row();
  for (const Output& output : outputs) out.outputs.push_back(gather(output.view));
  out.memory = memory.storage();
  return out;
}

void Trial::run_all(const std::string& name, const Contract& contract, Memory& memory,
                    const std::vector<Output>& outputs, const Call& call) {
  memory.keep();
  if (digest_) {
    const Outcome ours = outcome(*candidates_[0].table, pool_, contract, memory, outputs, call);
    digest_->update(fmt::format("{} {} {}", rlk::to_string(op_), name, ours.fault_row));
    if (ours.fault_row >= 0) return;
    for (const Tensor& t : ours.outputs) digest_->update(t.view().data, t.size_bytes());
    return;
  }
  const Outcome expected = outcome(reference_kernels(), single_, contract, memory, outputs, call);
  for (Candidate& candidate : candidates_) {
    AdmissionEntry& entry = candidate.entry;
    if (!entry.admitted) continue;
    ++entry.vectors;
    const Outcome ours = outcome(*candidate.table, pool_, contract, memory, outputs, call);
    std::string difference;
    if (ours.fault_row != expected.fault_row) {
      difference = fmt::format("refuses {}, the contract refuses {}", row_text(ours.fault_row),
                               row_text(expected.fault_row));
    } else if (expected.fault_row < 0) {  // a refused call has no results
      for (std::size_t i = 0; i < outputs.size() && difference.empty(); ++i) {
        difference = first_difference(outputs[i], ours.outputs[i], expected.outputs[i]);
      }
      for (std::size_t i = 0; i < ours.memory.size() && difference.empty(); ++i) {
        if (std::memcmp(ours.memory[i].view().data, expected.memory[i].view().data,
                        ours.memory[i].size_bytes()) != 0) {
          difference = "writes to memory that is no output";
        }
      }
    }
    if (difference.empty()) continue;
    entry.admitted = false;
    entry.reason = fmt::format("vector \"{}\": {}", name, difference);
  }
}

std::vector<AdmissionEntry> Trial::entries() const {
  std::vector<AdmissionEntry> out;
  for (const Candidate& candidate : candidates_) out.push_back(candidate.entry);
  return out;
}

// Packing is tried as a part of gemm.
void pack_weight_vectors(Trial&) {}

namespace {

void run_vectors(Op op, Trial& trial) {
  switch (op) {
#define RLK_OP(name, Args) \
  case Op::name: return name##_vectors(trial);
    RLK_OPS(RLK_OP)
#undef RLK_OP
    case Op::kCount: break;
  }
}

bool has_kernel(const KernelTable& table, Op op) {
  switch (op) {
#define RLK_OP(name, Args) \
  case Op::name: return table.name != nullptr;
    RLK_OPS(RLK_OP)
#undef RLK_OP
    case Op::kCount: break;
  }
  return false;
}

std::vector<Op> ops_of(const ConformOptions& options) {
  validate(options.contract);
  std::vector<Op> ops = options.ops;
  if (ops.empty()) {
    for (int i = 0; i < kNumOps; ++i) ops.push_back(static_cast<Op>(i));
  }
  std::erase(ops, Op::pack_weight);
  if (ops.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "pack_weight has no vectors: gemm is tried with packed weights");
  }
  return ops;
}

}  // namespace
}  // namespace conformance

Admission conform(const ConformOptions& options, const ConformProgress& progress) {
  Admission admission(admission_key(options.contract));
  std::vector<const KernelTable*> backends = options.backends;
  if (backends.empty()) backends.push_back(&cpu_kernels());
  for (const KernelTable*& table : backends) {
    table = &on_host_memory(*table);
    if (table->on_device) {
      fail(ErrorCode::kUnsupported, "backend {}: it takes no tensors of the host", table->backend);
    }
    if (!table->runs(options.contract.profile)) {
      fail(ErrorCode::kNotAvailable, "contract.profile = {}: backend {} does not run it",
           to_string(options.contract.profile), table->backend);
    }
  }
  for (const Op op : conformance::ops_of(options)) {
    std::vector<const KernelTable*> candidates;
    for (const KernelTable* table : backends) {
      if (conformance::has_kernel(*table, op)) {
        candidates.push_back(table);
      } else {
        admission.add({op, table->backend, false, 0, "no kernel"});
      }
    }
    conformance::Trial trial(op, options.contract, std::move(candidates), options.threads);
    conformance::run_vectors(op, trial);
    for (AdmissionEntry& entry : trial.entries()) admission.add(std::move(entry));
    if (progress) progress(op);
  }
  return admission;
}

std::string conform_digest(const ConformOptions& options, const KernelTable& table) {
  Sha256 digest;
  for (const Op op : conformance::ops_of(options)) {
    if (!conformance::has_kernel(table, op)) continue;
    conformance::Trial trial(op, options.contract, on_host_memory(table), options.threads, &digest);
    conformance::run_vectors(op, trial);
  }
  return digest.hex();
}

}  // namespace rlk
