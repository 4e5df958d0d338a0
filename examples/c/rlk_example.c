/* From two hidden states to two log-probabilities, through the C interface of rlkernel:
 *   y = rms_norm(x, w);   logits = y * head^T;   logp = log_softmax(logits)[target]
 * The contract fixes every bit of the result, so the program knows them: it returns 1 when this
 * machine computes others, 2 when a call fails.
 *   rlk_example [BACKEND]    cpu by default; cuda and hip run the same on a GPU */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "rlk/ops/rlk.h"

enum { kTokens = 2, kHidden = 8, kVocab = 5 };

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

/* Keeps the upper half of the float: exact for the numbers of this example. */
static uint16_t bf16(float x) { return (uint16_t)(bits_of(x) >> 16); }

/* Row-major without gaps. */
static rlk_tensor tensor(void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
  rlk_tensor t = {.data = data, .dtype = dtype, .rank = rank};
  int64_t step = 1;
  for (int32_t d = rank - 1; d >= 0; --d) {
    t.shape[d] = shape[d];
    t.stride[d] = step;
    step *= shape[d];
  }
  return t;
}
#define TENSOR(data, dtype, ...)                                                     \
  tensor(data, dtype, (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
         (const int64_t[]){__VA_ARGS__})

static int failed(const char* call, const rlk_context* context, rlk_status status) {
  fprintf(stderr, "%s: %s: %s\n", call, rlk_status_name(status), rlk_last_error(context));
  return 2;
}

/* Memory that the backend's kernels reach; it goes with the context. NULL after an error. */
static void* memory(rlk_context* context, size_t size_bytes) {
  void* data = NULL;
  rlk_memory_allocate(context, RLK_MEMORY_TENSORS, size_bytes, &data);
  return data;
}

static int run(rlk_context* context) {
  uint16_t* x = memory(context, sizeof(uint16_t[kTokens * kHidden]));
  uint16_t* w = memory(context, sizeof(uint16_t[kHidden]));
  uint16_t* head = memory(context, sizeof(uint16_t[kVocab * kHidden]));
  uint16_t* y = memory(context, sizeof(uint16_t[kTokens * kHidden]));
  float* logits = memory(context, sizeof(float[kTokens * kVocab]));
  float* logp = memory(context, sizeof(float[kTokens]));
  float* entropy = memory(context, sizeof(float[kTokens]));
  int32_t targets[kTokens] = {1, 4}; /* indices may lie in any memory of the host */
  if (!x || !w || !head || !y || !logits || !logp || !entropy) {
    return failed("rlk_memory_allocate", context, RLK_ERROR_OUT_OF_MEMORY);
  }
  for (int i = 0; i < kTokens * kHidden; ++i) x[i] = bf16(0.125f * (float)(i * i % 23 - 11));
  for (int i = 0; i < kHidden; ++i) w[i] = bf16(1.0f + 0.0625f * (float)i);
  for (int i = 0; i < kVocab * kHidden; ++i) head[i] = bf16(0.03125f * (float)(i * 7 % 31 - 15));

  rlk_rms_norm_args norm = RLK_INIT(rlk_rms_norm_args);
  norm.y = TENSOR(y, RLK_BF16, kTokens, 1, kHidden);
  norm.x = TENSOR(x, RLK_BF16, kTokens, 1, kHidden);
  norm.w = TENSOR(w, RLK_BF16, kHidden);
  norm.eps = 1e-6f;
  rlk_status status = rlk_rms_norm(context, &norm);
  if (status != RLK_OK) return failed("rlk_rms_norm", context, status);

  rlk_gemm_args product = RLK_INIT(rlk_gemm_args);
  product.c = TENSOR(logits, RLK_F32, kTokens, kVocab);
  product.a = TENSOR(y, RLK_BF16, kTokens, kHidden);
  product.b = TENSOR(head, RLK_BF16, kVocab, kHidden);
  product.segments[0] = kHidden;
  status = rlk_gemm(context, &product);
  if (status != RLK_OK) return failed("rlk_gemm", context, status);

  const rlk_sampling_params params = RLK_SAMPLING_PARAMS_DEFAULT;
  rlk_logprob_args scores = RLK_INIT(rlk_logprob_args);
  scores.logp = TENSOR(logp, RLK_F32, kTokens);
  scores.entropy = TENSOR(entropy, RLK_F32, kTokens);
  scores.logits = product.c;
  scores.targets = TENSOR(targets, RLK_I32, kTokens);
  scores.params = &params;
  scores.num_params = 1;
  status = rlk_logprob(context, &scores);
  if (status != RLK_OK) return failed("rlk_logprob", context, status);
  status = rlk_synchronize(context); /* a GPU may still be at work */
  if (status != RLK_OK) return failed("rlk_synchronize", context, status);

  static const uint32_t kLogp[kTokens] = {0xc014675fu, 0xbf8e663fu};
  static const uint32_t kEntropy[kTokens] = {0x3f9dbc37u, 0x3fc0cc8bu};
  int different = 0;
  for (int t = 0; t < kTokens; ++t) {
    printf("token %d: logp %.9g = 0x%08" PRIx32 ", entropy %.9g = 0x%08" PRIx32 "\n", t,
           (double)logp[t], bits_of(logp[t]), (double)entropy[t], bits_of(entropy[t]));
    if (bits_of(logp[t]) != kLogp[t] || bits_of(entropy[t]) != kEntropy[t]) {
      fprintf(stderr, "token %d: expected 0x%08" PRIx32 " and 0x%08" PRIx32 "\n", t, kLogp[t],
              kEntropy[t]);
      different = 1;
    }
  }
  return different;
}

int main(int argc, char** argv) {
  if (rlk_abi_version() != RLK_ABI_VERSION) {
    fprintf(stderr, "librlk has ABI %d, this program needs %d\n", (int)rlk_abi_version(),
            RLK_ABI_VERSION);
    return 2;
  }
  rlk_context_options options = RLK_INIT(rlk_context_options);
  options.mode = "strict";
  options.num_threads = 1;
  options.backend = argc > 1 ? argv[1] : NULL;
  rlk_context* context = NULL;
  const rlk_status status = rlk_context_create(&options, &context);
  if (status != RLK_OK) return failed("rlk_context_create", NULL, status);
  printf("contract %s\n", rlk_contract_digest(context, RLK_DIGEST_FORWARD));
  const int result = run(context);
  rlk_context_destroy(context);
  return result;
}
