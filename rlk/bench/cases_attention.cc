// attention against our own product (prefill and backward) and against reading KV (decode).
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "rlk/bench/calls.h"
#include "rlk/bench/data.h"
#include "rlk/ops/attention.h"

namespace rlk::bench {
namespace {

double visible_pairs(const AttentionShape& s) {
  return 0.5 * static_cast<double>(s.heads * s.length * (s.length + 1));
}

struct Data {
  AttentionShape s;
  Tensor q, k, v, dy, y, lse, dq, dk, dv, kv_start, cu_seqlens, kv_lens;

  Data(Context& ctx, const AttentionShape& shape)
      : s(shape),
        q(random_tensor(ctx.memory(), s.storage, {s.length, s.heads, s.d}, 1, 2)),
        k(random_tensor(ctx.memory(), s.storage, {s.length, s.kv_heads, s.d}, 2, 2)),
        v(random_tensor(ctx.memory(), s.storage, {s.length, s.kv_heads, s.d}, 3)),
        dy(random_tensor(ctx.memory(), s.storage, {s.length, s.heads, s.d}, 4)),
        y(s.storage, {s.length, s.heads, s.d}, ctx.memory()),
        lse(DType::kF32, {s.length, s.heads}, ctx.memory()),
        dq(y),
        dk(s.storage, {s.length, s.kv_heads, s.d}, ctx.memory()),
        dv(dk),
        kv_start(offsets(ctx.small_memory(), 1, 0)),
        cu_seqlens(offsets(ctx.small_memory(), 2, s.length)),
        kv_lens(filled(ctx.small_memory(), 1, s.length)) {}

  AttentionArgs forward() { return {y, lse, q, {k, v, {}, kv_start, 0}, cu_seqlens, kv_lens}; }
  AttentionBackwardArgs backward() { return {dq, dk, dv, dy, y, q, k, v, lse, cu_seqlens}; }
};

// The call for one query at `position` of one head, as a decode step.
std::string check_query(Engines& e, AttentionArgs a, std::int64_t sequence, std::int64_t row,
                        std::int64_t position, std::int64_t head) {
  const std::int64_t kv_head = head * a.kv.k.shape(1) / a.q.shape(1);
  const Tensor cu = offsets(host_memory(), 2, 1), lens = filled(host_memory(), 1, position + 1);
  a.y = heads(rows(a.y, row, row + 1), head, head + 1);
  a.q = heads(rows(a.q, row, row + 1), head, head + 1);
  a.kv.k = heads(a.kv.k, kv_head, kv_head + 1);
  a.kv.v = heads(a.kv.v, kv_head, kv_head + 1);
  if (a.lse) a.lse = columns(rows(a.lse, row, row + 1), head, head + 1);
  if (a.kv.block_table) a.kv.block_table = rows(a.kv.block_table, sequence, sequence + 1);
  if (a.kv.kv_start) a.kv.kv_start = rows(a.kv.kv_start, sequence, sequence + 1);
  a.cu_seqlens_q = cu;
  a.kv_lens = lens;
  const std::string text = compare_outputs(e.reference, &attention, a, outputs_of(a));
  return text.empty() ? "" : fmt::format("row {}, head {}: {}", row, head, text);
}

std::string check_forward(Engines& e, Data& data) {
  const AttentionArgs a = data.forward();
  attention(e.ours, a);
  e.ours.synchronize();
  std::int64_t head = 0;
  for (const std::int64_t position : sampled(data.s.length, 12, 1)) {
    head = (head + 3) % data.s.heads;
    const std::string text = check_query(e, a, 0, position, position, head);
    if (!text.empty()) return text;
  }
  return "";
}

// The first tokens do not see later ones, and later ones reach their gradients only through dy:
// with a zero dy behind the first `kChecked` tokens these have the gradients of a short sequence,
// and the others have dk = dv = 0.
std::string check_backward(Engines& e, Data& data) {
  constexpr std::int64_t kChecked = 160;
  const std::int64_t n = std::min(kChecked, data.s.length);
  Tensor dy = data.dy;
  const std::size_t row_bytes = dy.size_bytes() / static_cast<std::size_t>(data.s.length);
  std::memset(dy.data<char>() + static_cast<std::size_t>(n) * row_bytes, 0,
              static_cast<std::size_t>(data.s.length - n) * row_bytes);
  AttentionBackwardArgs a = data.backward();
  a.dy = dy;
  attention_backward(e.ours, a);
  e.ours.synchronize();
  // All heads, as the number of KV heads says in how many parts the query heads of one are summed.
  const Tensor cu = offsets(host_memory(), 2, n);
  const AttentionBackwardArgs some{
      rows(a.dq, 0, n), rows(a.dk, 0, n), rows(a.dv, 0, n), rows(a.dy, 0, n),  rows(a.y, 0, n),
      rows(a.q, 0, n),  rows(a.k, 0, n),  rows(a.v, 0, n),  rows(a.lse, 0, n), cu};
  std::string text = compare_outputs(e.reference, &attention_backward, some, outputs_of(some));
  if (!text.empty() || n == data.s.length) return text;
  const Tensor zeros(data.s.storage, {data.s.length - n, data.s.kv_heads, data.s.d});
  text = difference("dk behind them", rows(a.dk, n, data.s.length), zeros);
  return text.empty() ? difference("dv behind them", rows(a.dv, n, data.s.length), zeros) : text;
}

// Scratch memory at two lengths, each in a context of its own. The ratio is 1 where it grows as the
// length does, and 0.5 where it grows with its square.
Prepared peak_memory(Engines& e) {
  Prepared out;
  const auto peak = [&e](std::int64_t length, std::string* text) {
    Engines fresh(e.ours.contract(), e.ours.contract_table(), e.threads, e.peers, e.quick);
    Data data(fresh.ours, {length, 2, 1, 64});
    attention(fresh.ours, data.forward());
    *text = check_backward(fresh, data);
    return static_cast<std::int64_t>(fresh.ours.workspace().size_bytes());
  };
  auto bytes = std::make_shared<std::array<std::int64_t, 2>>();
  out.check = [peak, bytes] {
    std::string half, whole;
    *bytes = {peak(4096, &half), peak(8192, &whole)};
    return half.empty() ? whole : half;
  };
  out.finish = [bytes](BenchCase& c) {
    c.peak_bytes = (*bytes)[1];
    c.peer = fmt::format("2 x S4096: {:.1f} MB", 2e-6 * static_cast<double>((*bytes)[0]));
    c.ratio = 2.0 * static_cast<double>((*bytes)[0]) / static_cast<double>((*bytes)[1]);
  };
  return out;
}

}  // namespace

Prepared prepare_attention(Engines& e, const AttentionShape& s, bool backward) {
  auto data = std::make_shared<Data>(e.ours, s);
  if (backward) attention(e.ours, data->forward());
  const auto run = [data, backward](Context& ctx) {
    backward ? attention_backward(ctx, data->backward()) : attention(ctx, data->forward());
  };
  const double work = (backward ? 10 : 4) * static_cast<double>(s.d) * visible_pairs(s);
  Prepared out;
  out.check = [&e, data, backward] {
    return backward ? check_backward(e, *data) : check_forward(e, *data);
  };
  out.ours = {"", work, [&e, run] { run(e.ours); }};
  out.peers.push_back(own_product(e, s.storage, s.product_size));
  add_production(e, run, out);
  return out;
}

void add_attention_cases(Cases& cases) {
  for (const bool backward : {false, true}) {
    for (const DType storage : {DType::kBF16, DType::kF32}) {
      for (const std::int64_t length : {1024, 4096}) {
        for (const std::int64_t d : {64, 128}) {
          const AttentionShape s{length, 8, 2, d, storage};
          Case c;
          c.op = backward ? "attention_backward" : "attention";
          c.shape = fmt::format("S{}xH8xG4xd{}", length, d);
          c.name = fmt::format("{}/{}/{}", c.op, storage == DType::kF32 ? "f32" : "bf16", c.shape);
          c.unit = kGflops;
          c.target = storage == DType::kBF16 ? 0.85 : 0;
          c.quick = storage == DType::kBF16 && length == 1024;
          c.prepare = [=](Engines& e) { return prepare_attention(e, s, backward); };
          cases.push_back(std::move(c));
        }
      }
    }
  }
  Case c;
  c.name = "attention_backward/bf16/peak_memory/S8192xH2xG2xd64";
  c.op = "attention_backward";
  c.shape = "S8192xH2xG2xd64";
  c.target = 2 / 2.2;
  c.prepare = peak_memory;
  cases.push_back(std::move(c));
}

namespace {

// Sequences of equal length over pages in random order.
struct DecodeData {
  DecodeShape s;
  Tensor q, y, k, v, table, cu_seqlens, kv_lens;
  std::size_t turn = 0;

  AttentionArgs args(std::int64_t group) {
    const ConstTensorView pages = rows(table.view(), group * s.batch, (group + 1) * s.batch);
    return {y, {}, q, {k, v, pages, {}, s.page_size}, cu_seqlens, kv_lens};
  }
  std::int64_t next() { return static_cast<std::int64_t>(turn++) % s.groups; }
};

std::shared_ptr<DecodeData> make_decode(Context& ctx, const DecodeShape& s) {
  auto data = std::make_shared<DecodeData>();
  DecodeData& x = *data;
  Memory &memory = ctx.memory(), &small = ctx.small_memory();
  const std::int64_t sequences = s.batch * s.groups, pages = s.length / s.page_size;
  x.s = s;
  x.q = random_tensor(memory, s.storage, {s.batch, s.heads, s.d}, 1, 2);
  x.y = Tensor(s.storage, {s.batch, s.heads, s.d}, memory);
  x.k = random_tensor(memory, s.storage, {sequences * s.length, s.kv_heads, s.d}, 2, 2);
  x.v = random_tensor(memory, s.storage, {sequences * s.length, s.kv_heads, s.d}, 3);
  x.table = Tensor(DType::kI32, {sequences, pages}, small);
  auto* ids = x.table.data<std::int32_t>();
  std::iota(ids, ids + x.table.size(), 0);
  const std::vector<std::int64_t> order = sampled(x.table.size(), x.table.size() - 1, 7);
  for (std::size_t i = 0; i < order.size(); ++i) std::swap(ids[i], ids[order[i]]);
  x.cu_seqlens = offsets(small, s.batch + 1, 1);
  x.kv_lens = filled(small, s.batch, s.length);
  return data;
}

// A loop that reads the keys and values of one group, and those of the next in the next call.
Contender stream_of(Engines& e, const DecodeData& data) {
  // A group's share of k and of v, one behind the other: the bytes of one call.
  std::vector<ConstTensorView> regions;
  const std::int64_t share = data.s.batch * data.s.length;
  for (std::int64_t g = 0; g < data.s.groups; ++g) {
    regions.push_back(rows(data.k.view(), g * share, (g + 1) * share));
    regions.push_back(rows(data.v.view(), g * share, (g + 1) * share));
  }
  return read_stream(e, regions);
}

}  // namespace

Prepared prepare_decode(Engines& e, const DecodeShape& s) {
  auto data = make_decode(e.ours, s);
  const double work = 2.0 * static_cast<double>(s.batch * s.length * s.kv_heads * s.d) *
                      static_cast<double>(size_of(s.storage));
  Prepared out;
  out.turns = static_cast<int>(s.groups);
  out.check = [&e, data]() -> std::string {
    const AttentionArgs a = data->args(0);
    attention(e.ours, a);
    e.ours.synchronize();
    for (const std::int64_t i : sampled(data->s.batch * data->s.heads, 8, 3)) {
      const std::int64_t sequence = i / data->s.heads;
      const std::string text =
          check_query(e, a, sequence, sequence, data->s.length - 1, i % data->s.heads);
      if (!text.empty()) return text;
    }
    return "";
  };
  out.ours = {"", work, [&e, data] { attention(e.ours, data->args(data->next())); }};
  out.peers.push_back(e.on_device() ? copy_loop(e, work) : stream_of(e, *data));
  add_production(
      e, [data](Context& ctx) { attention(ctx, data->args(data->next())); }, out);
  return out;
}

void add_decode_cases(Cases& cases) {
  for (const DType storage : {DType::kBF16, DType::kF32}) {
    for (const std::int64_t batch : {1, 8, 32}) {
      if (storage == DType::kF32 && batch == 32) continue;  // 2 GB say nothing new
      for (const std::int64_t page_size : {16, 128}) {
        Case c;
        c.shape = fmt::format("B{}xS4096xH32xG4xd128/page:{}", batch, page_size);
        c.name =
            fmt::format("attention_decode/{}/{}", storage == DType::kF32 ? "f32" : "bf16", c.shape);
        c.op = "attention";
        c.unit = kGbytes;
        c.target = storage == DType::kBF16 ? 0.8 : 0;
        c.quick = storage == DType::kBF16 && batch < 32 && page_size == 16;
        const std::int64_t groups = std::max<std::int64_t>(1, 8 / batch);
        const DecodeShape s{batch, 4096, 32, 8, 128, page_size, groups, storage};
        c.prepare = [s](Engines& e) { return prepare_decode(e, s); };
        cases.push_back(std::move(c));
      }
    }
  }
}

}  // namespace rlk::bench
