#include <cstdio>
#include <map>
#include <memory>
#include <new>
#include <string>

#include "rlk/numerics/adamw.h"
#include "rlk/numerics/rope_table.h"
#include "rlk/ops/adamw.h"
#include "rlk/ops/attention.h"
#include "rlk/ops/backend.h"
#include "rlk/ops/copy_rows.h"
#include "rlk/ops/embedding.h"
#include "rlk/ops/gemm.h"
#include "rlk/ops/group_advantages.h"
#include "rlk/ops/grpo_loss.h"
#include "rlk/ops/kl.h"
#include "rlk/ops/logprob.h"
#include "rlk/ops/ppo_loss.h"
#include "rlk/ops/ratio.h"
#include "rlk/ops/residual_add.h"
#include "rlk/ops/rlk_c_admission.h"
#include "rlk/ops/rlk_c_args.h"
#include "rlk/ops/rms_norm.h"
#include "rlk/ops/rope.h"
#include "rlk/ops/swiglu.h"

namespace {

// Fixed, so that storing a message cannot fail.
struct Message {
  char text[1024] = "";
};
thread_local Message message_without_context;

}  // namespace

struct rlk_context {
  rlk_context(const rlk::Contract& contract, rlk::Mode mode, int num_threads,
              const rlk::KernelTable& kernels, const rlk::Admission& admission)
      : context(contract, rlk::all_ops(mode), num_threads, &kernels, admission),
        json(rlk::canonical_json(contract)),
        digests{rlk::forward_digest(contract), rlk::backward_digest(contract)} {}
  rlk_context(const rlk_context&) = delete;
  rlk_context& operator=(const rlk_context&) = delete;
  ~rlk_context() {
    try {
      context.synchronize();  // calls that still run may use the memory
    } catch (...) {           // nobody asks any more
    }
    for (const auto& [data, memory] : allocated) memory->give_back(data);
  }

  rlk::Context context;
  std::map<void*, rlk::Memory*> allocated;
  std::string json;
  std::string digests[2];  // by RLK_DIGEST_*
  Message message;
};

namespace rlk::c {
namespace {

// Codes are the C++ ones plus one, as 0 is RLK_OK.
constexpr rlk_status status_of(ErrorCode code) { return static_cast<rlk_status>(code) + 1; }
static_assert(status_of(ErrorCode::kInvalidArgument) == RLK_ERROR_INVALID_ARGUMENT &&
              status_of(ErrorCode::kShape) == RLK_ERROR_SHAPE &&
              status_of(ErrorCode::kDtype) == RLK_ERROR_DTYPE &&
              status_of(ErrorCode::kFormat) == RLK_ERROR_FORMAT &&
              status_of(ErrorCode::kIo) == RLK_ERROR_IO &&
              status_of(ErrorCode::kUnsupported) == RLK_ERROR_UNSUPPORTED &&
              status_of(ErrorCode::kNotAvailable) == RLK_ERROR_NOT_AVAILABLE &&
              status_of(ErrorCode::kNonFinite) == RLK_ERROR_NON_FINITE &&
              status_of(ErrorCode::kNotAdmitted) == RLK_ERROR_NOT_ADMITTED &&
              status_of(ErrorCode::kContract) == RLK_ERROR_CONTRACT &&
              status_of(ErrorCode::kInterrupted) == RLK_ERROR_INTERRUPTED);
static_assert(sizeof(void*) == 8 && sizeof(std::size_t) == 8, "rlk.h is laid out for 64 bits");

rlk_status failed(rlk_context* context, rlk_status status, const char* what) noexcept {
  Message& message = context ? context->message : message_without_context;
  std::snprintf(message.text, sizeof(message.text), "%s", what);
  return status;
}

// Runs `body`; whatever it throws becomes a code and a message.
template <typename Body>
rlk_status guarded(rlk_context* context, const Body& body) noexcept {
  try {
    body();
    return RLK_OK;
  } catch (const Error& error) {
    return failed(context, status_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return failed(context, RLK_ERROR_OUT_OF_MEMORY, "no memory");
  } catch (const std::exception& error) {
    return failed(context, RLK_ERROR_INTERNAL, error.what());
  } catch (...) {
    return failed(context, RLK_ERROR_INTERNAL, "unknown exception");
  }
}

Context& required(const char* op, rlk_context* context) {
  if (!context) fail(ErrorCode::kInvalidArgument, "{}: context is NULL", op);
  return context->context;
}

// One operator call: op(context, converted arguments).
template <typename Args, typename Op>
rlk_status call(rlk_context* context, const char* name, const Args* args, const Op& op) noexcept {
  return guarded(context, [&] {
    Context& ctx = required(name, context);
    Fields fields(name);
    op(ctx, convert(fields, load(name, args)));
  });
}

std::unique_ptr<rlk_context> make_context(const rlk_context_options* options) {
  constexpr const char* kName = "rlk_context_create";
  const rlk_context_options o = options ? load(kName, options) : rlk_context_options{};
  const Fields fields(kName);
  fields.in_range("reserved", o.reserved, 0, 0);
  const auto num_threads = fields.in_range("num_threads", o.num_threads, 0, 1024);
  const Contract contract =
      o.contract_json ? parse_contract(o.contract_json, "contract_json") : Contract();
  const Mode mode = o.mode ? parse_mode(o.mode) : Mode::kStrict;
  const KernelTable& kernels = find_backend(o.backend ? o.backend : "cpu", contract.profile);
  const bool asks = mode == Mode::kStrict || mode == Mode::kAuto;
  return std::make_unique<rlk_context>(
      contract, mode, static_cast<int>(num_threads), kernels,
      asks ? admission_for(kernels, contract) : Admission::own_kernels());
}

}  // namespace
}  // namespace rlk::c

using rlk::c::call;
using rlk::c::guarded;

int32_t rlk_abi_version(void) { return RLK_ABI_VERSION; }

const char* rlk_status_name(rlk_status status) {
  if (status == RLK_OK) return "ok";
  if (status == RLK_ERROR_OUT_OF_MEMORY) return "out_of_memory";
  if (status == RLK_ERROR_INTERNAL) return "internal";
  return rlk::to_string(static_cast<rlk::ErrorCode>(status - 1));
}

rlk_status rlk_context_create(const rlk_context_options* options, rlk_context** context) {
  return guarded(nullptr, [&] {
    rlk_context*& out = rlk::c::Fields("rlk_context_create").required("context", context);
    out = nullptr;
    out = rlk::c::make_context(options).release();
  });
}

void rlk_context_destroy(rlk_context* context) { delete context; }

const char* rlk_last_error(const rlk_context* context) {
  return context ? context->message.text : message_without_context.text;
}

const char* rlk_contract_json(const rlk_context* context) {
  return context ? context->json.c_str() : nullptr;
}

const char* rlk_contract_digest(const rlk_context* context, int32_t which) {
  const bool known = which == RLK_DIGEST_FORWARD || which == RLK_DIGEST_BACKWARD;
  return context && known ? context->digests[which].c_str() : nullptr;
}

const char* rlk_backend_name(const rlk_context* context) {
  return context ? context->context.contract_table().backend : nullptr;
}

rlk_status rlk_memory_allocate(rlk_context* context, int32_t which, size_t size_bytes,
                               void** data) {
  return guarded(context, [&] {
    constexpr const char* kName = "rlk_memory_allocate";
    const rlk::Context& ctx = rlk::c::required(kName, context);
    const rlk::c::Fields fields(kName);
    void*& out = fields.required("data", data);
    out = nullptr;
    fields.in_range("which", which, RLK_MEMORY_TENSORS, RLK_MEMORY_SMALL);
    if (size_bytes == 0) return;
    rlk::Memory& memory = which == RLK_MEMORY_SMALL ? ctx.small_memory() : ctx.memory();
    void* const taken = memory.take(size_bytes);
    try {
      context->allocated.emplace(taken, &memory);
    } catch (...) {
      memory.give_back(taken);
      throw;
    }
    out = taken;
  });
}

rlk_status rlk_memory_free(rlk_context* context, void* data) {
  rlk_status waited = RLK_OK;
  const rlk_status freed = guarded(context, [&] {
    constexpr const char* kName = "rlk_memory_free";
    rlk::c::required(kName, context);
    if (!data) return;
    const auto entry = context->allocated.find(data);
    if (entry == context->allocated.end()) {
      rlk::fail(rlk::ErrorCode::kInvalidArgument, "{}: data is no memory of this context", kName);
    }
    waited = rlk_synchronize(context);
    entry->second->give_back(data);
    context->allocated.erase(entry);
  });
  return freed != RLK_OK ? freed : waited;
}

rlk_status rlk_synchronize(rlk_context* context) {
  return guarded(context, [&] { rlk::c::required("rlk_synchronize", context).synchronize(); });
}

rlk_status rlk_packed_weight_create(rlk_context* context, rlk_packed_weight** packed) {
  return guarded(context, [&] {
    rlk::c::required("rlk_packed_weight_create", context);
    rlk_packed_weight*& out = rlk::c::Fields("rlk_packed_weight_create").required("packed", packed);
    out = nullptr;
    out = new rlk_packed_weight;
  });
}

void rlk_packed_weight_destroy(rlk_packed_weight* packed) { delete packed; }

#define RLK_OP(name, Args)                                                         \
  rlk_status rlk_##name(rlk_context* context, const rlk_##name##_args* args) {     \
    return call(context, #name, args,                                              \
                [](rlk::Context& ctx, const rlk::Args& a) { rlk::name(ctx, a); }); \
  }
RLK_OPS(RLK_OP)
#undef RLK_OP

rlk_status rlk_rope_table(rlk_context* context, double theta, int64_t head_dim,
                          int64_t first_position, int64_t count, float* cos, float* sin) {
  return guarded(context, [&] {
    constexpr const char* kName = "rlk_rope_table";
    constexpr std::int64_t kMaxPosition = std::int64_t{1} << 22;
    rlk::c::required(kName, context);
    const rlk::c::Fields fields(kName);
    if (!(theta >= 2 && theta <= 0x1p40)) {
      rlk::fail(rlk::ErrorCode::kInvalidArgument, "{}: theta {} is not in [2, 2^40]", kName, theta);
    }
    fields.in_range("head_dim", head_dim, 2, 1024);
    fields.in_range("head_dim % 2", head_dim % 2, 0, 0);
    fields.in_range("first_position", first_position, 0, kMaxPosition);
    fields.in_range("count", count, 0, kMaxPosition - first_position);
    if (count == 0) return;
    rlk::numerics::rope_table(theta, head_dim, first_position, count, &fields.required("cos", cos),
                              &fields.required("sin", sin));
  });
}

rlk_status rlk_adamw_constants(rlk_context* context, rlk_adamw_args* args, double beta1,
                               double beta2, double eps, double lr, double weight_decay,
                               int64_t step) {
  return guarded(context, [&] {
    constexpr const char* kName = "rlk_adamw_constants";
    rlk::c::required(kName, context);
    rlk::c::load(kName, args);
    const rlk::c::Fields fields(kName);
    fields.in_range("step", step, 1, INT64_MAX);
    if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1)) {
      rlk::fail(rlk::ErrorCode::kInvalidArgument, "{}: beta1 {} and beta2 {} must be in [0, 1)",
                kName, beta1, beta2);
    }
    const auto c = rlk::numerics::adamw_constants(beta1, beta2, eps, lr, weight_decay, step);
    args->lr = c.lr;
    args->b1 = c.b1;
    args->b2 = c.b2;
    args->f1 = c.f1;
    args->f2 = c.f2;
    args->h1 = c.h1;
    args->h2 = c.h2;
    args->eps = c.eps;
    args->wd = c.weight_decay;
  });
}
