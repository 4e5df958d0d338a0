// linear_logp and its gradients against the bare products of the same size.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "rlk/bench/calls.h"
#include "rlk/bench/data.h"
#include "rlk/ops/gemm.h"
#include "rlk/ops/linear_logp.h"
#include "rlk/ops/logprob.h"

namespace rlk::bench {
namespace {

constexpr std::int64_t kVocabSize = 151936;

// The numbers of the head lie in [-x, x): with those of the hidden states in [-1, 1), logits then
// have a standard deviation of kLogitSpread.
float head_scale(std::int64_t hidden_size) {
  return 3.0f * kLogitSpread / std::sqrt(static_cast<float>(hidden_size));
}

// Everything that forward and backward of one call need.
struct LinearData {
  HeadShape s;
  Tensor logp, state, hidden, head, targets, d_hidden, dw, chain, group_ends, cu_seqlens, g;
  PackedWeight forward_form, backward_form, production_forward, production_backward;
  Array<SamplingParams> params;  // one, where a recorded call can read it

  LinearData(Engines& e, const HeadShape& shape)
      : s(shape),
        logp(DType::kF32, {s.num_rows}, e.ours.memory()),
        state(DType::kI32, {s.num_rows, kLogprobStateWords}, e.ours.memory()),
        hidden(random_tensor(e.ours.memory(), s.storage, {s.num_rows, s.hidden_size}, 1)),
        head(random_tensor(e.ours.memory(), s.storage, {s.vocab_padded, s.hidden_size}, 2,
                           head_scale(s.hidden_size))),
        targets(offsets(e.ours.small_memory(), s.num_rows, 1)),
        g(random_tensor(e.ours.memory(), DType::kF32, {s.num_rows}, 3)),
        params(1, SamplingParams{}, e.ours.small_memory()) {
    for (std::int64_t i = 0; i < s.num_rows; ++i) {
      targets.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * 37 % s.vocab_size);
    }
    const auto pack = [&](Context& ctx, PackedWeight& to_vocab, PackedWeight& to_hidden) {
      pack_weight(ctx, {&to_vocab, rows(head.view(), 0, s.vocab_size)});
      pack_weight(ctx, {&to_hidden, transposed(head)});
    };
    pack(e.ours, forward_form, backward_form);
    if (e.production) pack(*e.production, production_forward, production_backward);
  }
  void make_gradients(Context& ctx) {
    d_hidden = Tensor(s.storage, {s.num_rows, s.hidden_size}, ctx.memory());
    dw = chain = Tensor(DType::kF32, {s.vocab_padded, s.hidden_size}, ctx.memory());
    group_ends = one_group(ctx.small_memory(), s.num_rows);
    cu_seqlens = sample_offsets(ctx.small_memory(), s.num_rows, s.sample_length);
  }
  LinearLogpArgs forward(bool production = false) {
    LinearLogpArgs a;
    a.logp = logp;
    a.hidden = hidden;
    a.head = head;
    a.vocab_size = s.vocab_size;
    a.packed_forward = production ? &production_forward : &forward_form;
    a.packed_backward = production ? &production_backward : &backward_form;
    a.targets = targets;
    a.params = params.data();
    a.state = state;
    return a;
  }
  // Backward has what forward keeps of the rows.
  LinearLogpBackwardArgs backward(bool production = false) {
    return {forward(production), d_hidden, dw, chain, group_ends, g, {}, cu_seqlens};
  }
  // logits = hidden head^T, and d_hidden = d_logits head.
  GemmArgs logits_product(const TensorView& logits) {
    GemmArgs a;
    a.c = logits;
    a.a = hidden;
    a.b = rows(head.view(), 0, s.vocab_size);
    a.packed_b = &forward_form;
    a.segments = {s.hidden_size, 0, 0};
    return a;
  }
  GemmArgs hidden_product(const ConstTensorView& d_logits) {
    GemmArgs a;
    a.c = d_hidden;
    a.a = d_logits;
    a.b = transposed(head);
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
  linear_logp(e.ours, data.forward());
  e.ours.synchronize();
  for (const std::int64_t i : sampled(data.s.num_rows, 3, 1)) {
    LinearLogpArgs row = data.forward();
    Tensor want(DType::kF32, {1});
    row.logp = want;
    row.state = {};
    row.hidden = rows(row.hidden, i, i + 1);
    row.targets = rows(row.targets, i, i + 1);
    linear_logp(e.reference, row);
    const std::string text = difference("logp", rows(data.logp.view(), i, i + 1), want);
    if (!text.empty()) return fmt::format("row {}: {}", i, text);
  }
  return "";
}

// The reference's dlogits of rows [begin, end).
Tensor dlogits_of(Engines& e, LinearData& data, std::int64_t begin, std::int64_t end) {
  Tensor logits(DType::kF32, {end - begin, data.s.vocab_size});
  Tensor d_logits(data.s.storage, {end - begin, data.s.vocab_padded});
  GemmArgs product = data.logits_product(logits);
  product.a = rows(product.a, begin, end);
  product.packed_b = nullptr;
  gemm(e.reference, product);
  logprob_backward(e.reference, {d_logits,
                                 logits,
                                 rows(data.targets.view(), begin, end),
                                 rows(data.g.view(), begin, end),
                                 {},
                                 data.params.data(),
                                 1});
  return d_logits;
}

// d_hidden of two rows of the whole call.
std::string check_hidden_gradient(Engines& e, LinearData& data) {
  for (const std::int64_t i : {std::int64_t{0}, data.s.num_rows - 1}) {
    Tensor want(data.s.storage, {1, data.s.hidden_size});
    const Tensor d_logits = dlogits_of(e, data, i, i + 1);
    GemmArgs back = data.hidden_product(d_logits);
    back.c = want;
    back.packed_b = nullptr;
    gemm(e.reference, back);
    const std::string text = difference("d_hidden", rows(data.d_hidden.view(), i, i + 1), want);
    if (!text.empty()) return fmt::format("row {}: {}", i, text);
  }
  return "";
}

// A part of dw of a call with the first rows only: the reference needs all their dlogits.
std::string check_weight_gradient(Engines& e, LinearData& data) {
  const std::int64_t n = std::min<std::int64_t>(e.on_device() ? 24 : 4, data.s.num_rows);
  const Tensor group_ends = one_group(e.ours.small_memory(), n);
  const Tensor cu_seqlens = offsets(e.ours.small_memory(), 2, n);
  data.dw.fill_zero();
  data.chain.fill_zero();
  LinearLogpBackwardArgs b = data.backward();
  b.forward.logp = rows(b.forward.logp, 0, n);
  b.forward.hidden = rows(b.forward.hidden, 0, n);
  b.forward.targets = rows(b.forward.targets, 0, n);
  b.forward.state = rows(b.forward.state, 0, n);
  b.d_hidden = rows(b.d_hidden, 0, n);
  b.g = rows(b.g, 0, n);
  b.group_ends = group_ends;
  b.cu_seqlens = cu_seqlens;
  linear_logp_backward(e.ours, b);
  e.ours.synchronize();
  const Tensor d_logits = dlogits_of(e, data, 0, n);
  const GemmBackwardWeightArgs sums{b.dw,       b.chain,   d_logits, b.forward.hidden,
                                    group_ends, cu_seqlens};
  return difference_of_weight_gradient(e, sums, sampled(data.s.vocab_padded, 24, 1),
                                       sampled(data.s.hidden_size, 24, 2));
}

std::string check_linear_backward(Engines& e, LinearData& data) {
  linear_logp(e.ours, data.forward());  // its state
  linear_logp_backward(e.ours, data.backward());
  e.ours.synchronize();
  const std::string text = check_hidden_gradient(e, data);
  return text.empty() ? check_weight_gradient(e, data) : text;
}

// Where the vendor's products of the same size put their results, and what they take.
struct PeerData {
  Tensor logits, d_hidden, dw;
  std::vector<Tensor> kept;
  ConstTensorView hidden, head;

  PeerData(Engines& e, const LinearData& data, bool with_gradients) {
    const HeadShape& s = data.s;
    const DType dtype = e.peers_take_f32() ? DType::kF32 : s.storage;
    logits = Tensor(dtype, {s.num_rows, s.vocab_size}, e.ours.memory());
    hidden = for_peers(e, data.hidden, kept);
    head = rows(for_peers(e, data.head, kept), 0, s.vocab_size);
    if (!with_gradients) return;
    d_hidden = Tensor(dtype, {s.num_rows, s.hidden_size}, e.ours.memory());
    dw = Tensor(dtype, {s.vocab_size, s.hidden_size}, e.ours.memory());
  }
  PeerProduct forward() { return {logits, hidden, head}; }
  std::vector<PeerProduct> backward() {
    const ConstTensorView d_logits = logits;
    return {forward(),
            {d_hidden, d_logits, transposed(head)},
            {dw, transposed(d_logits), transposed(hidden)}};
  }
};

}  // namespace

Prepared prepare_linear_logp(Engines& e, const HeadShape& s) {
  auto data = std::make_shared<LinearData>(e, s);
  const double work = data->product_work();
  Prepared out;
  out.check = [&e, data] { return check_linear(e, *data); };
  out.ours = {"", work, [&e, data] { linear_logp(e.ours, data->forward()); }};
  if (e.on_device()) {
    auto peer = std::make_shared<PeerData>(e, *data, false);
    add_products(e, work, {{peer->forward()}}, peer, out);
    return out;
  }
  auto logits =
      std::make_shared<Tensor>(DType::kF32, std::vector<std::int64_t>{s.num_rows, s.vocab_size});
  out.peers.push_back(
      {"product", work, [&e, data, logits] { gemm(e.ours, data->logits_product(*logits)); }});
  add_production(
      e, [data](Context& ctx) { linear_logp(ctx, data->forward(true)); }, out);
  return out;
}

Prepared prepare_linear_logp_backward(Engines& e, const HeadShape& s) {
  auto data = std::make_shared<LinearData>(e, s);
  data->make_gradients(e.ours);
  const double work = 3 * data->product_work();
  Prepared out;
  out.check = [&e, data] { return check_linear_backward(e, *data); };
  out.ours = {"", work, [&e, data] { linear_logp_backward(e.ours, data->backward()); }};
  if (e.on_device()) {
    auto peer = std::make_shared<PeerData>(e, *data, true);
    add_products(e, work, {peer->backward()}, peer, out);
    return out;
  }
  struct Products {
    Tensor logits, d_logits;
  };
  auto own = std::make_shared<Products>(
      Products{Tensor(DType::kF32, {s.num_rows, s.vocab_size}),
               random_tensor(host_memory(), s.storage, {s.num_rows, s.vocab_padded}, 4, 1e-3f)});
  out.peers.push_back({"3 products", work, [&e, data, own] {
                         gemm(e.ours, data->logits_product(own->logits));
                         gemm_backward_weight(e.ours,
                                              {data->dw, data->chain, own->d_logits, data->hidden,
                                               data->group_ends, data->cu_seqlens});
                         gemm(e.ours, data->hidden_product(own->d_logits));
                       }});
  add_production(
      e, [data](Context& ctx) { linear_logp_backward(ctx, data->backward(true)); }, out);
  return out;
}

namespace {

// Scratch memory of forward and backward at 4,096 rows. The open sums of backward have a budget of
// their own, so a larger hidden size would add little.
Prepared linear_memory(Engines& e) {
  auto data =
      std::make_shared<LinearData>(e, HeadShape{4096, 64, kVocabSize, kVocabSize, DType::kBF16});
  data->make_gradients(e.ours);
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
  const auto add = [&](const std::string& op, const HeadShape& s, double target, bool quick,
                       Prepared (*prepare)(Engines&, const HeadShape&)) {
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
      const HeadShape s{110, hidden_size, kVocabSize, kVocabSize, storage};
      const bool quick = bf16 && hidden_size == 256;
      add("linear_logp", s, bf16 ? 0.9 : 0, quick, prepare_linear_logp);
      add("linear_logp_backward", s, bf16 ? 0.85 : 0, quick, prepare_linear_logp_backward);
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
