#include "rlk/io/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/io/error_matchers.h"
#include "tests/io/temporary_folder.h"

namespace rlk {
namespace {

// A file with this header text and data, without any check.
std::string file_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

SafetensorsHeader parse(const std::string& header, const std::string& data) {
  return parse_safetensors_header(file_bytes(header, data), "m.safetensors");
}

Tensor numbered(DType dtype, const std::vector<std::int64_t>& shape) {
  Tensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.size_bytes(); ++i) {
    tensor.data<unsigned char>()[i] = static_cast<unsigned char>(i * 37 + 11);
  }
  return tensor;
}

std::string bytes_of(const ConstTensorView& view) {
  return {static_cast<const char*>(view.data),
          static_cast<std::size_t>(view.layout.size()) * size_of(view.dtype)};
}

TEST(Safetensors, ReadBackWhatWasWritten) {
  const TemporaryFolder folder;
  const Tensor bf16 = numbered(DType::kBF16, {3, 5});
  const Tensor f32 = numbered(DType::kF32, {2, 1, 2});
  const Tensor f16 = numbered(DType::kF16, {1});
  const Tensor i64 = numbered(DType::kI64, {2});
  const Tensor i32 = numbered(DType::kI32, {1, 1, 1, 3});
  const Tensor empty = numbered(DType::kF32, {0, 4});
  const Tensor scalar = numbered(DType::kF32, std::vector<std::int64_t>{});
  const std::string path = folder.file("m.safetensors");
  write_safetensors(path,
                    {{"z.bf16", bf16},
                     {"f32", f32},
                     {"f16", f16},
                     {"i64", i64},
                     {"i32", i32},
                     {"empty", empty},
                     {"scalar", scalar}},
                    {{"format", "pt"}});

  const SafetensorsFile file(path);
  EXPECT_EQ(file.names(),
            (std::vector<std::string>{"empty", "f16", "f32", "i32", "i64", "scalar", "z.bf16"}));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  const std::map<std::string, const Tensor*> written{{"z.bf16", &bf16}, {"f32", &f32},
                                                     {"f16", &f16},     {"i64", &i64},
                                                     {"i32", &i32},     {"scalar", &scalar}};
  for (const auto& [name, tensor] : written) {
    const ConstTensorView view = file.tensor(name);
    EXPECT_EQ(view.dtype, tensor->dtype()) << name;
    EXPECT_EQ(view.layout.to_string(), tensor->layout().to_string()) << name;
    EXPECT_EQ(bytes_of(view), bytes_of(*tensor)) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype), 0u) << name;
  }
  EXPECT_EQ(file.tensor("empty").layout.size(), 0);
  EXPECT_TRUE(file.tensor("empty"));
}

TEST(Safetensors, WritesTheSameBytesInAnyOrder) {
  const TemporaryFolder folder;
  const Tensor a = numbered(DType::kBF16, {3});
  const Tensor b = numbered(DType::kF32, {2});
  write_safetensors(folder.file("1"), {{"a", a}, {"b", b}}, {{"x", "1"}, {"y", "2"}});
  write_safetensors(folder.file("2"), {{"b", b}, {"a", a}}, {{"y", "2"}, {"x", "1"}});
  const std::string bytes = read_file(folder.file("1"));
  EXPECT_EQ(bytes, read_file(folder.file("2")));
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]) % 8, 0);
  EXPECT_EQ(
      bytes.substr(8, 84),
      R"({"__metadata__":{"x":"1","y":"2"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8)");
}

TEST(Safetensors, WriterRefusesGapsAndDoubledNames) {
  const TemporaryFolder folder;
  const Tensor t = numbered(DType::kF32, {4, 4});
  const std::string path = folder.file("m");
  expect_error(ErrorCode::kInvalidArgument, {path, "half", "[4, 2]"}, [&] {
    write_safetensors(path, {{"half", columns(t.view(), 0, 2)}});
  });
  expect_error(ErrorCode::kInvalidArgument, {path, "twice"}, [&] {
    write_safetensors(path, {{"twice", t}, {"twice", t}});
  });
  EXPECT_FALSE(file_exists(path));
}

TEST(Safetensors, RealignsTensorsThatLieAtOddBytes) {
  const TemporaryFolder folder;
  std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  while (header.size() % 4 != 1) header += ' ';
  write_file(folder.file("m"), file_bytes(header, "abcdefgh"));
  const SafetensorsFile file(folder.file("m"));
  const ConstTensorView view = file.tensor("a");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 4, 0u);
  EXPECT_EQ(bytes_of(view), "abcdefgh");
}

TEST(Safetensors, RefusesTruncatedAndLyingFiles) {
  const auto refused = [](const std::vector<std::string>& named, const std::string& header,
                          const std::string& data, ErrorCode code = ErrorCode::kFormat) {
    expect_error(code, named, [&] { parse(header, data); });
  };
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
           offsets + "}}";
  };
  parse(one("F32", "[2]", "[0,8]"), "12345678");
  refused({"m.safetensors", "a.data_offsets", "past the data", "7 bytes"},
          one("F32", "[2]", "[0,8]"), "1234567");
  refused({"a.data_offsets", "spans 8", "[3]", "12"}, one("F32", "[3]", "[0,8]"), "12345678");
  refused({"cover 8 of 9"}, one("F32", "[2]", "[0,8]"), "123456789");
  refused({"a", "begins at data byte 4", "hole"}, one("F32", "[1]", "[4,8]"), "12345678");
  refused({"[begin, end]", "[8,0]"}, one("F32", "[2]", "[8,0]"), "12345678");
  refused({"[begin, end]"}, one("F32", "[2]", "[0]"), "12345678");
  refused({"a.data_offsets"}, one("F32", "[2]", "[-1,8]"), "12345678");
  refused({"a.data_offsets"}, one("F32", "[2]", "[0,99999999999999999999]"), "12345678");
  refused({"overflows"}, one("F32", "[4611686018427387904,4]", "[0,0]"), "");
  refused({"a.shape", "overflows"},
          one("F32", "[0,4611686018427387904,4611686018427387904]", "[0,0]"), "");
  refused({"a.shape", "at least 0", "-2"}, one("F32", "[-2]", "[0,8]"), "12345678",
          ErrorCode::kInvalidArgument);
  refused({"a.dtype", "F8_E4M3", "BF16"}, one("F8_E4M3", "[8]", "[0,8]"), "12345678",
          ErrorCode::kUnsupported);
  refused({"a.shape", "rank 5"}, one("F32", "[1,1,1,1,2]", "[0,8]"), "12345678",
          ErrorCode::kUnsupported);
  refused({"b", "overlaps"},
          R"({"a":{"dtype":"F16","shape":[3],"data_offsets":[0,6]},
              "b":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})",
          "12345678");
  refused({"\"a\"", "twice"},
          R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},
              "a":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})",
          "12345678");
  refused({"a.extra", "unknown key"},
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1}})", "12345678");
  refused({"__metadata__.x", "a string"}, R"({"__metadata__":{"x":1}})", "");
  refused({"not JSON"}, "{", "");
  refused({"JSON object"}, "[]", "");

  const std::string path = "m.safetensors";
  expect_error(ErrorCode::kFormat, {path, "4 bytes"},
               [&] { parse_safetensors_header("1234", path); });
  expect_error(ErrorCode::kFormat, {path, "past the end"},
               [&] { parse_safetensors_header(std::string("\x09\0\0\0\0\0\0\0{}", 10), path); });
  expect_error(ErrorCode::kFormat, {path, "above 100000000"}, [&] {
    parse_safetensors_header(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10), path);
  });
}

TEST(Safetensors, NamesTheMissingTensorAndTheNearestOne) {
  const TemporaryFolder folder;
  const Tensor t = numbered(DType::kF32, {1});
  write_safetensors(folder.file("model.safetensors"), {{"model.norm.weight", t}});
  const Checkpoint checkpoint(folder.path());
  expect_error(ErrorCode::kFormat,
               {folder.file("model.safetensors"), "model.norm.weights", "model.norm.weight"},
               [&] { checkpoint.tensor("model.norm.weights"); });
}

class ShardedCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    write_safetensors(folder_.file("1.safetensors"), {{"a", a_}, {"b", b_}});
    write_safetensors(folder_.file("2.safetensors"), {{"c", c_}});
    write_index(R"({"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"})");
  }
  void write_index(const std::string& weight_map) {
    write_file(index_, R"({"metadata": {"total_size": 1}, "weight_map": )" + weight_map + "}");
  }
  void expect_refused(ErrorCode code, const std::vector<std::string>& named) {
    expect_error(code, named, [&] { Checkpoint{folder_.path()}; });
  }

  TemporaryFolder folder_;
  const std::string index_ = folder_.file("model.safetensors.index.json");
  const Tensor a_ = numbered(DType::kBF16, {2, 2});
  const Tensor b_ = numbered(DType::kF32, {3});
  const Tensor c_ = numbered(DType::kBF16, {4});
};

TEST_F(ShardedCheckpoint, FindsTensorsInAllShards) {
  const Checkpoint checkpoint(folder_.path());
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(bytes_of(checkpoint.tensor("a")), bytes_of(a_));
  EXPECT_EQ(bytes_of(checkpoint.tensor("c")), bytes_of(c_));
  EXPECT_EQ(checkpoint.path_of("c"), folder_.file("2.safetensors"));
  EXPECT_FALSE(checkpoint.contains("d"));
  expect_error(ErrorCode::kFormat, {folder_.path(), "tensor d"}, [&] { checkpoint.tensor("d"); });
}

TEST_F(ShardedCheckpoint, PrefersTheSingleFile) {
  write_safetensors(folder_.file("model.safetensors"), {{"only", a_}});
  EXPECT_EQ(Checkpoint(folder_.path()).names(), std::vector<std::string>{"only"});
}

TEST_F(ShardedCheckpoint, RefusesAnIndexThatLies) {
  write_index(R"({"a": "1.safetensors", "c": "3.safetensors"})");
  expect_refused(ErrorCode::kIo, {folder_.file("3.safetensors"), index_, "missing"});
  write_index(R"({"a": "1.safetensors", "c": "1.safetensors"})");
  expect_refused(ErrorCode::kFormat, {folder_.file("1.safetensors"), "tensor c", "missing"});
  write_index(R"({"a": "../1.safetensors"})");
  expect_refused(ErrorCode::kFormat, {index_, "weight_map.a", "../1.safetensors"});
  write_index("{}");
  expect_refused(ErrorCode::kFormat, {index_, "no tensor"});
  write_index(R"({"a": 1})");
  expect_refused(ErrorCode::kFormat, {index_, "weight_map.a", "a string"});
}

TEST_F(ShardedCheckpoint, RefusesATensorInTwoShards) {
  write_safetensors(folder_.file("2.safetensors"), {{"c", c_}, {"a", a_}});
  expect_refused(ErrorCode::kFormat,
                 {"tensor a", folder_.file("1.safetensors"), folder_.file("2.safetensors")});
}

TEST(Checkpoint, SaysWhichFilesItLooksFor) {
  const TemporaryFolder folder;
  expect_error(ErrorCode::kIo, {folder.path(), "model.safetensors", "index.json"},
               [&] { Checkpoint{folder.path()}; });
}

}  // namespace
}  // namespace rlk
