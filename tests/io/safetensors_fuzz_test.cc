// Damaged tensor files: each either loads, and then every byte of every tensor can be read, or is
// refused with rlk::Error. Run it under the address sanitizer too.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "rlk/io/safetensors.h"

namespace rlk {
namespace {

std::string with_header_size(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

std::string valid_file() {
  return with_header_size(R"({"__metadata__":{"format":"pt"},)"
                          R"("a.weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[12,24]},)"
                          R"("b":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
                          R"("c":{"dtype":"I64","shape":[0,7],"data_offsets":[24,24]}})",
                          "0123456789abcdefghijklmn");
}

// The sum keeps the reads from being removed.
unsigned read_everything(const std::string& bytes) {
  const SafetensorsHeader header = parse_safetensors_header(bytes, "fuzz");
  unsigned sum = 0;
  for (const auto& [name, tensor] : header.tensors) {
    RC_ASSERT(tensor.end <= bytes.size() - header.data_begin);
    RC_ASSERT(static_cast<std::uint64_t>(tensor.layout.size()) * size_of(tensor.dtype) ==
              tensor.end - tensor.begin);
    for (std::uint64_t i = tensor.begin; i < tensor.end; ++i) {
      sum += static_cast<unsigned char>(bytes[header.data_begin + i]);
    }
  }
  return sum;
}

void loads_or_refuses(const std::string& bytes) {
  try {
    RC_LOG() << read_everything(bytes);
  } catch (const Error& error) {
    RC_ASSERT(std::string(error.what()).starts_with("fuzz"));
  }
}

// What a mutation may write: JSON's own characters and numbers do the most harm.
rc::Gen<std::string> fragment() {
  return rc::gen::oneOf(rc::gen::elementOf(std::vector<std::string>{"0",
                                                                    "1",
                                                                    "9",
                                                                    "-1",
                                                                    "24",
                                                                    "12",
                                                                    "4294967296",
                                                                    "9223372036854775807",
                                                                    "18446744073709551615",
                                                                    "1e9",
                                                                    "null",
                                                                    "{",
                                                                    "}",
                                                                    "[",
                                                                    "]",
                                                                    ",",
                                                                    ":",
                                                                    "\"",
                                                                    "\\u0000",
                                                                    "\"a.weight\"",
                                                                    "\"dtype\"",
                                                                    "\"F32\"",
                                                                    "\"I64\"",
                                                                    "\"BOOL\"",
                                                                    "__metadata__",
                                                                    " "}),
                        rc::gen::arbitrary<std::string>());
}

TEST(SafetensorsFuzz, ValidFileLoads) { EXPECT_GT(read_everything(valid_file()), 0u); }

TEST(SafetensorsFuzz, DamagedFilesLoadOrAreRefused) {
  const bool holds = rc::check("damaged file", [] {
    std::string bytes = valid_file();
    const int edits = *rc::gen::inRange(1, 5);
    for (int i = 0; i < edits && !bytes.empty(); ++i) {
      const auto position = *rc::gen::inRange<std::size_t>(0, bytes.size());
      const auto removed = *rc::gen::inRange<std::size_t>(0, 4);
      bytes.replace(position, removed, *fragment());
    }
    loads_or_refuses(bytes);
  });
  EXPECT_TRUE(holds);
}

TEST(SafetensorsFuzz, DamagedHeadersWithARightSizeLoadOrAreRefused) {
  const bool holds = rc::check("damaged header", [] {
    const std::string bytes = valid_file();
    std::string header = bytes.substr(8, bytes.size() - 8 - 24);
    const int edits = *rc::gen::inRange(1, 4);
    for (int i = 0; i < edits && !header.empty(); ++i) {
      const auto position = *rc::gen::inRange<std::size_t>(0, header.size());
      header.replace(position, *rc::gen::inRange<std::size_t>(0, 3), *fragment());
    }
    loads_or_refuses(with_header_size(header, bytes.substr(bytes.size() - 24)));
  });
  EXPECT_TRUE(holds);
}

TEST(SafetensorsFuzz, EveryTruncationIsRefused) {
  const std::string bytes = valid_file();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(read_everything(bytes.substr(0, size)), Error) << size;
  }
}

TEST(SafetensorsFuzz, EveryChangedByteLoadsOrIsRefused) {
  for (std::size_t i = 0; i + 24 < valid_file().size(); ++i) {
    for (int value : {0, 1, 0x22, 0x2c, 0x30, 0x39, 0x5d, 0x7d, 0x7f, 0x80, 0xff}) {
      std::string bytes = valid_file();
      bytes[i] = static_cast<char>(value);
      try {
        read_everything(bytes);
      } catch (const Error&) {
        continue;
      }
    }
  }
}

}  // namespace
}  // namespace rlk
