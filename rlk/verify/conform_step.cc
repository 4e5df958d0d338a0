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

struct Policies {
  TensorView logp, old, ref, weight;
};

// What masked tokens hold is not looked at.
Policies policies(Memory& memory, std::int64_t n) {
  Policies p;
  p.logp = logprobs(memory, n, nullptr);
  p.old = logprobs(memory, n, &p.logp);
  p.ref = logprobs(memory, n, &p.logp);
  p.weight = memory.random(kF32, {n}, Family::kNormal);
  for (std::int64_t t = 0; t < n; ++t) {
    p.weight.at<float>()[t] = t % 5 == 4 ? 0.0f : 1.0f / 37.0f;
    if (t % 5 == 4) p.logp.at<float>()[t] = std::numeric_limits<float>::quiet_NaN();
  }
  return p;
}

GrpoLossArgs loss_args(Memory& memory, std::int64_t n, Kl kl, Family advantages, std::int64_t i) {
  GrpoLossArgs args;
  const Policies p = policies(memory, n);
  args.logp = p.logp;
  args.old = p.old;
  if (kl != Kl::kNone) args.ref = p.ref;
  args.advantage = memory.random(kF32, {n}, advantages);
  args.weight = p.weight;
  args.g = memory.unwritten(kF32, {n});
  if (i % 3 != 1) args.pg_loss = memory.unwritten(kF32, {n});
  if (i % 3 != 2) args.kl = memory.unwritten(kF32, {n});
  if (i % 2 == 0) args.ratio = memory.unwritten(kF32, {n});
  args.beta = kl == Kl::kNone ? 0.0f : 0.04f;
  args.hi = i % 2 ? 1.2f : 1.28f;
  args.kl_type = kl;
  return args;
}

std::string loss_name(std::int64_t n, Kl kl, Family family, std::int64_t i) {
  return fmt::format("{} tokens, kl {}, {}, variant {}", n, kKlNames[static_cast<int>(kl)],
                     to_string(family), i);
}

void run_loss(Trial& trial, std::int64_t n, Kl kl, Family advantages, std::int64_t i) {
  Memory memory(static_cast<std::uint64_t>(5000 + i));
  trial.run(loss_name(n, kl, advantages, i), &KernelTable::grpo_loss,
            loss_args(memory, n, kl, advantages, i), memory);
}

// Values and returns that a clip of 0.2 holds back, or not, on either side; some are equal.
void run_ppo_loss(Trial& trial, std::int64_t n, Kl kl, Family values, std::int64_t i) {
  Memory memory(static_cast<std::uint64_t>(8000 + i));
  PpoLossArgs args;
  args.policy = loss_args(memory, n, kl, Family::kNormal, i);
  const TensorView old = memory.random(kF32, {n}, values);
  const TensorView value = memory.random(kF32, {n}, Family::kNormal, Lie::kDense, 0.3);
  const TensorView target = memory.random(kF32, {n}, Family::kNormal, Lie::kDense, 0.3);
  for (std::int64_t t = 0; t < n; ++t) {
    value.at<float>()[t] =
        t % 7 == 1 ? old.at<float>()[t] : old.at<float>()[t] + value.at<float>()[t];
    target.at<float>()[t] =
        t % 7 == 2 ? value.at<float>()[t] : old.at<float>()[t] + target.at<float>()[t];
  }
  args.old_value = old;
  args.value = value;
  args.returns = target;
  args.g_value = memory.unwritten(kF32, {n});
  if (i % 3 != 1) args.v_loss = memory.unwritten(kF32, {n});
  if (i % 3 != 2) args.g_entropy = memory.unwritten(kF32, {n});
  args.value_clip = i % 4 == 3 ? std::numeric_limits<float>::infinity() : 0.2f;
  args.value_coef = i % 2 ? 0.5f : 0.1f;
  args.entropy_coef = i % 2 ? 0.01f : 0.0f;
  trial.run(loss_name(n, kl, values, i), &KernelTable::ppo_loss, args, memory);
}

// Calls run(n, kl, family, i) for all sizes, and for one size with all families.
template <typename Run>
void for_each_loss(std::initializer_list<Kl> types, const Run& run) {
  std::int64_t i = 0;
  for (const Kl kl : types) {
    for (const std::int64_t n : kSizes) run(n, kl, Family::kNormal, i++);
    for (int f = 0; f < 8; ++f) run(67, kl, family_of(f), i++);
  }
}

}  // namespace

void group_advantages_vectors(Trial& trial) {
  std::int64_t i = 0;
  for (const std::int64_t group_size : {1, 2, 3, 8, 16, 33}) {
    for (const std::int64_t groups : {0, 1, 5}) {
      for (int f = 0; f < 8; ++f) {
        const Family family = family_of(f);
        const std::int64_t ddof = group_size == 1 ? 0 : i % 2;
        Memory memory(static_cast<std::uint64_t>(9000 + i++));
        // f32 numbers with more bits behind them; the last group's are all equal.
        const std::int64_t n = groups * group_size;
        const TensorView random = memory.random(kF32, {n}, family);
        std::vector<double> rewards;
        for (std::int64_t k = 0; k < n; ++k) {
          const bool equal = i % 3 == 0 && k >= n - group_size;
          rewards.push_back(equal ? 0.1 : static_cast<double>(random.at<float>()[k]) / 3);
        }
        GroupAdvantagesArgs args;
        args.rewards = memory.f64(rewards);
        args.advantages = memory.unwritten(kF32, {n});
        args.group_size = group_size;
        args.eps = i % 4 ? 1e-6 : 1e-4;
        args.ddof = ddof;
        trial.run(fmt::format("{} groups of {}, {}, variant {}", groups, group_size,
                              to_string(family), i),
                  &KernelTable::group_advantages, args, memory);
      }
    }
  }
  for (const double reward : {1e300, 5e-324}) {
    Memory memory(1);
    GroupAdvantagesArgs args;
    args.rewards = memory.f64({1, 2, 0, reward, 0, 1});
    args.advantages = memory.unwritten(kF32, {6});
    args.group_size = 2;
    args.eps = 0;
    trial.run(fmt::format("a reward of {}", reward), &KernelTable::group_advantages, args, memory);
  }
}

void ratio_vectors(Trial& trial) {
  for_each_loss({Kl::kNone, Kl::kNone}, [&](std::int64_t n, Kl, Family, std::int64_t i) {
    Memory memory(static_cast<std::uint64_t>(4000 + i));
    const Policies p = policies(memory, n);
    RatioArgs args;
    args.ratio = memory.unwritten(kF32, {n});
    args.logp = i % 4 == 3 ? p.ref : p.logp;
    args.old = p.old;
    if (i % 4 != 3) args.weight = p.weight;
    trial.run(fmt::format("{} tokens, variant {}", n, i), &KernelTable::ratio, args, memory);
  });
  Memory memory(1);
  RatioArgs args;
  args.logp = memory.f32({-1, -2, 98, 0});
  args.old = memory.f32({-1, -1, -1, std::numeric_limits<float>::quiet_NaN()});
  args.ratio = memory.unwritten(kF32, {4});
  trial.run("log-probabilities too far apart", &KernelTable::ratio, args, memory);
}

void kl_vectors(Trial& trial) {
  for_each_loss({Kl::kK1, Kl::kK2, Kl::kK3}, [&](std::int64_t n, Kl kl, Family f, std::int64_t i) {
    Memory memory(static_cast<std::uint64_t>(3000 + i));
    const Policies p = policies(memory, n);
    KlArgs args;
    args.kl = memory.unwritten(kF32, {n});
    if (i % 3 != 1) args.slope = memory.unwritten(kF32, {n});
    args.logp = i % 4 == 3 ? p.old : p.logp;
    args.ref = p.ref;
    if (i % 4 != 3) args.weight = p.weight;
    args.kl_type = kl;
    trial.run(loss_name(n, kl, f, i), &KernelTable::kl, args, memory);
  });
  for (const Kl kl : {Kl::kK1, Kl::kK2, Kl::kK3}) {
    Memory memory(1);
    KlArgs args;
    args.logp = memory.f32({-1, -2, -200, -1});
    args.ref = memory.f32({-1, -1, -1, std::numeric_limits<float>::quiet_NaN()});
    args.kl = memory.unwritten(kF32, {4});
    args.kl_type = kl;
    trial.run(fmt::format("log-probabilities far apart, variant {}", static_cast<int>(kl)),
              &KernelTable::kl, args, memory);
  }
}

void ppo_loss_vectors(Trial& trial) {
  for_each_loss({Kl::kNone, Kl::kK1, Kl::kK2, Kl::kK3},
                [&](std::int64_t n, Kl kl, Family family, std::int64_t i) {
                  run_ppo_loss(trial, n, kl, family, i);
                });
}

void grpo_loss_vectors(Trial& trial) {
  for_each_loss({Kl::kNone, Kl::kK1, Kl::kK2, Kl::kK3},
                [&](std::int64_t n, Kl kl, Family family, std::int64_t i) {
                  run_loss(trial, n, kl, family, i);
                });
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
