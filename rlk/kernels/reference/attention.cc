#include "rlk/kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "rlk/kernels/reference/softmax_scale.h"
#include "rlk/kernels/reference/storage.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/math.h"
#include "rlk/numerics/mma/mac.h"
#include "rlk/numerics/sums.h"

namespace rlk::reference {
namespace {

using numerics::exp2p;

// The row of k and v that holds `position` of sequence s.
std::int64_t kv_row(const KvView& kv, std::int64_t s, std::int64_t position) {
  if (!kv.block_table) return *kv.kv_start.at<std::int32_t>(s) + position;
  const std::int64_t page = *kv.block_table.at<std::int32_t>(s, position / kv.page_size);
  return page * kv.page_size + position % kv.page_size;
}

// One query of one head: what the sums below run over.
struct Query {
  Line q;
  std::int64_t d;
  std::int64_t sequence;
  std::int64_t kv_head;
  float c;  // log2(e) / sqrt(d)
};

// The softmax of some keys of a query: exp2 terms summed to l and o, relative to 2^m.
struct Partial {
  float m;
  float l;        // set at the end of a split
  float* o;       // [d]
  bool in_range;  // every m' was
};

struct Scratch {
  float* e;               // [kv_block], scores of a block, then its terms
  std::int64_t* kv_rows;  // [kv_block], of the block's keys
  float* lane;            // [lanes], the lanes of l inside a split
  int lanes;
};

// Goes on with m, o and the lanes of l through the visible keys at [begin, end) of one block.
template <typename Mac>
void add_block(const Mac& mac, const KvView& kv, const Query& query, std::int64_t begin,
               std::int64_t end, const Scratch& scratch, Partial* out) {
  const std::int64_t n = end - begin;
  float max_s = -numerics::kInfinity;
  for (std::int64_t j = 0; j < n; ++j) {
    const std::int64_t row = kv_row(kv, query.sequence, begin + j);
    const Line k(kv.k, 2, row, query.kv_head);
    scratch.e[j] = numerics::dot_chain(mac, query.q, k, query.d);
    max_s = std::max(max_s, scratch.e[j]);
  }

  const float new_m = std::max(out->m, query.c * max_s);
  if (!(std::fabs(new_m) < 0x1p22f)) out->in_range = false;
  const float a = exp2p(out->m - new_m);
  out->m = new_m;
  for (std::int64_t j = 0; j < n; ++j) {
    scratch.e[j] = exp2p(std::fma(scratch.e[j], query.c, -new_m));
  }

  for (int i = 0; i < scratch.lanes; ++i) {
    scratch.lane[i] = scratch.lane[i] * a;
    for (std::int64_t j = i; j < n; j += scratch.lanes) {
      scratch.lane[i] = scratch.lane[i] + scratch.e[j];
    }
  }

  for (std::int64_t j = 0; j < n; ++j) {
    scratch.e[j] = round_to(kv.v.dtype, scratch.e[j]);
    scratch.kv_rows[j] = kv_row(kv, query.sequence, begin + j);
  }
  const auto e = [&](std::int64_t j) { return scratch.e[j]; };
  for (std::int64_t x = 0; x < query.d; ++x) {
    const auto v = [&](std::int64_t j) { return read(kv.v, scratch.kv_rows[j], query.kv_head, x); };
    out->o[x] = numerics::chain(mac, out->o[x] * a, e, v, 0, n);
  }
}

// The visible keys at [begin, end) of one split, block by block.
template <typename Mac>
void run_split(const Mac& mac, const KvView& kv, const Query& query, std::int64_t begin,
               std::int64_t end, std::int64_t kv_block, const Scratch& scratch, Partial* out) {
  out->m = -numerics::kInfinity;
  std::fill_n(scratch.lane, scratch.lanes, 0.0f);
  std::fill_n(out->o, query.d, 0.0f);
  for (std::int64_t block = begin; block < end; block += kv_block) {
    add_block(mac, kv, query, block, std::min(block + kv_block, end), scratch, out);
  }
  out->l = numerics::neighbour_tree(scratch.lane, scratch.lanes);
}

// first = first merged with second.
void merge(Partial* first, const Partial& second, std::int64_t d) {
  const float m = std::max(first->m, second.m);
  const float a1 = exp2p(first->m - m);
  const float a2 = exp2p(second.m - m);
  first->m = m;
  first->l = std::fma(first->l, a1, second.l * a2);
  for (std::int64_t x = 0; x < d; ++x) {
    first->o[x] = std::fma(first->o[x], a1, second.o[x] * a2);
  }
}

// All keys at [0, num_visible): the splits in a left fold. `split` is scratch.
template <typename Mac>
void run_query(const Mac& mac, const Contract& contract, const KvView& kv, const Query& query,
               std::int64_t num_visible, const Scratch& scratch, Partial* split, Partial* total) {
  total->in_range = split->in_range = true;
  for (std::int64_t begin = 0; begin < num_visible; begin += contract.kv_split) {
    const std::int64_t end = std::min<std::int64_t>(begin + contract.kv_split, num_visible);
    run_split(mac, kv, query, begin, end, contract.kv_block, scratch, begin == 0 ? total : split);
    if (begin > 0) merge(total, *split, query.d);
  }
  total->in_range = total->in_range && split->in_range;
}

}  // namespace

void attention(Exec& exec, const AttentionArgs& args) {
  const Contract& contract = exec.contract;
  const std::int64_t heads = args.q.shape(1);
  const std::int64_t heads_per_kv = heads / args.kv.k.shape(1);
  const std::int64_t d = args.q.shape(2);
  Workspace::Frame frame(exec.workspace);
  const Scratch scratch{frame.take<float>(contract.kv_block),
                        frame.take<std::int64_t>(contract.kv_block),
                        frame.take<float>(contract.softmax_lanes), contract.softmax_lanes};
  Partial total{0.0f, 0.0f, frame.take<float>(d), true};
  Partial split{0.0f, 0.0f, frame.take<float>(d), true};

  for (std::int64_t s = 0; s < args.kv_lens.shape(0); ++s) {
    const std::int64_t begin = *args.cu_seqlens_q.at<std::int32_t>(s);
    const std::int64_t end = *args.cu_seqlens_q.at<std::int32_t>(s + 1);
    const std::int64_t kv_len = *args.kv_lens.at<std::int32_t>(s);
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t num_visible = kv_len - (end - 1 - t);
      for (std::int64_t h = 0; h < heads; ++h) {
        if (num_visible <= 0) {  // an error, not a zero
          exec.fault.report(t * heads + h);
          continue;
        }
        const Query query{Line(args.q, 2, t, h), d, s, h / heads_per_kv, log2e_over_sqrt(d)};
        numerics::with_mac(contract.profile, [&](const auto& mac) {
          run_query(mac, contract, args.kv, query, num_visible, scratch, &split, &total);
        });
        if (!total.in_range) exec.fault.report(t * heads + h);
        for (std::int64_t x = 0; x < d; ++x) {
          write(args.y, total.o[x] / total.l + 0.0f, t, h, x);
        }
        if (args.lse) {
          *args.lse.at<float>(t, h) = std::fma(numerics::log(total.l), numerics::kLog2E, total.m);
        }
      }
    }
  }
}

}  // namespace rlk::reference
