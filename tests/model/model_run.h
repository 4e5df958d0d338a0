// Log-probabilities of whole sequences by model::forward: packed, or through pages in steps of any
// size.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "rlk/model/forward.h"
#include "rlk/ops/logprob.h"
#include "tests/model/tiny_model.h"

namespace rlk::test {

using Tokens = std::vector<std::int32_t>;
using Logprobs = std::vector<float>;  // of every token but the first

// Two layers suffice: the second reads what attention made of the first.
inline ModelConfig small_config(const std::string& model_type = "qwen3") {
  ModelConfig config = tiny_config(model_type, model_type == "qwen3");
  config.num_hidden_layers = 2;
  return config;
}

struct ModelSetup {
  ModelConfig config = small_config();
  const KernelTable* kernels = nullptr;
  int num_threads = 1;
  Contract contract = tiny_contract();
};

// A batch of packed or paged sequences on its way into forward().
struct BatchData {
  std::vector<std::int32_t> token_ids, positions, cu_seqlens{0}, kv_lens, block_table;
  std::vector<std::int64_t> slot_mapping;
  std::vector<std::int32_t> targets;  // the next token, kIgnoreIndex behind the last

  void add(const Tokens& tokens, std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      token_ids.push_back(tokens[p]);
      positions.push_back(static_cast<std::int32_t>(p));
      targets.push_back(p + 1 < std::ssize(tokens) ? tokens[p + 1] : kIgnoreIndex);
    }
    cu_seqlens.push_back(static_cast<std::int32_t>(token_ids.size()));
    kv_lens.push_back(static_cast<std::int32_t>(end));
  }
  ForwardBatch forward_batch() const {
    ForwardBatch b;
    b.token_ids = view(token_ids.data(), {std::ssize(token_ids)});
    b.positions = view(positions.data(), {std::ssize(positions)});
    b.cu_seqlens = view(cu_seqlens.data(), {std::ssize(cu_seqlens)});
    b.kv_lens = view(kv_lens.data(), {std::ssize(kv_lens)});
    return b;
  }
};

class ModelRun {
 public:
  explicit ModelRun(const ModelSetup& s, std::uint64_t weight_seed = 7)
      : config_(s.config),
        ctx_(s.contract, all_ops(Mode::kStrict), s.num_threads, s.kernels),
        model_(s.config, s.contract, 512, false),
        activations_(s.config, false) {
    Parameters weights = tiny_weights(s.config, s.contract, weight_seed);
    model_.load(ctx_, weights, 0);
  }

  // All sequences in one batch, each from position 0.
  std::vector<Logprobs> packed(const std::vector<Tokens>& sequences) {
    BatchData batch;
    for (const Tokens& tokens : sequences) batch.add(tokens, 0, std::ssize(tokens));
    std::vector<Logprobs> out;
    const Logprobs all = run(batch, batch.forward_batch(), nullptr);
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const auto begin = all.begin() + batch.cu_seqlens[s];
      out.emplace_back(begin, begin + std::ssize(sequences[s]) - 1);
    }
    return out;
  }

  // One log-probability per row of the batch.
  Logprobs run(const BatchData& data, const ForwardBatch& batch, KvCache* cache) {
    const ConstTensorView hidden = forward(ctx_, model_, batch, cache, activations_);
    const std::int64_t n = hidden.shape(0);
    Tensor logits(DType::kF32, {n, config_.vocab_size}), logp(DType::kF32, {n});
    compute_logits(ctx_, model_, hidden, logits);
    const SamplingParams params;
    logprob(ctx_, {logp, {}, logits, view(data.targets.data(), {n}), &params, 1});
    return {logp.data<float>(), logp.data<float>() + n};
  }

  const ModelConfig& config() const { return config_; }

 private:
  ModelConfig config_;
  Context ctx_;
  Model model_;
  Activations activations_;
};

// Sequences whose keys lie in pages scattered over a cache; what nobody wrote holds large numbers.
class PagedRun {
 public:
  PagedRun(ModelRun& run, std::vector<Tokens> sequences, std::int64_t page_size)
      : run_(run),
        sequences_(std::move(sequences)),
        page_size_(page_size),
        logprobs_(sequences_.size()),
        computed_(sequences_.size(), 0),
        cache_(run.config(), num_pages() * page_size) {
    for (KvCache::Layer& l : cache_.layers) {
      for (Tensor* t : {&l.k, &l.v}) {
        std::fill_n(t->data<bf16>(), t->size(), numerics::to_bf16(0x1p50f));
      }
    }
    std::vector<std::int32_t> pages(static_cast<std::size_t>(num_pages()));
    std::iota(pages.begin(), pages.end(), 0);
    Rng rng(static_cast<std::uint64_t>(page_size));
    for (std::size_t i = pages.size(); i > 1; --i) {
      std::swap(pages[i - 1], pages[static_cast<std::size_t>(rng.below(std::ssize(pages)))]);
    }
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      tables_.emplace_back(
          pages.begin() + static_cast<std::ptrdiff_t>(s) * pages_per_sequence(),
          pages.begin() + static_cast<std::ptrdiff_t>(s + 1) * pages_per_sequence());
    }
  }

  // Sequence `to` starts behind `num_tokens` tokens that `from` has computed, in the same pages.
  void take_prefix(std::size_t to, std::size_t from, std::int64_t num_tokens) {
    std::copy_n(tables_[from].begin(), num_tokens / page_size_, tables_[to].begin());
    computed_[to] = num_tokens;
    logprobs_[to] = logprobs_[from];
    logprobs_[to].resize(static_cast<std::size_t>(num_tokens));
  }

  // Column `to` of a sequence's table names the page of column `from`.
  void take_wrong_page(std::size_t sequence, std::int64_t to, std::int64_t from) {
    tables_[sequence][static_cast<std::size_t>(to)] =
        tables_[sequence][static_cast<std::size_t>(from)];
  }

  // The next num_tokens[s] tokens of every sequence s, as far as it has them, in one batch.
  void step(const std::vector<std::int64_t>& num_tokens) {
    BatchData batch;
    std::vector<std::size_t> in_batch;
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      const std::int64_t begin = computed_[s];
      const std::int64_t end = std::min(begin + num_tokens[s], std::ssize(sequences_[s]));
      if (begin == end) continue;
      in_batch.push_back(s);
      batch.add(sequences_[s], begin, end);
      for (std::int64_t p = begin; p < end; ++p) {
        batch.slot_mapping.push_back(tables_[s][p / page_size_] * page_size_ + p % page_size_);
      }
      batch.block_table.insert(batch.block_table.end(), tables_[s].begin(), tables_[s].end());
      computed_[s] = end;
    }
    ForwardBatch b = batch.forward_batch();
    b.slot_mapping = view(std::as_const(batch.slot_mapping).data(), {b.token_ids.shape(0)});
    b.block_table =
        view(std::as_const(batch.block_table).data(), {std::ssize(in_batch), pages_per_sequence()});
    b.page_size = page_size_;
    const Logprobs all = run_.run(batch, b, &cache_);
    for (std::size_t i = 0; i < in_batch.size(); ++i) {
      Logprobs& out = logprobs_[in_batch[i]];
      out.insert(out.end(), all.begin() + batch.cu_seqlens[i],
                 all.begin() + batch.cu_seqlens[i + 1]);
      out.resize(std::min(out.size(), sequences_[in_batch[i]].size() - 1));
    }
  }

  // Everything, `chunk` tokens of each sequence at a time.
  const std::vector<Logprobs>& in_chunks(std::int64_t chunk) {
    for (std::int64_t begin = 0; begin < longest(); begin += chunk) {
      step(std::vector<std::int64_t>(sequences_.size(), chunk));
    }
    return logprobs_;
  }

  const Logprobs& logprobs(std::size_t sequence) const { return logprobs_[sequence]; }

 private:
  std::int64_t longest() const {
    std::int64_t n = 0;
    for (const Tokens& t : sequences_) n = std::max(n, std::ssize(t));
    return n;
  }
  std::int64_t pages_per_sequence() const { return (longest() + page_size_ - 1) / page_size_; }
  std::int64_t num_pages() const { return pages_per_sequence() * std::ssize(sequences_) + 3; }

  ModelRun& run_;
  std::vector<Tokens> sequences_;
  std::int64_t page_size_;
  std::vector<Logprobs> logprobs_;
  std::vector<std::int64_t> computed_;
  KvCache cache_;
  std::vector<std::vector<std::int32_t>> tables_;
};

}  // namespace rlk::test
