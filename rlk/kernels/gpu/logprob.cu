#include "rlk/kernels/logprob.h"

#include "rlk/kernels/gpu/linear_logp.h"
#include "rlk/kernels/gpu/logit_row.h"
#include "rlk/kernels/gpu/row_sums.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/numerics/philox.h"

namespace rlk::gpu {
namespace {

using numerics::EntropySumExp;
using numerics::LogSumExpEnd;

struct RowSums {
  EntropySumExp sums;
  LogSumExpEnd end;
};

// False where the row, or its target, is an error. Without `entropy` the sums for it may be
// missing.
RLK_DEVICE bool read_row(const Rows& rows, std::int64_t t, std::int64_t target, bool entropy,
                         ReduceBytes* shared, LogitRow* row, RowSums* out) {
  if (target < 0 || target >= rows.vocab_size) return false;
  const SamplingParams& params = rows.params_of(t);
  if (filters(params)) {
    if (!rows.make(t, shared, row)) return false;
    EntropySumExp sums;
    row->for_each([&](std::int64_t, float z) { sums.add(z); });
    out->sums =
        block_reduce<kRowThreads>(sums, shared, [](EntropySumExp a, const EntropySumExp& b) {
          a.merge(b);
          return a;
        });
  } else {
    const float* const logits = &rows.logits(t);
    const std::int64_t stride = rows.logits.stride[1];
    *row = LogitRow{shared, logits, stride, rows.vocab_size, scale_of(params)};
    out->sums =
        entropy ? row_sums<true, kRowThreads>(logits, stride, rows.vocab_size, row->scale, shared)
                : row_sums<false, kRowThreads>(logits, stride, rows.vocab_size, row->scale, shared);
    if (out->sums.status() != LogitStatus::kOk) return false;
    row->z_max = out->sums.sum.z_max;
  }
  if (row->z(target) == -numerics::kInfinity) return false;
  out->end = LogSumExpEnd(out->sums.sum);
  return true;
}

RLK_KERNEL(kRowThreads)
logprob_kernel(Ref<float> logp, Ref<float> entropy, Rows rows, Ref<const std::int32_t> targets,
               Ref<std::int32_t> state, unsigned long long* fault) {
  const std::int64_t t = block_x();
  const std::int32_t target = targets(t);
  const auto keep = [&](const numerics::LogSumExp& sum) {
    if (state) write_state(state, t, sum);
  };
  if (target == kIgnoreIndex) {
    if (thread() != 0) return;
    logp(t) = 0.0f;
    if (entropy) entropy(t) = 0.0f;
    return keep({});
  }
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  LogitRow row;
  RowSums sums;
  const bool good = read_row(rows, t, target, static_cast<bool>(entropy), shared, &row, &sums);
  if (thread() != 0) return;
  keep(good ? sums.sums.sum : numerics::LogSumExp{});
  if (!good) return report(fault, rows.first_row + t);
  logp(t) = sums.end.logp(row.z(target));
  if (entropy) entropy(t) = static_cast<float>(sums.end.entropy(sums.sums));
}

template <typename T>
RLK_KERNEL(kRowThreads)
logprob_backward_kernel(Ref<T> dlogits, std::int64_t vocab_padded, Rows rows,
                        Ref<const std::int32_t> targets, Ref<const float> g_in,
                        Ref<const float> g_entropy_in, Ref<const std::int32_t> state,
                        unsigned long long* fault) {
  const std::int64_t t = block_x();
  const std::int32_t target = targets(t);
  const float g = g_in(t);
  const float g_entropy = g_entropy_in ? g_entropy_in(t) : 0.0f;
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  LogitRow row;
  RowSums sums;
  const bool needed = target != kIgnoreIndex && !(g == 0.0f && g_entropy == 0.0f);
  bool good = false;
  if (needed && state && g_entropy == 0.0f && !filters(rows.params_of(t))) {
    const numerics::LogSumExp sum = read_state(state, t);
    row = LogitRow{shared, &rows.logits(t), rows.logits.stride[1], rows.vocab_size,
                   scale_of(rows.params_of(t))};
    row.z_max = sum.z_max;
    good = sum.any;
    if (good) sums.end = LogSumExpEnd(sum);
  } else if (needed) {
    good = read_row(rows, t, target, g_entropy != 0.0f, shared, &row, &sums);
  }
  if (needed && !good && thread() == 0) report(fault, rows.first_row + t);
  const float entropy =
      good && g_entropy != 0.0f ? static_cast<float>(sums.end.entropy(sums.sums)) : 0.0f;
  for (std::int64_t j = thread(); j < vocab_padded; j += kRowThreads) {
    float dz = 0.0f;
    const float z = good && j < rows.vocab_size ? row.z(j) : -numerics::kInfinity;
    if (z != -numerics::kInfinity) {
      const float p = sums.end.p(z);
      dz = ((j == target ? 1.0f : 0.0f) - p) * g;
      if (g_entropy != 0.0f) dz = dz - (p * (sums.end.logp(z) + entropy)) * g_entropy;
      dz = dz * row.scale;
    }
    store(dlogits(t, j), dz);
  }
}

struct Candidate {
  float score;
  std::int32_t id;  // -1: none
};
RLK_HD inline Candidate better(const Candidate& a, const Candidate& b) {
  if (a.id < 0) return b;
  if (b.id < 0) return a;
  if (a.score != b.score) return a.score > b.score ? a : b;
  return a.id < b.id ? a : b;
}

RLK_KERNEL(kRowThreads)
sample_kernel(Ref<std::int32_t> token_ids, Rows rows, const SampleKey* keys,
              unsigned long long* fault) {
  const std::int64_t t = block_x();
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  LogitRow row;
  if (!rows.make(t, shared, &row)) {
    if (thread() == 0) report(fault, t);
    return;
  }
  const SampleKey key = keys[t];
  const bool greedy = rows.params_of(t).temperature == 0.0f;
  Candidate best{0.0f, -1};
  // Four ids share the words of one random number.
  for (std::int64_t id = std::int64_t{thread()} * 4; id < rows.vocab_size; id += kRowThreads * 4) {
    numerics::PhiloxCounter words{};
    if (!greedy) {
      words = numerics::gumbel_words(key.seed, key.request, key.position,
                                     static_cast<std::uint32_t>(id / 4));
    }
    for (int i = 0; i < 4 && id + i < rows.vocab_size; ++i) {
      float score = row.z(id + i);
      if (score == -numerics::kInfinity) continue;
      if (!greedy) score = score + numerics::gumbel_of_word(words[static_cast<std::size_t>(i)]);
      best = better(best, {score, static_cast<std::int32_t>(id + i)});
    }
  }
  best = block_reduce<kRowThreads>(best, shared, better);
  if (thread() == 0) token_ids(t) = best.id;
}

}  // namespace

void logprob_of_rows(Exec& exec, const LogprobArgs& args, std::int64_t first_row) {
  device::Workspace::Frame frame(exec.gpu->workspace());
  launch(exec, {args.logits.shape(0)}, kRowThreads, 0, logprob_kernel, ref<float>(args.logp),
         ref<float>(args.entropy),
         make_rows(exec, frame, args.logits, args.params, args.num_params, first_row),
         ref<std::int32_t>(args.targets), ref<std::int32_t>(args.state), exec.gpu->fault());
}

void logprob_backward_of_rows(Exec& exec, const LogprobBackwardArgs& args, std::int64_t first_row) {
  device::Workspace::Frame frame(exec.gpu->workspace());
  with_storage(args.dlogits.dtype, [&]<typename T>() {
    launch(exec, {args.dlogits.shape(0)}, kRowThreads, 0, logprob_backward_kernel<T>,
           ref<T>(args.dlogits), args.dlogits.shape(1),
           make_rows(exec, frame, args.logits, args.params, args.num_params, first_row),
           ref<std::int32_t>(args.targets), ref<float>(args.g), ref<float>(args.g_entropy),
           ref<std::int32_t>(args.state), exec.gpu->fault());
  });
}

void logprob(Exec& exec, const LogprobArgs& args) { logprob_of_rows(exec, args, 0); }

void logprob_backward(Exec& exec, const LogprobBackwardArgs& args) {
  logprob_backward_of_rows(exec, args, 0);
}

void sample(Exec& exec, const SampleArgs& args) {
  const std::int64_t num_tokens = args.logits.shape(0);
  device::Workspace::Frame frame(exec.gpu->workspace());
  launch(exec, {num_tokens}, kRowThreads, 0, sample_kernel, ref<std::int32_t>(args.token_ids),
         make_rows(exec, frame, args.logits, args.params, num_tokens, 0),
         on_device(exec, frame, args.keys, num_tokens), exec.gpu->fault());
}

}  // namespace rlk::gpu
