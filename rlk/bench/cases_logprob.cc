// logprob against memcpy, linear_logp against its bare products.
#include <fmt/format.h>

#include "rlk/bench/data.h"
#include "rlk/ops/gemm.h"
#include "rlk/ops/linear_logp.h"
#include "rlk/ops/logprob.h"

namespace rlk::bench {
namespace {

constexpr std::int64_t kVocabSize = 151936;

struct Rows {
  Tensor logp, entropy, logits, targets, g, dlogits;
  SamplingParams params;

  Rows(std::int64_t num_rows, std::int64_t vocab_size)
      : logp(DType::kF32, {num_rows}),
        entropy(DType::kF32, {num_rows}),
        logits(random_tensor(DType::kF32, {num_rows, vocab_size}, 1, 8)),
        targets(offsets(num_rows, 1)),
        g(random_tensor(DType::kF32, {num_rows}, 2)) {
    for (std::int64_t i = 0; i < num_rows; ++i) {
      targets.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % vocab_size);
    }
  }
  LogprobArgs forward(bool with_entropy) {
    return {logp, with_entropy ? entropy.view() : TensorView{}, logits, targets, &params, 1};
  }
  LogprobBackwardArgs backward() { return {dlogits, logits, targets, g, {}, &params, 1}; }
};

Prepared forward(Engines& e, std::int64_t num_rows, std::int64_t vocab_size, bool with_entropy) {
  auto data = std::make_shared<Rows>(num_rows, vocab_size);
  const double bytes = 4.0 * static_cast<double>(num_rows * vocab_size);
  Prepared out;
  out.check = [&e, data, with_entropy, num_rows] {
    const LogprobArgs a = data->forward(with_entropy);
    return check_parts(e, &logprob, a, num_rows, [a](std::int64_t i) {
      LogprobArgs row = a;
      row.logp = rows(a.logp, i, i + 1);
      if (a.entropy) row.entropy = rows(a.entropy, i, i + 1);
      row.logits = rows(a.logits, i, i + 1);
      row.targets = rows(a.targets, i, i + 1);
      return row;
    });
  };
  out.ours = {"", bytes,
              [&e, data, with_entropy] { logprob(e.ours, data->forward(with_entropy)); }};
  out.peers.push_back(copy_loop(e, bytes));
  out.peers.push_back(
      {kProduction, bytes,
       [&e, data, with_entropy] { logprob(e.production, data->forward(with_entropy)); }, false});
  return out;
}

Prepared backward(Engines& e, std::int64_t num_rows, std::int64_t vocab_size) {
  auto data = std::make_shared<Rows>(num_rows, vocab_size);
  data->dlogits = Tensor(DType::kBF16, {num_rows, vocab_size});
  const double bytes = 6.0 * static_cast<double>(num_rows * vocab_size);
  Prepared out;
  out.check = [&e, data, num_rows] {
    const LogprobBackwardArgs a = data->backward();
    return check_parts(e, &logprob_backward, a, num_rows, [a](std::int64_t i) {
      LogprobBackwardArgs row = a;
      row.dlogits = rows(a.dlogits, i, i + 1);
      row.logits = rows(a.logits, i, i + 1);
      row.targets = rows(a.targets, i, i + 1);
      row.g = rows(a.g, i, i + 1);
      return row;
    });
  };
  out.ours = {"", bytes, [&e, data] { logprob_backward(e.ours, data->backward()); }};
  out.peers.push_back(copy_loop(e, bytes));
  out.peers.push_back({kProduction, bytes,
                       [&e, data] { logprob_backward(e.production, data->backward()); }, false});
  return out;
}

}  // namespace

void add_logprob_cases(Cases& cases) {
  const auto add = [&](const std::string& op, const std::string& form, std::int64_t num_rows,
                       std::int64_t vocab_size, double target, bool quick,
                       std::function<Prepared(Engines&)> prepare) {
    Case c;
    c.op = op;
    c.shape = fmt::format("{}x{}", num_rows, vocab_size);
    c.name = fmt::format("{}/{}{}", op, form, c.shape);
    c.unit = kGbytes;
    c.target = target;
    c.quick = quick;
    c.prepare = std::move(prepare);
    cases.push_back(std::move(c));
  };
  add("logprob", "", 64, kVocabSize, 0.8, true,
      [](Engines& e) { return forward(e, 64, kVocabSize, false); });
  add("logprob", "entropy/", 64, kVocabSize, 0, false,
      [](Engines& e) { return forward(e, 64, kVocabSize, true); });
  add("logprob_backward", "", 64, kVocabSize, 0, true,
      [](Engines& e) { return backward(e, 64, kVocabSize); });
  add("logprob", "", 4096, 16, 0, false, [](Engines& e) { return forward(e, 4096, 16, false); });
}

namespace {

struct Head {
  std::int64_t num_rows, hidden_size, vocab_size, vocab_padded;
  DType storage;
};

// Everything that forward and backward of one call need, and the bare products of the same size.
struct LinearData {
  Head s;
  Tensor logp, state, hidden, head, targets, d_hidden, dw, chain, group_ends, g, logits, d_logits;
  PackedWeight forward_form, backward_form, production_forward, production_backward;
  SamplingParams params;

  LinearData(Engines& e, const Head& shape)
      : s(shape),
        logp(DType::kF32, {s.num_rows}),
        state(DType::kI32, {s.num_rows, kLogprobStateWords}),
        hidden(random_tensor(s.storage, {s.num_rows, s.hidden_size}, 1)),
        head(random_tensor(s.storage, {s.vocab_padded, s.hidden_size}, 2, 0.25f)),
        targets(offsets(s.num_rows, 1)),
        g(random_tensor(DType::kF32, {s.num_rows}, 3)) {
    const auto pack = [&](Context& ctx, PackedWeight& to_vocab, PackedWeight& to_hidden) {
      pack_weight(ctx, {&to_vocab, rows(head.view(), 0, s.vocab_size)});
      pack_weight(ctx, {&to_hidden, transposed_head()});
    };
    pack(e.ours, forward_form, backward_form);
    pack(e.production, production_forward, production_backward);
  }
  void make_gradients() {
    d_hidden = Tensor(s.storage, {s.num_rows, s.hidden_size});
    dw = chain = Tensor(DType::kF32, {s.vocab_padded, s.hidden_size});
    group_ends = Tensor(DType::kI64, {1});
    group_ends.data<std::int64_t>()[0] = s.num_rows;
  }
  ConstTensorView transposed_head() const {
    ConstTensorView t = head;
    std::swap(t.layout.shape[0], t.layout.shape[1]);
    std::swap(t.layout.stride[0], t.layout.stride[1]);
    return t;
  }
  LinearLogpArgs forward(bool production) {
    LinearLogpArgs a;
    a.logp = logp;
    a.hidden = hidden;
    a.head = head;
    a.vocab_size = s.vocab_size;
    a.packed_forward = production ? &production_forward : &forward_form;
    a.packed_backward = production ? &production_backward : &backward_form;
    a.targets = targets;
    a.params = &params;
    a.state = state;
    return a;
  }
  // Backward has what forward keeps of the rows.
  LinearLogpBackwardArgs backward(bool production) {
    return {forward(production), d_hidden, dw, chain, group_ends, g, {}};
  }
  GemmArgs logits_product() {
    GemmArgs a;
    a.c = logits;
    a.a = hidden;
    a.b = rows(head.view(), 0, s.vocab_size);
    a.packed_b = &forward_form;
    a.segments = {s.hidden_size, 0, 0};
    return a;
  }
  GemmArgs hidden_product() {
    GemmArgs a;
    a.c = d_hidden;
    a.a = d_logits;
    a.b = transposed_head();
    a.packed_b = &backward_form;
    a.leaf_tree = true;
    a.segments = {s.vocab_padded, 0, 0};
    return a;
  }
  double product_work() const {
    return 2.0 * static_cast<double>(s.num_rows) *
           static_cast<double>(s.vocab_size * s.hidden_size);
  }
};

// The log-probabilities of four rows. They hold every column of the product.
std::string check_linear(Engines& e, LinearData& data) {
  linear_logp(e.ours, data.forward(false));
  const Tensor got = data.logp;
  for (const std::int64_t i : sampled(data.s.num_rows, 3, 1)) {
    LinearLogpArgs row = data.forward(false);
    Tensor want(DType::kF32, {1});
    row.logp = want;
    row.state = {};
    row.hidden = rows(row.hidden, i, i + 1);
    row.targets = rows(row.targets, i, i + 1);
    linear_logp(e.reference, row);
    const std::string text = difference("logp", rows(got.view(), i, i + 1), want);
    if (!text.empty()) return fmt::format("row {}: {}", i, text);
  }
  return "";
}

// d_hidden of two rows. dW is the sum over rows of what these products are made of: its kernel is
// checked by gemm_backward_weight.
std::string check_linear_backward(Engines& e, LinearData& data) {
  linear_logp(e.ours, data.forward(false));  // its state
  linear_logp_backward(e.ours, data.backward(false));
  const Tensor none(DType::kI64, {1});
  for (const std::int64_t i : {std::int64_t{0}, data.s.num_rows - 1}) {
    LinearLogpArgs row = data.forward(false);
    LinearLogpBackwardArgs b = data.backward(false);
    row.logp = rows(row.logp, i, i + 1);
    row.hidden = rows(row.hidden, i, i + 1);
    row.targets = rows(row.targets, i, i + 1);
    Tensor want(data.s.storage, {1, data.s.hidden_size});
    Tensor logits(DType::kF32, {1, data.s.vocab_size});
    Tensor d_logits(data.s.storage, {1, data.s.vocab_padded});
    GemmArgs product = data.logits_product();
    product.a = row.hidden;
    product.c = logits;
    product.packed_b = nullptr;
    gemm(e.reference, product);
    logprob_backward(e.reference,
                     {d_logits, logits, row.targets, rows(b.g, i, i + 1), {}, &data.params, 1});
    GemmArgs back = data.hidden_product();
    back.a = d_logits;
    back.c = want;
    back.packed_b = nullptr;
    gemm(e.reference, back);
    const std::string text = difference("d_hidden", rows(b.d_hidden, i, i + 1), want);
    if (!text.empty()) return fmt::format("row {}: {}", i, text);
  }
  return "";
}

Prepared linear_forward(Engines& e, const Head& s) {
  auto data = std::make_shared<LinearData>(e, s);
  data->logits = Tensor(DType::kF32, {s.num_rows, s.vocab_size});
  const double work = data->product_work();
  Prepared out;
  out.check = [&e, data] { return check_linear(e, *data); };
  out.ours = {"", work, [&e, data] { linear_logp(e.ours, data->forward(false)); }};
  out.peers.push_back({"product", work, [&e, data] { gemm(e.ours, data->logits_product()); }});
  out.peers.push_back(
      {kProduction, work, [&e, data] { linear_logp(e.production, data->forward(true)); }, false});
  return out;
}

Prepared linear_backward(Engines& e, const Head& s) {
  auto data = std::make_shared<LinearData>(e, s);
  data->make_gradients();
  data->logits = Tensor(DType::kF32, {s.num_rows, s.vocab_size});
  data->d_logits = random_tensor(s.storage, {s.num_rows, s.vocab_padded}, 4, 1e-3f);
  const double work = 3 * data->product_work();
  Prepared out;
  out.check = [&e, data] { return check_linear_backward(e, *data); };
  out.ours = {"", work, [&e, data] { linear_logp_backward(e.ours, data->backward(false)); }};
  out.peers.push_back({"3 products", work, [&e, data] {
                         gemm(e.ours, data->logits_product());
                         gemm_backward_weight(e.ours, {data->dw, data->chain, data->d_logits,
                                                       data->hidden, data->group_ends});
                         gemm(e.ours, data->hidden_product());
                       }});
  out.peers.push_back({kProduction, work,
                       [&e, data] { linear_logp_backward(e.production, data->backward(true)); },
                       false});
  return out;
}

// Scratch memory of forward and backward at 4,096 rows. The open sums of backward have a budget of
// their own, so a larger hidden size would add little.
Prepared linear_memory(Engines& e) {
  auto data = std::make_shared<LinearData>(e, Head{4096, 64, kVocabSize, kVocabSize, DType::kBF16});
  data->make_gradients();
  Prepared out;
  out.check = [&e, data] {
    const std::string text = check_linear(e, *data);
    return text.empty() ? check_linear_backward(e, *data) : text;
  };
  out.finish = [&e](BenchCase& c) {
    constexpr double kAllowed = 64e6;
    c.peak_bytes = static_cast<std::int64_t>(e.ours.workspace().size_bytes());
    c.peer = "64 MB";
    c.ratio = kAllowed / static_cast<double>(c.peak_bytes);
  };
  return out;
}

}  // namespace

void add_linear_logp_cases(Cases& cases) {
  const auto add = [&](const std::string& op, const Head& s, double target, bool quick,
                       Prepared (*prepare)(Engines&, const Head&)) {
    Case c;
    c.op = op;
    c.shape = fmt::format("{}x{}x{}", s.num_rows, s.vocab_size, s.hidden_size);
    c.name = fmt::format("{}/{}/{}", op, s.storage == DType::kF32 ? "f32" : "bf16", c.shape);
    c.unit = kGflops;
    c.target = target;
    c.quick = quick;
    c.prepare = [prepare, s](Engines& e) { return prepare(e, s); };
    cases.push_back(std::move(c));
  };
  for (const DType storage : {DType::kBF16, DType::kF32}) {
    const bool bf16 = storage == DType::kBF16;
    for (const std::int64_t hidden_size : {256, 1024}) {
      if (!bf16 && hidden_size > 256) continue;
      const Head s{110, hidden_size, kVocabSize, kVocabSize, storage};
      const bool quick = bf16 && hidden_size == 256;
      add("linear_logp", s, bf16 ? 0.9 : 0, quick, linear_forward);
      add("linear_logp_backward", s, bf16 ? 0.85 : 0, quick, linear_backward);
    }
  }
  Case c;
  c.name = "linear_logp/bf16/peak_memory/4096x151936";
  c.op = "linear_logp";
  c.shape = "4096x151936";
  c.target = 1;
  c.prepare = linear_memory;
  cases.push_back(std::move(c));
}

}  // namespace rlk::bench
