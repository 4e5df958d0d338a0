// Rows of logits for the drivers of logprob and sample: filters, and how rows and pieces of rows
// are shared among threads.
#pragma once

#include "rlk/kernels/cpu/logprob_isa.h"
#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/exec.h"
#include "rlk/kernels/logprob.h"

namespace rlk::cpu {

// Columns of a piece: 32 KiB, so that its second pass reads the nearest cache. A multiple of 4.
inline constexpr std::int64_t kPieceColumns = 8192;

// What a kernel says about one piece.
union LogprobPart {
  LogprobSums sums;
  BestToken best;
};

// One row, and the scratch of the thread that works on it.
struct LogprobRow {
  // Set by read: z = x * scale.
  const float* x = nullptr;
  float scale = 1;
  bool checked = false;  // x went through the filters
  bool valid = false;    // false: an error

  std::int64_t vocab_size = 0;
  LogprobPart* parts = nullptr;  // [num_pieces()]

  const ConstTensorView* logits = nullptr;
  float* z = nullptr;          // [vocab_size]; only where some row has filters
  ThreadPool* pool = nullptr;  // pieces are shared by its threads; absent: one thread does all
  double ns_per_column = 1;

  void read(std::int64_t t, const SamplingParams& params);

  std::int64_t num_pieces() const { return (vocab_size + kPieceColumns - 1) / kPieceColumns; }

  // body(piece, begin, n)
  template <typename Body>
  void for_each_piece(const Body& body) const {
    const auto run = [&](std::int64_t first, std::int64_t last, int) {
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t begin = i * kPieceColumns;
        body(i, begin, std::min(kPieceColumns, vocab_size - begin));
      }
    };
    if (pool == nullptr) return run(0, num_pieces(), 0);
    pool->parallel_for(num_pieces(), grain(ns_per_column * kPieceColumns), run);
  }
};

class LogprobRows {
 public:
  LogprobRows(Exec& exec, const ConstTensorView& logits, const SamplingParams* params,
              std::int64_t num_params, double ns_per_column);

  // body(t, row); rows come in any order.
  template <typename Body>
  void for_each(const Body& body) {
    if (share_rows_) {
      exec_.pool.parallel_for(num_rows_, grain(150.0 + ns_per_row_),
                              [&](std::int64_t begin, std::int64_t end, int thread) {
                                LogprobRow row = rows_[thread];
                                for (std::int64_t t = begin; t < end; ++t) body(t, row);
                              });
    } else {
      LogprobRow row = rows_[0];
      for (std::int64_t t = 0; t < num_rows_; ++t) body(t, row);
    }
  }

 private:
  Exec& exec_;
  Workspace::Frame frame_;
  ConstTensorView logits_;
  LogprobRow* rows_;  // one per thread
  std::int64_t num_rows_;
  double ns_per_row_;
  bool share_rows_;  // false: threads share the pieces of one row after the other
};

}  // namespace rlk::cpu
