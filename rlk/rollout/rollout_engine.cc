#include "rlk/rollout/rollout_engine.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "rlk/ops/copy_rows.h"
#include "rlk/ops/logprob.h"

namespace rlk {
namespace {

std::int64_t pages_of(std::int64_t num_tokens, std::int64_t page_size) {
  return (num_tokens + page_size - 1) / page_size;
}

RolloutOptions checked(const ModelConfig& config, RolloutOptions o) {
  const auto positive = [](const char* field, std::int64_t value) {
    if (value < 1) {
      fail(ErrorCode::kInvalidArgument, "rollout.{} = {} is not positive", field, value);
    }
  };
  if (o.max_model_len == 0) o.max_model_len = config.max_position_embeddings;
  positive("max_model_len", o.max_model_len);
  positive("max_num_seqs", o.max_num_seqs);
  positive("max_num_batched_tokens", o.max_num_batched_tokens);
  positive("page_size", o.page_size);
  if (o.num_pages == 0) {
    o.num_pages = o.max_num_seqs * pages_of(o.max_model_len, o.page_size);
  }
  return o;
}

constexpr SamplingParams kRawDistribution{};

}  // namespace

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "none";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
  }
  return "unknown";
}

// The arrays of one step, kept between steps so that decode does not allocate.
struct RolloutEngine::Batch {
  Array<std::int32_t> token_ids, positions, cu_seqlens, kv_lens, block_table;
  Array<std::int64_t> slot_mapping;
  std::int64_t max_pages = 0;
  std::int64_t num_tokens = 0;       // without the rows of pad()
  bool only_decodes = false;         // one token of every sequence, and all are sampled
  std::vector<Sequence*> sampled;    // sequences whose last token is in the batch
  Array<std::int64_t> sampled_rows;  // and its row

  explicit Batch(Memory& small_memory)
      : token_ids(small_memory),
        positions(small_memory),
        cu_seqlens(small_memory),
        kv_lens(small_memory),
        block_table(small_memory),
        slot_mapping(small_memory),
        sampled_rows(small_memory) {}

  std::int64_t num_seqs() const { return std::ssize(kv_lens); }

  void reserve(std::size_t tokens, std::size_t sequences, std::size_t pages) {
    token_ids.reserve(tokens);
    positions.reserve(tokens);
    slot_mapping.reserve(tokens);
    cu_seqlens.reserve(sequences + 1);
    kv_lens.reserve(sequences);
    sampled_rows.reserve(sequences);
    block_table.reserve(sequences * pages);
  }

  // Rows for a graph of `count` sequences: they repeat the shortest one, which costs least. Their
  // results are its results, and so are their faults, which it reports as the lower row; only keys
  // and values go elsewhere, to the rows of the cache from `slot` on.
  void pad(std::int64_t count, std::int64_t slot) {
    const std::int64_t n = num_seqs();
    const auto s = std::min_element(kv_lens.begin(), kv_lens.end()) - kv_lens.begin();
    block_table.resize(static_cast<std::size_t>(count * max_pages));
    for (std::int64_t i = n; i < count; ++i) {
      token_ids.push_back(token_ids[s]);
      positions.push_back(positions[s]);
      cu_seqlens.push_back(static_cast<std::int32_t>(i) + 1);
      kv_lens.push_back(kv_lens[s]);
      std::copy_n(&block_table[s * max_pages], max_pages, &block_table[i * max_pages]);
      slot_mapping.push_back(slot + i - n);
      sampled_rows.push_back(i);
    }
  }

  ForwardBatch forward_batch(std::int64_t page_size) const {
    ForwardBatch b;
    b.token_ids = vector_view(token_ids);
    b.positions = vector_view(positions);
    b.cu_seqlens = vector_view(cu_seqlens);
    b.kv_lens = vector_view(kv_lens);
    b.slot_mapping = vector_view(slot_mapping);
    b.block_table = view(block_table.data(), {num_seqs(), max_pages});
    b.page_size = page_size;
    return b;
  }
};

RolloutEngine::RolloutEngine(Context& ctx, const ModelConfig& config, const RolloutOptions& options)
    : ctx_(ctx),
      options_(checked(config, options)),
      vendor_plans_(use_vendor_products(ctx, options_.vendor_products, vendor_shapes(config))),
      model_(config, ctx.contract(), options_.max_model_len, false, ctx.memory()),
      pool_(options_.num_pages, options_.page_size, options_.prefix_cache),
      graphs_(ctx, options_.graphs),
      kv_cache_(config,
                options_.num_pages * options_.page_size +
                    (graphs_.enabled() ? DecodeGraphs::kMaxPadding : 0),
                ctx.memory()),
      scheduler_(pool_, options_.max_num_seqs, options_.max_num_batched_tokens),
      activations_(config, false, ctx.memory()),
      batch_(std::make_unique<Batch>(ctx.small_memory())) {
  if (!graphs_.enabled()) return;
  // Graphs know addresses: what a step reads and writes never moves. Scratch only grows, and new
  // weights are copied to where the old ones were (Model::load).
  const std::int64_t tokens = options_.max_num_batched_tokens + DecodeGraphs::kMaxPadding;
  activations_.reserve(tokens);
  batch_->reserve(tokens, options_.max_num_seqs + DecodeGraphs::kMaxPadding,
                  pages_of(options_.max_model_len, options_.page_size));
}

RolloutEngine::~RolloutEngine() = default;

void RolloutEngine::drop_kv() {
  scheduler_.preempt_all();
  pool_.start_weight_version();
}

std::int64_t RolloutEngine::load_weights(Parameters& parameters, std::int64_t weight_version) {
  drop_kv();
  model_.load(ctx_, parameters, weight_version);
  return model_.weight_version();
}

void RolloutEngine::check(const Request& r) const {
  const auto prompt_len = static_cast<std::int64_t>(r.prompt_token_ids.size());
  if (prompt_len == 0) fail(ErrorCode::kInvalidArgument, "request {}: the prompt is empty", r.id);
  if (prompt_len >= options_.max_model_len) {
    fail(ErrorCode::kInvalidArgument,
         "request {}: a prompt of {} tokens leaves no room in a context of {}", r.id, prompt_len,
         options_.max_model_len);
  }
  if (r.max_new_tokens < 1) {
    fail(ErrorCode::kInvalidArgument, "request {}: max_new_tokens {} is not positive", r.id,
         r.max_new_tokens);
  }
  for (std::int64_t i = 0; i < prompt_len; ++i) {
    const std::int32_t id = r.prompt_token_ids[i];
    if (id < 0 || id >= model_.config().vocab_size) {
      fail(ErrorCode::kInvalidArgument, "request {}: prompt token {} has id {}, outside [0, {})",
           r.id, i, id, model_.config().vocab_size);
    }
  }
  validate(r.sampling, fmt::format("request {}", r.id).c_str());
  // The last token is never computed, so it needs no place.
  const std::int64_t most =
      prompt_len + std::min(r.max_new_tokens, options_.max_model_len - prompt_len) - 1;
  if (most > options_.num_pages * options_.page_size) {
    fail(ErrorCode::kInvalidArgument, "request {}: up to {} tokens do not fit in {} pages of {}",
         r.id, most, options_.num_pages, options_.page_size);
  }
}

void RolloutEngine::add_request(const Request& r) {
  check(r);
  const auto prompt_len = static_cast<std::int64_t>(r.prompt_token_ids.size());
  auto s = std::make_unique<Sequence>();
  s->request = r;
  s->request.max_new_tokens = std::min(r.max_new_tokens, options_.max_model_len - prompt_len);
  s->tokens = r.prompt_token_ids;
  s->completion.request_id = r.id;
  s->completion.prompt_token_ids = r.prompt_token_ids;
  scheduler_.add(std::move(s));
}

void RolloutEngine::build(const std::vector<ScheduledSequence>& scheduled, Batch& b) {
  b.token_ids.clear();
  b.positions.clear();
  b.slot_mapping.clear();
  b.cu_seqlens.assign(1, 0);
  b.kv_lens.clear();
  b.sampled.clear();
  b.sampled_rows.clear();
  b.max_pages = 0;
  for (const ScheduledSequence& item : scheduled) {
    b.max_pages = std::max(b.max_pages, static_cast<std::int64_t>(item.sequence->pages.size()));
  }
  // Few widths, so that the next steps have this one's shapes. No kernel looks at absent pages.
  b.max_pages =
      std::min(static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(b.max_pages))),
               pages_of(options_.max_model_len, options_.page_size));
  b.block_table.assign(scheduled.size() * static_cast<std::size_t>(b.max_pages), -1);
  for (std::size_t i = 0; i < scheduled.size(); ++i) {
    Sequence& s = *scheduled[i].sequence;
    std::copy(s.pages.begin(), s.pages.end(),
              b.block_table.begin() + static_cast<std::ptrdiff_t>(i) * b.max_pages);
    const std::int64_t end = s.num_computed_tokens + scheduled[i].num_tokens;
    for (std::int64_t p = s.num_computed_tokens; p < end; ++p) {
      b.token_ids.push_back(s.tokens[p]);
      b.positions.push_back(static_cast<std::int32_t>(p));
      b.slot_mapping.push_back(s.pages[p / options_.page_size] * options_.page_size +
                               p % options_.page_size);
    }
    b.cu_seqlens.push_back(static_cast<std::int32_t>(b.token_ids.size()));
    b.kv_lens.push_back(static_cast<std::int32_t>(end));
    s.num_computed_tokens = end;
    if (end == static_cast<std::int64_t>(s.tokens.size())) {
      b.sampled.push_back(&s);
      b.sampled_rows.push_back(static_cast<std::int64_t>(b.token_ids.size()) - 1);
    }
  }
  b.num_tokens = std::ssize(b.token_ids);
  b.only_decodes = b.num_tokens == b.num_seqs() && b.sampled.size() == b.kv_lens.size();
  if (b.only_decodes && graphs_.enabled()) {
    b.pad(DecodeGraphs::padded(b.num_seqs()), options_.num_pages * options_.page_size);
  }
}

std::vector<Completion> RolloutEngine::step() {
  std::vector<Completion> finished;
  if (scheduler_.idle()) return finished;
  const AbandonOnError guard(ctx_);
  Batch& batch = *batch_;
  build(scheduler_.schedule(), batch);
  try {
    const std::int64_t n = std::ssize(batch.sampled_rows);
    const ModelConfig& config = model_.config();
    Workspace::Frame frame(ctx_.workspace());
    TensorView last, logits;
    if (n > 0) {
      last = view(frame.take<bf16>(n * config.hidden_size), {n, config.hidden_size});
      logits = view(frame.take<float>(n * config.vocab_size), {n, config.vocab_size});
    }
    const auto work = [&] { run_model(batch, last, logits); };
    if (batch.only_decodes) {
      graphs_.run({n, batch.max_pages, last.data, logits.data}, work);
    } else {
      work();
    }
    n > 0 ? sample_tokens(batch, rows(logits, 0, std::ssize(batch.sampled))) : ctx_.synchronize();
  } catch (...) {
    // Pages of this step are published, but their keys may not be written.
    drop_kv();
    throw;
  }
  ++stats_.num_steps;
  stats_.num_forward_tokens += batch.num_tokens;
  for (Sequence* s : batch.sampled) {
    if (s->completion.finish_reason == FinishReason::kNone) continue;
    finished.push_back(std::move(scheduler_.finish(s)->completion));
  }
  return finished;
}

// Keys and values of the step's tokens, and logits of the rows that are sampled: the part of a step
// that DecodeGraphs may replay with what the arrays of the batch hold then. A replay checks no
// arguments, so whatever operators would refuse is ruled out before:
//   token_ids     in prompts by check(Request); sampled ones were targets of logprob, which checks
//                 them, before they became tokens
//   positions     below max_model_len, the length of the RoPE tables: add_request limits growth
//   slot_mapping  rows of pages of pool_, which has the pages of the cache, or the kMaxPadding rows
//                 behind them
//   cu_seqlens    0, 1, .. n: one token of each sequence
//   kv_lens       the token's position + 1: at least its one query
//   block_table   the scheduler has taken the pages of every position below kv_lens
//   sampled_rows  0, 1, .. n - 1
void RolloutEngine::run_model(const Batch& b, const TensorView& last, const TensorView& logits) {
  const ConstTensorView hidden =
      forward(ctx_, model_, b.forward_batch(options_.page_size), &kv_cache_, activations_);
  if (b.sampled.empty()) return;
  ctx_.set_node(-1, "lm_head");
  copy_rows(ctx_, {last, hidden, vector_view(b.sampled_rows), {}});
  compute_logits(ctx_, model_, last, logits);
}

void RolloutEngine::sample_tokens(const Batch& b, const ConstTensorView& logits) {
  const std::int64_t n = logits.shape(0);
  Workspace::Frame small_frame(ctx_.small_workspace());
  const TensorView ids = view(small_frame.take<std::int32_t>(n), {n});
  const TensorView logp = view(small_frame.take<float>(n), {n});
  const TensorView logp_raw = view(small_frame.take<float>(n), {n});
  SamplingParams* params = small_frame.take<SamplingParams>(n);
  SampleKey* keys = small_frame.take<SampleKey>(n);
  bool raw_differs = false;
  for (std::int64_t i = 0; i < n; ++i) {
    const Sequence& s = *b.sampled[i];
    params[i] = s.request.sampling;
    keys[i] = {s.request.seed, s.request.id, static_cast<std::uint32_t>(s.tokens.size())};
    raw_differs = raw_differs || (params[i].temperature != 0 && params[i] != kRawDistribution);
  }
  ctx_.set_node(-1, "lm_head");
  sample(ctx_, {ids, logits, params, keys});
  ctx_.synchronize();  // the ids are checked as targets
  logprob(ctx_, {logp, {}, logits, ids, params, n});
  if (raw_differs) logprob(ctx_, {logp_raw, {}, logits, ids, &kRawDistribution, 1});
  ctx_.synchronize();

  for (std::int64_t i = 0; i < n; ++i) {
    Sequence& s = *b.sampled[i];
    Completion& c = s.completion;
    const std::int32_t id = *ids.at<std::int32_t>(i);
    s.tokens.push_back(id);
    c.token_ids.push_back(id);
    c.logprobs.push_back(*logp.at<float>(i));
    c.logprobs_raw.push_back(*(raw_differs ? logp_raw : logp).at<float>(i));
    c.weight_versions.push_back(model_.weight_version());
    const auto& stop = s.request.stop_token_ids;
    if (std::find(stop.begin(), stop.end(), id) != stop.end()) {
      c.finish_reason = FinishReason::kStop;
    } else if (static_cast<std::int64_t>(c.token_ids.size()) == s.request.max_new_tokens) {
      c.finish_reason = FinishReason::kLength;
    }
  }
  stats_.num_sampled_tokens += n;
}

std::vector<Completion> RolloutEngine::generate(const std::vector<Request>& requests) {
  if (!idle()) fail(ErrorCode::kInvalidArgument, "generate: other requests are running");
  std::unordered_map<std::uint64_t, std::size_t> index;
  for (const Request& r : requests) {
    check(r);
    if (!index.emplace(r.id, index.size()).second) {
      fail(ErrorCode::kInvalidArgument, "request {}: the id is used twice", r.id);
    }
  }
  for (const Request& r : requests) add_request(r);
  std::vector<Completion> out(requests.size());
  while (!idle()) {
    for (Completion& c : step()) out[index.at(c.request_id)] = std::move(c);
  }
  return out;
}

RolloutStats RolloutEngine::stats() const {
  RolloutStats s = stats_;
  s.num_preemptions = scheduler_.num_preemptions();
  s.num_prefix_hits = pool_.num_hits();
  s.num_graph_steps = graphs_.num_replays();
  return s;
}

}  // namespace rlk
