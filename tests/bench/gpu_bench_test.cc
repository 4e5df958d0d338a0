// The bench of a GPU, on the emulator, for a model small enough for it: every case gives the CPU's
// bytes and a whole row, and wrong bytes or a missing peer are said.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/bench/case.h"
#include "tests/gpu/emulation/emulated_runtime.h"

namespace rlk {
namespace {

bench::GpuSizes tiny_sizes() {
  bench::GpuSizes s;
  s.hidden_size = s.intermediate_size = 32;
  s.vocab_size = 48;
  s.heads = 2;
  s.kv_heads = 1;
  s.head_dim = 16;
  s.many_rows = {65};
  s.few_rows = {3};
  s.train_tokens = 19;
  s.sample_lengths = {17};
  s.logp_rows = 5;
  s.logit_rows = 3;
  s.prompts = s.train_sequences = {17};
  s.decode_batch = 2;
  s.decode_keys = 32;
  s.sampled_rows = {2};
  s.rotated_bytes = 3'000;
  return s;
}

BenchOptions options_for(Profile profile, const std::string& filter) {
  BenchOptions options;
  options.gpu = options.quick = true;
  options.filter = filter;
  options.contract.profile = profile;
  options.kernels = &gpu_kernels(profile);
  options.vendor_products = FAKE_CUBLASLT;
  return options;
}

BenchReport run_tiny(const BenchOptions& options) {
  bench::Cases cases;
  bench::add_gpu_cases(cases, options.contract.profile, tiny_sizes());
  for (bench::Case& c : cases) c.quick = true;
  return bench::run_cases(cases, options);
}

void expect_whole_rows(const BenchReport& report) {
  const nlohmann::json json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json.at("machine").at("gpu").at("name"), "emulated");
  EXPECT_EQ(json.at("contract").at("profile"), to_string(report.contract.profile));
  for (const nlohmann::json& row : json.at("cases")) {
    EXPECT_EQ(row.at("bits_equal"), true) << row;
    EXPECT_EQ(row.at("profile"), to_string(report.contract.profile));
    EXPECT_TRUE(row.at("threads").is_null());
    EXPECT_FALSE(row.contains("note")) << row;
    for (const char* number : {"ms", "rate", "peer_ms", "ratio"}) {
      EXPECT_TRUE(row.at(number).is_number()) << number << " of " << row;
    }
  }
}

std::set<std::string> operators_of(const BenchReport& report) {
  std::set<std::string> operators;
  for (const BenchCase& c : report.cases) operators.insert(c.op);
  return operators;
}

// Of the products only those of one weight, and the shorter decoding: the emulator is slow.
TEST(GpuBench, EveryCaseHasTheBytesOfTheCpuAndAWholeRow) {
  const BenchReport report =
      run_tiny(options_for(Profile::kPortable, "/o/|^attention.*/S|/B2.*/page:16$|^l|^r|^s"));
  EXPECT_EQ(
      operators_of(report),
      (std::set<std::string>{"attention", "attention_backward", "gemm", "gemm_backward_weight",
                             "linear_logp", "linear_logp_backward", "log_softmax", "logprob",
                             "rms_norm", "rope", "sample", "swiglu"}));
  ASSERT_EQ(report.libraries.size(), 1u);
  EXPECT_EQ(report.libraries[0].version, "13.99.1");
  EXPECT_EQ(report.groups.size(), 1u);
  expect_whole_rows(report);
  const nlohmann::json summary = nlohmann::json::parse(to_json(report)).at("summary");
  EXPECT_EQ(summary.at("judged"), 5);  // row operators: products have no target in this profile
}

// But for attention of this profile, which is not emulated.
TEST(GpuBench, ProductsOfMatrixUnitsHaveTheirProfilesBytes) {
  const BenchReport report = run_tiny(options_for(Profile::kSm90, "^gemm.*/(qkv|o)/|^linear_logp"));
  EXPECT_EQ(operators_of(report), (std::set<std::string>{"gemm", "gemm_backward_weight",
                                                         "linear_logp", "linear_logp_backward"}));
  expect_whole_rows(report);
}

TEST(GpuBench, HasTheSizesOfTheTableInTheDocumentation) {
  BenchOptions options;
  options.gpu = true;
  const std::vector<std::string> names = bench_names(options);
  EXPECT_EQ(names.size(), 89u);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const char* name :
       {"gemm/bf16/tree/down/16384x4096x12288", "linear_logp/bf16/4096x151936x4096",
        "rms_norm/bf16/8192x4096", "attention/bf16/decode/B1xS32768xH32xG4xd128/page:128"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
}

const KernelTable* right_kernels = nullptr;

// The last bit of the last element of one output is turned, by the host once all is done.
void wrong_gemm(Exec& exec, const GemmArgs& args) {
  right_kernels->gemm(exec, args);
  exec.gpu->stream().synchronize();
  args.c.at<bf16>(args.c.shape(0) - 1, args.c.shape(1) - 1)->bits ^= 1u;
}
void wrong_linear_logp_backward(Exec& exec, const LinearLogpBackwardArgs& args) {
  right_kernels->linear_logp_backward(exec, args);
  exec.gpu->stream().synchronize();
  float* last = args.dw.at<float>(args.dw.shape(0) - 1, args.dw.shape(1) - 1);
  *last = *last == 0 ? 1 : *last * 1.5f;
}

void expect_not_timed(const BenchReport& report, const std::string& note) {
  ASSERT_EQ(report.cases.size(), 1u);
  const BenchCase& c = report.cases[0];
  EXPECT_FALSE(report.bits_equal());
  EXPECT_TRUE(c.ran);
  EXPECT_EQ(c.ms, 0);
  EXPECT_TRUE(c.peers.empty());
  EXPECT_NE(c.note.find(note), std::string::npos) << c.note;
  const nlohmann::json row = nlohmann::json::parse(to_json(report)).at("cases").at(0);
  EXPECT_EQ(row.at("bits_equal"), false);
  EXPECT_TRUE(row.at("ms").is_null());
}

TEST(GpuBenchTwin, AWrongKernelIsNotTimed) {
  right_kernels = &gpu_kernels(Profile::kSm90);
  KernelTable wrong = *right_kernels;
  wrong.gemm = wrong_gemm;
  wrong.linear_logp_backward = wrong_linear_logp_backward;
  BenchOptions options = options_for(Profile::kSm90, "^gemm/bf16/tree/o/3x");
  options.kernels = &wrong;
  expect_not_timed(run_tiny(options), "row 2, column 31");
  options.filter = "^linear_logp_backward/";
  expect_not_timed(run_tiny(options), "dw[47, 31]");
}

TEST(GpuBench, AnErrorOfOursWhileItIsTimedIsAFailure) {
  emulation::spoil_next_capture();
  expect_not_timed(run_tiny(options_for(Profile::kSm90, "^gemm/bf16/chain/qkv/3x")),
                   "previous error during capture");
}

TEST(GpuBench, APeerThatFailsIsNoDifferenceOfBits) {
  setenv("FAKE_CUBLASLT_FAILS", "cublasLtMatmul", 1);
  const BenchReport report = run_tiny(options_for(Profile::kSm90, "^gemm/bf16/chain/qkv/3x"));
  unsetenv("FAKE_CUBLASLT_FAILS");
  ASSERT_EQ(report.cases.size(), 1u);
  const BenchCase& c = report.cases[0];
  EXPECT_TRUE(report.bits_equal());
  EXPECT_GT(c.ms, 0);
  EXPECT_GT(c.rate, 0);
  EXPECT_TRUE(c.peers.empty());
  EXPECT_EQ(c.ratio, 0);
  EXPECT_NE(c.note.find("no peer cublaslt: "), std::string::npos) << c.note;
  EXPECT_NE(c.note.find("cublasLtMatmul failed"), std::string::npos) << c.note;
}

TEST(GpuBench, ARowWithoutItsPeerSaysWhy) {
  BenchOptions options = options_for(Profile::kSm90, "^gemm/bf16/chain/qkv/3x|^rms_norm");
  options.vendor_products = FAKE_CUBLASLT_WITHOUT_HEURISTIC;
  const BenchReport report = run_tiny(options);
  ASSERT_EQ(report.cases.size(), 2u);
  EXPECT_TRUE(report.bits_equal());
  EXPECT_GT(report.cases[0].ms, 0);
  EXPECT_TRUE(report.cases[0].peer.empty());
  EXPECT_NE(report.cases[0].note.find("no peer cublaslt: it is not installed"), std::string::npos);
  EXPECT_EQ(report.cases[1].peer, "copy");
  EXPECT_EQ(report.cases[1].note, "");
  const nlohmann::json peers = nlohmann::json::parse(to_json(report)).at("peers");
  EXPECT_EQ(peers.at(0).at("installed"), false);
  EXPECT_NE(
      peers.at(0).at("reason").get<std::string>().find("has no cublasLtMatmulAlgoGetHeuristic"),
      std::string::npos);
  EXPECT_NE(to_text(report).find("cublaslt not installed"), std::string::npos);
}

}  // namespace
}  // namespace rlk
