// The functions of log-probabilities and sampling that are compiled once per instruction set.
// Plain data and raw pointers only: no inline function of baseline code may be compiled with
// instruction set flags.
//
// A piece is some neighbouring logits x of a row; z = x * scale. What the functions give for pieces
// is merged by the caller, in any order.
#pragma once

#include <cstdint>

namespace rlk {
enum class Isa : std::uint8_t;
}

namespace rlk::cpu {

// What the filters of a row keep, as the last token they keep in descending order (by z, ties by
// lower id): token j takes part when z_j > z, or z_j = z and j <= id.
struct TokenCut {
  float z;
  std::int32_t id;
  float z_max;       // of the row: the filters never remove the likeliest token
  std::int32_t bin;  // B of the row
};

struct LogitPiece {
  const float* x;
  std::int64_t n;
  float scale;
  std::int64_t first_id;  // token id of x[0], a multiple of 4
  const TokenCut* cut;    // null: no filter
};

// The state of the log-sum-exp of a piece: see numerics/log_sum_exp.h.
struct LogprobSums {
  float z_max;
  std::int32_t bin;
  std::int64_t s[4];
  std::int64_t e[4];  // entropy sums; 0 unless wanted
  bool any;           // a logit took part
  bool bad;           // a logit that is an error
  bool wide;          // a |z| >= 2^12 (rows without one have a shorter loop)
};

// The end of a row's log-sum-exp, and whether a |z| >= 2^12 may be in it.
struct LogitRowEnd {
  float inverse;     // i = f32(2^24 / S)
  std::int32_t bin;  // B
  double z_max, c;   // logp = f32((f64(z) - z_max) - c)
  bool wide;
};

struct LogprobGradient {
  std::int32_t target;  // token id
  float g;
  float g_entropy;
  float entropy;    // H
  float out_scale;  // iT
};

// Tokens by n of e^z = P(f) 2^n: entry i of n = 16B - 48 + i, the last one of all smaller n. A
// count lies above a sum of q = 2^24 P(f).
struct LogitHistogram {
  static constexpr int kSize = 65;
  static constexpr int kCountShift = 48;
  std::uint64_t count_and_sum[kSize];
};

// Tokens of one n, in order of their ids.
struct LogitList {
  float* z;  // no -0
  std::int32_t* id;
  std::int32_t* q;
  std::int64_t size;
};

// Counter and key of the random numbers: see numerics/philox.h.
struct SampleDraw {
  bool gumbel;  // false: greedy
  std::uint32_t key[2];
  std::uint32_t position;
  std::uint32_t request[2];
};

struct BestToken {
  float score;
  std::int32_t id;  // token id, meaningless unless any
  bool any;
  bool bad;
};

struct LogprobIsa {
  void (*sums)(LogprobSums* out, const LogitPiece& piece, bool entropy);
  // dz without the target's own 1, for every token; then the target's element, where it is here.
  void (*gradient_bf16)(std::uint16_t* dz, const LogitPiece& piece, const LogitRowEnd& row,
                        const LogprobGradient& gradient);
  void (*gradient_f32)(float* dz, const LogitPiece& piece, const LogitRowEnd& row,
                       const LogprobGradient& gradient);
  void (*best)(BestToken* out, const LogitPiece& piece, const SampleDraw& draw);

  // y = log softmax; -inf where a token takes no part. y may be x.
  void (*log_softmax)(float* y, const LogitPiece& piece, const LogitRowEnd& row);
  // lane[j] goes on with dy of the tokens j, j + lanes, .. that take part; first_id is a multiple
  // of `lanes`, a power of two from 16 on.
  void (*lane_sums)(float* lane, std::int64_t lanes, const float* dy, const LogitPiece& piece);
  // dz = (dy - p * sum) * out_scale
  void (*log_softmax_gradient_bf16)(std::uint16_t* dz, const float* dy, float sum, float out_scale,
                                    const LogitPiece& piece, const LogitRowEnd& row);
  void (*log_softmax_gradient_f32)(float* dz, const float* dy, float sum, float out_scale,
                                   const LogitPiece& piece, const LogitRowEnd& row);

  // For the filters, of a row with highest bin `bin`; tokens with z < floor take no part.
  void (*histogram)(LogitHistogram* out, const LogitPiece& piece, std::int32_t bin, float floor);
  // The tokens of one entry of the histogram.
  void (*list)(LogitList* out, const LogitPiece& piece, std::int32_t bin, float floor, int entry);
};

extern const LogprobIsa kLogprobScalar;
extern const LogprobIsa kLogprobAvx2;
extern const LogprobIsa kLogprobAvx512;

const LogprobIsa& logprob_isa(Isa isa);

}  // namespace rlk::cpu
