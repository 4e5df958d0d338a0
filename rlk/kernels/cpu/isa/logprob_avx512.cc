// Log-probabilities and sampling with AVX-512.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/cpu/logprob_isa.h"

namespace {

#include "rlk/kernels/cpu/isa/vec_avx512.h"
//
#include "rlk/kernels/cpu/isa/vec_int_avx512.h"
//
#include "rlk/kernels/cpu/isa/vec_math.h"
//
#include "rlk/kernels/cpu/isa/vec_storage.h"
//
#include "rlk/kernels/cpu/isa/logprob_body.h"
//
#include "rlk/kernels/cpu/isa/sample_body.h"

}  // namespace

const rlk::cpu::LogprobIsa rlk::cpu::kLogprobAvx512 = kTable;
