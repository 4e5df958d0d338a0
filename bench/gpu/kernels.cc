// A C face of the GPU tables for gpu_bench.py: operators on device memory that the caller owns, in
// one stream, without waiting. Every function returns 0, or -1 after printing the error.
#include <cstdio>
#include <exception>
#include <utility>

#include "rlk/device/device.h"
#include "rlk/kernels/kernel_table.h"

namespace {

using namespace rlk;

struct Session {
  Contract contract;
  ThreadPool pool{1};
  Workspace workspace;
  Fault fault;
  device::Queue queue;
  Exec exec{pool, workspace, contract, fault, &queue};
  const KernelTable* table = nullptr;
  PackedWeight packed;  // says that weights lie still
};

template <typename Call>
int guarded(const Call& call) {
  try {
    call();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return -1;
  }
}

bf16* as_bf16(void* p) { return static_cast<bf16*>(p); }
const bf16* as_bf16(const void* p) { return static_cast<const bf16*>(p); }

ConstTensorView as_group_ends(const long long* ends, long long count) {
  return view(reinterpret_cast<const std::int64_t*>(ends), {count});
}

LinearLogpArgs linear_logp_args(const void* hidden, const void* head, long long tokens,
                                long long hidden_size, long long vocab_size, long long vocab_padded,
                                const int* targets, int* state) {
  static const SamplingParams kParams;
  LinearLogpArgs args;
  args.hidden = view(as_bf16(hidden), {tokens, hidden_size});
  args.head = view(as_bf16(head), {vocab_padded, hidden_size});
  args.vocab_size = vocab_size;
  args.targets = view(targets, {tokens});
  args.params = &kParams;
  if (state) args.state = view(state, {tokens, kLogprobStateWords});
  return args;
}

}  // namespace

extern "C" {

// profile: "portable" or "sm90"; null after an error.
void* rlk_gpu_open(const char* profile) {
  Session* session = nullptr;
  guarded([&] {
    device::require();
    session = new Session;
    session->contract.profile = parse_profile(profile);
    session->table = &gpu_kernels(session->contract.profile);
    session->queue.clear_fault();
    session->queue.collects_faults = true;
    session->table->pack_weight(session->exec, {&session->packed, {}});
  });
  return session;
}

void* rlk_gpu_stream(void* session) {
  return static_cast<Session*>(session)->queue.stream().native();
}

// The lowest row that met a number the contract forbids; -1: none.
long long rlk_gpu_fault(void* session) {
  return static_cast<Session*>(session)->queue.read_fault();
}

// c[m, n] = a[m, k] b[n, k]^T; c is bf16, or f32.
int rlk_gpu_gemm(void* session, void* c, int c_is_f32, const void* a, const void* b, long long m,
                 long long n, long long k, int leaf_tree) {
  return guarded([&] {
    Session& s = *static_cast<Session*>(session);
    GemmArgs args;
    args.c = c_is_f32 ? view(static_cast<float*>(c), {m, n}) : view(as_bf16(c), {m, n});
    args.a = view(as_bf16(a), {m, k});
    args.b = view(as_bf16(b), {n, k});
    args.packed_b = &s.packed;
    args.leaf_tree = leaf_tree != 0;
    args.segments = {k, 0, 0};
    s.table->gemm(s.exec, args);
  });
}

// dx[m, k] = dy[m, n] w[n, k]: the gradient of gemm by its input. Leaves as there, over segments
// n = first + second + third.
int rlk_gpu_gemm_input_gradient(void* session, void* dx, const void* dy, const void* w, long long m,
                                long long n, long long k, int leaf_tree, long long second,
                                long long third) {
  return guarded([&] {
    Session& s = *static_cast<Session*>(session);
    GemmArgs args;
    args.c = view(as_bf16(dx), {m, k});
    args.a = view(as_bf16(dy), {m, n});
    args.b = transposed(view(as_bf16(w), {n, k}));
    args.packed_b = &s.packed;
    args.leaf_tree = leaf_tree != 0;
    args.segments = {n - second - third, second, third};
    s.table->gemm(s.exec, args);
  });
}

// dw[n, k] and the open chain go on through dy[tokens, n] and x[tokens, k].
int rlk_gpu_gemm_weight_gradient(void* session, float* dw, float* chain, const void* dy,
                                 const void* x, long long tokens, long long n, long long k,
                                 const long long* group_ends, long long num_groups,
                                 const int* cu_seqlens, long long num_samples) {
  return guarded([&] {
    Session& s = *static_cast<Session*>(session);
    GemmBackwardWeightArgs args;
    args.dw = view(dw, {n, k});
    args.chain = view(chain, {n, k});
    args.dy = view(as_bf16(dy), {tokens, n});
    args.x = view(as_bf16(x), {tokens, k});
    args.group_ends = as_group_ends(group_ends, num_groups);
    args.cu_seqlens = view(cu_seqlens, {num_samples + 1});
    s.table->gemm_backward_weight(s.exec, args);
  });
}

// entropy and state may be null. params: of all rows.
int rlk_gpu_linear_logp(void* session, float* logp, float* entropy, const void* hidden,
                        const void* head, long long tokens, long long hidden_size,
                        long long vocab_size, long long vocab_padded, const int* targets,
                        int* state) {
  return guarded([&] {
    Session& s = *static_cast<Session*>(session);
    LinearLogpArgs args = linear_logp_args(hidden, head, tokens, hidden_size, vocab_size,
                                           vocab_padded, targets, state);
    args.logp = view(logp, {tokens});
    if (entropy) args.entropy = view(entropy, {tokens});
    s.table->linear_logp(s.exec, args);
  });
}

// g_entropy and state may be null.
int rlk_gpu_linear_logp_backward(void* session, void* d_hidden, float* dw, float* chain,
                                 const void* hidden, const void* head, long long tokens,
                                 long long hidden_size, long long vocab_size,
                                 long long vocab_padded, const int* targets, int* state,
                                 const float* g, const float* g_entropy,
                                 const long long* group_ends, long long num_groups,
                                 const int* cu_seqlens, long long num_samples) {
  return guarded([&] {
    Session& s = *static_cast<Session*>(session);
    LinearLogpBackwardArgs args;
    args.forward = linear_logp_args(hidden, head, tokens, hidden_size, vocab_size, vocab_padded,
                                    targets, state);
    args.d_hidden = view(as_bf16(d_hidden), {tokens, hidden_size});
    args.dw = view(dw, {vocab_padded, hidden_size});
    args.chain = view(chain, {vocab_padded, hidden_size});
    args.group_ends = as_group_ends(group_ends, num_groups);
    args.cu_seqlens = view(cu_seqlens, {num_samples + 1});
    args.g = view(g, {tokens});
    if (g_entropy) args.g_entropy = view(g_entropy, {tokens});
    s.table->linear_logp_backward(s.exec, args);
  });
}

// Queries [tokens, heads, d] of num_seqs sequences; keys and values in pages, or packed where
// block_table is null.
int rlk_gpu_attention(void* session, void* y, float* lse, const void* q, const void* k,
                      const void* v, long long tokens, long long heads, long long kv_heads,
                      long long d, long long kv_rows, long long num_seqs, const int* cu_seqlens_q,
                      const int* kv_lens, const int* kv_start, const int* block_table,
                      long long max_pages, long long page_size) {
  return guarded([&] {
    Session& s = *static_cast<Session*>(session);
    AttentionArgs args;
    args.y = view(as_bf16(y), {tokens, heads, d});
    args.lse = view(lse, {tokens, heads});
    args.q = view(as_bf16(q), {tokens, heads, d});
    args.kv.k = view(as_bf16(k), {kv_rows, kv_heads, d});
    args.kv.v = view(as_bf16(v), {kv_rows, kv_heads, d});
    if (block_table) args.kv.block_table = view(block_table, {num_seqs, max_pages});
    if (kv_start) args.kv.kv_start = view(kv_start, {num_seqs});
    args.kv.page_size = page_size;
    args.cu_seqlens_q = view(cu_seqlens_q, {num_seqs + 1});
    args.kv_lens = view(kv_lens, {num_seqs});
    s.table->attention(s.exec, args);
  });
}

// Gradients of attention over packed sequences, each from position 0.
int rlk_gpu_attention_backward(void* session, void* dq, void* dk, void* dv, const void* dy,
                               const void* y, const void* q, const void* k, const void* v,
                               const float* lse, long long tokens, long long heads,
                               long long kv_heads, long long d, long long num_seqs,
                               const int* cu_seqlens) {
  return guarded([&] {
    Session& s = *static_cast<Session*>(session);
    AttentionBackwardArgs args;
    args.dq = view(as_bf16(dq), {tokens, heads, d});
    args.dk = view(as_bf16(dk), {tokens, kv_heads, d});
    args.dv = view(as_bf16(dv), {tokens, kv_heads, d});
    args.dy = view(as_bf16(dy), {tokens, heads, d});
    args.y = view(as_bf16(y), {tokens, heads, d});
    args.q = view(as_bf16(q), {tokens, heads, d});
    args.k = view(as_bf16(k), {tokens, kv_heads, d});
    args.v = view(as_bf16(v), {tokens, kv_heads, d});
    args.lse = view(lse, {tokens, heads});
    args.cu_seqlens = view(cu_seqlens, {num_seqs + 1});
    s.table->attention_backward(s.exec, args);
  });
}

int rlk_gpu_rms_norm(void* session, void* y, const void* x, const void* w, long long tokens,
                     long long n) {
  return guarded([&] {
    Session& s = *static_cast<Session*>(session);
    RmsNormArgs args;
    args.y = view(as_bf16(y), {tokens, 1, n});
    args.x = view(as_bf16(x), {tokens, 1, n});
    args.w = view(as_bf16(w), {n});
    args.eps = 1e-6f;
    s.table->rms_norm(s.exec, args);
  });
}

int rlk_gpu_swiglu(void* session, void* y, const void* g, const void* u, long long tokens,
                   long long n) {
  return guarded([&] {
    Session& s = *static_cast<Session*>(session);
    SwigluArgs args;
    args.y = view(as_bf16(y), {tokens, n});
    args.g = view(as_bf16(g), {tokens, n});
    args.u = view(as_bf16(u), {tokens, n});
    s.table->swiglu(s.exec, args);
  });
}

int rlk_gpu_rope(void* session, void* y, const void* x, const float* cos, const float* sin,
                 const int* positions, long long tokens, long long heads, long long d,
                 long long max_position) {
  return guarded([&] {
    Session& s = *static_cast<Session*>(session);
    RopeArgs args;
    args.y = view(as_bf16(y), {tokens, heads, d});
    args.x = view(as_bf16(x), {tokens, heads, d});
    args.cos = view(cos, {max_position, d / 2});
    args.sin = view(sin, {max_position, d / 2});
    args.positions = view(positions, {tokens});
    s.table->rope(s.exec, args);
  });
}

int rlk_gpu_logprob(void* session, float* logp, const float* logits, const int* targets,
                    long long tokens, long long vocab_size) {
  return guarded([&] {
    Session& s = *static_cast<Session*>(session);
    static const SamplingParams kParams;
    LogprobArgs args;
    args.logp = view(logp, {tokens});
    args.logits = view(logits, {tokens, vocab_size});
    args.targets = view(targets, {tokens});
    args.params = &kParams;
    s.table->logprob(s.exec, args);
  });
}

int rlk_gpu_log_softmax(void* session, float* y, const float* logits, long long tokens,
                        long long vocab_size) {
  return guarded([&] {
    Session& s = *static_cast<Session*>(session);
    static const SamplingParams kParams;
    LogSoftmaxArgs args;
    args.y = view(y, {tokens, vocab_size});
    args.logits = view(logits, {tokens, vocab_size});
    args.params = &kParams;
    s.table->log_softmax(s.exec, args);
  });
}

}  // extern "C"
