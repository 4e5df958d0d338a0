#include "rlk/core/doctor.h"

#include <cfenv>
#include <cstdlib>
#include <optional>

#include <gtest/gtest.h>

#include "rlk/core/error.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace rlk {
namespace {

// Sets a variable for a scope.
class Set {
 public:
  Set(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Set() { unsetenv(name_); }

 private:
  const char* name_;
};

std::optional<Finding> finding(const std::string& subject) {
  for (const Finding& f : diagnose()) {
    if (f.subject == subject) return f;
  }
  return std::nullopt;
}

std::string refusal(bool on_gpu) {
  try {
    require_strict_environment(on_gpu);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotAvailable);
    return e.what();
  }
  return "";
}

TEST(Doctor, FindsNothingThatRefusesAStrictRunHere) {
  EXPECT_EQ(refusal(true), "");
  for (const Finding& f : diagnose()) EXPECT_LT(f.severity, Severity::kRefusedGpu) << f.subject;
}

TEST(Doctor, KnowsWhatEachVariableChanges) {
  struct Case {
    const char* name;
    const char* value;
    Severity severity;
  };
  for (const Case& c : {Case{"HSA_OVERRIDE_GFX_VERSION", "9.4.2", Severity::kRefusedGpu},
                        {"CUDA_FORCE_PTX_JIT", "1", Severity::kRefusedGpu},
                        {"HSA_ENABLE_SDMA", "0", Severity::kNote},
                        {"HIP_VISIBLE_DEVICES", "3", Severity::kNote},
                        {"MIOPEN_FIND_MODE", "2", Severity::kProduction},
                        {"MIOPEN_DEBUG_CONV_GEMM", "0", Severity::kProduction},
                        {"HIPBLASLT_TUNING_OVERRIDE_FILE", "a.txt", Severity::kProduction},
                        {"ROCBLAS_TENSILE_LIBPATH", "/x", Severity::kProduction},
                        {"NCCL_ALGO", "Ring", Severity::kProduction},
                        {"NCCL_DEBUG", "INFO", Severity::kNote},
                        {"RCCL_MSCCL_ENABLE", "0", Severity::kNote},
                        {"CUBLAS_WORKSPACE_CONFIG", ":4096:8", Severity::kProduction},
                        {"NVIDIA_TF32_OVERRIDE", "1", Severity::kProduction},
                        {"OPENBLAS_CORETYPE", "Haswell", Severity::kProduction}}) {
    const Set set(c.name, c.value);
    const std::optional<Finding> f = finding(c.name);
    ASSERT_TRUE(f) << c.name;
    EXPECT_EQ(f->value, c.value);
    EXPECT_EQ(f->severity, c.severity) << c.name;
    EXPECT_FALSE(f->why.empty() || f->advice.empty()) << c.name;
    EXPECT_TRUE(is_diagnosed(c.name));
  }
  EXPECT_FALSE(is_diagnosed("HOME"));
  const Set empty("NCCL_ALGO", "");
  EXPECT_FALSE(finding("NCCL_ALGO"));
}

TEST(Doctor, RefusesAnotherGpuForStrictRunsOnAGpuOnly) {
  const Set set("HSA_OVERRIDE_GFX_VERSION", "9.0.10");
  EXPECT_EQ(refusal(false), "");
  const std::string text = refusal(true);
  for (const char* part : {"HSA_OVERRIDE_GFX_VERSION", "9.0.10", "unset it", "rlk doctor"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(diagnose().front().subject, "HSA_OVERRIDE_GFX_VERSION");
}

TEST(Doctor, RefusesAModeThatRoundsOrFlushesOtherwise) {
  std::fesetround(FE_DOWNWARD);
  const std::string rounding = refusal(false);
  std::fesetround(FE_TONEAREST);
  EXPECT_NE(rounding.find("nearest even"), std::string::npos) << rounding;
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  for (const unsigned bit : {0x8000u, 0x0040u}) {
    _mm_setcsr(before | bit);
    const std::string flushing = refusal(false);
    _mm_setcsr(before);
    EXPECT_NE(flushing.find("subnormal"), std::string::npos) << flushing;
  }
#endif
  EXPECT_EQ(refusal(false), "");
}

TEST(Doctor, ReadsTheFlagsOfABuild) {
  EXPECT_TRUE(diagnose_flags("-O3 -DNDEBUG -ffp-contract=off -fno-fast-math").empty());
  EXPECT_TRUE(diagnose_flags("-Ofast -fno-fast-math -ffp-contract=off").empty());
  const auto value = [](const char* flags) {
    const std::vector<Finding> found = diagnose_flags(flags);
    return found.size() == 1 ? found[0].value : std::to_string(found.size()) + " findings";
  };
  EXPECT_EQ(value("-O2"), "-ffp-contract=fast");
  EXPECT_EQ(value("-O2 -ffp-contract=off -ffp-contract=on"), "-ffp-contract=on");
  EXPECT_EQ(value("-ffp-contract=off -fassociative-math"), "-fassociative-math");
  EXPECT_EQ(value("-ffp-contract=off -ffast-math"), "2 findings");
  EXPECT_EQ(value("-ffast-math -ffp-contract=off"), "-ffast-math");
}

}  // namespace
}  // namespace rlk
