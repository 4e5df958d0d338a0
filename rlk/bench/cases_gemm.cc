// gemm and gemm_backward_weight against the vendor's F32 product of the same size.
#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "rlk/bench/data.h"
#include "rlk/ops/gemm.h"

namespace rlk::bench {
namespace {

enum class Form { kChain, kTree, kInputGradient };

struct Product {
  std::int64_t m, n, k;
  DType storage = DType::kBF16;
  Form form = Form::kChain;
};

const char* to_string(Form form) {
  switch (form) {
    case Form::kChain: return "chain";
    case Form::kTree: return "tree";
    case Form::kInputGradient: return "input_gradient";
  }
  return "?";
}

const char* storage_name(DType dtype) { return dtype == DType::kF32 ? "f32" : "bf16"; }

// Weights of few rows are read at memory speed: calls take turns on enough of them.
constexpr std::int64_t kRotatedBytes = std::int64_t{64} << 20;
constexpr std::int64_t kFewRows = 32;

ConstTensorView transposed(ConstTensorView t) {
  std::swap(t.layout.shape[0], t.layout.shape[1]);
  std::swap(t.layout.stride[0], t.layout.stride[1]);
  return t;
}

// The weight lies as [N, K]; for the input gradient as [K, N] and is read transposed.
struct Data {
  Product p;
  Tensor a, c, wide_a, wide_c;
  std::vector<Tensor> weights, wide_weights;
  std::vector<PackedWeight> packed, packed_production;
  std::size_t turn = 0;

  ConstTensorView b(std::size_t i) const {
    return p.form == Form::kInputGradient ? transposed(weights[i]) : weights[i].view();
  }
  GemmArgs args(std::size_t i, const std::vector<PackedWeight>& forms) {
    GemmArgs args;
    args.c = c;
    args.a = a;
    args.b = b(i);
    if (!forms.empty()) args.packed_b = &forms[i];
    args.leaf_tree = p.form != Form::kChain;
    args.segments = {p.k, 0, 0};
    return args;
  }
  std::size_t next() { return turn++ % weights.size(); }
};

std::shared_ptr<Data> make_data(Engines& e, const Product& p) {
  auto data = std::make_shared<Data>();
  data->p = p;
  data->a = random_tensor(p.storage, {p.m, p.k}, 1);
  data->c = Tensor(p.storage, {p.m, p.n});
  data->wide_a = widened(data->a);
  data->wide_c = Tensor(DType::kF32, {p.m, p.n});
  const std::int64_t weight_bytes = p.n * p.k * static_cast<std::int64_t>(size_of(p.storage));
  const std::int64_t copies =
      p.m > kFewRows ? 1 : std::clamp<std::int64_t>(kRotatedBytes / weight_bytes, 1, 16);
  const bool is_transposed = p.form == Form::kInputGradient;
  for (std::int64_t i = 0; i < copies; ++i) {
    data->weights.push_back(random_tensor(p.storage,
                                          {is_transposed ? p.k : p.n, is_transposed ? p.n : p.k},
                                          static_cast<std::uint64_t>(2 + i)));
    data->wide_weights.push_back(widened(data->weights.back()));
  }
  data->packed.resize(data->weights.size());
  data->packed_production.resize(data->weights.size());
  for (std::size_t i = 0; i < data->weights.size(); ++i) {
    pack_weight(e.ours, {&data->packed[i], data->b(i)});
    pack_weight(e.production, {&data->packed_production[i], data->b(i)});
  }
  return data;
}

// Sampled rows against sampled columns.
std::string check(Engines& e, Data& data) {
  const Product& p = data.p;
  const GemmArgs args = data.args(0, data.packed);
  gemm(e.ours, args);
  const auto rows_of = [](const ConstTensorView& t, const std::vector<std::int64_t>& indices) {
    Tensor some(t.dtype, {static_cast<std::int64_t>(indices.size()), t.shape(1)});
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const Tensor row = copy_of(rows(t, indices[i], indices[i] + 1));
      std::memcpy(some.data<char>() + i * row.size_bytes(), row.data<char>(), row.size_bytes());
    }
    return some;
  };
  const std::vector<std::int64_t> ms = sampled(p.m, 12, 1), ns = sampled(p.n, 48, 2);
  const Tensor a = rows_of(args.a, ms), b = rows_of(args.b, ns);
  Tensor want(p.storage, {a.shape(0), b.shape(0)});
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

void add_peers(Engines& e, double work, const std::function<void(const Peer&)>& call,
               std::vector<Contender>& contenders) {
  for (const Peer& peer : e.peers) {
    if (!peer.installed()) continue;
    Contender c;
    c.name = peer.library.name;
    c.work = work;
    c.call = [&peer, call] { call(peer); };
    c.enter = [&peer, threads = e.threads] { peer.set_threads(threads); };
    c.leave = [&peer] { peer.set_threads(1); };  // as the production route sets it
    contenders.push_back(std::move(c));
  }
}

Prepared prepare(Engines& e, const Product& p) {
  auto data = make_data(e, p);
  const double work = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n * p.k);
  Prepared out;
  out.check = [&e, data] { return check(e, *data); };
  out.ours = {"", work, [&e, data] { gemm(e.ours, data->args(data->next(), data->packed)); }};
  out.peers.push_back(
      {kProduction, work,
       [&e, data] { gemm(e.production, data->args(data->next(), data->packed_production)); },
       false});
  const bool is_transposed = p.form == Form::kInputGradient;
  add_peers(
      e, work,
      [data, p, is_transposed](const Peer& peer) {
        const float* w = data->wide_weights[data->next()].data<float>();
        peer.sgemm({p.m, p.n, p.k, data->wide_a.data<float>(), p.k, 1, w, is_transposed ? p.n : 1,
                    is_transposed ? 1 : p.k, data->wide_c.data<float>()});
      },
      out.peers);
  return out;
}

std::string shape_of(const Product& p) { return fmt::format("{}x{}x{}", p.m, p.n, p.k); }

Case make_case(const Product& p, bool quick) {
  Case c;
  c.shape = shape_of(p);
  c.name = fmt::format("gemm/{}/{}/{}", storage_name(p.storage), to_string(p.form), c.shape);
  c.op = "gemm";
  c.unit = kGflops;
  c.quick = quick;
  c.prepare = [p](Engines& e) { return prepare(e, p); };
  return c;
}

}  // namespace

void add_gemm_cases(Cases& cases) {
  constexpr std::array<std::array<std::int64_t, 3>, 5> kLarge{{{1024, 1024, 1024},
                                                               {512, 4096, 1024},
                                                               {512, 1024, 4096},
                                                               {2048, 2048, 2048},
                                                               {128, 1024, 4096}}};
  for (const DType storage : {DType::kBF16, DType::kF32}) {
    for (const auto& [m, n, k] : kLarge) {
      for (const Form form : {Form::kChain, Form::kTree}) {
        // gate and up are wide chains, down is a deep tree.
        const bool usual = (form == Form::kChain) == (n > k);
        const bool quick = m == 512 && (usual || storage == DType::kBF16);
        Case c = make_case({m, n, k, storage, form}, quick);
        if (m >= 512) c.target = 0.95;
        cases.push_back(std::move(c));
      }
    }
  }
  for (const std::int64_t m : {1, 2, 4, 8, 16, 32}) {
    Case c = make_case({m, 4096, 1024}, true);
    c.group = "gemm, 1 to 32 rows";
    c.group_target = 1.3;
    cases.push_back(c);
  }
  for (const std::int64_t m : {1, 8}) {
    cases.push_back(make_case({m, 4096, 1024, DType::kF32}, false));
    cases.push_back(make_case({m, 1024, 4096, DType::kBF16, Form::kTree}, false));
  }
  // What one row takes against OpenBLAS alone.
  Case c = make_case({1, 4096, 1024}, true);
  c.name = "gemm/bf16/chain/1x4096x1024/openblas";
  c.against = "openblas";
  c.target = 2.0;
  cases.push_back(c);
  // The demo's products.
  for (const auto& [m, n, k] : std::initializer_list<std::array<std::int64_t, 3>>{
           {8, 192, 64}, {1024, 192, 64}, {1024, 64, 192}}) {
    cases.push_back(make_case({m, n, k}, true));
  }
}

namespace {

struct GradientData {
  Tensor dy, x, dw, chain, group_ends, wide_dy, wide_x, wide_dw;
  GemmBackwardWeightArgs args() { return {dw, chain, dy, x, group_ends}; }
};

// Sampled rows of dw against sampled columns.
std::string check_gradient(Engines& e, GradientData& data) {
  data.dw.fill_zero();
  data.chain.fill_zero();
  gemm_backward_weight(e.ours, data.args());
  const auto gathered = [](const Tensor& t, const std::vector<std::int64_t>& indices) {
    const std::size_t size = size_of(t.dtype()), width = indices.size();
    Tensor some(t.dtype(), {t.shape(0), static_cast<std::int64_t>(width)});
    for (std::int64_t i = 0; i < t.shape(0); ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        std::memcpy(some.data<char>() + (static_cast<std::size_t>(i) * width + j) * size,
                    t.data<char>() + static_cast<std::size_t>(i * t.shape(1) + indices[j]) * size,
                    size);
      }
    }
    return some;
  };
  const std::vector<std::int64_t> ns = sampled(data.dy.shape(1), 24, 1),
                                  ks = sampled(data.x.shape(1), 24, 2);
  const Tensor dy = gathered(data.dy, ns), x = gathered(data.x, ks);
  Tensor dw(DType::kF32, {dy.shape(1), x.shape(1)}), chain(DType::kF32, {dy.shape(1), x.shape(1)});
  gemm_backward_weight(e.reference, {dw, chain, dy, x, data.group_ends});
  for (std::size_t i = 0; i < ns.size(); ++i) {
    for (std::size_t j = 0; j < ks.size(); ++j) {
      const float got = *data.dw.view().at<float>(ns[i], ks[j]);
      const float want =
          *dw.view().at<float>(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j));
      if (std::memcmp(&got, &want, sizeof got) != 0) {
        return fmt::format("dw[{}, {}] is {:a}, the reference has {:a}", ns[i], ks[j], got, want);
      }
    }
  }
  return "";
}

Prepared prepare_gradient(Engines& e, std::int64_t tokens, std::int64_t n, std::int64_t k,
                          DType storage) {
  auto data = std::make_shared<GradientData>();
  data->dy = random_tensor(storage, {tokens, n}, 1);
  data->x = random_tensor(storage, {tokens, k}, 2);
  data->dw = Tensor(DType::kF32, {n, k});
  data->chain = Tensor(DType::kF32, {n, k});
  data->group_ends = Tensor(DType::kI64, {1});
  data->group_ends.data<std::int64_t>()[0] = tokens;
  data->wide_dy = widened(data->dy);
  data->wide_x = widened(data->x);
  data->wide_dw = Tensor(DType::kF32, {n, k});
  const double work = 2.0 * static_cast<double>(tokens) * static_cast<double>(n * k);
  Prepared out;
  out.check = [&e, data] { return check_gradient(e, *data); };
  out.ours = {"", work, [&e, data] { gemm_backward_weight(e.ours, data->args()); }};
  out.peers.push_back(
      {kProduction, work, [&e, data] { gemm_backward_weight(e.production, data->args()); }, false});
  add_peers(
      e, work,
      [data, tokens, n, k](const Peer& peer) {
        peer.sgemm({n, k, tokens, data->wide_dy.data<float>(), 1, n, data->wide_x.data<float>(), k,
                    1, data->wide_dw.data<float>()});
      },
      out.peers);
  return out;
}

}  // namespace

void add_gradient_gemm_cases(Cases& cases) {
  constexpr std::array<std::array<std::int64_t, 3>, 3> kShapes{
      {{1024, 1024, 1024}, {512, 4096, 1024}, {512, 1024, 4096}}};
  for (const DType storage : {DType::kBF16, DType::kF32}) {
    for (const auto& shape : kShapes) {
      const std::int64_t tokens = shape[0], n = shape[1], k = shape[2];
      const bool quick = storage == DType::kBF16 && n == k;
      cases.push_back(make_case({tokens, k, n, storage, Form::kInputGradient}, quick));
      Case c;
      c.shape = fmt::format("{}x{}x{}", tokens, n, k);
      c.name = fmt::format("gemm_backward_weight/{}/{}", storage_name(storage), c.shape);
      c.op = "gemm_backward_weight";
      c.unit = kGflops;
      c.quick = quick;
      c.prepare = [=](Engines& e) { return prepare_gradient(e, tokens, n, k, storage); };
      cases.push_back(std::move(c));
    }
  }
}

}  // namespace rlk::bench
