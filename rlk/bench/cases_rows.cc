// Row by row operators against memcpy of as many bytes as they read and write.
#include <fmt/format.h>

#include "rlk/bench/calls.h"
#include "rlk/bench/data.h"
#include "rlk/ops/residual_add.h"
#include "rlk/ops/rms_norm.h"
#include "rlk/ops/rope.h"
#include "rlk/ops/swiglu.h"

namespace rlk::bench {
namespace {

constexpr float kEps = 1e-6f;

// The ways to run one call, whose data has copies that take turns, and the memory loop of `bytes`
// beside it.
template <typename Data, typename Args>
Prepared rows_prepared(Engines& e, const RowShape& s, std::shared_ptr<Data> data, Operator<Args> op,
                       double bytes, std::function<std::string()> check) {
  auto copies = std::make_shared<std::vector<std::shared_ptr<Data>>>();
  copies->push_back(data);
  for (std::int64_t i = 1; i < turns_of(s.rotated_bytes, bytes); ++i) {
    copies->push_back(std::make_shared<Data>(*data));
  }
  auto turn = std::make_shared<std::size_t>(0);
  const auto run = [copies, turn, op](Context& ctx) {
    op(ctx, (*copies)[(*turn)++ % copies->size()]->args());
  };
  Prepared out;
  out.turns = static_cast<int>(copies->size());
  out.check = std::move(check);
  out.ours = {"", bytes, [&e, run] { run(e.ours); }};
  out.peers.push_back(copy_loop(e, bytes));
  add_production(e, run, out);
  return out;
}

TensorView part(const TensorView& t, std::int64_t i) { return rows(t, i, i + 1); }
ConstTensorView part(const ConstTensorView& t, std::int64_t i) { return rows(t, i, i + 1); }

struct Norm {
  Tensor y, q, x, w, dy, dx;
  RmsNormArgs args() { return {y, q, x, w, kEps}; }
};

std::shared_ptr<Norm> make_norm(Engines& e, const RowShape& s) {
  auto data = std::make_shared<Norm>();
  data->x = random_tensor(e.ours.memory(), s.storage, {s.tokens, s.heads, s.n}, 1);
  data->w = random_tensor(e.ours.memory(), s.storage, {s.n}, 2);
  data->y = Tensor(s.storage, {s.tokens, s.heads, s.n}, e.ours.memory());
  data->q = Tensor(DType::kF32, {s.tokens, s.heads}, e.ours.memory());
  return data;
}

}  // namespace

Prepared prepare_rms_norm(Engines& e, const RowShape& s) {
  auto data = make_norm(e, s);
  return rows_prepared(e, s, data, &rms_norm, 2 * s.bytes(), [&e, data, s] {
    const RmsNormArgs a = data->args();
    return check_parts(e, &rms_norm, a, s.tokens, [a](std::int64_t i) {
      return RmsNormArgs{part(a.y, i), part(a.q, i), part(a.x, i), a.w, kEps};
    });
  });
}

namespace {

// The norm of a sum, which is kept: how the model adds what a block gives to its stream.
Prepared norm_residual(Engines& e, const RowShape& s) {
  struct Data : Norm {
    Tensor r, sum;
  };
  auto data = std::make_shared<Data>();
  static_cast<Norm&>(*data) = std::move(*make_norm(e, s));
  data->r = random_tensor(e.ours.memory(), s.storage, {s.tokens, s.n}, 3);
  data->sum = Tensor(s.storage, {s.tokens, s.n}, e.ours.memory());
  const auto run = [data](Context& ctx) {
    rms_norm(ctx, {data->y, data->q, data->x, data->w, kEps, split_heads(data->r.view(), 1),
                   split_heads(data->sum.view(), 1)});
  };
  const double bytes = 4 * s.bytes();  // two in, two out: the sum and the norm
  Prepared out;
  out.check = [&e, data, run]() -> std::string {
    run(e.ours);
    e.ours.synchronize();
    const Tensor sum = data->sum, y = data->y;
    run(e.reference);
    std::string text = difference("sum", sum, data->sum);
    return text.empty() ? difference("y", y, data->y) : text;
  };
  out.ours = {"", bytes, [&e, run] { run(e.ours); }};
  out.peers.push_back(copy_loop(e, bytes));
  add_production(e, run, out);
  return out;
}

Prepared norm_backward(Engines& e, const RowShape& s) {
  struct Data : Norm {
    Tensor dy, dx;
    RmsNormBackwardArgs args() { return {dx, dy, x, w, q}; }
  };
  auto data = std::make_shared<Data>();
  static_cast<Norm&>(*data) = std::move(*make_norm(e, s));
  rms_norm(e.ours, {data->y, data->q, data->x, data->w, kEps});
  data->dy = random_tensor(e.ours.memory(), s.storage, {s.tokens, s.heads, s.n}, 3);
  data->dx = Tensor(s.storage, {s.tokens, s.heads, s.n}, e.ours.memory());
  return rows_prepared(e, s, data, &rms_norm_backward, 3 * s.bytes(), [&e, data, s] {
    const RmsNormBackwardArgs a = data->args();
    return check_parts(e, &rms_norm_backward, a, s.tokens, [a](std::int64_t i) {
      return RmsNormBackwardArgs{part(a.dx, i), part(a.dy, i), part(a.x, i), a.w, part(a.q, i)};
    });
  });
}

Prepared norm_backward_weight(Engines& e, const RowShape& s) {
  struct Data : Norm {
    Tensor dw, cu;
    RmsNormBackwardWeightArgs args() { return {dw, x, x, q, cu}; }
  };
  auto data = std::make_shared<Data>();
  static_cast<Norm&>(*data) = std::move(*make_norm(e, s));
  rms_norm(e.ours, {data->y, data->q, data->x, data->w, kEps});
  data->dw = Tensor(DType::kF32, {s.heads, s.n}, e.ours.memory());
  data->cu = offsets(e.ours.small_memory(), 17, s.tokens / 16);
  return rows_prepared(e, s, data, &rms_norm_backward_weight, 2 * s.bytes(), [&e, data] {
    return check_all(e, &rms_norm_backward_weight, data->args());
  });
}

Prepared rotate(Engines& e, const RowShape& s, bool backward) {
  struct Data {
    Tensor y, x, cos, sin, positions;
    RopeArgs args() { return {y, x, cos, sin, positions}; }
  };
  auto data = std::make_shared<Data>();
  data->x = random_tensor(e.ours.memory(), s.storage, {s.tokens, s.heads, s.n}, 1);
  data->y = Tensor(s.storage, {s.tokens, s.heads, s.n}, e.ours.memory());
  data->cos = random_tensor(e.ours.memory(), DType::kF32, {s.tokens, s.n / 2}, 2);
  data->sin = random_tensor(e.ours.memory(), DType::kF32, {s.tokens, s.n / 2}, 3);
  data->positions = offsets(e.ours.small_memory(), s.tokens, 1);
  const Operator<RopeArgs> op = backward ? &rope_backward : &rope;
  const double bytes = 2 * s.bytes() + 4.0 * static_cast<double>(s.tokens * s.n);
  return rows_prepared(e, s, data, op, bytes, [&e, data, s, op] {
    const RopeArgs a = data->args();
    return check_parts(e, op, a, s.tokens, [a](std::int64_t i) {
      return RopeArgs{part(a.y, i), part(a.x, i), a.cos, a.sin, part(a.positions, i)};
    });
  });
}

}  // namespace

Prepared prepare_rope(Engines& e, const RowShape& s) { return rotate(e, s, false); }

namespace {

struct Gate {
  Tensor y, g, u, dy, dg, du;
  SwigluArgs args() { return {y, g, u}; }
};

std::shared_ptr<Gate> make_gate(Engines& e, const RowShape& s) {
  auto data = std::make_shared<Gate>();
  const auto random = [&](std::uint64_t seed) {
    return random_tensor(e.ours.memory(), s.storage, {s.tokens, s.n}, seed, 4);
  };
  data->g = random(1);
  data->u = random(2);
  data->dy = random(3);
  data->y = data->dg = data->du = Tensor(s.storage, {s.tokens, s.n}, e.ours.memory());
  return data;
}

}  // namespace

Prepared prepare_swiglu(Engines& e, const RowShape& s) {
  auto data = make_gate(e, s);
  return rows_prepared(e, s, data, &swiglu, 3 * s.bytes(), [&e, data, s] {
    const SwigluArgs a = data->args();
    return check_parts(e, &swiglu, a, s.tokens, [a](std::int64_t i) {
      return SwigluArgs{part(a.y, i), part(a.g, i), part(a.u, i)};
    });
  });
}

namespace {

Prepared gate_backward(Engines& e, const RowShape& s) {
  struct Data : Gate {
    SwigluBackwardArgs args() { return {dg, du, dy, g, u}; }
  };
  auto data = std::make_shared<Data>();
  static_cast<Gate&>(*data) = std::move(*make_gate(e, s));
  return rows_prepared(e, s, data, &swiglu_backward, 5 * s.bytes(), [&e, data, s] {
    const SwigluBackwardArgs a = data->args();
    return check_parts(e, &swiglu_backward, a, s.tokens, [a](std::int64_t i) {
      return SwigluBackwardArgs{part(a.dg, i), part(a.du, i), part(a.dy, i), part(a.g, i),
                                part(a.u, i)};
    });
  });
}

Prepared add(Engines& e, const RowShape& s) {
  struct Data {
    Tensor y, a, b;
    ResidualAddArgs args() { return {y, a, b}; }
  };
  auto data = std::make_shared<Data>();
  data->a = random_tensor(e.ours.memory(), s.storage, {s.tokens, s.n}, 1);
  data->b = random_tensor(e.ours.memory(), s.storage, {s.tokens, s.n}, 2);
  data->y = Tensor(s.storage, {s.tokens, s.n}, e.ours.memory());
  return rows_prepared(e, s, data, &residual_add, 3 * s.bytes(), [&e, data, s] {
    const ResidualAddArgs a = data->args();
    return check_parts(e, &residual_add, a, s.tokens, [a](std::int64_t i) {
      return ResidualAddArgs{part(a.y, i), part(a.a, i), part(a.b, i)};
    });
  });
}

}  // namespace

void add_row_cases(Cases& cases) {
  struct Row {
    const char* op;
    const char* form;  // names the case beside its operator
    std::int64_t tokens, heads, n;
    double target;
    bool quick;
    Prepared (*prepare)(Engines&, const RowShape&);
  };
  const auto backward_rope = [](Engines& e, const RowShape& s) { return rotate(e, s, true); };
  const Row kRows[] = {
      {"rms_norm", "", 4096, 1, 4096, 0.8, true, prepare_rms_norm},
      {"rms_norm", "/residual", 4096, 1, 4096, 0.8, true, norm_residual},
      {"rms_norm", "/heads", 4096, 32, 128, 0.8, true, prepare_rms_norm},
      {"rope", "", 4096, 32, 128, 0.8, true, prepare_rope},
      {"swiglu", "", 4096, 1, 4096, 0.8, true, prepare_swiglu},
      {"residual_add", "", 4096, 1, 4096, 0, false, add},
      {"rms_norm_backward", "", 4096, 1, 4096, 0, false, norm_backward},
      {"rms_norm_backward", "/heads", 4096, 32, 128, 0, false, norm_backward},
      {"rms_norm_backward_weight", "", 4096, 1, 4096, 0, false, norm_backward_weight},
      {"rope_backward", "", 4096, 32, 128, 0, false, backward_rope},
      {"swiglu_backward", "", 4096, 1, 4096, 0, true, gate_backward},
  };
  for (const DType storage : {DType::kBF16, DType::kF32}) {
    for (const Row& r : kRows) {
      Case c;
      c.shape = r.heads == 1 ? fmt::format("{}x{}", r.tokens, r.n)
                             : fmt::format("{}x{}x{}", r.tokens, r.heads, r.n);
      c.name =
          fmt::format("{}/{}{}/{}", r.op, storage == DType::kF32 ? "f32" : "bf16", r.form, c.shape);
      c.op = r.op;
      c.unit = kGbytes;
      c.target = r.target;
      c.quick = r.quick && storage == DType::kBF16;
      const RowShape shape{r.tokens, r.heads, r.n, storage};
      c.prepare = [prepare = r.prepare, shape](Engines& e) { return prepare(e, shape); };
      cases.push_back(std::move(c));
    }
  }
}

}  // namespace rlk::bench
