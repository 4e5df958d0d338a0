// What is timed on a GPU: products against the vendor's, row operators and decoding against a copy
// of as many bytes, attention against our own product.
#include <string>
#include <utility>

#include <fmt/format.h>

#include "rlk/bench/calls.h"

namespace rlk::bench {
namespace {

struct Adder {
  Cases& cases;
  bool matrix_units;
  GpuSizes sizes;

  Case& add(const char* op, const std::string& form, std::string shape, const char* unit,
            bool quick, std::function<Prepared(Engines&)> prepare) const {
    Case c;
    c.op = op;
    c.name = fmt::format("{}/bf16/{}{}", op, form, shape);
    c.shape = std::move(shape);
    c.unit = unit;
    c.quick = quick;
    c.prepare = std::move(prepare);
    cases.push_back(std::move(c));
    return cases.back();
  }
  double product_target(double target) const { return matrix_units ? target : 0; }
};

// A weight [n, k] of the model. What is cut by columns is one chain forward and a tree over its
// parts backward; what is cut by rows the other way round.
struct Weight {
  const char* name;
  std::int64_t n, k;
  bool by_columns;
  std::array<std::int64_t, 3> parts;  // of n
};

std::vector<Weight> weights_of(const GpuSizes& s) {
  const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const std::int64_t i = s.intermediate_size;
  return {{"qkv", q + 2 * kv, s.hidden_size, true, {q, kv, kv}},
          {"o", s.hidden_size, q, false, {s.hidden_size, 0, 0}},
          {"gate_up", 2 * i, s.hidden_size, true, {i, i, 0}},
          {"down", s.hidden_size, i, false, {s.hidden_size, 0, 0}}};
}

Case& add_product(const Adder& to, const Weight& w, ProductShape s, bool quick) {
  const std::string form = fmt::format("{}/{}/",
                                       s.input_gradient ? "input_gradient"
                                       : s.leaf_tree    ? "tree"
                                                        : "chain",
                                       w.name);
  return to.add("gemm", form, fmt::format("{}x{}x{}", s.m, s.n, s.k),
                s.reads_weights ? kGbytes : kTflops, quick,
                [s](Engines& e) { return prepare_product(e, s); });
}

void add_products(const Adder& to) {
  const GpuSizes& sizes = to.sizes;
  for (const Weight& w : weights_of(sizes)) {
    for (const std::int64_t m : sizes.many_rows) {
      Case& c = add_product(to, w, {m, w.n, w.k, DType::kBF16, !w.by_columns}, m == 2048);
      if (m >= 2048) c.target = to.product_target(w.by_columns ? 0.90 : 0.85);
    }
    for (const std::int64_t m : sizes.few_rows) {
      ProductShape s{m, w.n, w.k, DType::kBF16, !w.by_columns};
      s.rotated_bytes = sizes.rotated_bytes;
      s.reads_weights = true;
      Case& c = add_product(to, w, s, m == 1 || m == 16);
      c.group = "gemm, 1 to 64 rows";
      c.group_target = to.product_target(1.0);
    }
  }
}

void add_gradients(const Adder& to) {
  const GpuSizes& sizes = to.sizes;
  const std::int64_t tokens = sizes.train_tokens;
  for (const Weight& w : weights_of(sizes)) {
    const bool quick = std::string(w.name) == "qkv";
    add_product(to, w, {tokens, w.k, w.n, DType::kBF16, w.by_columns, true, w.parts}, quick);
    for (const std::int64_t length : sizes.sample_lengths) {
      const WeightGradientShape s{tokens, w.n, w.k, DType::kBF16, length};
      to.add("gemm_backward_weight", fmt::format("{}/samples:{}/", w.name, length),
             fmt::format("{}x{}x{}", tokens, w.n, w.k), kTflops, quick,
             [s](Engines& e) { return prepare_weight_gradient(e, s); });
    }
  }
}

void add_linear_logp(const Adder& to) {
  const GpuSizes& sizes = to.sizes;
  const HeadShape s{sizes.logp_rows, sizes.hidden_size, sizes.vocab_size, sizes.vocab_size};
  const std::string shape = fmt::format("{}x{}x{}", s.num_rows, s.vocab_size, s.hidden_size);
  to.add("linear_logp", "", shape, kTflops, false, [s](Engines& e) {
      return prepare_linear_logp(e, s);
    }).target = to.product_target(0.80);
  to.add("linear_logp_backward", "", shape, kTflops, false, [s](Engines& e) {
      return prepare_linear_logp_backward(e, s);
    }).target = to.product_target(0.70);
}

void add_attention(const Adder& to, std::int64_t length, bool backward) {
  const GpuSizes& sizes = to.sizes;
  AttentionShape s{length, sizes.heads, sizes.kv_heads, sizes.head_dim};
  s.product_size = sizes.hidden_size;
  to.add(backward ? "attention_backward" : "attention", "",
         fmt::format("S{}xH{}xG{}xd{}", length, s.heads, s.heads / s.kv_heads, s.d), kTflops,
         length == 4096, [s, backward](Engines& e) { return prepare_attention(e, s, backward); });
}

void add_decode(const Adder& to) {
  const GpuSizes& sizes = to.sizes;
  for (const std::int64_t batch : {sizes.decode_batch, std::int64_t{1}}) {
    const std::int64_t keys = batch > 1 ? sizes.decode_keys : 8 * sizes.decode_keys;
    for (const std::int64_t page : {16, 128}) {
      const DecodeShape s{batch, keys, sizes.heads, sizes.kv_heads, sizes.head_dim, page, 1};
      Case& c = to.add("attention", "decode/",
                       fmt::format("B{}xS{}xH{}xG{}xd{}/page:{}", batch, keys, s.heads,
                                   s.heads / s.kv_heads, s.d, page),
                       kGbytes, page == 16, [s](Engines& e) { return prepare_decode(e, s); });
      c.target = batch > 1 ? to.product_target(0.75) : 0;
    }
  }
}

void add_rows(const Adder& to) {
  const GpuSizes& sizes = to.sizes;
  const std::int64_t tokens = sizes.train_tokens, rotated = sizes.rotated_bytes;
  const RowShape wide{tokens, 1, sizes.hidden_size, DType::kBF16, rotated};
  const RowShape heads{tokens, sizes.heads, sizes.head_dim, DType::kBF16, rotated};
  const LogitShape logits{sizes.logit_rows, sizes.vocab_size, rotated};
  const std::string wide_text = fmt::format("{}x{}", tokens, wide.n);
  const std::string heads_text = fmt::format("{}x{}x{}", tokens, heads.heads, heads.n);
  const std::string logits_text = fmt::format("{}x{}", logits.num_rows, logits.vocab_size);
  const auto add = [&](const char* op, const std::string& shape,
                       std::function<Prepared(Engines&)> prepare) {
    to.add(op, "", shape, kGbytes, true, std::move(prepare)).target = 0.85;
  };
  add("rms_norm", wide_text, [=](Engines& e) { return prepare_rms_norm(e, wide); });
  add("swiglu", wide_text, [=](Engines& e) { return prepare_swiglu(e, wide); });
  add("rope", heads_text, [=](Engines& e) { return prepare_rope(e, heads); });
  add("logprob", logits_text, [=](Engines& e) { return prepare_logprob(e, logits, false); });
  add("log_softmax", logits_text, [=](Engines& e) { return prepare_log_softmax(e, logits); });
}

// Logits of a decode step, which lie where the head's product has left them: in a cache, mostly.
void add_sampling(const Adder& to) {
  const std::pair<const char*, SamplingParams> kParams[] = {{"", {}},
                                                            {"top_k_top_p/", {1, 50, 0.95f, 0}}};
  for (const std::int64_t num_rows : to.sizes.sampled_rows) {
    for (const auto& [form, params] : kParams) {
      const LogitShape s{num_rows, to.sizes.vocab_size, 0, params};
      const std::string shape = fmt::format("{}x{}", s.num_rows, s.vocab_size);
      const std::string decode = fmt::format("decode/{}", form);
      to.add("sample", decode, shape, kGbytes, true,
             [s](Engines& e) { return prepare_sample(e, s); });
      to.add("logprob", decode, shape, kGbytes, true,
             [s](Engines& e) { return prepare_logprob(e, s, false); });
    }
  }
}

}  // namespace

void add_gpu_cases(Cases& cases, Profile profile, const GpuSizes& sizes) {
  const Adder to{cases, profile != Profile::kPortable, sizes};
  add_products(to);
  add_gradients(to);
  add_linear_logp(to);
  for (const std::int64_t length : sizes.prompts) add_attention(to, length, false);
  add_decode(to);
  for (const std::int64_t length : sizes.train_sequences) add_attention(to, length, true);
  add_rows(to);
  add_sampling(to);
}

}  // namespace rlk::bench
