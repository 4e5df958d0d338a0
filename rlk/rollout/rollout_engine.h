// The rollout engine: continuous batching over a paged KV cache, sampling, and log-probabilities.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rlk/model/forward.h"
#include "rlk/ops/vendor_products.h"
#include "rlk/rollout/decode_graphs.h"
#include "rlk/rollout/page_pool.h"
#include "rlk/rollout/scheduler.h"
#include "rlk/rollout/sequence.h"

namespace rlk {

struct RolloutOptions {
  std::int64_t max_model_len = 0;
  std::int64_t max_num_seqs = 64;
  std::int64_t max_num_batched_tokens = 512;
  std::int64_t page_size = 16;
  std::int64_t num_pages = 0;  // 0: enough for max_num_seqs sequences of max_model_len
  bool prefix_cache = true;
  bool graphs = true;  // decode steps as graphs (decode_graphs.h); of no meaning on a CPU
  std::string vendor_products = {};  // the library of use_vendor_products; empty: none
};

struct RolloutStats {
  std::int64_t num_steps = 0;
  std::int64_t num_forward_tokens = 0;
  std::int64_t num_sampled_tokens = 0;
  std::int64_t num_preemptions = 0;
  std::int64_t num_prefix_hits = 0;  // pages
  std::int64_t num_graph_steps = 0;  // steps whose model ran as a graph
};

class RolloutEngine {
 public:
  // ctx and the engine live together; nothing else uses ctx.
  // Errors  kInvalidArgument for options that do not fit.
  RolloutEngine(Context& ctx, const ModelConfig& config, const RolloutOptions& options);
  ~RolloutEngine();

  // Takes new weights. Sequences that are running keep their tokens and are computed again under
  // the new weights; every token carries the version that sampled it. Returns the acknowledged
  // version.
  std::int64_t load_weights(Parameters& parameters, std::int64_t weight_version);

  // Errors  kInvalidArgument: empty prompt, token outside the vocabulary, prompt not shorter than
  //         max_model_len, max_new_tokens below 1, sampling parameters, or more tokens than all
  //         pages hold.
  void add_request(const Request& request);

  // One batch: returns the requests that it finished. Empty and without work when idle().
  // Errors  those of forward and sample; the requests are still there, without their KV.
  std::vector<Completion> step();
  bool idle() const { return scheduler_.idle(); }

  // Runs requests to their end; completions in the order of `requests`.
  // Errors  those of add_request, before any request is taken; kInvalidArgument for an id that is
  //         used twice, or when not idle().
  std::vector<Completion> generate(const std::vector<Request>& requests);

  RolloutStats stats() const;
  const Model& model() const { return model_; }
  const std::vector<VendorPlan>& vendor_plans() const { return vendor_plans_; }
  Context& context() { return ctx_; }

 private:
  struct Batch;
  void check(const Request& request) const;
  void drop_kv();
  void build(const std::vector<ScheduledSequence>& scheduled, Batch& batch);
  void run_model(const Batch& batch, const TensorView& last, const TensorView& logits);
  void sample_tokens(const Batch& batch, const ConstTensorView& logits);

  Context& ctx_;
  RolloutOptions options_;
  std::vector<VendorPlan> vendor_plans_;
  Model model_;
  PagePool pool_;
  DecodeGraphs graphs_;
  KvCache kv_cache_;
  Scheduler scheduler_;
  Activations activations_;
  RolloutStats stats_;
  std::unique_ptr<Batch> batch_;
};

}  // namespace rlk
