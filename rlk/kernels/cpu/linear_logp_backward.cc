// Backward works on as many rows at a time as the open sums of d_hidden allow, and on these rows
// goes through the vocabulary once, a block of columns after the other:
//   1. the block's logits again, and from the row's log-sum-exp dz [rows, kColumns] in the storage
//   type;
//   2. d_hidden: the running leaf of its tree over the vocabulary goes on with this dz;
//   3. dW of the block's columns goes on with this dz.
// So dW, which is large, is read and written once for some thousand rows instead of once for as
// many rows as fit whole into the extra memory (50 at a vocabulary of 151,936), and the logits of a
// block never leave the cache. The log-sum-exp comes from forward or costs one more product.
#include <array>
#include <new>

#include "rlk/kernels/cpu/linear_logp_blocks.h"
#include "rlk/kernels/cpu/storage.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/token_filter.h"
#include "rlk/numerics/sums.h"

namespace rlk::cpu {
namespace {

constexpr std::int64_t kColumns = 2048;
constexpr std::int64_t kOpenBytes = std::int64_t{44} << 20;

// The pending subtrees of a leaf tree whose leaves end one after the other. A subtree that holds
// something owns the slot after those of the subtrees before it; the running leaf has the next.
class PendingTrees {
 public:
  int slot() const { return used_; }  // of the running leaf

  // The running leaf is complete; add(slot) adds slot + 1 to slot.
  template <typename Add>
  void close_leaf(bool holds, const Add& add) {
    if (holds) ++used_;
    stack_[depth_++] = holds;
    for (int n = ++leaves_; n % 2 == 0; n /= 2) {
      const bool right = stack_[--depth_], left = stack_[depth_ - 1];
      if (left && right) add(--used_ - 1);
      stack_[depth_ - 1] = left || right;
    }
  }
  bool holds() const { return used_ > 0; }

 private:
  std::array<bool, 16> stack_{};
  int depth_ = 0, used_ = 0, leaves_ = 0;
};

// d_hidden of some rows while it goes through the vocabulary.
class HiddenGradient {
 public:
  HiddenGradient(Exec& exec, const GemmIsa& isa, const LinearLogpArgs& a, std::int64_t rows,
                 Workspace::Frame& frame)
      : exec_(exec), isa_(isa), leaves_(exec.contract.leaves), rows_(rows), n_(a.hidden.shape(1)) {
    problem_ = {rows,
                n_,
                a.head.shape(0),
                {},
                transposed(a.head),
                packed_panels(isa, a.packed_backward, a.head.dtype)};
    tile_rows_ = even_tile(rows, kLogitRows);
    row_tiles_ = (rows + tile_rows_ - 1) / tile_rows_;
    problem_.direct = problem_.packed && tile_rows_ <= isa.direct_rows;
    cut_columns(kProductCols);
    const std::int64_t enough = 2 * exec.pool.num_threads();
    while (cols_ > kLeastCols && row_tiles_ * col_tiles_ < enough) cut_columns(cols_ / 2);
    level_size_ = row_tiles_ * tile_rows_ * col_tiles_ * cols_;
    acc_ = frame.take<float>(level_size_ * levels(leaves_));
    grain_ = block_grain(rows * n_ * kColumns, row_tiles_ * col_tiles_);
  }
  static int levels(int leaves) {
    int n = 1;
    while (leaves > 1) leaves /= 2, ++n;
    return n;
  }

  // Goes on with columns [begin, end) of the vocabulary, dz [rows, end - begin].
  void add(const GemmScratches& scratches, const ConstTensorView& dz, std::int64_t begin,
           std::int64_t end) {
    GemmProblem here = problem_;  // column `begin` of the vocabulary is 0
    here.a = dz;
    here.b = columns(problem_.b, begin, end);
    if (here.packed) {
      here.packed = static_cast<const char*>(here.packed) +
                    begin * isa_.panel * static_cast<std::int64_t>(size_of(here.b.dtype));
    }
    std::int64_t at = begin;
    while (leaf_ < leaves_) {
      const std::int64_t leaf_end = numerics::leaf_bound(problem_.k, leaves_, leaf_ + 1);
      const std::int64_t to = std::min(end, leaf_end);
      if (at < to) {
        run(scratches, here, at - begin, to - begin);
        holds_ = true;
        at = to;
      }
      if (to < leaf_end) break;
      trees_.close_leaf(holds_, [&](int slot) { merge(slot); });
      holds_ = false;
      ++leaf_;
    }
  }

  void finish(const TensorView& d_hidden) {
    const std::int64_t panel = isa_.panel;
    if (!trees_.holds()) std::fill_n(acc_, level_size_, 0.0f);
    for_each_block([&](const GemmBlock& block, std::int64_t offset, int) {
      for (std::int64_t p = 0; p < block.cols; p += panel) {
        const float* sums = acc_ + offset + p * block.rows;
        const std::int64_t cols = std::min(panel, block.cols - p);
        if (d_hidden.dtype == DType::kF32) {
          isa_.finish_f32(d_hidden.at<float>(block.row, block.col + p), d_hidden.stride(0), sums,
                          nullptr, block.rows, cols);
        } else {
          isa_.finish_bf16(d_hidden.at<std::uint16_t>(block.row, block.col + p), d_hidden.stride(0),
                           sums, nullptr, block.rows, cols);
        }
      }
    });
  }

 private:
  static constexpr std::int64_t kLeastCols = 64;  // whole panels, as kProductCols is

  void cut_columns(std::int64_t cols) {
    cols_ = cols;
    col_tiles_ = (n_ + cols - 1) / cols;
  }
  // body(block, offset of its sums in a level, thread)
  template <typename Body>
  void for_each_block(const Body& body) {
    exec_.pool.parallel_for(
        row_tiles_ * col_tiles_, grain_, [&](std::int64_t first, std::int64_t last, int thread) {
          for (std::int64_t i = first; i < last; ++i) {
            const std::int64_t row = i % row_tiles_ * tile_rows_;
            const std::int64_t col = i / row_tiles_ * cols_;
            body(GemmBlock{row, std::min(tile_rows_, rows_ - row), col, std::min(cols_, n_ - col)},
                 i * tile_rows_ * cols_, thread);
          }
        });
  }
  void run(const GemmScratches& scratches, const GemmProblem& problem, std::int64_t begin,
           std::int64_t end) {
    float* level = acc_ + trees_.slot() * level_size_;
    Workspace::Frame frame(exec_.workspace);
    GemmRuns runs(frame, 1, end - begin, problem.direct);
    runs.add_chain(begin, end, holds_ ? GemmRun::kLoad : GemmRun::kFresh);
    for_each_block([&](const GemmBlock& block, std::int64_t offset, int thread) {
      const GemmAcc acc{level + offset, isa_.panel, block.rows * isa_.panel, 0};
      accumulate(isa_, problem, block, scratches.at(thread), acc, runs, [](std::int64_t) {});
    });
  }
  void merge(int slot) {
    float* left = acc_ + slot * level_size_;
    for_each_block([&](const GemmBlock& block, std::int64_t offset, int) {
      const std::int64_t cols = (block.cols + isa_.panel - 1) / isa_.panel * isa_.panel;
      isa_.add(left + offset, left + level_size_ + offset, block.rows * cols);
    });
  }

  Exec& exec_;
  const GemmIsa& isa_;
  int leaves_;
  std::int64_t rows_, n_;
  std::int64_t tile_rows_, row_tiles_, cols_, col_tiles_, level_size_, grain_;
  GemmProblem problem_;
  float* acc_;
  PendingTrees trees_;
  int leaf_ = 0;
  bool holds_ = false;  // the running leaf has begun
};

struct Row {
  RowState state;
  LogprobGradient gradient;
  float scale;
  bool active;
};

// Rows [begin, end) of a call, as a call of their own.
LinearLogpBackwardArgs rows_of(const LinearLogpBackwardArgs& args, std::int64_t begin,
                               std::int64_t end) {
  LinearLogpBackwardArgs part = args;
  part.forward = rlk::rows_of(args.forward, begin, end);
  part.d_hidden = rows(args.d_hidden, begin, end);
  part.g = rows(args.g, begin, end);
  if (args.g_entropy) part.g_entropy = rows(args.g_entropy, begin, end);
  return part;
}

// The states of all rows that have a gradient: those of forward, else by another forward pass.
template <Isa I>
void read_rows(Exec& exec, const LinearLogpBackwardArgs& args, Row* out) {
  const LinearLogpArgs& forward = args.forward;
  const std::int64_t num_rows = forward.hidden.shape(0);
  bool all = true, any_entropy = false;
  for (std::int64_t t = 0; t < num_rows; ++t) {
    Row& row = *new (&out[t]) Row;
    const std::int32_t target = *forward.targets.at<std::int32_t>(t);
    const float g = *args.g.at<float>(t);
    const float g_entropy = args.g_entropy ? *args.g_entropy.at<float>(t) : 0.0f;
    const SamplingParams& params = params_of(forward.params, forward.num_params, t);
    row.scale = reference::inverse_temperature(params);
    row.gradient = {target, g, g_entropy, 0.0f, row.scale};
    row.active = target != kIgnoreIndex && (g != 0.0f || g_entropy != 0.0f);
    if (!row.active) continue;
    any_entropy = any_entropy || g_entropy != 0.0f;
    all = all && forward.state &&
          row.state.load(forward.state.at<std::int32_t>(t), g_entropy != 0.0f);
  }
  if (!all) {
    Workspace::Frame frame(exec.workspace);
    std::int32_t* targets = frame.take<std::int32_t>(num_rows);
    std::int32_t* words = frame.take<std::int32_t>(num_rows * kLogprobStateWords);
    for (std::int64_t t = 0; t < num_rows; ++t) {
      targets[t] = out[t].active ? out[t].gradient.target : kIgnoreIndex;
    }
    LinearLogpArgs again = forward;
    again.logp = view(frame.take<float>(num_rows), {num_rows});
    again.entropy = any_entropy ? view(frame.take<float>(num_rows), {num_rows}) : TensorView{};
    again.targets = view(targets, {num_rows});
    again.state = view(words, {num_rows, kLogprobStateWords});
    linear_logp<I>(exec, again);
    for (std::int64_t t = 0; t < num_rows; ++t) {
      Row& row = out[t];
      // A row without a state has been reported.
      row.active = row.active &&
                   row.state.load(words + t * kLogprobStateWords, row.gradient.g_entropy != 0.0f);
    }
  }
  for (std::int64_t t = 0; t < num_rows; ++t) out[t].gradient.entropy = out[t].state.entropy;
}

// All rows of `args`, whose open sums fit into memory.
template <Isa I, typename T>
void run_rows(Exec& exec, const LinearLogpBackwardArgs& args) {
  const LinearLogpArgs& forward = args.forward;
  const GemmIsa& gemm = gemm_isa(I, exec.contract.profile);
  const LogprobIsa& isa = logprob_isa(I);
  const std::int64_t num_rows = forward.hidden.shape(0), vocab_padded = forward.head.shape(0);
  const int threads = exec.pool.num_threads();
  Workspace::Frame frame(exec.workspace);
  Row* table = frame.take<Row>(num_rows);
  read_rows<I>(exec, args, table);

  const std::int64_t width = std::min(kColumns, vocab_padded);
  const std::int64_t tile = even_tile(num_rows, kLogitRows);
  const std::int64_t row_tiles = (num_rows + tile - 1) / tile;
  const GemmScratches scratches(frame,
                                {tile, vocab_padded, tile, kProductCols, row_tiles, threads + 1, 1},
                                tile * kProductCols, threads);
  const LogitBlocks blocks(frame, gemm, forward, tile);
  HiddenGradient d_hidden(exec, gemm, forward, num_rows, frame);
  T* dz = frame.take<T>(num_rows * width);
  float* logits = frame.take<float>(tile * kProductCols * threads);
  for (std::int64_t begin = 0; begin < vocab_padded; begin += width) {
    const std::int64_t end = std::min(begin + width, vocab_padded);
    const std::int64_t pieces = (end - begin + kProductCols - 1) / kProductCols;
    exec.pool.parallel_for(
        row_tiles * pieces,
        block_grain(num_rows * width * forward.hidden.shape(1), row_tiles * pieces),
        [&](std::int64_t first, std::int64_t last, int thread) {
          float* x = logits + thread * tile * kProductCols;
          for (std::int64_t i = first; i < last; ++i) {
            const std::int64_t row = i % row_tiles * tile, rows = std::min(tile, num_rows - row);
            const std::int64_t col = begin + i / row_tiles * kProductCols;
            const std::int64_t stop = std::min(col + kProductCols, end);
            const std::int64_t cols =
                std::clamp<std::int64_t>(forward.vocab_size - col, 0, stop - col);
            if (cols > 0) {
              blocks.compute(scratches.at(thread), row, rows, col, cols, x, kProductCols);
            }
            for (std::int64_t r = row; r < row + rows; ++r) {
              T* out = dz + r * width + (col - begin);
              const Row& of_row = table[r];
              const std::int64_t filled = of_row.active ? cols : 0;
              if (filled > 0) {
                logit_gradient(isa, out,
                               {x + (r - row) * kProductCols, filled, of_row.scale, col,
                                of_row.state.filter()},
                               of_row.state.end, of_row.gradient);
              }
              std::fill(out + filled, out + (stop - col), T{0});
            }
          }
        });
    ConstTensorView dy{dz, forward.hidden.dtype, Layout{num_rows, end - begin}};
    dy.layout.stride[0] = width;
    d_hidden.add(scratches, dy, begin, end);
    gemm_backward_weight<I>(exec, {rows(args.dw, begin, end), rows(args.chain, begin, end), dy,
                                   forward.hidden, args.group_ends, args.cu_seqlens});
  }
  d_hidden.finish(args.d_hidden);
}

}  // namespace

template <Isa I>
void linear_logp_backward(Exec& exec, const LinearLogpBackwardArgs& args) {
  const LinearLogpArgs& forward = args.forward;
  const std::int64_t num_tokens = forward.hidden.shape(0), hidden_size = forward.hidden.shape(1);
  if (!fits_blocks(forward) || num_tokens == 0) {
    return linear_logp_backward_by_rows(cpu_kernels(I), exec, args);
  }
  const std::int64_t sums = (hidden_size + kProductCols - 1) / kProductCols * kProductCols;
  const std::int64_t row_bytes = HiddenGradient::levels(exec.contract.leaves) * sums * 4 +
                                 std::min(kColumns, forward.head.shape(0)) *
                                     static_cast<std::int64_t>(size_of(forward.hidden.dtype)) +
                                 static_cast<std::int64_t>(sizeof(Row));
  const std::int64_t tile =
      even_tile(num_tokens, std::max<std::int64_t>(64, kOpenBytes / row_bytes));
  Workspace::Frame frame(exec.workspace);
  RowParts parts(exec, args, frame);
  for (std::int64_t begin = 0, end; begin < num_tokens; begin = end) {
    end = parts.end(begin, tile);
    LinearLogpBackwardArgs part = rows_of(args, begin, end);
    parts.set(begin, end, &part.group_ends, &part.cu_seqlens);
    Fault fault;
    Exec inner{exec.pool, exec.workspace, exec.contract, fault};
    with_storage(forward.hidden.dtype, [&]<typename T>() { run_rows<I, T>(inner, part); });
    if (fault.row() >= 0) exec.fault.report(begin + fault.row());
  }
}

RLK_INSTANTIATE(linear_logp_backward, LinearLogpBackwardArgs);

}  // namespace rlk::cpu
