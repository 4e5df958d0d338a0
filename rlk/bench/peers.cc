#include "rlk/bench/case.h"

#include <dlfcn.h>

#include <initializer_list>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "rlk/core/error.h"

namespace rlk::bench {
namespace {

// RTLD_LOCAL: all three export BLAS names, which must not meet.
void* open_first(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
  }
  return nullptr;
}

template <typename Function>
Function* symbol(void* library, const char* name) {
  return library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

Peer absent(const char* name) {
  return {{name, "", ""}, [](int) {}, [](const Sgemm&) {}};
}

// "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..": the number.
std::string version_in(const std::string& text) {
  const std::size_t begin = text.find_first_of("0123456789");
  if (begin == std::string::npos) return "?";
  return text.substr(begin, text.find_first_not_of("0123456789.", begin) - begin);
}

Peer open_openblas() {
  using Call =
      void(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a,
           int lda, const float* b, int ldb, float beta, float* c, int ldc);
  constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
  void* library = open_first({"libopenblas.so.0", "libopenblas.so"});
  auto* call = symbol<Call>(library, "cblas_sgemm");
  auto* set_threads = symbol<void(int)>(library, "openblas_set_num_threads");
  auto* config = symbol<char*()>(library, "openblas_get_config");
  auto* core = symbol<char*()>(library, "openblas_get_corename");
  if (!call || !set_threads) return absent("openblas");
  const auto sgemm = [call](const Sgemm& s) {
    const bool a_plain = s.a_col == 1, b_plain = s.b_col == 1;
    call(kRowMajor, a_plain ? kPlain : kTransposed, b_plain ? kPlain : kTransposed,
         static_cast<int>(s.m), static_cast<int>(s.n), static_cast<int>(s.k), 1.0f, s.a,
         static_cast<int>(a_plain ? s.a_row : s.a_col), s.b,
         static_cast<int>(b_plain ? s.b_row : s.b_col), 0.0f, s.c, static_cast<int>(s.n));
  };
  return {
      {"openblas", config ? version_in(config()) : "?", core ? core() : ""}, set_threads, sgemm};
}

// BLIS by its own interface: its BLAS interface calls itself by names that OpenBLAS has too.
Peer open_blis() {
  using Call = void(int trans_a, int trans_b, std::int64_t m, std::int64_t n, std::int64_t k,
                    const float* alpha, const float* a, std::int64_t a_row, std::int64_t a_col,
                    const float* b, std::int64_t b_row, std::int64_t b_col, const float* beta,
                    float* c, std::int64_t c_row, std::int64_t c_col);
  void* library = open_first({"libblis.so.4", "libblis.so"});
  auto* call = symbol<Call>(library, "bli_sgemm");
  auto* set_threads = symbol<void(std::int64_t)>(library, "bli_thread_set_num_threads");
  auto* version = symbol<const char*()>(library, "bli_info_get_version_str");
  auto* arch = symbol<int()>(library, "bli_arch_query_id");
  auto* arch_name = symbol<const char*(int)>(library, "bli_arch_string");
  if (!call || !set_threads) return absent("blis");
  const auto sgemm = [call](const Sgemm& s) {
    const float one = 1, zero = 0;
    call(0, 0, s.m, s.n, s.k, &one, s.a, s.a_row, s.a_col, s.b, s.b_row, s.b_col, &zero, s.c, s.n,
         1);
  };
  return {{"blis", version ? version() : "?", arch && arch_name ? arch_name(arch()) : ""},
          set_threads,
          sgemm};
}

struct OnednnVersion {  // dnnl_version_t
  int major, minor, patch;
};

Peer open_onednn() {
  using Call = int(char trans_a, char trans_b, std::int64_t m, std::int64_t n, std::int64_t k,
                   float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                   float beta, float* c, std::int64_t ldc);
  void* library = open_first({"libdnnl.so.2", "libdnnl.so.3", "libdnnl.so"});
  auto* call = symbol<Call>(library, "dnnl_sgemm");
  auto* version = symbol<const OnednnVersion*()>(library, "dnnl_version");
  // The package runs on OpenMP, which knows its threads per calling thread.
  auto* set_threads = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (!set_threads) set_threads = symbol<void(int)>(library, "omp_set_num_threads");
  if (!call || !version || !set_threads) return absent("onednn");
  const auto sgemm = [call](const Sgemm& s) {
    const bool a_plain = s.a_col == 1, b_plain = s.b_col == 1;
    call(a_plain ? 'N' : 'T', b_plain ? 'N' : 'T', s.m, s.n, s.k, 1.0f, s.a,
         a_plain ? s.a_row : s.a_col, s.b, b_plain ? s.b_row : s.b_col, 0.0f, s.c, s.n);
  };
  const OnednnVersion& v = *version();
  return {{"onednn", fmt::format("{}.{}.{}", v.major, v.minor, v.patch), ""}, set_threads, sgemm};
}

}  // namespace

Peers open_peers() { return {open_openblas(), open_blis(), open_onednn()}; }

Peers open_gpu_peers(const std::string& file) {
  Peer peer = absent("cublaslt");
  try {
    peer.products = &device::product_library(file);
    peer.library.version = peer.products->version();
    peer.library.core = peer.products->path();
  } catch (const Error& error) {
    peer.library.reason = error.what();
  }
  return {peer};
}

namespace {

using Call = std::function<void(const PeerProduct&)>;

// One product at a time by a library of the CPU.
Call product_call(const Peer& peer) {
  return [&peer](const PeerProduct& p) {
    peer.sgemm({p.c.shape(0), p.c.shape(1), p.a.shape(1), p.a.at<float>(), p.a.stride(0),
                p.a.stride(1), p.b.at<float>(), p.b.stride(1), p.b.stride(0), p.c.at<float>()});
  };
}

// And by the GPU's: `like` has the layouts of every product that will be asked for.
Call product_call(Engines& e, const Peer& peer, const PeerProduct& like) {
  auto plan = std::make_shared<const device::VendorProduct>(*peer.products, like.c, like.a, like.b);
  return [plan, &e](const PeerProduct& p) { plan->run(p.c.data, p.a.data, p.b.data, e.stream()); };
}

Contender product_contender(Engines& e, const Peer& peer, double work,
                            std::vector<std::vector<PeerProduct>> turns,
                            std::shared_ptr<void> owner) {
  std::vector<Call> calls;
  for (const PeerProduct& like : turns[0]) {
    calls.push_back(peer.products ? product_call(e, peer, like) : product_call(peer));
  }
  Contender c;
  c.name = peer.library.name;
  c.work = work;
  c.call = [calls, turns = std::move(turns), owner = std::move(owner),
            turn = std::size_t{0}]() mutable {
    const std::vector<PeerProduct>& products = turns[turn++ % turns.size()];
    for (std::size_t i = 0; i < products.size(); ++i) calls[i](products[i]);
  };
  if (e.on_device()) return c;
  c.enter = [&peer, threads = e.threads] { peer.set_threads(threads); };
  c.leave = [&peer] { peer.set_threads(1); };  // as the production route sets it
  return c;
}

}  // namespace

void note_missing(std::string& note, const std::string& peer, const std::string& reason) {
  note += fmt::format("{}no peer {}: {}", note.empty() ? "" : "; ", peer, reason);
}

void add_products(Engines& e, double work, const std::vector<std::vector<PeerProduct>>& turns,
                  const std::shared_ptr<void>& owner, Prepared& out) {
  for (const Peer& peer : e.peers) {
    std::string reason = "it is not installed";
    if (peer.installed()) {
      try {
        out.peers.push_back(product_contender(e, peer, work, turns, owner));
        continue;
      } catch (const Error& error) {
        reason = error.what();
      }
    }
    if (e.on_device()) note_missing(out.note, peer.library.name, reason);
  }
}

void add_production(Engines& e, std::function<void(Context&)> call, Prepared& out) {
  if (!e.production) return;
  out.peers.push_back({kProduction, out.ours.work,
                       [call = std::move(call), &ctx = *e.production] { call(ctx); }, false});
}

}  // namespace rlk::bench
