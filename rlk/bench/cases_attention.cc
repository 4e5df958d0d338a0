// attention against our own product (prefill and backward) and against reading KV (decode).
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "rlk/bench/data.h"
#include "rlk/ops/attention.h"

namespace rlk::bench {
namespace {

struct Shape {
  std::int64_t length, heads, kv_heads, d;
  DType storage = DType::kBF16;
  std::string text() const {
    return fmt::format("S{}xH{}xG{}xd{}", length, heads, heads / kv_heads, d);
  }
  double visible_pairs() const { return 0.5 * static_cast<double>(heads * length * (length + 1)); }
};

// One packed sequence.
struct Data {
  Shape s;
  Tensor q, k, v, dy, y, lse, dq, dk, dv, kv_start, cu_seqlens, kv_lens;

  explicit Data(const Shape& shape)
      : s(shape),
        q(random_tensor(s.storage, {s.length, s.heads, s.d}, 1, 2)),
        k(random_tensor(s.storage, {s.length, s.kv_heads, s.d}, 2, 2)),
        v(random_tensor(s.storage, {s.length, s.kv_heads, s.d}, 3)),
        dy(random_tensor(s.storage, {s.length, s.heads, s.d}, 4)),
        y(s.storage, {s.length, s.heads, s.d}),
        lse(DType::kF32, {s.length, s.heads}),
        dq(y),
        dk(s.storage, {s.length, s.kv_heads, s.d}),
        dv(dk),
        kv_start(offsets(1, 0)),
        cu_seqlens(offsets(2, s.length)),
        kv_lens(filled(1, s.length)) {}

  AttentionArgs forward() { return {y, lse, q, {k, v, {}, kv_start, 0}, cu_seqlens, kv_lens}; }
  AttentionBackwardArgs backward() { return {dq, dk, dv, dy, y, q, k, v, lse, cu_seqlens}; }
};

// The call for one query at `position` of one head, as a decode step.
std::string check_query(Engines& e, AttentionArgs a, std::int64_t sequence, std::int64_t row,
                        std::int64_t position, std::int64_t head) {
  const std::int64_t kv_head = head * a.kv.k.shape(1) / a.q.shape(1);
  const Tensor cu = offsets(2, 1), lens = filled(1, position + 1);
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
  const std::int64_t group = data.s.heads / data.s.kv_heads, kv_head = data.s.kv_heads - 1;
  const std::int64_t head = kv_head * group;
  const Tensor cu = offsets(2, n);
  const auto queries = [&](const auto& t) { return heads(rows(t, 0, n), head, head + group); };
  const auto keys = [&](const auto& t) { return heads(rows(t, 0, n), kv_head, kv_head + 1); };
  const Tensor lse = copy_of(columns(rows(a.lse, 0, n), head, head + group));
  const AttentionBackwardArgs some{
      queries(a.dq), keys(a.dk), keys(a.dv), queries(a.dy), queries(a.y),
      queries(a.q),  keys(a.k),  keys(a.v),  lse,           cu};
  std::string text = compare_outputs(e.reference, &attention_backward, some, outputs_of(some));
  if (!text.empty() || n == data.s.length) return text;
  const Tensor zeros(data.s.storage, {data.s.length - n, data.s.kv_heads, data.s.d});
  text = difference("dk behind them", rows(a.dk, n, data.s.length), zeros);
  return text.empty() ? difference("dv behind them", rows(a.dv, n, data.s.length), zeros) : text;
}

Prepared prepare(Engines& e, const Shape& s, bool backward) {
  auto data = std::make_shared<Data>(s);
  if (backward) attention(e.ours, data->forward());
  const auto run = [data, backward](Context& ctx) {
    backward ? attention_backward(ctx, data->backward()) : attention(ctx, data->forward());
  };
  const double work = (backward ? 10 : 4) * static_cast<double>(s.d) * s.visible_pairs();
  Prepared out;
  out.check = [&e, data, backward] {
    return backward ? check_backward(e, *data) : check_forward(e, *data);
  };
  out.ours = {"", work, [&e, run] { run(e.ours); }};
  out.peers.push_back(own_product(e, s.storage));
  out.peers.push_back({kProduction, work, [&e, run] { run(e.production); }, false});
  return out;
}

// Scratch memory at two lengths, each in a context of its own. The ratio is 1 where it grows as the
// length does, and 0.5 where it grows with its square.
Prepared peak_memory(Engines& e) {
  Prepared out;
  const auto peak = [&e](std::int64_t length, std::string* text) {
    Data data({length, 2, 1, 64});
    Engines fresh(&e.ours.contract_table(), e.threads, e.peers, e.quick);
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

void add_attention_cases(Cases& cases) {
  for (const bool backward : {false, true}) {
    for (const DType storage : {DType::kBF16, DType::kF32}) {
      for (const std::int64_t length : {1024, 4096}) {
        for (const std::int64_t d : {64, 128}) {
          const Shape s{length, 8, 2, d, storage};
          Case c;
          c.op = backward ? "attention_backward" : "attention";
          c.shape = s.text();
          c.name = fmt::format("{}/{}/{}", c.op, storage == DType::kF32 ? "f32" : "bf16", c.shape);
          c.unit = kGflops;
          c.target = storage == DType::kBF16 ? 0.85 : 0;
          c.quick = storage == DType::kBF16 && length == 1024;
          c.prepare = [=](Engines& e) { return prepare(e, s, backward); };
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

// Sequences of equal length over pages in random order. Calls take turns on groups of `batch`
// sequences, so that none finds its keys in a cache.
struct DecodeData {
  std::int64_t batch, length, heads, kv_heads, d, page_size, groups;
  Tensor q, y, k, v, table, cu_seqlens, kv_lens;
  std::size_t turn = 0;

  AttentionArgs args(std::int64_t group) {
    return {
        y,          {},
        q,          {k, v, rows(table.view(), group * batch, (group + 1) * batch), {}, page_size},
        cu_seqlens, kv_lens};
  }
  std::int64_t next() { return static_cast<std::int64_t>(turn++) % groups; }
};

std::shared_ptr<DecodeData> make_decode(std::int64_t batch, std::int64_t page_size, DType storage) {
  auto data = std::make_shared<DecodeData>();
  *data = {batch, 4096, 32, 8,  128, page_size, std::max<std::int64_t>(1, 8 / batch),
           {},    {},   {}, {}, {},  {},        {}};
  DecodeData& x = *data;
  const std::int64_t sequences = batch * x.groups, pages = x.length / page_size;
  x.q = random_tensor(storage, {batch, x.heads, x.d}, 1, 2);
  x.y = Tensor(storage, {batch, x.heads, x.d});
  x.k = random_tensor(storage, {sequences * x.length, x.kv_heads, x.d}, 2, 2);
  x.v = random_tensor(storage, {sequences * x.length, x.kv_heads, x.d}, 3);
  x.table = Tensor(DType::kI32, {sequences, pages});
  auto* ids = x.table.data<std::int32_t>();
  std::iota(ids, ids + x.table.size(), 0);
  const std::vector<std::int64_t> order = sampled(x.table.size(), x.table.size() - 1, 7);
  for (std::size_t i = 0; i < order.size(); ++i) std::swap(ids[i], ids[order[i]]);
  x.cu_seqlens = offsets(batch + 1, 1);
  x.kv_lens = filled(batch, x.length);
  return data;
}

Prepared decode(Engines& e, std::int64_t batch, std::int64_t page_size, DType storage) {
  auto data = make_decode(batch, page_size, storage);
  // A group's share of k and of v, one behind the other: the bytes of one call.
  std::vector<ConstTensorView> regions;
  const std::int64_t share = batch * data->length;
  for (std::int64_t g = 0; g < data->groups; ++g) {
    regions.push_back(rows(data->k.view(), g * share, (g + 1) * share));
    regions.push_back(rows(data->v.view(), g * share, (g + 1) * share));
  }
  Contender stream = read_stream(e, regions);
  const double work = 2 * stream.work;
  Prepared out;
  out.check = [&e, data]() -> std::string {
    const AttentionArgs a = data->args(0);
    attention(e.ours, a);
    for (const std::int64_t i : sampled(data->batch * data->heads, 8, 3)) {
      const std::int64_t sequence = i / data->heads;
      const std::string text =
          check_query(e, a, sequence, sequence, data->length - 1, i % data->heads);
      if (!text.empty()) return text;
    }
    return "";
  };
  out.ours = {"", work, [&e, data] { attention(e.ours, data->args(data->next())); }};
  out.peers.push_back(std::move(stream));
  out.peers.push_back({kProduction, work,
                       [&e, data] { attention(e.production, data->args(data->next())); }, false});
  return out;
}

}  // namespace

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
        c.prepare = [=](Engines& e) { return decode(e, batch, page_size, storage); };
        cases.push_back(std::move(c));
      }
    }
  }
}

}  // namespace rlk::bench
