// The configuration of a run: what loads is valid and survives being written and read again.
#include "rlk/rl/rl_config.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return rlk::fuzz::loads_or_refuses([&] {
    const rlk::RlConfig config =
        rlk::parse_rl_config(rlk::fuzz::text(data, size), rlk::fuzz::kSource, "/folder");
    rlk::validate(config, rlk::fuzz::kSource);
    const rlk::RlConfig again =
        rlk::parse_rl_config(rlk::to_json(config), rlk::fuzz::kSource, "/elsewhere");
    rlk::fuzz::promise(again == config, "a config survives writing and reading");
  });
}
