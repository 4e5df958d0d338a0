#include "rlk/rl/engines.h"

#include <gtest/gtest.h>

#include "rlk/core/error.h"
#include "rlk/device/device.h"

namespace rlk {
namespace {

TEST(Engines, PlansChangeTheDeploymentDigestAndNoOther) {
  const RlConfig a;
  RlConfig b = a;
  b.rollout.page_size = 64;
  EXPECT_NE(deployment_digest(a, "cpu.avx2", "cpu.avx2"),
            deployment_digest(b, "cpu.avx2", "cpu.avx2"));
  EXPECT_NE(deployment_digest(a, "cpu.avx2", "cpu.avx2"),
            deployment_digest(a, "cpu.avx2", "cpu.avx512"));
  EXPECT_EQ(forward_digest(a.contract), forward_digest(b.contract));
  b = a;
  b.contract.kv_block = 64;
  EXPECT_EQ(deployment_digest(a, "cpu.avx2", "cpu.avx2"),
            deployment_digest(b, "cpu.avx2", "cpu.avx2"));
  EXPECT_NE(forward_digest(a.contract), forward_digest(b.contract));
}

TEST(Engines, OverridesGoToTheirEngineAlone) {
  RlConfig config;
  config.modes.trainer["gemm"] = "audit";
  const auto gemm = static_cast<std::size_t>(Op::gemm);
  EXPECT_EQ(engine_modes(config, Engine::kTrainer)[gemm], Mode::kAudit);
  EXPECT_EQ(engine_modes(config, Engine::kRollout)[gemm], Mode::kStrict);
  config.route = RlConfig::Route::kProduction;
  EXPECT_EQ(engine_modes(config, Engine::kRollout)[gemm], Mode::kOff);
}

TEST(Engines, RefuseEachOtherOverAForwardFieldOnly) {
  Contract rollout, trainer;
  trainer.grad_slots = 4;  // reaches gradients, never a log-probability
  check_handshake(rollout, trainer);
  trainer.kv_split = 2048;
  try {
    check_handshake(rollout, trainer);
    FAIL() << "other kv_split accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kContract);
    EXPECT_NE(std::string(e.what()).find("kv_split: 1024 != 2048"), std::string::npos) << e.what();
  }
}

// Without a GPU, or with one, a wrong name is refused and says what there is.
TEST(Engines, RunOnTheBackendThatTheConfigNames) {
  RlConfig config;
  EXPECT_EQ(&engine_kernels(config, Engine::kRollout), &cpu_kernels());
  config.trainer.backend = "reference";
  EXPECT_EQ(&engine_kernels(config, Engine::kTrainer), &reference_kernels());
  EXPECT_EQ(&engine_kernels(config, Engine::kRollout), &cpu_kernels());
  config.rollout.backend = "cudda";
  try {
    engine_kernels(config, Engine::kRollout);
    FAIL() << "an unknown backend accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find("cuda.sm90"), std::string::npos) << e.what();
  }
  if (!device::list().empty()) return;
  for (const char* name : {"cuda", "cuda.sm90", "hip", "hip.cdna3"}) {
    config.rollout.backend = name;
    try {
      engine_kernels(config, Engine::kRollout);
      FAIL() << name << " without a GPU";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kNotAvailable) << e.what();
    }
  }
}

}  // namespace
}  // namespace rlk
