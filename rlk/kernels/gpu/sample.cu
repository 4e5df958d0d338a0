#include "rlk/kernels/gpu/gumbel_bound.h"
#include "rlk/kernels/gpu/row_parts.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/numerics/philox.h"

namespace rlk::gpu {
namespace {

struct Candidate {
  float score = -0x1.fffffep127f;  // below every score
  std::int32_t id = -1;            // none
};
RLK_HD inline Candidate better(const Candidate& a, const Candidate& b) {
  if (b.id < 0) return a;
  if (a.id < 0) return b;
  if (a.score != b.score) return a.score > b.score ? a : b;
  return a.id < b.id ? a : b;
}

// What a part of a row without filters leaves.
struct PartDraw {
  RowState state;
  Candidate best;
};
RLK_HD inline PartDraw merge_draws(const PartDraw& a, const PartDraw& b) {
  return {merge_states(a.state, b.state), better(a.best, b.best)};
}

// Rises as x does, for finite x.
RLK_HD inline int rising_bits(float x) {
  const auto bits = std::bit_cast<std::int32_t>(x);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
RLK_HD inline float from_rising_bits(int bits) {
  return std::bit_cast<float>(bits < 0 ? bits ^ 0x7fffffff : bits);
}

// A thread's draw from tokens of a row without filters.
//
// A token's score is fl(z + g), which is at most fl(z + bound) for any bound of g, as rounding is
// monotone. Where that is below the score of some token already looked at, the token cannot win,
// and its noise is never computed; where they are equal it might, by its id. So which tokens are
// left out depends on threads and parts, and the winner does not.
class Draw {
 public:
  RLK_DEVICE Draw(const LogitRow& row, const SampleKey& key, bool greedy)
      : row_(row), key_(key), greedy_(greedy), reach_(greedy ? 0.0f : kMaxGumbel) {}

  // Tokens [j, j + n).
  RLK_DEVICE void add(int j, const float (&x)[4], int n) {
    float z_max = -numerics::kInfinity;
    RLK_UNROLL
    for (int l = 0; l < 4; ++l) {
      if (l >= n) continue;
      const float z = x[l] * row_.scale;
      result.state.not_finite = numerics::fma(x[l], 0.0f, result.state.not_finite);
      z_max = z > z_max ? z : z_max;
    }
    result.state.z_max = larger(result.state.z_max, z_max);
    if (z_max + reach_ >= floor_) add_likely(j, x, n);
  }

  // No token below this score can win.
  RLK_DEVICE void raise_floor(float score) { floor_ = larger(floor_, score); }

  PartDraw result;

 private:
  RLK_DEVICE void add_likely(int j, const float (&x)[4], int n) {
    numerics::PhiloxCounter words{};
    if (!greedy_) {
      words = numerics::gumbel_words(key_.seed, key_.request, key_.position,
                                     static_cast<std::uint32_t>(j / 4));
    }
    RLK_UNROLL
    for (int l = 0; l < 4; ++l) {
      const float z = x[l] * row_.scale;
      const std::uint32_t word = words[static_cast<std::size_t>(l)];
      const float bound = greedy_ ? 0.0f : gumbel_bound(word);
      if (l >= n || !(z >= -0x1p30f && z + bound >= floor_)) continue;
      const float score = greedy_ ? z : z + numerics::gumbel_of_word(word);
      result.best = better(result.best, {score, j + l});
      raise_floor(result.best.score);
    }
  }

  const LogitRow& row_;
  const SampleKey key_;
  const bool greedy_;
  const float reach_;
  float floor_ = -0x1.fffffep127f;
};

// Blocks are parts of rows, x the row and y the part. The threads tell each other the best scores,
// first after a few tokens.
RLK_KERNEL(kRowThreads)
draw_kernel(PartDraw* draws, Rows rows, Parts parts, const SampleKey* keys) {
  const std::int64_t t = block_x(), part = block_y();
  const SamplingParams& params = rows.params_of(t);
  if (filters(params)) return;
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  RLK_SHARED(int, best_score, 1);
  if (thread() == 0) *best_score = rising_bits(-0x1.fffffep127f);
  barrier();
  const LogitRow row{shared, &rows.logits(t), rows.logits.stride[1], rows.vocab_size,
                     scale_of(params)};
  Draw draw(row, keys[t], params.temperature == 0.0f);
  const int end = parts.end(part, rows.vocab_size);
  int from = parts.begin(part), size = kPackStep;
  while (from < end) {
    const int to = end - from < size ? end : from + size;
    for_each_pack(row, from, to, [&](int j, const float(&x)[4], int n) { draw.add(j, x, n); });
    from = to;
    size = 4 * kPackStep;
    if (from == end) break;
    const int mine = rising_bits(draw.result.best.score);
    if (draw.result.best.id >= 0) atomic_max(best_score, mine);
    barrier();
    draw.raise_floor(from_rising_bits(*best_score));
    barrier();
  }
  const PartDraw draw_of_part = block_reduce<kRowThreads>(draw.result, shared, merge_draws);
  if (thread() == 0) draws[t * parts.count + part] = draw_of_part;
}

// The best of a row's parts, or of what filters leave of it.
RLK_KERNEL(kRowThreads)
sample_kernel(Ref<std::int32_t> token_ids, Rows rows, Parts parts, const SampleKey* keys,
              const PartDraw* draws, unsigned long long* fault) {
  const std::int64_t t = block_x();
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  Candidate best;
  bool good = false;
  if (!filters(rows.params_of(t))) {
    const PartDraw draw = merge_parts(draws + t * parts.count, parts.count, shared, merge_draws);
    good = draw.state.good();
    best = draw.best;
  } else {
    LogitRow row;
    good = rows.make(t, shared, &row);
    const SampleKey key = keys[t];
    if (good) {
      row.for_each([&](std::int64_t j, float z) {
        const float noise =
            numerics::gumbel(key.seed, key.request, key.position, static_cast<std::uint32_t>(j));
        best = better(best, {z + noise, static_cast<std::int32_t>(j)});
      });
    }
    best = block_reduce<kRowThreads>(best, shared, better);
  }
  if (thread() != 0) return;
  if (!good) return report(fault, rows.first_row + t);
  token_ids(t) = best.id;
}

}  // namespace

void sample_in_parts(Exec& exec, const SampleArgs& args, const Parts& parts) {
  const std::int64_t num_tokens = args.logits.shape(0);
  device::Workspace::Frame frame(exec.gpu->workspace());
  Rows rows = make_rows(exec, frame, args.logits, args.params, num_tokens, 0);
  const SampleKey* const keys = on_device(exec, frame, args.keys, num_tokens);
  auto* const draws = frame.take<PartDraw>(num_tokens * parts.count);
  launch(exec, {num_tokens, parts.count}, kRowThreads, 0, draw_kernel, draws, rows, parts, keys);
  filter_parts(exec, frame, num_tokens, parts, args.params, &rows);
  launch(exec, {num_tokens}, kRowThreads, 0, sample_kernel, ref<std::int32_t>(args.token_ids), rows,
         parts, keys, static_cast<const PartDraw*>(draws), exec.gpu->fault());
}

void sample(Exec& exec, const SampleArgs& args) {
  sample_in_parts(exec, args, parts_for(args.logits.shape(0), args.logits.shape(1)));
}

}  // namespace rlk::gpu
