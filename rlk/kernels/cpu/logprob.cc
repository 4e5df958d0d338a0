#include "rlk/kernels/logprob.h"

#include "rlk/kernels/cpu/logprob_rows.h"
#include "rlk/kernels/cpu/storage.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/kernels/reference/token_filter.h"

namespace rlk::cpu {

const LogprobIsa& logprob_isa(Isa isa) {
  switch (isa) {
    case Isa::kAvx2: return kLogprobAvx2;
    case Isa::kAvx512: return kLogprobAvx512;
    default: return kLogprobScalar;
  }
}

namespace {

// Returns false where the row, or its target, is an error.
bool read_row(LogprobRow& row, std::int64_t t, const SamplingParams& params, std::int64_t target,
              bool entropy, RowState* state) {
  if (target < 0 || target >= row.vocab_size) return false;
  row.read(t, params);
  return row.valid && row.takes_part(target) && row.find_state(entropy, state);
}

}  // namespace

template <Isa I>
void logprob(Exec& exec, const LogprobArgs& args) {
  if (!dense(1, args.logits)) return reference::logprob(exec, args);
  const bool entropy = static_cast<bool>(args.entropy);
  LogprobRows rows(exec, logprob_isa(I), args.logits, args.params, args.num_params,
                   entropy ? 0.7 : 0.4);
  rows.for_each([&](std::int64_t t, LogprobRow& row) {
    const std::int32_t target = *args.targets.at<std::int32_t>(t);
    if (args.state) std::fill_n(args.state.at<std::int32_t>(t), kLogprobStateWords, 0);
    if (target == kIgnoreIndex) {
      *args.logp.at<float>(t) = 0.0f;
      if (entropy) *args.entropy.at<float>(t) = 0.0f;
      return;
    }
    RowState state;
    if (!read_row(row, t, params_of(args.params, args.num_params, t), target, entropy, &state)) {
      return exec.fault.report(t);
    }
    *args.logp.at<float>(t) = state.logp(row.x[target] * row.scale);
    if (entropy) *args.entropy.at<float>(t) = state.entropy;
    if (args.state) state.save(args.state.at<std::int32_t>(t));
  });
}

template <Isa I>
void logprob_backward(Exec& exec, const LogprobBackwardArgs& args) {
  if (!dense(1, args.logits, args.dlogits)) return reference::logprob_backward(exec, args);
  const LogprobIsa& isa = logprob_isa(I);
  LogprobRows rows(exec, isa, args.logits, args.params, args.num_params,
                   args.g_entropy ? 1.4 : 0.8);
  with_storage(args.dlogits.dtype, [&]<typename T>() {
    rows.for_each([&](std::int64_t t, LogprobRow& row) {
      T* dz = args.dlogits.at<T>(t);
      const auto fill_zero = [&](std::int64_t from) {
        std::fill(dz + from, dz + args.dlogits.shape(1), T{0});
      };
      const std::int32_t target = *args.targets.at<std::int32_t>(t);
      const float g = *args.g.at<float>(t);
      const float g_entropy = args.g_entropy ? *args.g_entropy.at<float>(t) : 0.0f;
      if (target == kIgnoreIndex || (g == 0.0f && g_entropy == 0.0f)) return fill_zero(0);
      const SamplingParams& params = params_of(args.params, args.num_params, t);
      const bool entropy = g_entropy != 0.0f;
      RowState state;
      if (args.state && state.load(args.state.at<std::int32_t>(t), entropy)) {
        row.use(t, params, state);
      } else if (!read_row(row, t, params, target, entropy, &state)) {
        fill_zero(0);
        return exec.fault.report(t);
      }
      const LogprobGradient of_row = {target, g, g_entropy, state.entropy,
                                      reference::inverse_temperature(params)};
      row.for_each_piece([&](std::int64_t, const LogitPiece& piece) {
        logit_gradient(isa, dz + piece.first_id, piece, state.end, of_row);
      });
      fill_zero(row.vocab_size);
    });
  });
}

template <Isa I>
void sample(Exec& exec, const SampleArgs& args) {
  if (!dense(1, args.logits)) return reference::sample(exec, args);
  const LogprobIsa& isa = logprob_isa(I);
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  LogprobRows rows(exec, isa, args.logits, args.params, args.logits.shape(0), 2.0);
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
    row.for_each_piece([&](std::int64_t i, const LogitPiece& piece) {
      isa.best(&row.parts[i].best, piece, draw);
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
