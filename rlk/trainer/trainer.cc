#include "rlk/trainer/trainer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "rlk/core/error.h"
#include "rlk/ops/copy_rows.h"
#include "rlk/ops/linear_logp.h"
#include "rlk/ops/residual_add.h"

namespace rlk {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Rows of the hidden states that predict a response token.
TensorView gather_rows(Context& ctx, Workspace::Frame& frame, const ConstTensorView& hidden,
                       const PackedBatch& batch) {
  const std::int64_t width = hidden.shape(1);
  const TensorView out =
      view(frame.take<bf16>(batch.num_rows() * width), {batch.num_rows(), width});
  if (batch.num_rows() == 0) return out;
  copy_rows(ctx, {out, hidden, vector_view(batch.rows), {}});
  return out;
}

LinearLogpArgs logp_args(const Model& model, const PackedBatch& batch,
                         const ConstTensorView& hidden, const TensorView& logp,
                         const TensorView& entropy) {
  LinearLogpArgs args;
  args.logp = logp;
  args.entropy = entropy;
  args.hidden = hidden;
  args.head = model.head();
  args.vocab_size = model.config().vocab_size;
  args.packed_forward = &model.packed_head().forward;
  args.packed_backward = &model.packed_head().backward;
  args.targets = view(batch.targets.data(), {batch.num_rows()});
  args.params = batch.params.data();
  args.num_params = batch.num_rows();
  return args;
}

// Runs `call`, an operator on the rows of the batch that predict a token, to its end. If it refuses
// a row, the error names the token: its sample, counted from first_sample, and its position.
template <typename Call>
void naming_tokens(Context& ctx, const PackedBatch& batch, std::int64_t first_sample,
                   const Call& call) {
  ctx.synchronize();
  try {
    call();
    ctx.synchronize();
  } catch (const Error& e) {
    const std::int64_t row = ctx.exec().fault.row();
    if (e.code() != ErrorCode::kNonFinite || row < 0) throw;
    const std::int64_t token = batch.rows[static_cast<std::size_t>(row)];
    const auto next = std::upper_bound(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), token);
    fail(ErrorCode::kNonFinite, "{}; the row predicts the token at position {} of sample {}",
         e.what(), token - *(next - 1) + 1, first_sample + (next - batch.cu_seqlens.begin()) - 1);
  }
}

void append(std::vector<std::vector<float>>& out, std::span<const TrainSample> samples,
            const float* logp) {
  for (const TrainSample& s : samples) {
    out.emplace_back(logp, logp + s.response_len());
    logp += s.response_len();
  }
}

}  // namespace

struct Trainer::Scratch {
  PackedBatch batch;
  Array<std::int64_t> head_group_ends;

  explicit Scratch(Memory& small_memory) : batch(small_memory), head_group_ends(small_memory) {}
};

Trainer::Trainer(Context& ctx, const ModelConfig& config, const TrainerOptions& options,
                 const Parameters& weights, std::int64_t weight_version)
    : ctx_(ctx),
      options_(options),
      weights_(copy_of(weights, ctx.memory())),
      model_(config, ctx.contract(), options.max_model_len, true, ctx.memory()),
      optimizer_(config, model_.vocab_padded(), options.optimizer, weights_, ctx.memory()),
      activations_(config, true, ctx.memory()),
      score_activations_(config, false, ctx.memory()),
      buffers_(config, ctx.memory()),
      accumulator_(config, model_.vocab_padded(), ctx.memory(), ctx.small_memory()),
      scratch_(std::make_unique<Scratch>(ctx.small_memory())) {
  model_.load(ctx_, weights_, weight_version);
}

Trainer::~Trainer() = default;

void Trainer::set_reference(Parameters& weights) {
  reference_ = std::make_unique<Model>(model_.config(), ctx_.contract(), options_.max_model_len,
                                       false, ctx_.memory());
  reference_->load(ctx_, weights, 0);
}

void Trainer::restore(std::int64_t weight_version) {
  slots_.clear();
  // A model of its own: the checkpoint's version need not follow the one that is loaded.
  model_ = Model(model_.config(), ctx_.contract(), options_.max_model_len, true, ctx_.memory());
  model_.load(ctx_, weights_, weight_version);
}

std::vector<std::vector<float>> Trainer::score(std::span<const TrainSample> samples) {
  const AbandonOnError guard(ctx_);
  const auto n = static_cast<std::int64_t>(samples.size());
  std::vector<std::vector<float>> out;
  PackedBatch& batch = scratch_->batch;
  for (std::int64_t i = 0; i < n; ++i) validate(samples[i], i, options_.max_model_len);
  for (const SampleRange& r : plan_micro_batches(samples, {0, n}, options_.micro_batch_tokens)) {
    const auto part = samples.subspan(r.begin, r.end - r.begin);
    batch.pack(part);
    const ConstTensorView hidden =
        forward(ctx_, model_, batch.forward_batch(), nullptr, score_activations_);
    Workspace::Frame frame(ctx_.workspace()), small_frame(ctx_.small_workspace());
    const TensorView logp = view(small_frame.take<float>(batch.num_rows()), {batch.num_rows()});
    ctx_.set_node(-1, "lm_head");
    const LinearLogpArgs args =
        logp_args(model_, batch, gather_rows(ctx_, frame, hidden, batch), logp, {});
    naming_tokens(ctx_, batch, r.begin, [&] { linear_logp(ctx_, args); });
    append(out, part, logp.at<float>());
  }
  return out;
}

TrainPass Trainer::accumulate(std::span<const TrainSample> samples) {
  const AbandonOnError guard(ctx_);
  const auto n = static_cast<std::int64_t>(samples.size());
  for (std::int64_t i = 0; i < n; ++i) validate(samples[i], i, options_.max_model_len);
  if (options_.loss.kl != Kl::kNone && !reference_) {
    fail(ErrorCode::kInvalidArgument, "trainer: a KL term needs a reference model");
  }
  const std::vector<std::vector<float>> weights = token_weights(samples, options_.loss.averaging);
  const std::span<const std::vector<float>> all_weights(weights);
  TrainPass pass;
  slots_.clear();
  const std::int64_t num_slots = ctx_.contract().grad_slots;
  for (std::int64_t slot = 0; slot < num_slots; ++slot) {
    accumulator_.reset();
    const SampleRange range = slot_samples(n, slot, num_slots);
    for (const SampleRange& r : plan_micro_batches(samples, range, options_.micro_batch_tokens)) {
      run_micro_batch(r.begin, samples.subspan(r.begin, r.end - r.begin),
                      all_weights.subspan(r.begin, r.end - r.begin), pass);
    }
    Parameters gradient = std::exchange(spare_, {});
    if (gradient.layers.empty()) {
      gradient =
          make_parameters(model_.config(), model_.vocab_padded(), DType::kF32, true, ctx_.memory());
    }
    accumulator_.finish(ctx_, gradient);
    merge_slot(std::move(gradient));
  }
  RLK_ASSERT(slots_.size() == 1);
  return pass;
}

void Trainer::run_micro_batch(std::int64_t first_sample, std::span<const TrainSample> samples,
                              std::span<const std::vector<float>> weights, TrainPass& pass) {
  const auto start = std::chrono::steady_clock::now();
  PackedBatch& batch = scratch_->batch;
  batch.pack(samples);
  const ForwardBatch forward_batch = batch.forward_batch();
  const std::int64_t num_rows = batch.num_rows();
  Workspace::Frame frame(ctx_.workspace()), small_frame(ctx_.small_workspace());
  const auto row_numbers = [&] { return view(small_frame.take<float>(num_rows), {num_rows}); };
  const TensorView logp = row_numbers();
  TensorView ref, entropy, g_entropy;
  if (reference_) {
    ref = row_numbers();
    const ConstTensorView hidden =
        forward(ctx_, *reference_, forward_batch, nullptr, score_activations_);
    ctx_.set_node(-1, "lm_head of the reference model");
    const LinearLogpArgs args =
        logp_args(*reference_, batch, gather_rows(ctx_, frame, hidden, batch), ref, {});
    naming_tokens(ctx_, batch, first_sample, [&] { linear_logp(ctx_, args); });
  }
  if (options_.loss.type == LossType::kGrpo) {
    entropy = row_numbers();
    if (options_.loss.entropy_coef != 0) g_entropy = row_numbers();
  }
  const ConstTensorView hidden = forward(ctx_, model_, forward_batch, nullptr, activations_);
  LinearLogpArgs args =
      logp_args(model_, batch, gather_rows(ctx_, frame, hidden, batch), logp, entropy);
  args.state =
      view(frame.take<std::int32_t>(num_rows * kLogprobStateWords), {num_rows, kLogprobStateWords});
  ctx_.set_node(-1, "lm_head");
  naming_tokens(ctx_, batch, first_sample, [&] { linear_logp(ctx_, args); });
  append(pass.logprobs, samples, logp.at<float>());
  pass.forward_s += seconds_since(start);

  const auto backward_start = std::chrono::steady_clock::now();
  const TensorView g = row_numbers();
  loss_gradient(ctx_, options_.loss, {g, g_entropy, logp, entropy, ref, samples, weights},
                pass.sums);

  accumulator_.begin_micro_batch(forward_batch.cu_seqlens, ctx_.contract().grad_group);
  // The head sees response rows only (the others would add zeros), so its groups end earlier.
  Array<std::int64_t>& head_ends = scratch_->head_group_ends;
  head_ends.clear();
  const ConstTensorView group_ends = accumulator_.group_ends();
  for (std::int64_t i = 0; i < group_ends.shape(0); ++i) {
    const std::int64_t end = *group_ends.at<std::int64_t>(i);
    const std::int64_t row =
        std::lower_bound(batch.rows.begin(), batch.rows.end(), end) - batch.rows.begin();
    // A group without response rows adds nothing; ends must rise.
    if (head_ends.empty() || head_ends.back() < row) head_ends.push_back(row);
  }
  const TensorView d_rows =
      view(frame.take<bf16>(num_rows * hidden.shape(1)), {num_rows, hidden.shape(1)});
  linear_logp_backward(ctx_,
                       {args, d_rows, accumulator_.dw().lm_head, accumulator_.chain().lm_head,
                        vector_view(head_ends), g, g_entropy, vector_view(batch.row_cu_seqlens)});
  const TensorView d_hidden =
      view(frame.take<bf16>(hidden.layout.size()), {hidden.shape(0), hidden.shape(1)});
  copy_rows(ctx_, {d_hidden, d_rows, vector_view(batch.row_of_token), {}});
  backward(ctx_, model_, forward_batch, activations_, d_hidden, buffers_, accumulator_);
  ctx_.synchronize();
  pass.backward_s += seconds_since(backward_start);
}

// Slots merge by the neighbour tree: two subtrees of the same level make one of the next.
void Trainer::merge_slot(Parameters gradient) {
  int level = 0;
  while (!slots_.empty() && slots_.back().level == level) {
    const std::vector<ParameterRef> left = list(slots_.back().gradient), right = list(gradient);
    for (std::size_t i = 0; i < left.size(); ++i) {
      const TensorView sum = as_row(*right[i].tensor);
      residual_add(ctx_, {sum, as_row(*left[i].tensor), sum});
    }
    spare_ = std::move(slots_.back().gradient);
    slots_.pop_back();
    ++level;
  }
  slots_.push_back({level, std::move(gradient)});
}

OptimizerStepStats Trainer::apply() {
  RLK_ASSERT(slots_.size() == 1);
  const AbandonOnError guard(ctx_);
  const OptimizerStepStats stats = optimizer_.step(ctx_, slots_.back().gradient, weights_);
  spare_ = std::move(slots_.back().gradient);
  slots_.clear();
  model_.load(ctx_, weights_, model_.weight_version() + 1);
  return stats;
}

}  // namespace rlk
