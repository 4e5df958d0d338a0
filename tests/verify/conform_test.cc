// Conformance: what it admits, what it refuses, that it says why, and what becomes of the record.
#include "rlk/verify/conform.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "rlk/io/files.h"
#include "rlk/kernels/outputs.h"
#include "rlk/ops/backend.h"
#include "rlk/ops/context.h"
#include "rlk/verify/admission_file.h"
#include "tests/io/error_matchers.h"
#include "tests/io/temporary_folder.h"
#include "tests/verify/golden_digests.h"

namespace rlk {
namespace {

std::vector<const KernelTable*> contract_backends() {
  std::vector<const KernelTable*> tables = all_backends();
  std::erase(tables, &production_kernels());
  return tables;
}

// What conformance of one operator says of one table.
AdmissionEntry verdict(Op op, const KernelTable& table) {
  const Admission admission = conform({.contract = {}, .ops = {op}, .backends = {&table}});
  return *admission.find(op, table.backend);
}

TEST(Conform, AdmitsTheReferenceAndAllInstructionSets) {
  for (const int threads : {1, 3}) {
    const Admission admission =
        conform({.contract = {}, .backends = contract_backends(), .threads = threads});
    EXPECT_EQ(std::ssize(admission.entries()), (kNumOps - 1) * std::ssize(contract_backends()));
    for (const AdmissionEntry& entry : admission.entries()) {
      EXPECT_TRUE(entry.admitted) << to_string(entry.op) << " " << entry.backend << ": "
                                  << entry.reason;
      EXPECT_GT(entry.vectors, 20) << to_string(entry.op);
    }
  }
}

TEST(Conform, AdmitsUnderOtherContracts) {
  Contract contract;
  contract.leaves = 4;
  contract.kv_block = 32;
  contract.kv_split = 96;
  contract.norm_lanes = 64;
  contract.token_block = 16;
  const Admission admission = conform({.contract = contract});
  EXPECT_EQ(admission.key(), admission_key(contract));
  for (const AdmissionEntry& entry : admission.entries()) {
    EXPECT_TRUE(entry.admitted) << to_string(entry.op) << ": " << entry.reason;
  }
}

TEST(Conform, RefusesTheVendorRouteWithTheFirstDifference) {
  const Admission admission = conform({.contract = {}, .backends = {&production_kernels()}});
  for (const Op op :
       {Op::rms_norm, Op::rms_norm_backward, Op::rms_norm_backward_weight, Op::merge_heads,
        Op::gemm, Op::gemm_backward_weight, Op::bias_backward, Op::attention,
        Op::attention_backward, Op::logprob, Op::logprob_backward, Op::grad_norm}) {
    const AdmissionEntry& entry = *admission.find(op, "production");
    EXPECT_FALSE(entry.admitted) << to_string(op);
    for (const char* part : {"vector \"", "[", " (0x", "the contract's is "}) {
      EXPECT_NE(entry.reason.find(part), std::string::npos) << entry.reason;
    }
  }
  // What it takes over from the CPU backend is right.
  EXPECT_TRUE(admission.admitted(Op::swiglu, "production"));
  EXPECT_FALSE(admission.find(Op::pack_weight, "production"));
}

TEST(Conform, RefusesAMissingKernel) {
  KernelTable table = reference_kernels();
  table.backend = "mine";
  table.rope = nullptr;
  EXPECT_EQ(verdict(Op::rope, table).reason, "no kernel");
}

TEST(Conform, SaysWhichBackendsThereAre) {
  EXPECT_EQ(&find_backend("production"), &production_kernels());
  EXPECT_EQ(&find_backend("cpu.scalar"), &cpu_kernels(Isa::kScalar));
  expect_error(ErrorCode::kInvalidArgument,
               {"cpu.sse", "reference, cpu.scalar", "production", "cuda.sm90"},
               [] { find_backend("cpu.sse"); });
  Contract contract;
  contract.profile = Profile::kSm90;
  expect_error(ErrorCode::kNotAvailable, {"sm90", "production"},
               [&] { conform({.contract = contract, .backends = {&production_kernels()}}); });
}

TEST(ConformInvariance, EveryInstructionSetAndThreadCountHasTheGoldenDigest) {
  const std::string digest = test::golden_digest(Profile::kPortable);
  EXPECT_EQ(digest.size(), 64u);
  for (const KernelTable* table : contract_backends()) {
    for (const int threads : {1, 2}) {
      if (table == &reference_kernels() && threads > 1) continue;  // runs on one
      EXPECT_EQ(conform_digest({.contract = {}, .threads = threads}, *table), digest)
          << table->backend << ", " << threads << " threads";
    }
  }
}

TEST(ConformTwin, AnotherBackendHasAnotherDigest) {
  EXPECT_NE(conform_digest({.contract = {}}, production_kernels()),
            conform_digest({.contract = {}}, cpu_kernels()));
}

// A kernel like the reference, but for one bit of one element: the last of the first output.
template <typename Args, void (*KernelTable::*field)(Exec&, const Args&)>
void flips_a_bit(Exec& exec, const Args& args) {
  (reference_kernels().*field)(exec, args);
  Args listed = args;
  bool done = false;
  for_each_output(listed, [&](const char*, const TensorView& out) {
    if (done || !out || out.layout.size() == 0) return;
    std::int64_t at = 0;
    for (int d = 0; d < out.rank(); ++d) at += (out.shape(d) - 1) * out.stride(d);
    *(static_cast<char*>(out.data) + at * static_cast<std::int64_t>(size_of(out.dtype))) ^= 1;
    done = true;
  });
}

TEST(ConformTwin, RefusesOneWrongBitInEveryOperator) {
#define RLK_OP(name, Args)                                                                \
  if (Op::name != Op::pack_weight) {                                                      \
    KernelTable table = reference_kernels();                                              \
    table.backend = "mine";                                                               \
    table.name = flips_a_bit<Args, &KernelTable::name>;                                   \
    const AdmissionEntry entry = verdict(Op::name, table);                                \
    EXPECT_FALSE(entry.admitted) << #name;                                                \
    EXPECT_NE(entry.reason.find("the contract's is"), std::string::npos) << entry.reason; \
  }
  RLK_OPS(RLK_OP)
#undef RLK_OP
}

// Products are right, but K comes in reverse.
void reversed_gemm(Exec& exec, const GemmArgs& args) {
  GemmArgs reversed = args;
  for (ConstTensorView* t : {&reversed.a, &reversed.b}) {
    if (t->shape(1) == 0) continue;
    t->data = t->at<bf16>(0, t->shape(1) - 1);
    t->layout.stride[1] = -t->stride(1);
  }
  reference_kernels().gemm(exec, reversed);
}

// The reference under a contract in which one field is another.
void (*change)(Contract&);
template <typename Args, void (*KernelTable::*field)(Exec&, const Args&)>
void under_another_contract(Exec& exec, const Args& args) {
  Contract contract = exec.contract;
  change(contract);
  Exec other{exec.pool, exec.workspace, contract, exec.fault};
  (reference_kernels().*field)(other, args);
}

void ignores_faults(Exec& exec, const LogprobArgs& args) {
  reference_kernels().logprob(exec, args);
  exec.fault.clear();
}

// Right results, and a byte where nothing was to be written.
void writes_behind_a_row(Exec& exec, const SwigluArgs& args) {
  reference_kernels().swiglu(exec, args);
  if (args.y.shape(0) > 1 && args.y.stride(0) > args.y.shape(1)) {
    *args.y.at<bf16>(0, args.y.shape(1)) = bf16{0};
  }
}

TEST(ConformTwin, RefusesAWrongOrder) {
  KernelTable table = reference_kernels();
  table.backend = "mine";
  table.gemm = reversed_gemm;
  table.logprob = ignores_faults;
  table.swiglu = writes_behind_a_row;
  EXPECT_FALSE(verdict(Op::gemm, table).admitted);
  EXPECT_NE(verdict(Op::logprob, table).reason.find("refuses no row, the contract refuses row 1"),
            std::string::npos);
  EXPECT_NE(verdict(Op::swiglu, table).reason.find("no output"), std::string::npos);
}

TEST(ConformTwin, EveryFieldThatAKernelReadsShowsInItsVectors) {
  KernelTable table;
  table.backend = "mine";
#define RLK_OP(name, Args) table.name = under_another_contract<Args, &KernelTable::name>;
  RLK_OPS(RLK_OP)
#undef RLK_OP
  struct Case {
    const char* field;
    void (*change)(Contract&);
    std::vector<Op> ops;
  };
  const Case cases[] = {
      {"norm_lanes",
       [](Contract& c) { c.norm_lanes /= 2; },
       {Op::rms_norm, Op::rms_norm_backward, Op::attention_backward}},
      {"token_block",
       [](Contract& c) { c.token_block *= 2; },
       {Op::rms_norm_backward_weight, Op::bias_backward}},
      {"leaves",
       [](Contract& c) { c.leaves *= 2; },
       {Op::gemm, Op::merge_heads, Op::attention_backward}},
      {"leaves",
       [](Contract& c) { c.leaves /= 2; },
       {Op::gemm, Op::merge_heads, Op::attention_backward}},
      {"kv_block",
       [](Contract& c) {
         c.kv_block *= 2;
         c.kv_split *= 2;
       },
       {Op::attention}},
      {"kv_split", [](Contract& c) { c.kv_split *= 2; }, {Op::attention}},
      {"softmax_lanes", [](Contract& c) { c.softmax_lanes /= 2; }, {Op::attention}}};
  for (const Case& c : cases) {
    change = c.change;
    for (const Op op : c.ops) {
      EXPECT_FALSE(verdict(op, table).admitted) << c.field << ", " << to_string(op);
    }
  }
}

TEST(Context, RunsStrictOnlyWhatIsAdmitted) {
  Admission admission(admission_key({}));
  const std::string backend = cpu_kernels().backend;
  for (int i = 0; i < kNumOps; ++i) {
    admission.add({static_cast<Op>(i), backend, true, 1, ""});
  }
  admission.add({Op::gemm, backend, false, 3, "vector \"m 1\": c[0, 0] is 1"});
  expect_error(ErrorCode::kNotAdmitted, {"gemm", backend, "c[0, 0] is 1", "rlk conform"},
               [&] { Context({}, all_ops(Mode::kStrict), 1, nullptr, admission); });
  Modes modes = all_ops(Mode::kStrict);
  modes[static_cast<int>(Op::gemm)] = Mode::kAuto;
  const Context ctx({}, modes, 1, nullptr, admission);
  EXPECT_EQ(&ctx.table(Op::gemm), &production_kernels());
  EXPECT_NE(ctx.fallback_reason(Op::gemm).find("c[0, 0] is 1"), std::string::npos);
  EXPECT_EQ(&ctx.table(Op::rope), &cpu_kernels());
  EXPECT_TRUE(ctx.fallback_reason(Op::rope).empty());
  expect_error(ErrorCode::kNotAdmitted, {"has no admission"}, [&] {
    Context({}, all_ops(Mode::kStrict), 1, nullptr, Admission(admission_key({})));
  });
}

class AdmissionFile : public testing::Test {
 protected:
  AdmissionFile() { setenv("XDG_CACHE_HOME", folder_.file("cache").c_str(), 1); }
  ~AdmissionFile() override { unsetenv("XDG_CACHE_HOME"); }

  // The lines that loading says.
  std::vector<std::string> load(Admission* out = nullptr) {
    std::vector<std::string> lines;
    Admission admission = load_or_conform({}, {cpu_kernels().backend},
                                          [&](const std::string& line) { lines.push_back(line); });
    EXPECT_TRUE(admission.admitted(Op::gemm, cpu_kernels().backend));
    if (out) *out = std::move(admission);
    return lines;
  }

  TemporaryFolder folder_;
};

TEST_F(AdmissionFile, ReadsBackWhatItWrote) {
  Admission written(admission_key({}));
  written.add({Op::gemm, "cpu.avx2", true, 12, ""});
  written.add({Op::rope, "production", false, 3, "vector \"a\": y[0] is 1 (0x3f80)"});
  const std::string path = folder_.file("deep/folder/record.json");
  write_admission(path, written);
  const Admission read = read_admission(path, admission_key({}));
  EXPECT_EQ(to_json(read), to_json(written));
  EXPECT_TRUE(read.admitted(Op::gemm, "cpu.avx2"));
  EXPECT_FALSE(read.admitted(Op::rope, "production"));
  EXPECT_EQ(read.find(Op::rope, "production")->vectors, 3);
}

TEST_F(AdmissionFile, RefusesTheRecordOfAnotherBuildDeviceOrContract) {
  const AdmissionKey key{"b", "d", "c"};
  const std::string path = folder_.file("record.json");
  write_admission(path, Admission(key));
  expect_error(ErrorCode::kContract, {path, "build is b, here it is x"}, [&] {
    read_admission(path, {"x", "d", "c"});
  });
  expect_error(ErrorCode::kContract, {"device is d, here it is x"}, [&] {
    read_admission(path, {"b", "x", "c"});
  });
  expect_error(ErrorCode::kContract, {"contract_digest is c, here it is x"}, [&] {
    read_admission(path, {"b", "d", "x"});
  });
}

TEST_F(AdmissionFile, RefusesWhatIsNoRecord) {
  const AdmissionKey key{"b", "d", "c"};
  const std::string path = folder_.file("record.json");
  std::string text = to_json(Admission(key));
  write_file(path, text.substr(0, text.size() / 2));
  expect_error(ErrorCode::kFormat, {path}, [&] { read_admission(path, key); });
  text.replace(text.find("rlk-admission"), 13, "rlk-record");
  write_file(path, text);
  expect_error(ErrorCode::kInvalidArgument, {path, "format"}, [&] { read_admission(path, key); });
  Admission admission(key);
  admission.add({Op::gemm, "x", true, 1, ""});
  text = to_json(admission);
  text.replace(text.find("\"gemm\""), 6, "\"gemn\"");
  write_file(path, text);
  expect_error(ErrorCode::kFormat, {path, "entries[0].op", "gemn"},
               [&] { read_admission(path, key); });
}

TEST_F(AdmissionFile, IsMadeOnceAndThenRead) {
  const std::string path = admission_path(admission_key({}));
  EXPECT_NE(path.find("cache/rlkernel/admission-"), std::string::npos) << path;
  Admission first(AdmissionKey{}), second(AdmissionKey{});
  const std::vector<std::string> lines = load(&first);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("no admission record"), std::string::npos) << lines[0];
  EXPECT_TRUE(load(&second).empty());
  EXPECT_EQ(to_json(first), to_json(second));
  Contract other;
  other.leaves = 4;
  EXPECT_NE(admission_path(admission_key(other)), path);
}

TEST_F(AdmissionFile, IsMadeAgainWhereItIsDamagedOrIncomplete) {
  const std::string path = admission_path(admission_key({}));
  load();
  write_file(path, "{");
  EXPECT_EQ(load().size(), 1u);
  EXPECT_TRUE(load().empty());
  write_admission(path, Admission(admission_key({})));
  EXPECT_EQ(load().size(), 1u);
  EXPECT_TRUE(load().empty());
}

TEST_F(AdmissionFile, ServesTheProcessWhereTheFolderCannotBeWritten) {
  write_file(folder_.file("cache"), "a file, not a folder");
  const std::vector<std::string> lines = load();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[1].find("serves this run only"), std::string::npos) << lines[1];
}

}  // namespace
}  // namespace rlk
