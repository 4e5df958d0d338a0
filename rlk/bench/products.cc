// gemm and gemm_backward_weight, beside the vendor's product of the same size.
#include <cstring>

#include <fmt/format.h>

#include "rlk/bench/calls.h"
#include "rlk/bench/data.h"
#include "rlk/ops/gemm.h"

namespace rlk::bench {
namespace {

struct Data {
  ProductShape s;
  Tensor a, c, peers_c;
  std::vector<Tensor> weights, kept;
  std::vector<PackedWeight> packed, packed_production;
  std::vector<std::vector<PeerProduct>> peer_turns;
  std::size_t turn = 0;

  ConstTensorView weight(const ConstTensorView& w) const {
    return s.input_gradient ? transposed(w) : w;
  }
  GemmArgs args(std::size_t i, const std::vector<PackedWeight>& forms) {
    GemmArgs args;
    args.c = c;
    args.a = a;
    args.b = weight(weights[i]);
    args.packed_b = &forms[i];
    args.leaf_tree = s.leaf_tree;
    args.segments = s.segments;
    return args;
  }
  std::size_t next() { return turn++ % weights.size(); }
};

DType type_for_peers(Engines& e, DType storage) {
  return e.peers_take_f32() ? DType::kF32 : storage;
}

std::shared_ptr<Data> make_data(Engines& e, const ProductShape& s) {
  auto data = std::make_shared<Data>();
  Memory& memory = e.ours.memory();
  data->s = s;
  if (s.segments[0] == 0) data->s.segments = {s.k, 0, 0};
  data->a = random_tensor(memory, s.storage, {s.m, s.k}, 1);
  data->c = Tensor(s.storage, {s.m, s.n}, memory);
  data->peers_c = Tensor(type_for_peers(e, s.storage), {s.m, s.n}, memory);
  data->weights.push_back(random_tensor(
      memory, s.storage, {s.input_gradient ? s.k : s.n, s.input_gradient ? s.n : s.k}, 2));
  const double bytes = static_cast<double>(data->weights[0].size_bytes());
  const auto turns = static_cast<std::size_t>(turns_of(s.rotated_bytes, bytes));
  data->weights.resize(turns, Tensor(data->weights[0]));
  data->packed.resize(turns);
  data->packed_production.resize(turns);
  const ConstTensorView peers_a = for_peers(e, data->a, data->kept);
  for (std::size_t i = 0; i < turns; ++i) {
    const ConstTensorView b = data->weight(data->weights[i]);
    pack_weight(e.ours, {&data->packed[i], b});
    if (e.production) pack_weight(*e.production, {&data->packed_production[i], b});
    const ConstTensorView peers_b = for_peers(e, data->weights[i], data->kept);
    data->peer_turns.push_back({{data->peers_c, peers_a, data->weight(peers_b)}});
  }
  return data;
}

// Sampled rows against sampled columns.
std::string check(Engines& e, Data& data) {
  const ProductShape& s = data.s;
  const GemmArgs args = data.args(0, data.packed);
  gemm(e.ours, args);
  e.ours.synchronize();
  const auto rows_of = [](const ConstTensorView& t, const std::vector<std::int64_t>& indices) {
    Tensor some(t.dtype, {static_cast<std::int64_t>(indices.size()), t.shape(1)});
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const Tensor row = copy_of(rows(t, indices[i], indices[i] + 1));
      std::memcpy(some.data<char>() + i * row.size_bytes(), row.data<char>(), row.size_bytes());
    }
    return some;
  };
  const std::vector<std::int64_t> ms = sampled(s.m, 12, 1), ns = sampled(s.n, 48, 2);
  const Tensor a = rows_of(args.a, ms), b = rows_of(args.b, ns);
  Tensor want(s.storage, {a.shape(0), b.shape(0)});
  GemmArgs some = args;
  some.a = a;
  some.b = b;
  some.c = want;
  some.packed_b = nullptr;
  gemm(e.reference, some);
  for (std::size_t i = 0; i < ms.size(); ++i) {
    for (std::size_t j = 0; j < ns.size(); ++j) {
      const ConstTensorView got = columns(rows(args.c, ms[i], ms[i] + 1), ns[j], ns[j] + 1);
      const auto row = static_cast<std::int64_t>(i), column = static_cast<std::int64_t>(j);
      const std::string text =
          difference("c", got, columns(rows(want.view(), row, row + 1), column, column + 1));
      if (!text.empty()) return fmt::format("row {}, column {}: {}", ms[i], ns[j], text);
    }
  }
  return "";
}

}  // namespace

Prepared prepare_product(Engines& e, const ProductShape& s) {
  auto data = make_data(e, s);
  const double work = s.reads_weights
                          ? static_cast<double>(data->weights[0].size_bytes())
                          : 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n * s.k);
  Prepared out;
  out.turns = static_cast<int>(data->weights.size());
  out.check = [&e, data] { return check(e, *data); };
  out.ours = {"", work, [&e, data] { gemm(e.ours, data->args(data->next(), data->packed)); }};
  add_production(
      e, [data](Context& ctx) { gemm(ctx, data->args(data->next(), data->packed_production)); },
      out);
  add_products(e, work, data->peer_turns, data, out);
  return out;
}

namespace {

struct GradientData {
  Tensor dy, x, dw, chain, group_ends, cu_seqlens, peers_dw;
  std::vector<Tensor> kept;
  GemmBackwardWeightArgs args() { return {dw, chain, dy, x, group_ends, cu_seqlens}; }
};

// Sampled rows of dw against sampled columns.
std::string check_gradient(Engines& e, GradientData& data) {
  data.dw.fill_zero();
  data.chain.fill_zero();
  GemmBackwardWeightArgs args = data.args();
  gemm_backward_weight(e.ours, args);
  e.ours.synchronize();
  const std::vector<std::int64_t> ns = sampled(data.dy.shape(1), 24, 1),
                                  ks = sampled(data.x.shape(1), 24, 2);
  return difference_of_weight_gradient(e, args, ns, ks);
}

}  // namespace

std::string difference_of_weight_gradient(Engines& e, const GemmBackwardWeightArgs& args,
                                          const std::vector<std::int64_t>& ns,
                                          const std::vector<std::int64_t>& ks) {
  const Tensor dy = gathered(args.dy, ns), x = gathered(args.x, ks);
  Tensor dw(DType::kF32, {dy.shape(1), x.shape(1)}), chain(dw);
  gemm_backward_weight(e.reference, {dw, chain, dy, x, args.group_ends, args.cu_seqlens});
  for (std::size_t i = 0; i < ns.size(); ++i) {
    for (std::size_t j = 0; j < ks.size(); ++j) {
      const float got = *args.dw.at<float>(ns[i], ks[j]);
      const float want =
          *dw.view().at<float>(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j));
      if (std::memcmp(&got, &want, sizeof got) != 0) {
        return fmt::format("dw[{}, {}] is {:a}, the reference has {:a}", ns[i], ks[j], got, want);
      }
    }
  }
  return "";
}

Prepared prepare_weight_gradient(Engines& e, const WeightGradientShape& s) {
  auto data = std::make_shared<GradientData>();
  Memory &memory = e.ours.memory(), &small = e.ours.small_memory();
  data->dy = random_tensor(memory, s.storage, {s.tokens, s.n}, 1);
  data->x = random_tensor(memory, s.storage, {s.tokens, s.k}, 2);
  data->dw = data->chain = Tensor(DType::kF32, {s.n, s.k}, memory);
  data->group_ends = one_group(small, s.tokens);
  const std::int64_t sample_length = s.sample_length > 0 ? s.sample_length : s.tokens;
  data->cu_seqlens = sample_offsets(small, s.tokens, sample_length);
  data->peers_dw = Tensor(type_for_peers(e, s.storage), {s.n, s.k}, memory);
  const double work = 2.0 * static_cast<double>(s.tokens) * static_cast<double>(s.n * s.k);
  Prepared out;
  out.check = [&e, data] { return check_gradient(e, *data); };
  out.ours = {"", work, [&e, data] { gemm_backward_weight(e.ours, data->args()); }};
  add_production(
      e, [data](Context& ctx) { gemm_backward_weight(ctx, data->args()); }, out);
  const ConstTensorView dy = for_peers(e, data->dy, data->kept);
  const ConstTensorView x = for_peers(e, data->x, data->kept);
  add_products(e, work, {{{data->peers_dw, transposed(dy), transposed(x)}}}, data, out);
  return out;
}

}  // namespace rlk::bench
