// The optimizer step and sampling: for information, without a peer but memory.
#include <algorithm>

#include <fmt/format.h>

#include "rlk/bench/calls.h"
#include "rlk/bench/data.h"
#include "rlk/ops/adamw.h"
#include "rlk/ops/logprob.h"

namespace rlk::bench {
namespace {

constexpr std::int64_t kElements = std::int64_t{4} << 20;
constexpr std::int64_t kVocabSize = 151936;
constexpr std::int64_t kRows = 32;

struct Step {
  Tensor w, master, m, v, dw;
  AdamwArgs args() {
    AdamwArgs a;
    a.w = w;
    a.master = master;
    a.m = m;
    a.v = v;
    a.dw = dw;
    a.lr = 1e-3f;
    a.b1 = 0.9f;
    a.b2 = 0.95f;
    a.f1 = 0.1f;
    a.f2 = 0.05f;
    a.h1 = 0.1f;
    a.h2 = 0.05f;
    a.eps = 1e-8f;
    return a;
  }
};

Prepared adamw_step(Engines& e, DType storage) {
  auto data = std::make_shared<Step>();
  data->w = Tensor(storage, {kElements}, e.ours.memory());
  data->master = random_tensor(e.ours.memory(), DType::kF32, {kElements}, 1);
  data->m = data->v = Tensor(DType::kF32, {kElements}, e.ours.memory());
  data->dw = random_tensor(e.ours.memory(), DType::kF32, {kElements}, 2);
  // Reads master, m, v and dw, writes master, m, v and the weight.
  const double bytes =
      static_cast<double>(kElements) * static_cast<double>(7 * sizeof(float) + size_of(storage));
  Prepared out;
  out.check = [&e, data] { return check_all(e, &adamw, data->args()); };
  out.ours = {"", bytes, [&e, data] { adamw(e.ours, data->args()); }};
  out.peers.push_back(copy_loop(e, bytes));
  add_production(
      e, [data](Context& ctx) { adamw(ctx, data->args()); }, out);
  return out;
}

Prepared norm_of_gradient(Engines& e) {
  struct Data {
    Tensor dw;
    ConstTensorView grads[1];
    float norm = 0;
    GradNormArgs args() { return {&norm, grads, 1}; }
  };
  auto data = std::make_shared<Data>();
  data->dw = random_tensor(e.ours.memory(), DType::kF32, {kElements}, 2);
  data->grads[0] = data->dw;
  Prepared out;
  out.check = [&e, data] { return check_all(e, &grad_norm, data->args()); };
  out.ours = {"", 4.0 * kElements, [&e, data] { grad_norm(e.ours, data->args()); }};
  out.peers.push_back(read_stream(e, {data->dw}));
  add_production(
      e, [data](Context& ctx) { grad_norm(ctx, data->args()); }, out);
  return out;
}

}  // namespace

Prepared prepare_sample(Engines& e, const LogitShape& s) {
  struct Data {
    Tensor ids, logits;
    Array<SamplingParams> params;
    Array<SampleKey> keys;
    SampleArgs args() { return {ids, logits, params.data(), keys.data()}; }
  };
  Memory& small = e.ours.small_memory();
  auto data = std::make_shared<Data>(
      Data{Tensor(DType::kI32, {s.num_rows}, e.ours.memory()),
           random_logits(e.ours.memory(), s.num_rows, s.vocab_size, 1),
           Array<SamplingParams>(static_cast<std::size_t>(s.num_rows), s.params, small),
           Array<SampleKey>(static_cast<std::size_t>(s.num_rows), SampleKey{}, small)});
  for (std::int64_t i = 0; i < s.num_rows; ++i) {
    data->keys.data()[i] = {1, static_cast<std::uint64_t>(i), 7};
  }
  const double bytes = 4.0 * static_cast<double>(s.num_rows * s.vocab_size);
  Prepared out;
  out.check = [&e, data, s] {
    const SampleArgs a = data->args();
    sample(e.ours, a);
    e.ours.synchronize();
    SampleArgs some = a;  // the reference sorts whole rows: two of them
    const std::int64_t count = std::min<std::int64_t>(2, s.num_rows);
    some.token_ids = rows(a.token_ids, 0, count);
    some.logits = rows(a.logits, 0, count);
    return compare_outputs(e.reference, &sample, some, outputs_of(some));
  };
  out.ours = {"", bytes, [&e, data] { sample(e.ours, data->args()); }};
  out.peers.push_back(e.on_device() ? copy_loop(e, bytes) : read_stream(e, {data->logits}));
  add_production(
      e, [data](Context& ctx) { sample(ctx, data->args()); }, out);
  return out;
}

void add_step_cases(Cases& cases) {
  const auto add = [&](const std::string& op, const std::string& form, const std::string& shape,
                       bool quick, std::function<Prepared(Engines&)> prepare) {
    Case c;
    c.name = fmt::format("{}/{}{}", op, form, shape);
    c.op = op;
    c.shape = shape;
    c.unit = kGbytes;
    c.quick = quick;
    c.prepare = std::move(prepare);
    cases.push_back(std::move(c));
  };
  const std::string elements = std::to_string(kElements);
  for (const DType storage : {DType::kBF16, DType::kF32}) {
    add("adamw", storage == DType::kF32 ? "f32/" : "bf16/", elements, storage == DType::kBF16,
        [storage](Engines& e) { return adamw_step(e, storage); });
  }
  add("grad_norm", "", elements, true, norm_of_gradient);
  const std::string logits = fmt::format("{}x{}", kRows, kVocabSize);
  const std::pair<const char*, SamplingParams> kDraws[] = {{"greedy/", {0, 0, 1, 0}},
                                                           {"temperature/", {0.8f, 0, 1, 0}},
                                                           {"top_k_50/", {0.8f, 50, 1, 0}},
                                                           {"top_p_0.9/", {0.8f, 0, 0.9f, 0}},
                                                           {"top_k_top_p/", {0.8f, 50, 0.9f, 0}}};
  for (const auto& [form, params] : kDraws) {
    add("sample", form, logits, params.top_k == 0 && params.temperature > 0,
        [params = params](Engines& e) {
          return prepare_sample(e, {kRows, kVocabSize, 0, params});
        });
  }
}

}  // namespace rlk::bench
