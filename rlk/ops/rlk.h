/* The operators in plain C: for programs and frameworks that do not speak C++.
 *
 * Every operator of rlk/ops has one struct of arguments and one function here, with the names of
 * the C++ ones; formulas and roundings stand in rlk/kernels/<operator>.h, which each entry names.
 *
 *   struct_size  the first field of each struct of arguments: sizeof of it, as the caller knows it.
 *                Fields are only ever added at the end, and 0 in a new one means what its absence
 *                meant, so that older callers keep working.
 *                    rlk_gemm_args args = RLK_INIT(rlk_gemm_args);
 *                makes a struct of zeros with the size set.
 *   tensors      views of the caller's memory: nothing is copied or kept. Inputs are not written,
 *                though `data` has no const. An optional one is absent when its `data` is NULL.
 *                Where they may lie, and when results are there, rlk_memory_allocate says.
 *   errors       a function returns RLK_OK or an RLK_ERROR_*; rlk_last_error() has the sentence.
 *                Nothing is thrown, and arguments that do not fit change no output. Memory that is
 *                smaller than its tensor says cannot be noticed.
 *   threads      a context serves one thread at a time; different contexts are independent.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The shared library's SOVERSION: changes when a program has to be compiled again. */
#define RLK_ABI_VERSION 0

#define RLK_API __attribute__((visibility("default")))

#ifndef __cplusplus
/* In C++: rlk_gemm_args args{}; args.struct_size = sizeof(args); */
#define RLK_INIT(type) \
  { .struct_size = sizeof(type) }
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t rlk_status;
enum {
  RLK_OK = 0,
  RLK_ERROR_INVALID_ARGUMENT = 1, /* a value outside what the function accepts, NULL among them */
  RLK_ERROR_SHAPE = 2,            /* sizes that do not fit together */
  RLK_ERROR_DTYPE = 3,            /* an element type the operator does not take */
  RLK_ERROR_FORMAT = 4,           /* text that does not follow its format (contract_json) */
  RLK_ERROR_IO = 5,
  RLK_ERROR_UNSUPPORTED = 6,   /* not built, or a field that this library does not know yet */
  RLK_ERROR_NOT_AVAILABLE = 7, /* a device, library or resource that this machine lacks */
  RLK_ERROR_NON_FINITE = 8,    /* NaN or infinity where the contract demands a number */
  RLK_ERROR_NOT_ADMITTED = 9,  /* mode strict met an implementation without admission */
  RLK_ERROR_CONTRACT = 10,
  RLK_ERROR_INTERRUPTED = 11,
  RLK_ERROR_OUT_OF_MEMORY = 100,
  RLK_ERROR_INTERNAL = 101
};

enum { RLK_F32 = 0, RLK_BF16 = 1, RLK_F16 = 2, RLK_I32 = 3, RLK_I64 = 4, RLK_F64 = 5 };

/* Shape and strides are counted in elements; entries from `rank` on are not looked at. The strides
 * of the row by row operators (embedding, residual_add, rms_norm, rope, swiglu, the losses, adamw)
 * are free; elsewhere the last dimension is without gaps unless the operator says otherwise. In a
 * call of embedding, copy_rows, residual_add, rms_norm, rope, swiglu or a gradient of these, all
 * tensors that are bf16 below may be f32 instead. */
typedef struct rlk_tensor {
  void* data;
  int32_t dtype; /* RLK_F32 .. RLK_F64 */
  int32_t rank;  /* 0 to 4 */
  int64_t shape[4];
  int64_t stride[4];
} rlk_tensor;

typedef struct rlk_context rlk_context;

/* rlk_abi_version() == RLK_ABI_VERSION says that header and library fit. */
RLK_API int32_t rlk_abi_version(void);

/* The name of a code: "shape". Never NULL. */
RLK_API const char* rlk_status_name(rlk_status status);

typedef struct rlk_context_options {
  size_t struct_size;
  const char* contract_json; /* fields over the defaults, as `rlk contract show`; NULL: defaults */
  const char* mode;          /* of every operator: strict (or NULL), audit, auto, off */
  int32_t num_threads;       /* the caller included; 0: one per hardware thread; at most 1024 */
  int32_t reserved;          /* 0 */
  const char* backend;       /* whose kernels: cpu (or NULL), cuda or hip (those of the contract's
                                profile on the GPU), or one by its own name: cpu.avx2, cuda.sm90,
                                reference */
} rlk_context_options;

/* options NULL: all defaults. *context is NULL after an error, and rlk_last_error(NULL) says why:
 * RLK_ERROR_NOT_AVAILABLE where this machine or library lacks the backend. In mode strict or auto
 * kernels that are no CPU's are tried against the reference first, once per process, backend and
 * contract; that takes seconds. */
RLK_API rlk_status rlk_context_create(const rlk_context_options* options, rlk_context** context);
RLK_API void rlk_context_destroy(rlk_context* context); /* NULL: nothing happens */

/* The message of the last call on this context that failed, "" if none did; valid until the next
 * one fails. NULL: of this thread's last failed call without a context. */
RLK_API const char* rlk_last_error(const rlk_context* context);

/* The contract in canonical JSON, and the SHA-256 in hex of what forward bits (gradient bits)
 * depend on: engines compare them before they compare numbers. Valid as long as the context; NULL
 * for context NULL or another `which`. */
enum { RLK_DIGEST_FORWARD = 0, RLK_DIGEST_BACKWARD = 1 };
RLK_API const char* rlk_contract_json(const rlk_context* context);
RLK_API const char* rlk_contract_digest(const rlk_context* context, int32_t which);

/* The backend's own name, "cpu.avx512"; valid as long as the context. NULL for context NULL. */
RLK_API const char* rlk_backend_name(const rlk_context* context);

/* ---- where tensors live ---------------------------------------------------------------------- */

/* On the CPU a tensor may lie in any memory, and a call is done when it returns.
 *
 * With kernels of a GPU a call is only given to it. Results are there after rlk_synchronize, and
 * until then the caller leaves the memory of the call as it is. The GPU is device 0 of the process
 * (CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES chooses it), and calls set the thread's device to
 * it. Each tensor lies in memory that GPU and host both reach: of rlk_memory_allocate, or the
 * vendor's managed or pinned memory. Two kinds are not bound to that. Index arrays (i32 and i64
 * inputs: ids, offsets, targets, block tables, group_ends; but not `state`) are read by the host,
 * and without gaps they may lie in any memory of it. One at the address of an earlier call's, as an
 * array on the stack may come to lie, would be read as that call's before rlk_synchronize.
 * Everything else but `rewards` the host does not look at in mode strict, so it may lie in memory
 * that the GPU alone reaches. The arrays that are no tensors (params, keys, the list of grads) are
 * always the host's. */
enum {
  RLK_MEMORY_TENSORS = 0, /* for what the kernels compute with */
  RLK_MEMORY_SMALL = 1    /* for what the host writes or reads around every call: indices, logp */
};

/* *data: size_bytes of zeros, aligned to 64 bytes or more, which the host may read and write too.
 * It belongs to the context and goes with it. NULL for size 0. */
RLK_API rlk_status rlk_memory_allocate(rlk_context* context, int32_t which, size_t size_bytes,
                                       void** data);
/* Waits as rlk_synchronize does, with its errors; the memory is free all the same. NULL: nothing
 * happens. */
RLK_API rlk_status rlk_memory_free(rlk_context* context, void* data);

/* Waits until all calls so far are done. RLK_ERROR_NON_FINITE for the first of them that met a
 * number the contract forbids. On the CPU they are done, and have said so. */
RLK_API rlk_status rlk_synchronize(rlk_context* context);

/* ---- embedding.h ----------------------------------------------------------------------------- */

typedef struct rlk_embedding_args {
  size_t struct_size;
  rlk_tensor y;     /* out bf16 [num_tokens, hidden_size] */
  rlk_tensor table; /* in  bf16 [vocab_size, hidden_size] */
  rlk_tensor ids;   /* in  i32  [num_tokens] */
} rlk_embedding_args;
RLK_API rlk_status rlk_embedding(rlk_context* context, const rlk_embedding_args* args);

typedef struct rlk_embedding_backward_args {
  size_t struct_size;
  rlk_tensor dtable; /* in-out f32  [vocab_size, hidden_size] */
  rlk_tensor dy;     /* in     bf16 [num_tokens, hidden_size] */
  rlk_tensor ids;    /* in     i32  [num_tokens] */
} rlk_embedding_backward_args;
RLK_API rlk_status rlk_embedding_backward(rlk_context* context,
                                          const rlk_embedding_backward_args* args);

/* ---- copy_rows.h ----------------------------------------------------------------------------- */

/* y[to[i]] = x[from[i]], +0 where from[i] is -1; other rows of y stay */
typedef struct rlk_copy_rows_args {
  size_t struct_size;
  rlk_tensor y;     /* out bf16 [num_rows, n], not in the memory of x; absent: nothing is written */
  rlk_tensor x;     /* in  bf16 [num_x_rows, n] */
  rlk_tensor from;  /* in  i64  [count]; absent: i */
  rlk_tensor to;    /* in  i64  [count], no row twice; absent: i */
  int32_t bounded;  /* not 0: |x| < 2^56 is checked */
  int32_t reserved; /* 0 */
} rlk_copy_rows_args;
RLK_API rlk_status rlk_copy_rows(rlk_context* context, const rlk_copy_rows_args* args);

/* ---- residual_add.h -------------------------------------------------------------------------- */

/* y = bf16(a + b) */
typedef struct rlk_residual_add_args {
  size_t struct_size;
  rlk_tensor y; /* out bf16 [num_tokens, hidden_size]; may alias a or b */
  rlk_tensor a; /* in  bf16 [num_tokens, hidden_size] */
  rlk_tensor b; /* in  bf16 [num_tokens, hidden_size] */
} rlk_residual_add_args;
RLK_API rlk_status rlk_residual_add(rlk_context* context, const rlk_residual_add_args* args);

/* ---- rms_norm.h ------------------------------------------------------------------------------ */

/* y = bf16((x * q) * w),  q = 1 / sqrt(sum(x^2) / n + eps) */
typedef struct rlk_rms_norm_args {
  size_t struct_size;
  rlk_tensor y; /* out bf16 [num_tokens, heads, n]; may alias x; heads = 1 for a plain norm */
  rlk_tensor q; /* out f32  [num_tokens, heads]; optional, kept for backward */
  rlk_tensor x; /* in  bf16 [num_tokens, heads, n] */
  rlk_tensor w; /* in  bf16 [n] */
  float eps;
  int32_t reserved;        /* 0 */
  rlk_tensor residual;     /* in  bf16 [num_tokens, heads, n]; optional, with residual_out: */
  rlk_tensor residual_out; /* out bf16, residual + x, which the norm reads in place of x */
} rlk_rms_norm_args;
RLK_API rlk_status rlk_rms_norm(rlk_context* context, const rlk_rms_norm_args* args);

typedef struct rlk_rms_norm_backward_args {
  size_t struct_size;
  rlk_tensor dx; /* out bf16 [num_tokens, heads, n]; may alias dy */
  rlk_tensor dy; /* in  bf16 [num_tokens, heads, n] */
  rlk_tensor x;  /* in  bf16 [num_tokens, heads, n] */
  rlk_tensor w;  /* in  bf16 [n] */
  rlk_tensor q;  /* in  f32  [num_tokens, heads], from forward */
} rlk_rms_norm_backward_args;
RLK_API rlk_status rlk_rms_norm_backward(rlk_context* context,
                                         const rlk_rms_norm_backward_args* args);

typedef struct rlk_rms_norm_backward_weight_args {
  size_t struct_size;
  rlk_tensor dw;         /* in-out f32  [heads, n], one running sum per head */
  rlk_tensor dy;         /* in     bf16 [num_tokens, heads, n] */
  rlk_tensor x;          /* in     bf16 [num_tokens, heads, n] */
  rlk_tensor q;          /* in     f32  [num_tokens, heads] */
  rlk_tensor cu_seqlens; /* in     i32  [num_samples + 1], token offsets of the samples */
} rlk_rms_norm_backward_weight_args;
RLK_API rlk_status rlk_rms_norm_backward_weight(rlk_context* context,
                                                const rlk_rms_norm_backward_weight_args* args);

/* The heads' sums of the call above, merged at the end of a gradient slot. */
typedef struct rlk_merge_heads_args {
  size_t struct_size;
  rlk_tensor dw;      /* out f32 [n] */
  rlk_tensor partial; /* in  f32 [heads, n] */
} rlk_merge_heads_args;
RLK_API rlk_status rlk_merge_heads(rlk_context* context, const rlk_merge_heads_args* args);

/* ---- rope.h ---------------------------------------------------------------------------------- */

/* Rotates the pairs (i, i + d/2) by the angle of the position; backward rotates back. */
typedef struct rlk_rope_args {
  size_t struct_size;
  rlk_tensor y;         /* out bf16 [num_tokens, heads, d]; may alias x */
  rlk_tensor x;         /* in  bf16 [num_tokens, heads, d]; d even */
  rlk_tensor cos;       /* in  f32  [max_position, d / 2], from rlk_rope_table */
  rlk_tensor sin;       /* in  f32  [max_position, d / 2] */
  rlk_tensor positions; /* in  i32  [num_tokens] */
} rlk_rope_args;
typedef rlk_rope_args rlk_rope_backward_args;
RLK_API rlk_status rlk_rope(rlk_context* context, const rlk_rope_args* args);
RLK_API rlk_status rlk_rope_backward(rlk_context* context, const rlk_rope_backward_args* args);

/* The correctly rounded table of the contract: row r belongs to position first_position + r.
 *   cos, sin  out  f32 [count, head_dim / 2], without gaps
 * head_dim even, at most 1024; positions below 2^22; theta in [2, 2^40] (numerics/rope_table.h). */
RLK_API rlk_status rlk_rope_table(rlk_context* context, double theta, int64_t head_dim,
                                  int64_t first_position, int64_t count, float* cos, float* sin);

/* ---- gemm.h ---------------------------------------------------------------------------------- */

/* A weight in the layout of one backend's product kernels: faster, never other bits. Pack again
 * whenever the weight changes. Made for one context, but not tied to its life. */
typedef struct rlk_packed_weight rlk_packed_weight;
RLK_API rlk_status rlk_packed_weight_create(rlk_context* context, rlk_packed_weight** packed);
RLK_API void rlk_packed_weight_destroy(rlk_packed_weight* packed); /* NULL: nothing happens */

/* T in the products: bf16 or f32, one type for all such tensors of a call. */
typedef struct rlk_pack_weight_args {
  size_t struct_size;
  rlk_packed_weight* packed; /* out */
  rlk_tensor w;              /* in  T [N, K], any strides */
} rlk_pack_weight_args;
RLK_API rlk_status rlk_pack_weight(rlk_context* context, const rlk_pack_weight_args* args);

/* c[m,n] = round(sum_k a[m,k] * b[n,k] + bias[n]) */
typedef struct rlk_gemm_args {
  size_t struct_size;
  rlk_tensor c;                      /* out T or f32 [M, N], any strides */
  rlk_tensor a;                      /* in  T [M, K], any strides */
  rlk_tensor b;                      /* in  T [N, K], any strides */
  const rlk_packed_weight* packed_b; /* of b; optional */
  rlk_tensor bias;                   /* in  T [N]; optional */
  int64_t leaf_tree;                 /* 0: one chain over K (column-parallel); 1: leaf tree */
  int64_t segments[3];               /* K in up to three domains; {K, 0, 0} for a single one */
} rlk_gemm_args;
RLK_API rlk_status rlk_gemm(rlk_context* context, const rlk_gemm_args* args);

/* dw[n,k] = sum_t dy[t,n] * x[t,k] over groups of samples */
typedef struct rlk_gemm_backward_weight_args {
  size_t struct_size;
  rlk_tensor dw;         /* in-out f32  [N, K], closed groups */
  rlk_tensor chain;      /* in-out f32  [N, K], the open group */
  rlk_tensor dy;         /* in     T    [num_tokens, N] */
  rlk_tensor x;          /* in     T    [num_tokens, K] */
  rlk_tensor group_ends; /* in     i64  [num_group_ends], rising token offsets */
  rlk_tensor cu_seqlens; /* in     i32  [num_samples + 1]; not needed in profile portable */
} rlk_gemm_backward_weight_args;
RLK_API rlk_status rlk_gemm_backward_weight(rlk_context* context,
                                            const rlk_gemm_backward_weight_args* args);

typedef struct rlk_bias_backward_args {
  size_t struct_size;
  rlk_tensor dbias;      /* in-out f32  [N] */
  rlk_tensor dy;         /* in     T    [num_tokens, N] */
  rlk_tensor cu_seqlens; /* in     i32  [num_samples + 1] */
} rlk_bias_backward_args;
RLK_API rlk_status rlk_bias_backward(rlk_context* context, const rlk_bias_backward_args* args);

/* ---- swiglu.h -------------------------------------------------------------------------------- */

/* y = bf16(silu(g) * u) */
typedef struct rlk_swiglu_args {
  size_t struct_size;
  rlk_tensor y; /* out bf16 [num_tokens, intermediate_size] */
  rlk_tensor g; /* in  bf16 [num_tokens, intermediate_size] */
  rlk_tensor u; /* in  bf16 [num_tokens, intermediate_size] */
} rlk_swiglu_args;
RLK_API rlk_status rlk_swiglu(rlk_context* context, const rlk_swiglu_args* args);

typedef struct rlk_swiglu_backward_args {
  size_t struct_size;
  rlk_tensor dg; /* out bf16 [num_tokens, intermediate_size]; may alias g */
  rlk_tensor du; /* out bf16 [num_tokens, intermediate_size]; may alias u */
  rlk_tensor dy; /* in  bf16 [num_tokens, intermediate_size] */
  rlk_tensor g;  /* in  bf16 [num_tokens, intermediate_size] */
  rlk_tensor u;  /* in  bf16 [num_tokens, intermediate_size] */
} rlk_swiglu_backward_args;
RLK_API rlk_status rlk_swiglu_backward(rlk_context* context, const rlk_swiglu_backward_args* args);

/* ---- attention.h ----------------------------------------------------------------------------- */

/* Position p of sequence s is row block_table[s][p / page_size] * page_size + p % page_size of k
 * and v (paged), or row kv_start[s] + p (packed: block_table absent). */
typedef struct rlk_kv_view {
  rlk_tensor k;           /* in bf16 [kv_rows, num_key_value_heads, d] */
  rlk_tensor v;           /* in bf16 [kv_rows, num_key_value_heads, d] */
  rlk_tensor block_table; /* in i32  [num_seqs, max_pages]; paged only */
  rlk_tensor kv_start;    /* in i32  [num_seqs]; packed only */
  int64_t page_size;      /* a power of two; paged only */
} rlk_kv_view;

/* Causal softmax attention. The last query of sequence s stands at position kv_lens[s] - 1. */
typedef struct rlk_attention_args {
  size_t struct_size;
  rlk_tensor y;            /* out bf16 [num_tokens, num_attention_heads, d] */
  rlk_tensor lse;          /* out f32  [num_tokens, num_attention_heads]; optional */
  rlk_tensor q;            /* in  bf16 [num_tokens, num_attention_heads, d] */
  rlk_kv_view kv;          /* in */
  rlk_tensor cu_seqlens_q; /* in  i32  [num_seqs + 1] */
  rlk_tensor kv_lens;      /* in  i32  [num_seqs] */
} rlk_attention_args;
RLK_API rlk_status rlk_attention(rlk_context* context, const rlk_attention_args* args);

/* Of a packed batch in which every sequence starts at position 0. */
typedef struct rlk_attention_backward_args {
  size_t struct_size;
  rlk_tensor dq;         /* out bf16 [num_tokens, num_attention_heads, d] */
  rlk_tensor dk;         /* out bf16 [num_tokens, num_key_value_heads, d] */
  rlk_tensor dv;         /* out bf16 [num_tokens, num_key_value_heads, d] */
  rlk_tensor dy;         /* in  bf16 [num_tokens, num_attention_heads, d] */
  rlk_tensor y;          /* in  bf16 [num_tokens, num_attention_heads, d] */
  rlk_tensor q;          /* in  bf16 [num_tokens, num_attention_heads, d] */
  rlk_tensor k;          /* in  bf16 [num_tokens, num_key_value_heads, d] */
  rlk_tensor v;          /* in  bf16 [num_tokens, num_key_value_heads, d] */
  rlk_tensor lse;        /* in  f32  [num_tokens, num_attention_heads] */
  rlk_tensor cu_seqlens; /* in  i32  [num_seqs + 1] */
} rlk_attention_backward_args;
RLK_API rlk_status rlk_attention_backward(rlk_context* context,
                                          const rlk_attention_backward_args* args);

/* ---- logprob.h ------------------------------------------------------------------------------- */

#define RLK_IGNORE_INDEX (-100) /* a target that is not scored */

typedef struct rlk_sampling_params {
  float temperature; /* 0: greedy */
  int32_t top_k;     /* 0: all */
  float top_p;       /* in (0, 1] */
  float min_p;       /* in [0, 1] */
} rlk_sampling_params;
#define RLK_SAMPLING_PARAMS_DEFAULT \
  { 1.0f, 0, 1.0f, 0.0f } /* the model's own distribution */

typedef struct rlk_logprob_args {
  size_t struct_size;
  rlk_tensor logp;                   /* out f32 [num_tokens] */
  rlk_tensor entropy;                /* out f32 [num_tokens]; optional */
  rlk_tensor logits;                 /* in  f32 [num_tokens, vocab_size] */
  rlk_tensor targets;                /* in  i32 [num_tokens]; RLK_IGNORE_INDEX: logp is 0 */
  const rlk_sampling_params* params; /* [num_params] */
  int64_t num_params;                /* num_tokens, or 1 for all rows */
  rlk_tensor state;                  /* out i32 [num_tokens, 10], for backward; optional */
} rlk_logprob_args;
RLK_API rlk_status rlk_logprob(rlk_context* context, const rlk_logprob_args* args);

typedef struct rlk_logprob_backward_args {
  size_t struct_size;
  rlk_tensor dlogits;                /* out bf16 or f32 [num_tokens, vocab_padded] */
  rlk_tensor logits;                 /* in  f32  [num_tokens, vocab_size] */
  rlk_tensor targets;                /* in  i32  [num_tokens] */
  rlk_tensor g;                      /* in  f32  [num_tokens], dLoss/dlogp */
  rlk_tensor g_entropy;              /* in  f32  [num_tokens], dLoss/dH; optional */
  const rlk_sampling_params* params; /* [num_params] */
  int64_t num_params;
  rlk_tensor state; /* in i32 [num_tokens, 10], from forward; optional */
} rlk_logprob_backward_args;
RLK_API rlk_status rlk_logprob_backward(rlk_context* context,
                                        const rlk_logprob_backward_args* args);

/* The logp of every token; -inf where a token takes no part. */
typedef struct rlk_log_softmax_args {
  size_t struct_size;
  rlk_tensor y;                      /* out f32 [num_tokens, vocab_size]; may be logits */
  rlk_tensor logits;                 /* in  f32 [num_tokens, vocab_size] */
  const rlk_sampling_params* params; /* [num_params] */
  int64_t num_params;
} rlk_log_softmax_args;
RLK_API rlk_status rlk_log_softmax(rlk_context* context, const rlk_log_softmax_args* args);

typedef struct rlk_log_softmax_backward_args {
  size_t struct_size;
  rlk_tensor dlogits;                /* out bf16 or f32 [num_tokens, vocab_padded] */
  rlk_tensor logits;                 /* in  f32 [num_tokens, vocab_size] */
  rlk_tensor dy;                     /* in  f32 [num_tokens, vocab_size] */
  const rlk_sampling_params* params; /* [num_params] */
  int64_t num_params;
} rlk_log_softmax_backward_args;
RLK_API rlk_status rlk_log_softmax_backward(rlk_context* context,
                                            const rlk_log_softmax_backward_args* args);

/* What the random numbers of a draw depend on, and nothing else. */
typedef struct rlk_sample_key {
  uint64_t seed;
  uint64_t request;
  uint32_t position;
} rlk_sample_key;

typedef struct rlk_sample_args {
  size_t struct_size;
  rlk_tensor token_ids;              /* out i32 [num_tokens] */
  rlk_tensor logits;                 /* in  f32 [num_tokens, vocab_size] */
  const rlk_sampling_params* params; /* [num_tokens] */
  const rlk_sample_key* keys;        /* [num_tokens] */
} rlk_sample_args;
RLK_API rlk_status rlk_sample(rlk_context* context, const rlk_sample_args* args);

/* ---- linear_logp.h --------------------------------------------------------------------------- */

/* gemm and logprob in one, the logits never stored: the same bits in bounded memory. */
typedef struct rlk_linear_logp_args {
  size_t struct_size;
  rlk_tensor logp;                          /* out f32  [num_tokens] */
  rlk_tensor entropy;                       /* out f32  [num_tokens]; optional */
  rlk_tensor hidden;                        /* in  bf16 [num_tokens, hidden_size] */
  rlk_tensor head;                          /* in  bf16 [vocab_padded, hidden_size] */
  int64_t vocab_size;                       /* rows of head from here on are +0 */
  const rlk_packed_weight* packed_forward;  /* of the first vocab_size rows; optional */
  const rlk_packed_weight* packed_backward; /* of the whole transpose; optional */
  rlk_tensor targets;                       /* in  i32  [num_tokens] */
  const rlk_sampling_params* params;        /* [num_params] */
  int64_t num_params;
  rlk_tensor state; /* out i32 [num_tokens, 10], for backward; optional */
} rlk_linear_logp_args;
RLK_API rlk_status rlk_linear_logp(rlk_context* context, const rlk_linear_logp_args* args);

typedef struct rlk_linear_logp_backward_args {
  size_t struct_size;
  const rlk_linear_logp_args* forward; /* its logp and entropy are not used, its state is read */
  rlk_tensor d_hidden;                 /* out    bf16 [num_tokens, hidden_size] */
  rlk_tensor dw;                       /* in-out f32  [vocab_padded, hidden_size], closed groups */
  rlk_tensor chain;                    /* in-out f32  [vocab_padded, hidden_size], the open group */
  rlk_tensor group_ends;               /* in     i64  [num_group_ends] */
  rlk_tensor g;                        /* in     f32  [num_tokens] */
  rlk_tensor g_entropy;                /* in     f32  [num_tokens]; optional */
  rlk_tensor cu_seqlens; /* in     i32  [num_samples + 1]; not needed in profile portable */
} rlk_linear_logp_backward_args;
RLK_API rlk_status rlk_linear_logp_backward(rlk_context* context,
                                            const rlk_linear_logp_backward_args* args);

/* ---- group_advantages.h ---------------------------------------------------------------------- */

/* (reward - mean) / (std + eps) inside each group of samples, in double, rounded once. */
typedef struct rlk_group_advantages_args {
  size_t struct_size;
  rlk_tensor advantages; /* out f32 [num_groups * group_size] */
  rlk_tensor rewards;    /* in  f64 [num_groups * group_size], groups one after the other */
  int64_t group_size;
  double eps;
  int64_t ddof; /* 0 or 1 */
} rlk_group_advantages_args;
RLK_API rlk_status rlk_group_advantages(rlk_context* context,
                                        const rlk_group_advantages_args* args);

/* ---- ratio.h, kl.h --------------------------------------------------------------------------- */

/* exp(logp - old) */
typedef struct rlk_ratio_args {
  size_t struct_size;
  rlk_tensor ratio;  /* out f32 [num_tokens] */
  rlk_tensor logp;   /* in  f32 [num_tokens] */
  rlk_tensor old;    /* in  f32 [num_tokens] */
  rlk_tensor weight; /* in  f32 [num_tokens], 0 for masked tokens; optional: none is */
} rlk_ratio_args;
RLK_API rlk_status rlk_ratio(rlk_context* context, const rlk_ratio_args* args);

enum { RLK_KL_NONE = 0, RLK_KL_K1 = 1, RLK_KL_K2 = 2, RLK_KL_K3 = 3 };

/* The estimates k1, k2, k3 of the divergence from the reference model. */
typedef struct rlk_kl_args {
  size_t struct_size;
  rlk_tensor kl;     /* out f32 [num_tokens] */
  rlk_tensor slope;  /* out f32 [num_tokens], d kl / d logp; optional */
  rlk_tensor logp;   /* in  f32 [num_tokens] */
  rlk_tensor ref;    /* in  f32 [num_tokens] */
  rlk_tensor weight; /* in  f32 [num_tokens], 0 for masked tokens; optional: none is */
  int32_t kl_type;   /* RLK_KL_K1 .. RLK_KL_K3 */
  int32_t reserved;  /* 0 */
} rlk_kl_args;
RLK_API rlk_status rlk_kl(rlk_context* context, const rlk_kl_args* args);

/* ---- grpo_loss.h ----------------------------------------------------------------------------- */

typedef struct rlk_grpo_loss_args {
  size_t struct_size;
  rlk_tensor g;         /* out f32 [num_tokens], dLoss/dlogp */
  rlk_tensor pg_loss;   /* out f32 [num_tokens]; optional */
  rlk_tensor kl;        /* out f32 [num_tokens]; optional */
  rlk_tensor ratio;     /* out f32 [num_tokens]; optional */
  rlk_tensor logp;      /* in  f32 [num_tokens] */
  rlk_tensor old;       /* in  f32 [num_tokens] */
  rlk_tensor ref;       /* in  f32 [num_tokens]; not needed for RLK_KL_NONE */
  rlk_tensor advantage; /* in  f32 [num_tokens] */
  rlk_tensor weight;    /* in  f32 [num_tokens], 0 for masked tokens */
  float lo;             /* 1 - clip_low, computed in double and rounded once */
  float hi;             /* 1 + clip_high */
  float beta;           /* coefficient of the KL term */
  int32_t kl_type;      /* RLK_KL_NONE .. RLK_KL_K3 */
} rlk_grpo_loss_args;
RLK_API rlk_status rlk_grpo_loss(rlk_context* context, const rlk_grpo_loss_args* args);

/* ---- ppo_loss.h ------------------------------------------------------------------------------ */

/* grpo_loss, the clipped loss of a value head and the gradient of an entropy bonus. */
typedef struct rlk_ppo_loss_args {
  size_t struct_size;
  rlk_tensor g;         /* out f32 [num_tokens], dLoss/dlogp; this and the next eight as above */
  rlk_tensor pg_loss;   /* out f32 [num_tokens]; optional */
  rlk_tensor kl;        /* out f32 [num_tokens]; optional */
  rlk_tensor ratio;     /* out f32 [num_tokens]; optional */
  rlk_tensor logp;      /* in  f32 [num_tokens] */
  rlk_tensor old;       /* in  f32 [num_tokens] */
  rlk_tensor ref;       /* in  f32 [num_tokens]; not needed for RLK_KL_NONE */
  rlk_tensor advantage; /* in  f32 [num_tokens] */
  rlk_tensor weight;    /* in  f32 [num_tokens], 0 for masked tokens */
  rlk_tensor g_value;   /* out f32 [num_tokens], dLoss/dvalue */
  rlk_tensor v_loss;    /* out f32 [num_tokens]; optional */
  rlk_tensor g_entropy; /* out f32 [num_tokens], dLoss/dentropy; optional */
  rlk_tensor value;     /* in  f32 [num_tokens] */
  rlk_tensor old_value; /* in  f32 [num_tokens], of the rollout */
  rlk_tensor returns;   /* in  f32 [num_tokens] */
  float lo;             /* as above */
  float hi;
  float beta;
  int32_t kl_type;
  float value_clip; /* INFINITY: the value is not clipped */
  float value_coef;
  float entropy_coef;
  int32_t reserved; /* 0 */
} rlk_ppo_loss_args;
RLK_API rlk_status rlk_ppo_loss(rlk_context* context, const rlk_ppo_loss_args* args);

/* ---- adamw.h --------------------------------------------------------------------------------- */

/* The exact norm over all elements of all tensors. */
typedef struct rlk_grad_norm_args {
  size_t struct_size;
  float* norm;             /* out, one number */
  const rlk_tensor* grads; /* in  f32 [num_grads] tensors of any shape without gaps */
  int64_t num_grads;
} rlk_grad_norm_args;
RLK_API rlk_status rlk_grad_norm(rlk_context* context, const rlk_grad_norm_args* args);

typedef struct rlk_adamw_args {
  size_t struct_size;
  rlk_tensor w;      /* out    bf16 [n] */
  rlk_tensor master; /* in-out f32  [n] */
  rlk_tensor m;      /* in-out f32  [n] */
  rlk_tensor v;      /* in-out f32  [n] */
  rlk_tensor dw;     /* in     f32  [n] */
  float grad_scale;  /* 1: dw is taken as it is */
  float lr;          /* the rest as rlk_adamw_constants sets it */
  float b1, b2, f1, f2, h1, h2;
  float eps;
  float wd;
} rlk_adamw_args;
RLK_API rlk_status rlk_adamw(rlk_context* context, const rlk_adamw_args* args);

/* Sets lr .. wd of args for step `step` (from 1): in double by the contract's products, rounded
 * once. The power function of a C library would give other bits. */
RLK_API rlk_status rlk_adamw_constants(rlk_context* context, rlk_adamw_args* args, double beta1,
                                       double beta2, double eps, double lr, double weight_decay,
                                       int64_t step);

#ifdef __cplusplus
} /* extern "C" */
#endif
