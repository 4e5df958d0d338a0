// Rows of logits for the drivers of logprob, log_softmax and sample: filters, the log-sum-exp of a
// row, and how rows and pieces of rows are shared among threads.
#pragma once

#include "rlk/kernels/cpu/logprob_isa.h"
#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/exec.h"
#include "rlk/kernels/logprob.h"
#include "rlk/numerics/log_sum_exp.h"

namespace rlk::cpu {

// Columns of a piece: 32 KiB, so that its second pass reads the nearest cache. A multiple of all
// lane counts.
inline constexpr std::int64_t kPieceColumns = 8192;

// What a kernel says about one piece.
union LogprobPart {
  LogprobSums sums;
  BestToken best;
  LogitHistogram histogram;
  std::int64_t list_size;
};

bool has_filter(const SamplingParams& params);

inline const SamplingParams& params_of(const SamplingParams* params, std::int64_t num_params,
                                       std::int64_t t) {
  return params[num_params == 1 ? 0 : t];
}

numerics::EntropySumExp state_of(const LogprobSums& sums);

// dz of a piece in either storage type.
inline void logit_gradient(const LogprobIsa& isa, std::uint16_t* dz, const LogitPiece& piece,
                           const LogitRowEnd& row, const LogprobGradient& g) {
  isa.gradient_bf16(dz, piece, row, g);
}
inline void logit_gradient(const LogprobIsa& isa, float* dz, const LogitPiece& piece,
                           const LogitRowEnd& row, const LogprobGradient& g) {
  isa.gradient_f32(dz, piece, row, g);
}

// All that is needed of a row to compute with single logits of it.
struct RowState {
  LogitRowEnd end;
  TokenCut cut;
  bool filtered = false;
  bool has_entropy = false;
  float entropy = 0.0f;

  RowState() = default;
  RowState(const numerics::EntropySumExp& sums, bool wide, bool entropy);
  const TokenCut* filter() const { return filtered ? &cut : nullptr; }

  // To and from the words that forward keeps for backward (kernels/logprob.h); load returns false
  // where they hold nothing, or no entropy though it is wanted.
  void save(std::int32_t* words) const;
  bool load(const std::int32_t* words, bool want_entropy);
  float logp(float z) const {
    return static_cast<float>((static_cast<double>(z) - end.z_max) - end.c);
  }
};

// One row, and the scratch of the thread that works on it.
struct LogprobRow {
  // Set by read: z = x * scale.
  const float* x = nullptr;
  float scale = 1;
  bool valid = false;     // false: an error
  bool filtered = false;  // by `cut`
  TokenCut cut{};

  std::int64_t vocab_size = 0;
  const LogprobIsa* isa = nullptr;
  LogprobPart* parts = nullptr;  // [num_pieces()]
  LogitList list{};              // [vocab_size]; only where some row has filters
  const ConstTensorView* logits = nullptr;
  ThreadPool* pool = nullptr;  // pieces are shared by its threads; absent: one thread does all
  double ns_per_column = 1;

  void read(std::int64_t t, const SamplingParams& params);
  // In place of read where the state is known.
  void use(std::int64_t t, const SamplingParams& params, const RowState& state);
  // The log-sum-exp; false where the row is an error.
  bool find_state(bool entropy, RowState* state) const;
  bool takes_part(std::int64_t id) const;

  std::int64_t num_pieces() const { return (vocab_size + kPieceColumns - 1) / kPieceColumns; }

  LogitPiece piece(std::int64_t begin) const {
    return {x + begin, std::min(kPieceColumns, vocab_size - begin), scale, begin,
            filtered ? &cut : nullptr};
  }

  // body(i, piece)
  template <typename Body>
  void for_each_piece(const Body& body) const {
    const auto run = [&](std::int64_t first, std::int64_t last, int) {
      for (std::int64_t i = first; i < last; ++i) {
        body(i, piece(i * kPieceColumns));
      }
    };
    if (pool == nullptr) return run(0, num_pieces(), 0);
    pool->parallel_for(num_pieces(), grain(ns_per_column * kPieceColumns), run);
  }

 private:
  numerics::EntropySumExp sum_pieces(bool entropy, bool* wide) const;
  bool find_cut(const SamplingParams& params);
};

class LogprobRows {
 public:
  LogprobRows(Exec& exec, const LogprobIsa& isa, const ConstTensorView& logits,
              const SamplingParams* params, std::int64_t num_params, double ns_per_column);

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
