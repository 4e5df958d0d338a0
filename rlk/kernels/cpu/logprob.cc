#include "rlk/kernels/logprob.h"

#include "rlk/kernels/cpu/logprob_rows.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/kernels/reference/token_filter.h"
#include "rlk/numerics/log_sum_exp.h"

namespace rlk::cpu {

const LogprobIsa& logprob_isa(Isa isa) {
  switch (isa) {
    case Isa::kAvx2: return kLogprobAvx2;
    case Isa::kAvx512: return kLogprobAvx512;
    default: return kLogprobScalar;
  }
}

namespace {

using numerics::EntropySumExp;
using numerics::LogSumExpEnd;

EntropySumExp state_of(const LogprobSums& sums) {
  EntropySumExp state;
  state.sum.z_max = sums.z_max;
  state.sum.any = sums.any;
  state.sum.bad = sums.bad;
  state.sum.bin = sums.bin;
  std::copy(sums.s, sums.s + 4, state.sum.s.begin());
  std::copy(sums.e, sums.e + 4, state.e.begin());
  return state;
}

// A row up to the end of its log-sum-exp.
struct RowEnd {
  EntropySumExp sums;
  LogSumExpEnd end;
  bool wide = false;
};

// Returns false where the row, or its target, is an error.
bool read_row(const LogprobIsa& isa, const LogprobRow& row, std::int64_t target, bool entropy,
              RowEnd* out) {
  if (!row.valid || target < 0 || target >= row.vocab_size) return false;
  const float z_target = row.x[target] * row.scale;
  if (numerics::classify_logit(z_target) != numerics::LogitStatus::kOk) return false;
  row.for_each_piece([&](std::int64_t piece, std::int64_t begin, std::int64_t n) {
    isa.sums(&row.parts[piece].sums, row.x + begin, n, row.scale, row.checked, entropy);
  });
  for (std::int64_t i = 0; i < row.num_pieces(); ++i) {
    out->sums.merge(state_of(row.parts[i].sums));
    out->wide = out->wide || row.parts[i].sums.wide;
  }
  if (out->sums.status() != numerics::LogitStatus::kOk) return false;
  out->end = LogSumExpEnd(out->sums.sum);
  return true;
}

const SamplingParams& params_of(const SamplingParams* params, std::int64_t num_params,
                                std::int64_t t) {
  return params[num_params == 1 ? 0 : t];
}

}  // namespace

template <Isa I>
void logprob(Exec& exec, const LogprobArgs& args) {
  if (!dense(1, args.logits)) return reference::logprob(exec, args);
  const LogprobIsa& isa = logprob_isa(I);
  const bool entropy = static_cast<bool>(args.entropy);
  LogprobRows rows(exec, args.logits, args.params, args.num_params, entropy ? 1.5 : 0.8);
  rows.for_each([&](std::int64_t t, LogprobRow& row) {
    const std::int32_t target = *args.targets.at<std::int32_t>(t);
    if (target == kIgnoreIndex) {
      *args.logp.at<float>(t) = 0.0f;
      if (entropy) *args.entropy.at<float>(t) = 0.0f;
      return;
    }
    row.read(t, params_of(args.params, args.num_params, t));
    RowEnd end;
    if (!read_row(isa, row, target, entropy, &end)) return exec.fault.report(t);
    *args.logp.at<float>(t) = end.end.logp(row.x[target] * row.scale);
    if (entropy) *args.entropy.at<float>(t) = static_cast<float>(end.end.entropy(end.sums));
  });
}

template <Isa I>
void logprob_backward(Exec& exec, const LogprobBackwardArgs& args) {
  if (!dense(1, args.logits, args.dlogits)) return reference::logprob_backward(exec, args);
  const LogprobIsa& isa = logprob_isa(I);
  LogprobRows rows(exec, args.logits, args.params, args.num_params, args.g_entropy ? 2.0 : 1.2);
  rows.for_each([&](std::int64_t t, LogprobRow& row) {
    std::uint16_t* dlogits = args.dlogits.at<std::uint16_t>(t);
    const auto fill_zero = [&](std::int64_t from) {
      std::fill(dlogits + from, dlogits + args.dlogits.shape(1), std::uint16_t{0});
    };
    const std::int32_t target = *args.targets.at<std::int32_t>(t);
    const float g = *args.g.at<float>(t);
    const float g_entropy = args.g_entropy ? *args.g_entropy.at<float>(t) : 0.0f;
    if (target == kIgnoreIndex || (g == 0.0f && g_entropy == 0.0f)) return fill_zero(0);
    const SamplingParams& params = params_of(args.params, args.num_params, t);
    row.read(t, params);
    RowEnd end;
    if (!read_row(isa, row, target, g_entropy != 0.0f, &end)) {
      fill_zero(0);
      return exec.fault.report(t);
    }
    LogprobGradient gradient = {
        .scale = row.scale,
        .inverse = end.end.inverse,
        .bin = end.end.bin,
        .target = target,
        .g = g,
        .g_entropy = g_entropy,
        .z_max = static_cast<double>(end.end.z_max),
        .c = end.end.c,
        .entropy = g_entropy != 0.0f ? static_cast<float>(end.end.entropy(end.sums)) : 0.0f,
        .out_scale = reference::inverse_temperature(params),
        .wide = end.wide,
    };
    row.for_each_piece([&](std::int64_t, std::int64_t begin, std::int64_t n) {
      LogprobGradient piece = gradient;
      piece.target -= begin;
      isa.gradient(dlogits + begin, piece, row.x + begin, n);
    });
    fill_zero(row.vocab_size);
  });
}

template <Isa I>
void sample(Exec& exec, const SampleArgs& args) {
  if (!dense(1, args.logits)) return reference::sample(exec, args);
  const LogprobIsa& isa = logprob_isa(I);
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  LogprobRows rows(exec, args.logits, args.params, args.logits.shape(0), 2.0);
  rows.for_each([&](std::int64_t t, LogprobRow& row) {
    row.read(t, args.params[t]);
    if (!row.valid) return exec.fault.report(t);
    const SampleKey& key = args.keys[t];
    const SampleDraw draw = {
        .gumbel = args.params[t].temperature != 0.0f,
        .key = {low(key.seed), high(key.seed)},
        .position = key.position,
        .request = {low(key.request), high(key.request)},
    };
    row.for_each_piece([&](std::int64_t piece, std::int64_t begin, std::int64_t n) {
      isa.best(&row.parts[piece].best, row.x + begin, n, row.scale, row.checked, draw, begin);
    });
    BestToken best = row.parts[0].best;
    for (std::int64_t i = 1; i < row.num_pieces(); ++i) {  // ids rise from piece to piece
      const BestToken& next = row.parts[i].best;
      best.bad = best.bad || next.bad;
      if (!next.any || (best.any && !(next.score > best.score))) continue;
      best.any = true;
      best.score = next.score;
      best.id = next.id;
    }
    if (best.bad || !best.any) return exec.fault.report(t);
    *args.token_ids.at<std::int32_t>(t) = best.id;
  });
}

RLK_INSTANTIATE(logprob, LogprobArgs);
RLK_INSTANTIATE(logprob_backward, LogprobBackwardArgs);
RLK_INSTANTIATE(sample, SampleArgs);

}  // namespace rlk::cpu
