// Row by row operators against memcpy of as many bytes as they read and write.
#include <fmt/format.h>

#include "rlk/bench/data.h"
#include "rlk/ops/residual_add.h"
#include "rlk/ops/rms_norm.h"
#include "rlk/ops/rope.h"
#include "rlk/ops/swiglu.h"

namespace rlk::bench {
namespace {

constexpr float kEps = 1e-6f;

// The three ways to run one call, and the memory loop of `bytes` beside it.
template <typename Data, typename Args>
Prepared rows_prepared(Engines& e, std::shared_ptr<Data> data, Operator<Args> op, double bytes,
                       std::function<std::string()> check) {
  Prepared out;
  out.check = std::move(check);
  out.ours = {"", bytes, [&e, data, op] { op(e.ours, data->args()); }};
  out.peers.push_back(copy_loop(e, bytes));
  out.peers.push_back(
      {kProduction, bytes, [&e, data, op] { op(e.production, data->args()); }, false});
  return out;
}

struct Shape {
  std::int64_t tokens, heads, n;
  DType storage;
  double elements() const { return static_cast<double>(tokens * heads * n); }
  double bytes() const { return elements() * static_cast<double>(size_of(storage)); }
};

TensorView part(const TensorView& t, std::int64_t i) { return rows(t, i, i + 1); }
ConstTensorView part(const ConstTensorView& t, std::int64_t i) { return rows(t, i, i + 1); }

struct Norm {
  Tensor y, q, x, w, dy, dx;
  RmsNormArgs args() { return {y, q, x, w, kEps}; }
};

std::shared_ptr<Norm> make_norm(const Shape& s) {
  auto data = std::make_shared<Norm>();
  data->x = random_tensor(s.storage, {s.tokens, s.heads, s.n}, 1);
  data->w = random_tensor(s.storage, {s.n}, 2);
  data->y = Tensor(s.storage, {s.tokens, s.heads, s.n});
  data->q = Tensor(DType::kF32, {s.tokens, s.heads});
  return data;
}

Prepared norm(Engines& e, const Shape& s) {
  auto data = make_norm(s);
  return rows_prepared(e, data, &rms_norm, 2 * s.bytes(), [&e, data, s] {
    const RmsNormArgs a = data->args();
    return check_parts(e, &rms_norm, a, s.tokens, [a](std::int64_t i) {
      return RmsNormArgs{part(a.y, i), part(a.q, i), part(a.x, i), a.w, kEps};
    });
  });
}

// residual_add, then the norm of what it wrote: how the model runs them.
Prepared norm_residual(Engines& e, const Shape& s) {
  struct Data : Norm {
    Tensor r, sum;
  };
  auto data = std::make_shared<Data>();
  static_cast<Norm&>(*data) = std::move(*make_norm(s));
  data->r = random_tensor(s.storage, {s.tokens, s.n}, 3);
  data->sum = Tensor(s.storage, {s.tokens, s.n});
  const auto run = [data, s](Context& ctx) {
    const auto flat = [&](TensorView t) {
      t.layout = Layout{s.tokens, s.n};
      return t;
    };
    residual_add(ctx, {data->sum, data->r, flat(data->x)});
    rms_norm(ctx, {data->y, data->q, split_heads(data->sum.view(), 1), data->w, kEps});
  };
  const double bytes = 5 * s.bytes();  // reads 3, writes 2: the sum and the norm
  Prepared out;
  out.check = [&e, data, run]() -> std::string {
    run(e.ours);
    const Tensor sum = data->sum, y = data->y;
    run(e.reference);
    std::string text = difference("sum", sum, data->sum);
    return text.empty() ? difference("y", y, data->y) : text;
  };
  out.ours = {"", bytes, [&e, run] { run(e.ours); }};
  out.peers.push_back(copy_loop(e, bytes));
  out.peers.push_back({kProduction, bytes, [&e, run] { run(e.production); }, false});
  return out;
}

Prepared norm_backward(Engines& e, const Shape& s) {
  struct Data : Norm {
    Tensor dy, dx;
    RmsNormBackwardArgs args() { return {dx, dy, x, w, q}; }
  };
  auto data = std::make_shared<Data>();
  static_cast<Norm&>(*data) = std::move(*make_norm(s));
  rms_norm(e.ours, {data->y, data->q, data->x, data->w, kEps});
  data->dy = random_tensor(s.storage, {s.tokens, s.heads, s.n}, 3);
  data->dx = Tensor(s.storage, {s.tokens, s.heads, s.n});
  return rows_prepared(e, data, &rms_norm_backward, 3 * s.bytes(), [&e, data, s] {
    const RmsNormBackwardArgs a = data->args();
    return check_parts(e, &rms_norm_backward, a, s.tokens, [a](std::int64_t i) {
      return RmsNormBackwardArgs{part(a.dx, i), part(a.dy, i), part(a.x, i), a.w, part(a.q, i)};
    });
  });
}

Prepared norm_backward_weight(Engines& e, const Shape& s) {
  struct Data : Norm {
    Tensor dw, cu;
    RmsNormBackwardWeightArgs args() { return {dw, x, x, q, cu}; }
  };
  auto data = std::make_shared<Data>();
  static_cast<Norm&>(*data) = std::move(*make_norm(s));
  rms_norm(e.ours, {data->y, data->q, data->x, data->w, kEps});
  data->dw = Tensor(DType::kF32, {s.heads, s.n});
  data->cu = offsets(17, s.tokens / 16);
  return rows_prepared(e, data, &rms_norm_backward_weight, 2 * s.bytes(), [&e, data] {
    return check_all(e, &rms_norm_backward_weight, data->args());
  });
}

Prepared rotate(Engines& e, const Shape& s, bool backward) {
  struct Data {
    Tensor y, x, cos, sin, positions;
    RopeArgs args() { return {y, x, cos, sin, positions}; }
  };
  auto data = std::make_shared<Data>();
  data->x = random_tensor(s.storage, {s.tokens, s.heads, s.n}, 1);
  data->y = Tensor(s.storage, {s.tokens, s.heads, s.n});
  data->cos = random_tensor(DType::kF32, {s.tokens, s.n / 2}, 2);
  data->sin = random_tensor(DType::kF32, {s.tokens, s.n / 2}, 3);
  data->positions = offsets(s.tokens, 1);
  const Operator<RopeArgs> op = backward ? &rope_backward : &rope;
  const double bytes = 2 * s.bytes() + 4.0 * static_cast<double>(s.tokens * s.n);
  return rows_prepared(e, data, op, bytes, [&e, data, s, op] {
    const RopeArgs a = data->args();
    return check_parts(e, op, a, s.tokens, [a](std::int64_t i) {
      return RopeArgs{part(a.y, i), part(a.x, i), a.cos, a.sin, part(a.positions, i)};
    });
  });
}

struct Gate {
  Tensor y, g, u, dy, dg, du;
  SwigluArgs args() { return {y, g, u}; }
};

std::shared_ptr<Gate> make_gate(const Shape& s) {
  auto data = std::make_shared<Gate>();
  const auto random = [&](std::uint64_t seed) {
    return random_tensor(s.storage, {s.tokens, s.n}, seed, 4);
  };
  data->g = random(1);
  data->u = random(2);
  data->dy = random(3);
  data->y = data->dg = data->du = Tensor(s.storage, {s.tokens, s.n});
  return data;
}

Prepared gate(Engines& e, const Shape& s) {
  auto data = make_gate(s);
  return rows_prepared(e, data, &swiglu, 3 * s.bytes(), [&e, data, s] {
    const SwigluArgs a = data->args();
    return check_parts(e, &swiglu, a, s.tokens, [a](std::int64_t i) {
      return SwigluArgs{part(a.y, i), part(a.g, i), part(a.u, i)};
    });
  });
}

Prepared gate_backward(Engines& e, const Shape& s) {
  struct Data : Gate {
    SwigluBackwardArgs args() { return {dg, du, dy, g, u}; }
  };
  auto data = std::make_shared<Data>();
  static_cast<Gate&>(*data) = std::move(*make_gate(s));
  return rows_prepared(e, data, &swiglu_backward, 5 * s.bytes(), [&e, data, s] {
    const SwigluBackwardArgs a = data->args();
    return check_parts(e, &swiglu_backward, a, s.tokens, [a](std::int64_t i) {
      return SwigluBackwardArgs{part(a.dg, i), part(a.du, i), part(a.dy, i), part(a.g, i),
                                part(a.u, i)};
    });
  });
}

Prepared add(Engines& e, const Shape& s) {
  struct Data {
    Tensor y, a, b;
    ResidualAddArgs args() { return {y, a, b}; }
  };
  auto data = std::make_shared<Data>();
  data->a = random_tensor(s.storage, {s.tokens, s.n}, 1);
  data->b = random_tensor(s.storage, {s.tokens, s.n}, 2);
  data->y = Tensor(s.storage, {s.tokens, s.n});
  return rows_prepared(e, data, &residual_add, 3 * s.bytes(), [&e, data, s] {
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
    Prepared (*prepare)(Engines&, const Shape&);
  };
  const auto forward_rope = [](Engines& e, const Shape& s) { return rotate(e, s, false); };
  const auto backward_rope = [](Engines& e, const Shape& s) { return rotate(e, s, true); };
  const Row kRows[] = {
      {"rms_norm", "", 4096, 1, 4096, 0.8, true, norm},
      {"rms_norm", "/residual", 4096, 1, 4096, 0.8, true, norm_residual},
      {"rms_norm", "/heads", 4096, 32, 128, 0.8, true, norm},
      {"rope", "", 4096, 32, 128, 0.8, true, forward_rope},
      {"swiglu", "", 4096, 1, 4096, 0.8, true, gate},
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
      const Shape shape{r.tokens, r.heads, r.n, storage};
      c.prepare = [prepare = r.prepare, shape](Engines& e) { return prepare(e, shape); };
      cases.push_back(std::move(c));
    }
  }
}

}  // namespace rlk::bench
