// Group advantages against float64 results of an independent implementation.
#include "rlk/rl/advantage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rlk/io/files.h"

namespace rlk {
namespace {

TEST(AdvantageGolden, IsWithinOneRounding) {
  const nlohmann::json file = nlohmann::json::parse(
      read_file(std::string(RLK_SOURCE_DIR) + "/tests/goldens/oracle/group_advantages.json"));
  const double relative = file.at("relative_bound");
  int compared = 0;
  for (const auto& c : file.at("cases")) {
    const int ddof = c.at("ddof");
    for (std::size_t g = 0; g < file.at("rewards").size(); ++g) {
      const auto rewards = file.at("rewards")[g].get<std::vector<double>>();
      const auto n = static_cast<std::int64_t>(rewards.size());
      if (n <= ddof) continue;  // refused
      std::vector<float> actual(rewards.size());
      Context ctx({}, all_ops(Mode::kStrict), 1);
      group_advantages(ctx, actual, rewards, n, c.at("eps").get<double>(), ddof);
      for (std::size_t i = 0; i < rewards.size(); ++i, ++compared) {
        const double expected = c.at("advantages")[g][i];
        EXPECT_NEAR(actual[i], expected, relative * std::abs(expected)) << g << " " << i;
      }
    }
  }
  EXPECT_GT(compared, 50);
}

}  // namespace
}  // namespace rlk
