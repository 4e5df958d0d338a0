// Raw results of devices (tests/goldens/mma/README.md) against the scalar models.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "tests/numerics/mma/results.h"

namespace rlk::numerics::mma {
namespace {

std::string record(const char* instruction, Family family) {
  ResultHeader header{};
  std::copy_n(kResultMagic, 8, header.magic);
  std::copy_n(instruction, std::strlen(instruction), header.instruction);
  header.family = static_cast<std::uint32_t>(family);
  header.rows = 8, header.columns = 4, header.k = 32;
  header.seed = 5;
  const std::vector<float> results = model_results(header);
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) +
         std::string(reinterpret_cast<const char*>(results.data()), results.size() * sizeof(float));
}

TEST(RawResults, AreComparedByteForByte) {
  std::string file = record("sm90 mma.sync m16n8k16", Family::kNormal) +
                     record("cdna3 16x16x16", Family::kAllBits);
  EXPECT_EQ(count_wrong(file), 0);
  file[sizeof(ResultHeader) + 4] ^= 1;
  file.back() ^= 1;
  EXPECT_EQ(count_wrong(file), 2);
  EXPECT_EQ(count_wrong(file.substr(0, file.size() - 1)), -1);
  file[0] = 'x';
  EXPECT_EQ(count_wrong(file), -1);
}

TEST(RawResults, OfEveryDeviceEqualTheModel) {
  const std::filesystem::path folder = RLK_SOURCE_DIR "/tests/goldens/mma";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".bin") continue;
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string file{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(count_wrong(file), 0) << entry.path().filename();
  }
}

}  // namespace
}  // namespace rlk::numerics::mma
