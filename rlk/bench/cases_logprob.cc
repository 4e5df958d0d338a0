// logprob and log_softmax against a copy of as many bytes.
#include <algorithm>

#include <fmt/format.h>

#include "rlk/bench/calls.h"
#include "rlk/bench/data.h"
#include "rlk/ops/logprob.h"

namespace rlk::bench {
namespace {

constexpr std::int64_t kVocabSize = 151936;

struct Rows {
  LogitShape s;
  Tensor logp, entropy, logits, targets, g, dlogits, y;
  Array<SamplingParams> params;  // one, where a recorded call can read it

  Rows(Context& ctx, const LogitShape& shape)
      : s(shape),
        logp(DType::kF32, {s.num_rows}, ctx.memory()),
        entropy(DType::kF32, {s.num_rows}, ctx.memory()),
        logits(random_logits(ctx.memory(), s.num_rows, s.vocab_size, 1)),
        targets(offsets(ctx.small_memory(), s.num_rows, 1)),
        g(random_tensor(ctx.memory(), DType::kF32, {s.num_rows}, 2)),
        params(1, s.params, ctx.small_memory()) {
    const bool filtered = s.params != SamplingParams{};
    for (std::int64_t i = 0; i < s.num_rows; ++i) {
      const float* const row = logits.data<float>() + i * s.vocab_size;
      targets.data<std::int32_t>()[i] = static_cast<std::int32_t>(
          filtered ? std::max_element(row, row + s.vocab_size) - row : i % s.vocab_size);
    }
  }
  LogprobArgs forward(bool with_entropy) {
    return {logp, with_entropy ? entropy.view() : TensorView{}, logits, targets, params.data(), 1};
  }
  LogprobBackwardArgs backward() { return {dlogits, logits, targets, g, {}, params.data(), 1}; }
  LogSoftmaxArgs softmax() { return {y, logits, params.data(), 1}; }
  double logit_bytes() const { return 4.0 * static_cast<double>(s.num_rows * s.vocab_size); }
};

// `run` with copies of the data in turn.
Prepared rows_prepared(Engines& e, const std::shared_ptr<Rows>& data, double bytes,
                       std::function<void(Context&, Rows&)> run,
                       std::function<std::string()> check) {
  std::vector<std::shared_ptr<Rows>> copies{data};
  for (std::int64_t i = 1; i < turns_of(data->s.rotated_bytes, bytes); ++i) {
    copies.push_back(std::make_shared<Rows>(*data));
  }
  Prepared out;
  out.turns = static_cast<int>(copies.size());
  out.check = std::move(check);
  auto turn = std::make_shared<std::size_t>(0);
  const auto next = [copies, turn, run](Context& ctx) {
    run(ctx, *copies[(*turn)++ % copies.size()]);
  };
  out.ours = {"", bytes, [&e, next] { next(e.ours); }};
  out.peers.push_back(copy_loop(e, bytes));
  add_production(e, next, out);
  return out;
}

Prepared backward(Engines& e, const LogitShape& s) {
  auto data = std::make_shared<Rows>(e.ours, s);
  data->dlogits = Tensor(DType::kBF16, {s.num_rows, s.vocab_size}, e.ours.memory());
  const auto run = [](Context& ctx, Rows& d) { logprob_backward(ctx, d.backward()); };
  return rows_prepared(e, data, 1.5 * data->logit_bytes(), run, [&e, data] {
    const LogprobBackwardArgs a = data->backward();
    return check_parts(e, &logprob_backward, a, data->s.num_rows, [a](std::int64_t i) {
      LogprobBackwardArgs row = a;
      row.dlogits = rows(a.dlogits, i, i + 1);
      row.logits = rows(a.logits, i, i + 1);
      row.targets = rows(a.targets, i, i + 1);
      row.g = rows(a.g, i, i + 1);
      return row;
    });
  });
}

}  // namespace

Prepared prepare_logprob(Engines& e, const LogitShape& s, bool with_entropy) {
  auto data = std::make_shared<Rows>(e.ours, s);
  const auto run = [with_entropy](Context& ctx, Rows& d) { logprob(ctx, d.forward(with_entropy)); };
  return rows_prepared(e, data, data->logit_bytes(), run, [&e, data, with_entropy] {
    const LogprobArgs a = data->forward(with_entropy);
    return check_parts(e, &logprob, a, data->s.num_rows, [a](std::int64_t i) {
      LogprobArgs row = a;
      row.logp = rows(a.logp, i, i + 1);
      if (a.entropy) row.entropy = rows(a.entropy, i, i + 1);
      row.logits = rows(a.logits, i, i + 1);
      row.targets = rows(a.targets, i, i + 1);
      return row;
    });
  });
}

Prepared prepare_log_softmax(Engines& e, const LogitShape& s) {
  auto data = std::make_shared<Rows>(e.ours, s);
  data->y = Tensor(DType::kF32, {s.num_rows, s.vocab_size}, e.ours.memory());
  const auto run = [](Context& ctx, Rows& d) { log_softmax(ctx, d.softmax()); };
  return rows_prepared(e, data, 2 * data->logit_bytes(), run, [&e, data] {
    const LogSoftmaxArgs a = data->softmax();
    return check_parts(e, &log_softmax, a, data->s.num_rows, [a](std::int64_t i) {
      LogSoftmaxArgs row = a;
      row.y = rows(a.y, i, i + 1);
      row.logits = rows(a.logits, i, i + 1);
      return row;
    });
  });
}

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
  add("logprob", "", 64, kVocabSize, 0.8, true, [](Engines& e) {
    return prepare_logprob(e, {64, kVocabSize}, false);
  });
  add("logprob", "entropy/", 64, kVocabSize, 0, false, [](Engines& e) {
    return prepare_logprob(e, {64, kVocabSize}, true);
  });
  add("logprob_backward", "", 64, kVocabSize, 0, true, [](Engines& e) {
    return backward(e, {64, kVocabSize});
  });
  add("logprob", "", 4096, 16, 0, false, [](Engines& e) {
    return prepare_logprob(e, {4096, 16}, false);
  });
}

}  // namespace rlk::bench
