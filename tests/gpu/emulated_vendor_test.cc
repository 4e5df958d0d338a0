// Products by a library that stands in for the vendor's, on the emulator: which of its algorithms
// are admitted, what they are used for, and that engines keep the CPU's bytes and errors.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>

#include "rlk/core/error.h"
#include "rlk/device/vendor_products.h"
#include "rlk/kernels/gpu/sm90/table.h"
#include "rlk/ops/vendor_products.h"
#include "tests/gpu/emulation/emulated_runtime.h"
#include "tests/gpu/engines.h"
#include "tests/io/error_matchers.h"

namespace rlk::test {
namespace {

// Whatever its time is, it is chosen.
constexpr VendorEffort kLittle{.rotated_bytes = 1, .repeats = 1, .worth = 1e9};
std::int64_t num_products = 0;  // that the library was given, or a graph of it

// The library's products are work of a stream like our kernels.
void enqueue(void* stream, std::function<void()> work) {
  emulation::enqueue(static_cast<emulatedStream_t>(stream), [work = std::move(work)] {
    ++num_products;
    work();
  });
}

// The library with these algorithms, as long as it is there. What is tried of a shape is kept:
// every test has shapes of its own.
class Fake {
 public:
  explicit Fake(const char* algorithms) : library(device::product_library(FAKE_CUBLASLT)) {
    setenv("FAKE_CUBLASLT_ALGORITHMS", algorithms, 1);
    void* const handle = dlopen(FAKE_CUBLASLT, RTLD_NOW | RTLD_NOLOAD);
    auto* const hook = static_cast<void (**)(void*, std::function<void()>)>(
        dlsym(handle, "fake_cublaslt_enqueue"));
    *hook = enqueue;
    dlclose(handle);
  }
  ~Fake() { unsetenv("FAKE_CUBLASLT_ALGORITHMS"); }
  Fake(const Fake&) = delete;
  Fake& operator=(const Fake&) = delete;

  const device::ProductLibrary& library;
};

Contract sm90() {
  Contract contract = tiny_contract();
  contract.profile = Profile::kSm90;
  return contract;
}

// What an operator of profile sm90 runs with, and products of `rows` rows.
struct Calls {
  TestExec exec{sm90()};
  device::Queue queue;
  Exec& on_device() {
    exec.exec.gpu = &queue;
    queue.collects_faults = true;
    return exec.exec;
  }
};

GemmArgs product(const Tensor& c, const Tensor& a, const Tensor& b) {
  GemmArgs args;
  args.c = const_cast<Tensor&>(c);
  args.a = a;
  args.b = b;
  args.segments = {a.shape(1), 0, 0};
  return args;
}

const VendorTrial* find(const VendorPlan& plan, std::int64_t rows, const std::string& algorithm) {
  for (const VendorTrial& t : plan.trials) {
    if (t.most_rows == rows && t.algorithm == algorithm) return &t;
  }
  return nullptr;
}

Tensor on_device(const Tensor& t) {
  Tensor copy(t.dtype(), {t.shape(0), t.shape(1)}, device::managed_memory());
  std::copy_n(t.data<char>(), t.size_bytes(), copy.data<char>());
  return copy;
}

TEST(VendorGemmInvariance, AdmittedAlgorithmsGiveOurBytes) {
  const Fake fake("chain,split");
  for (const DType c_type : {DType::kBF16, DType::kF32}) {
    Calls calls;
    Exec& exec = calls.on_device();
    calls.queue.products = &fake.library;
    const VendorPlan& plan = try_vendor_products(exec, {9, 80, c_type}, kLittle);
    ASSERT_EQ(plan.failure, "");
    ASSERT_EQ(plan.trials.size(), 4);  // split says what it is
    for (const VendorTrial& t : plan.trials) {
      EXPECT_EQ(t.difference, "");
      EXPECT_GT(t.vectors, 10);
      EXPECT_TRUE(t.chosen);
    }
    for (const std::int64_t rows : {1, 8, 9, 64, 65}) {
      const Tensor a = on_device(random_tensor(DType::kBF16, {rows, 80}, 1, Kind::kCancelling));
      const Tensor b = on_device(random_tensor(DType::kBF16, {9, 80}, 2, Kind::kMixed));
      const Tensor c(c_type, {rows, 9}, device::managed_memory());
      Tensor want(c_type, {rows, 9});
      num_products = 0;
      gpu::sm90::gemm(exec, product(c, a, b));
      EXPECT_EQ(num_products, rows <= 64 ? 1 : 0);
      TestExec reference(sm90());
      reference_kernels().gemm(reference.exec, product(want, a, b));
      EXPECT_TRUE(same_bits(c, want)) << rows;
    }
  }
}

TEST(VendorGemmTwin, AnAlgorithmOfTwoChainsIsRefused) {
  const Fake fake("halves,chain");
  for (const DType c_type : {DType::kBF16, DType::kF32}) {
    Calls calls;
    calls.on_device();
    calls.queue.products = &fake.library;
    const VendorPlan& plan = try_vendor_products(calls.exec.exec, {10, 80, c_type}, kLittle);
    for (const std::int64_t rows : {8, 16, 32, 64}) {
      const VendorTrial* halves = find(plan, rows, "99/2");
      ASSERT_NE(halves, nullptr);
      EXPECT_NE(halves->difference.find(" rows, "), std::string::npos) << halves->difference;
      EXPECT_FALSE(halves->chosen);
      EXPECT_TRUE(find(plan, rows, "99/1")->chosen);
    }
    EXPECT_NE(to_lines(plan)[0].find("1 of 2 algorithms"), std::string::npos) << to_lines(plan)[0];
  }
}

TEST(VendorGemm, NothingSlowerIsChosen) {
  const Fake fake("slow");
  Calls calls;
  calls.on_device();
  calls.queue.products = &fake.library;
  VendorEffort effort = kLittle;
  effort.worth = 1;
  const VendorPlan& plan = try_vendor_products(calls.exec.exec, {1, 16, DType::kF32}, effort);
  ASSERT_EQ(plan.trials.size(), 4);
  for (const VendorTrial& t : plan.trials) {
    EXPECT_EQ(t.difference, "");
    EXPECT_GT(t.us, t.our_us);
    EXPECT_FALSE(t.chosen);
  }
  EXPECT_NE(to_lines(plan)[3].find("up to 64 rows: ours, "), std::string::npos);
}

TEST(VendorGemm, IsTriedOnce) {
  const Fake fake("chain");
  Calls calls;
  calls.on_device();
  calls.queue.products = &fake.library;
  Calls others;
  others.on_device();
  others.queue.products = &fake.library;
  const VendorShape shape{4, 32, DType::kBF16};
  const VendorPlan& plan = try_vendor_products(calls.exec.exec, shape, kLittle);
  const std::int64_t given = emulation::num_given();
  EXPECT_EQ(&try_vendor_products(others.exec.exec, shape, kLittle), &plan);
  EXPECT_EQ(emulation::num_given(), given);
}

TEST(VendorGemm, TakesWhatWasTriedAndNothingElse) {
  const Fake fake("chain");
  Calls calls;
  Exec& exec = calls.on_device();
  calls.queue.products = &fake.library;
  try_vendor_products(exec, {8, 32, DType::kBF16}, kLittle);
  const Tensor a = on_device(random_tensor(DType::kBF16, {4, 32}, 1));
  const Tensor b = on_device(random_tensor(DType::kBF16, {8, 32}, 2));
  const Tensor bias = on_device(random_tensor(DType::kBF16, {1, 8}, 3));
  const Tensor c(DType::kBF16, {4, 16}, device::managed_memory());
  const Tensor c32(DType::kF32, {4, 8}, device::managed_memory());
  GemmArgs usual = product(c, a, b);
  usual.c = TensorView{usual.c.data, DType::kBF16, Layout{4, 8}};
  const auto given = [&](const GemmArgs& args) {
    num_products = 0;
    gpu::sm90::gemm(exec, args);
    return num_products;
  };
  EXPECT_EQ(given(usual), 1);
  GemmArgs args = usual;
  args.bias = view(bias.data<bf16>(), {8});
  EXPECT_EQ(given(args), 0);
  args = usual;
  args.leaf_tree = true;
  EXPECT_EQ(given(args), 0);
  args = usual;
  args.c = columns(product(c, a, b).c, 0, 8);  // rows with gaps
  EXPECT_EQ(given(args), 0);
  EXPECT_EQ(given(product(c32, a, b)), 0);
  calls.queue.products = nullptr;
  EXPECT_EQ(given(usual), 0);
}

TEST(VendorGemm, WithoutTheLibraryOursRuns) {
  EngineSetup s;
  s.contract = sm90();
  OneContext one(s.on(gpu_kernels(Profile::kSm90)));
  const std::vector<VendorPlan> plans =
      use_vendor_products(one.ctx, "libnone.so.9", vendor_shapes(s.config));
  ASSERT_EQ(plans.size(), 3);
  EXPECT_NE(to_lines(plans[0])[0].find("ours; products: libnone.so.9 cannot be opened"),
            std::string::npos)
      << to_lines(plans[0])[0];
  EXPECT_EQ(one.ctx.exec().gpu->products, nullptr);
  OneContext cpu(s.on(cpu_kernels()));
  EXPECT_TRUE(use_vendor_products(cpu.ctx, FAKE_CUBLASLT, vendor_shapes(s.config)).empty());
}

TEST(VendorGemm, WhatFailsIsSaid) {
  const Fake fake("chain");
  Calls calls;
  calls.on_device();
  calls.queue.products = &fake.library;
  setenv("FAKE_CUBLASLT_FAILS", "cublasLtCreate", 1);
  EXPECT_NE(try_vendor_products(calls.exec.exec, {3, 32, DType::kBF16}, kLittle)
                .failure.find("cublasLtCreate failed"),
            std::string::npos);
  setenv("FAKE_CUBLASLT_FAILS", "cublasLtMatmul", 1);
  const VendorPlan& plan = try_vendor_products(calls.exec.exec, {2, 32, DType::kBF16}, kLittle);
  unsetenv("FAKE_CUBLASLT_FAILS");
  ASSERT_EQ(plan.trials.size(), 4);
  EXPECT_NE(plan.trials[0].difference.find("cublasLtMatmul failed"), std::string::npos);
  EXPECT_NE(to_lines(plan)[0].find("0 of 1 algorithms"), std::string::npos);
}

// The engines' products, tried with little effort before an engine asks for them.
EngineSetup engine_setup(const Fake& fake) {
  EngineSetup s;
  s.contract = sm90();
  ModelConfig& c = s.config;
  c.vocab_size = c.hidden_size = c.intermediate_size = 32;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 1;
  s.rollout.max_num_seqs = 2;
  Calls calls;
  calls.on_device();
  calls.queue.products = &fake.library;
  for (const VendorShape& shape : vendor_shapes(s.config)) {
    for (const VendorTrial& t : try_vendor_products(calls.exec.exec, shape, kLittle).trials) {
      EXPECT_TRUE(t.chosen) << t.difference;
    }
  }
  return s;
}

std::vector<Request> requests() {
  std::vector<Request> out;
  for (const std::int64_t length : {5, 3}) {
    Request r;
    r.id = out.size();
    r.seed = 5;
    r.prompt_token_ids = random_tokens(length, 40 + r.id, 32);
    r.max_new_tokens = 4;
    out.push_back(r);
  }
  return out;
}

TEST(VendorEnginesInvariance, SampleTheTokensOfTheCpu) {
  const Fake fake("chain");
  EngineSetup s = engine_setup(fake);
  const std::vector<Completion> want = generate(s.on(cpu_kernels()), requests());
  const KernelTable& gpu = gpu_kernels(Profile::kSm90);
  std::int64_t products_by_graph = 0;
  for (const bool graphs : {true, false}) {
    for (const char* library : {FAKE_CUBLASLT, ""}) {
      s.rollout.graphs = graphs;
      s.rollout.vendor_products = library;
      num_products = 0;
      RolloutStats stats;
      expect_same(generate(s.on(gpu), requests(), &stats), want);
      EXPECT_EQ(stats.num_graph_steps > 0, graphs);
      if (!*library) {
        EXPECT_EQ(num_products, 0);
      } else if (graphs) {
        products_by_graph = num_products;
      } else {
        EXPECT_EQ(num_products, products_by_graph);  // replayed as often as called
      }
    }
  }
  EXPECT_GT(products_by_graph, 0);
}

// A NaN in what the library leaves is the error that it is otherwise.
TEST(VendorEngines, NameTheNodeThatMetANumberTheContractForbids) {
  const Fake fake("chain");
  EngineSetup s = engine_setup(fake);
  std::vector<std::string> messages;
  for (const KernelTable* table : {&cpu_kernels(), &gpu_kernels(Profile::kSm90)}) {
    for (Tensor LayerParameters::*weight :
         {&LayerParameters::qkv_proj, &LayerParameters::gate_up_proj}) {
      s.rollout.vendor_products = table->on_device ? FAKE_CUBLASLT : "";
      OneContext one(s.on(*table));
      RolloutEngine engine(one.ctx, s.config, s.rollout);
      Parameters weights = s.weights();
      (weights.layers[0].*weight).data<bf16>()[3] = bf16{0x7fc0};
      engine.load_weights(weights, 0);
      num_products = 0;
      try {
        engine.generate(requests());
        FAIL() << table->backend << ": accepted";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kNonFinite);
        messages.push_back(e.what());
      }
      EXPECT_EQ(num_products > 0, table->on_device);
    }
  }
  ASSERT_EQ(messages.size(), 4);
  EXPECT_NE(messages[0].find("layer 0 q_norm"), std::string::npos) << messages[0];
  EXPECT_EQ(messages[2], messages[0]);
  EXPECT_EQ(messages[3], messages[1]);
}

}  // namespace
}  // namespace rlk::test
