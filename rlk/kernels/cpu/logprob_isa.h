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

struct LogprobGradient {
  float scale;          // of z
  float inverse;        // i = f32(2^24 / S)
  std::int32_t bin;     // B of the row
  std::int64_t target;  // index in the piece; may lie outside
  float g;
  float g_entropy;
  double z_max, c;  // logp = f32((f64(z) - z_max) - c)
  float entropy;    // H
  float out_scale;  // iT
  bool wide;
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
  // `checked`: x has been through the filters; -inf takes no part and nothing is an error.
  void (*sums)(LogprobSums* out, const float* x, std::int64_t n, float scale, bool checked,
               bool entropy);
  void (*gradient)(std::uint16_t* dz, const LogprobGradient& row, const float* x, std::int64_t n);
  // first_id, a multiple of 4, is the token id of x[0]
  void (*best)(BestToken* out, const float* x, std::int64_t n, float scale, bool checked,
               const SampleDraw& draw, std::int64_t first_id);
};

extern const LogprobIsa kLogprobScalar;
extern const LogprobIsa kLogprobAvx2;
extern const LogprobIsa kLogprobAvx512;

const LogprobIsa& logprob_isa(Isa isa);

}  // namespace rlk::cpu
