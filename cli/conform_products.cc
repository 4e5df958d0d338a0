#include "cli/conform_products.h"

#include <fmt/format.h>

#include "cli/verbs.h"
#include "rlk/core/error.h"
#include "rlk/model/forward.h"
#include "rlk/ops/vendor_products.h"

namespace rlk::cli {
namespace {

ModelConfig qwen3_8b() {
  ModelConfig c;
  c.vocab_size = 151936;
  c.hidden_size = 4096;
  c.intermediate_size = 12288;
  c.num_attention_heads = 32;
  c.num_key_value_heads = 8;
  c.head_dim = 128;
  return c;
}

void print(const VendorPlan& plan) {
  const VendorShape& s = plan.shape;
  fmt::print("{} x {} to {}, {}\n", s.n, s.k, to_string(s.c), plan.library);
  if (!plan.failure.empty()) fmt::print("  {}\n", plan.failure);
  for (const VendorTrial& t : plan.trials) {
    fmt::print("  up to {:>2} rows, algorithm {:<8}{:>3} vectors  ", t.most_rows, t.algorithm,
               t.vectors);
    if (t.difference.empty()) {
      fmt::print("admitted  {:6.1f} us, ours {:6.1f}{}\n", t.us, t.our_us,
                 t.chosen ? "  chosen" : "");
    } else {
      fmt::print("refused   {}\n", t.difference);
    }
  }
}

}  // namespace

int conform_products(const std::string& library, const std::string& model,
                     const EngineFlags& engine) {
  const ModelConfig config = model.empty() ? qwen3_8b() : load_model_config(model);
  const std::unique_ptr<Context> ctx = make_context(engine);
  const std::vector<VendorPlan> plans = use_vendor_products(*ctx, library, vendor_shapes(config));
  if (plans.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "conform --products: backend {} leaves no products to a library; expected cuda.sm90",
         ctx->contract_table().backend);
  }
  int exit_code = kOk;
  for (const VendorPlan& plan : plans) {
    print(plan);
    if (!plan.failure.empty()) exit_code = kNotAvailable;
  }
  return exit_code;
}

}  // namespace rlk::cli
