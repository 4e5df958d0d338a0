// Conformance vectors of the loss and the optimizer.
#include <cmath>
#include <limits>

#include "rlk/verify/conform_vectors.h"

namespace rlk::conformance {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr std::int64_t kSizes[] = {0, 1, 15, 16, 17, 31, 67, 129};
constexpr const char* kKlNames[] = {"none", "k1", "k2", "k3"};

// Log-probabilities near each other, as of one policy a few steps apart, and some far apart.
TensorView logprobs(Memory& memory, std::int64_t n, const TensorView* near) {
  const TensorView t = memory.random(kF32, {n}, Family::kNormal);
  for (std::int64_t i = 0; i < n; ++i) {
    float& x = t.at<float>()[i];
    if (!near) {
      x = -std::fabs(x) * 3.0f;
    } else {
      x = near->at<float>()[i] + x * (i % 7 == 3 ? 40.0f : i % 7 == 5 ? 0.0f : 0.2f);
    }
  }
  return t;
}

void run_loss(Trial& trial, std::int64_t n, Kl kl, Family advantages, std::int64_t i) {
  Memory memory(static_cast<std::uint64_t>(5000 + i));
  GrpoLossArgs args;
  const TensorView logp = logprobs(memory, n, nullptr);
  const TensorView old = logprobs(memory, n, &logp);
  args.logp = logp;
  args.old = old;
  if (kl != Kl::kNone) args.ref = logprobs(memory, n, &logp);
  args.advantage = memory.random(kF32, {n}, advantages);
  const TensorView weight = memory.random(kF32, {n}, Family::kNormal);
  for (std::int64_t t = 0; t < n; ++t) {
    weight.at<float>()[t] = t % 5 == 4 ? 0.0f : 1.0f / 37.0f;
    // What masked tokens hold is not looked at.
    if (t % 5 == 4) logp.at<float>()[t] = std::numeric_limits<float>::quiet_NaN();
  }
  args.weight = weight;
  args.g = memory.unwritten(kF32, {n});
  if (i % 3 != 1) args.pg_loss = memory.unwritten(kF32, {n});
  if (i % 3 != 2) args.kl = memory.unwritten(kF32, {n});
  if (i % 2 == 0) args.ratio = memory.unwritten(kF32, {n});
  args.beta = kl == Kl::kNone ? 0.0f : 0.04f;
  args.hi = i % 2 ? 1.2f : 1.28f;
  args.kl_type = kl;
  trial.run(fmt::format("{} tokens, kl {}, advantages {}, variant {}", n,
                        kKlNames[static_cast<int>(kl)], to_string(advantages), i),
            &KernelTable::grpo_loss, args, memory);
}

}  // namespace

void grpo_loss_vectors(Trial& trial) {
  std::int64_t i = 0;
  for (const Kl kl : {Kl::kNone, Kl::kK1, Kl::kK2, Kl::kK3}) {
    for (const std::int64_t n : kSizes) {
      run_loss(trial, n, kl, Family::kNormal, i);
      ++i;
    }
    for (int f = 0; f < 8; ++f) run_loss(trial, 67, kl, family_of(f), i++);
  }
  for (const float far : {100.0f, -100.0f, 1000.0f, std::numeric_limits<float>::quiet_NaN()}) {
    Memory memory(1);
    GrpoLossArgs args;
    args.logp = memory.f32({-1, -1, far - 1, -1});
    args.old = memory.f32({-1, -1, -1, -1});
    args.ref = memory.f32({-1, -1, -1, -1});
    args.advantage = memory.f32({1, -1, -1, 1});
    args.weight = memory.f32({1, 1, 1, 1});
    args.g = memory.unwritten(kF32, {4});
    args.kl_type = Kl::kK3;
    args.beta = 0.1f;
    trial.run(fmt::format("log-probabilities {} apart", far), &KernelTable::grpo_loss, args,
              memory);
  }
}

namespace {

// (3k, 4k) has the norm 5k, here midway between two f32: only the small numbers behind decide, and
// in a floating-point sum each of them is lost. `step` puts them into one lane of a vector sum.
std::vector<float> midway(std::size_t step) {
  std::vector<float> grad(std::size_t{2000} * step, 0.0f);
  for (std::size_t i = step; i < grad.size(); i += step) grad[i] = 0x1p-4f;
  grad[0] = 3 * 3355445.0f;
  grad[1] = 4 * 3355445.0f;
  return grad;
}

}  // namespace

void grad_norm_vectors(Trial& trial) {
  const auto run = [&](const std::string& name, Memory& memory, std::vector<ConstTensorView> all) {
    const TensorView norm = memory.unwritten(kF32, {1});
    trial.run(name, &KernelTable::grad_norm, {norm.at<float>(), all.data(), std::ssize(all)},
              memory);
  };
  std::int64_t i = 0;
  for (const std::int64_t n : kSizes) {
    for (int f = 0; f < 8; ++f) {
      Memory memory(static_cast<std::uint64_t>(6000 + i++));
      run(fmt::format("tensors of {}, 1 and 9 by {}, {}", n, n, to_string(family_of(f))), memory,
          {memory.random(kF32, {n}, family_of(f)), memory.random(kF32, {1}, family_of(f + 1)),
           memory.random(kF32, {9, n}, family_of(f))});
    }
  }
  Memory memory(1);
  run("no tensor", memory, {});
  run("zeros of both signs", memory, {memory.f32({0.0f, -0.0f, 0.0f})});
  run("the smallest number", memory, {memory.f32({0x1p-149f})});
  run("a norm that overflows", memory, {memory.f32({0x1.fffffep127f, 0x1.fffffep127f})});
  run("the largest number", memory, {memory.f32({0x1.fffffep127f, 1.0f})});
  for (const std::size_t step : {1, 8, 16}) {
    run(fmt::format("midway, every {}", step), memory, {memory.f32(midway(step))});
  }
  run("large", memory, {memory.random(kF32, {5003}, Family::kWide)});
  run("infinity", memory, {memory.f32({1, std::numeric_limits<float>::infinity(), 2})});
  run("NaN", memory, {memory.f32({1}), memory.f32({2, std::numeric_limits<float>::quiet_NaN()})});
}

void adamw_vectors(Trial& trial) {
  std::int64_t i = 0;
  const auto run = [&](std::int64_t n, Family family) {
    Memory memory(static_cast<std::uint64_t>(7000 + i));
    AdamwArgs args;
    args.w = memory.unwritten(DType::kBF16, {n});
    args.master = memory.random(kF32, {n}, family);
    args.m = memory.random(kF32, {n}, family, Lie::kDense, 0.01);
    args.v = memory.random(kF32, {n}, family, Lie::kDense, 0.01);
    for (std::int64_t j = 0; j < n; ++j) {
      float& v = args.v.at<float>()[j];
      v = std::fabs(v);
    }
    args.dw = memory.random(kF32, {n}, family);
    args.grad_scale = i % 3 == 0 ? 1.0f : 0.37f;
    args.lr = i % 4 == 3 ? 0.0f : 3e-4f;
    args.b1 = 0.9f;
    args.b2 = 0.999f;
    args.f1 = 0.1f;
    args.f2 = 0.001f;
    args.h1 = i % 2 ? 0.1f : 0.99f;
    args.h2 = i % 2 ? 0.001f : 0.63f;
    args.eps = 1e-8f;
    args.wd = i % 2 ? 0.0f : 0.1f;
    trial.run(fmt::format("{} numbers, {}, variant {}", n, to_string(family), i),
              &KernelTable::adamw, args, memory);
    ++i;
  };
  for (const std::int64_t n : kSizes) {
    for (int f = 0; f < 8; ++f) run(n, family_of(f));
  }
  run(5003, Family::kMixed);
}

}  // namespace rlk::conformance
