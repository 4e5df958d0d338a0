// Forward: a thread computes a block of logits, adds its exponentials to the sums of its rows and
// forgets it. The sums are order-free, so each thread keeps its own for every row and they merge at
// the end. Rows with filters go by whole rows.
#include "rlk/kernels/linear_logp.h"

#include <new>

#include "rlk/kernels/cpu/linear_logp_blocks.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/token_filter.h"

namespace rlk::cpu {
namespace {

constexpr std::int64_t kLogitCols = 1024;
constexpr std::int64_t kMostRows = 2048;  // whose sums are open at a time

struct RowSums {
  numerics::EntropySumExp sums;
  bool wide = false;
};

struct Cut {
  std::int64_t tile_rows, row_tiles, tasks, grain;
};

Cut cut_rows(std::int64_t rows, std::int64_t cols, std::int64_t depth, int threads) {
  const std::int64_t col_tiles = (cols + kLogitCols - 1) / kLogitCols;
  std::int64_t most = kLogitRows;
  while (most > 32 && (rows + most - 1) / most * col_tiles < 3 * threads) most /= 2;
  const std::int64_t tile = even_tile(rows, most);
  Cut cut{tile, (rows + tile - 1) / tile, 0, 1};
  cut.tasks = cut.row_tiles * col_tiles;
  cut.grain = block_grain(cols * depth * rows, cut.tasks);
  return cut;
}

// Rows without filters.
class Forward {
 public:
  Forward(Exec& exec, const GemmIsa& gemm, const LogprobIsa& isa, const LinearLogpArgs& args)
      : exec_(exec), gemm_(gemm), isa_(isa), args_(args) {}

  void run(std::int64_t begin, std::int64_t end) {
    const int threads = exec_.pool.num_threads();
    Workspace::Frame frame(exec_.workspace);
    const std::int64_t rows = end - begin;
    const Cut cut = cut_rows(rows, args_.vocab_size, args_.hidden.shape(1), threads);
    const GemmCut product{cut.tile_rows, args_.vocab_size,
                          cut.tile_rows, kProductCols,
                          cut.row_tiles, cut.tasks / std::max<std::int64_t>(1, cut.row_tiles),
                          cut.grain};
    const GemmScratches scratches(frame, product, cut.tile_rows * kProductCols, threads);
    const LogitBlocks blocks(frame, gemm_, args_, cut.tile_rows);
    const std::int64_t block_size = cut.tile_rows * kLogitCols;
    float* logits = frame.take<float>(block_size * threads);
    float* z_target = frame.take<float>(rows);
    RowSums* sums = frame.take<RowSums>(rows * threads);
    for (std::int64_t i = 0; i < rows * threads; ++i) new (&sums[i]) RowSums;
    exec_.pool.parallel_for(cut.tasks, cut.grain,
                            [&](std::int64_t first, std::int64_t last, int thread) {
                              for (std::int64_t i = first; i < last; ++i) {
                                const std::int64_t row = i % cut.row_tiles * cut.tile_rows;
                                const std::int64_t col = i / cut.row_tiles * kLogitCols;
                                add_block(blocks, begin, row, std::min(cut.tile_rows, rows - row),
                                          col, scratches.at(thread), logits + thread * block_size,
                                          z_target, sums + thread * rows);
                              }
                            });
    for (std::int64_t r = 0; r < rows; ++r) {
      RowSums all = sums[r];
      for (int thread = 1; thread < threads; ++thread) {
        all.sums.merge(sums[thread * rows + r].sums);
        all.wide = all.wide || sums[thread * rows + r].wide;
      }
      finish_row(begin + r, all, z_target[r]);
    }
  }

 private:
  bool entropy() const { return static_cast<bool>(args_.entropy); }
  std::int32_t target(std::int64_t t) const { return *args_.targets.at<std::int32_t>(t); }
  float scale(std::int64_t t) const {
    return reference::inverse_temperature(params_of(args_.params, args_.num_params, t));
  }

  void add_block(const LogitBlocks& blocks, std::int64_t begin, std::int64_t row, std::int64_t rows,
                 std::int64_t col, const GemmScratch& scratch, float* logits, float* z_target,
                 RowSums* sums) const {
    const std::int64_t cols = std::min(kLogitCols, args_.vocab_size - col);
    blocks.compute(scratch, begin + row, rows, col, cols, logits, kLogitCols);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int32_t id = target(begin + row + r);
      if (id == kIgnoreIndex) continue;
      const float* x = logits + r * kLogitCols;
      LogprobSums part;
      isa_.sums(&part, {x, cols, scale(begin + row + r), col, nullptr}, entropy());
      sums[row + r].sums.merge(state_of(part));
      sums[row + r].wide = sums[row + r].wide || part.wide;
      if (id >= col && id < col + cols) z_target[row + r] = x[id - col] * scale(begin + row + r);
    }
  }

  void finish_row(std::int64_t t, const RowSums& row, float z_target) const {
    if (args_.state) std::fill_n(args_.state.at<std::int32_t>(t), kLogprobStateWords, 0);
    if (target(t) == kIgnoreIndex) {
      *args_.logp.at<float>(t) = 0.0f;
      if (entropy()) *args_.entropy.at<float>(t) = 0.0f;
      return;
    }
    using numerics::LogitStatus;
    const bool in_range = target(t) >= 0 && target(t) < args_.vocab_size;
    if (!in_range || !(scale(t) < numerics::kInfinity) || row.sums.status() != LogitStatus::kOk ||
        numerics::classify_logit(z_target) != LogitStatus::kOk) {
      return exec_.fault.report(t);
    }
    const RowState state(row.sums, row.wide, entropy());
    *args_.logp.at<float>(t) = state.logp(z_target);
    if (entropy()) *args_.entropy.at<float>(t) = state.entropy;
    if (args_.state) state.save(args_.state.at<std::int32_t>(t));
  }

  Exec& exec_;
  const GemmIsa& gemm_;
  const LogprobIsa& isa_;
  const LinearLogpArgs& args_;
};

}  // namespace

template <Isa I>
void linear_logp(Exec& exec, const LinearLogpArgs& args) {
  if (!fits_blocks(args)) return linear_logp_by_rows(cpu_kernels(I), exec, args);
  const std::int64_t num_tokens = args.hidden.shape(0);
  const auto filtered = [&](std::int64_t t) {
    return has_filter(params_of(args.params, args.num_params, t));
  };
  Forward forward(exec, gemm_isa(I, exec.contract.profile), logprob_isa(I), args);
  for (std::int64_t begin = 0, end; begin < num_tokens; begin = end) {
    const bool filter = filtered(begin);
    const std::int64_t most = filter ? num_tokens : std::min(num_tokens, begin + kMostRows);
    end = begin + 1;
    while (end < most && (args.num_params == 1 || filtered(end) == filter)) ++end;
    if (!filter) {
      forward.run(begin, end);
      continue;
    }
    Fault fault;
    Exec part{exec.pool, exec.workspace, exec.contract, fault};
    linear_logp_by_rows(cpu_kernels(I), part, rows_of(args, begin, end));
    if (fault.row() >= 0) exec.fault.report(begin + fault.row());
  }
}

RLK_INSTANTIATE(linear_logp, LinearLogpArgs);

}  // namespace rlk::cpu
