// config.json: what loads has sizes that fit together and survives being written and read again.
#include "rlk/model/config.h"
#include "tests/fuzz/fuzz.h"

using rlk::fuzz::promise;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes = rlk::fuzz::text(data, size);
  rlk::fuzz::loads_or_refuses([&] {
    const rlk::ModelConfig config = rlk::parse_model_config(bytes, rlk::fuzz::kSource);
    promise(config.vocab_size > 0 && config.hidden_size > 0 && config.head_dim > 0 &&
                config.num_hidden_layers > 0 && config.intermediate_size > 0,
            "sizes are positive");
    promise(config.num_key_value_heads > 0 &&
                config.num_attention_heads % config.num_key_value_heads == 0,
            "KV heads divide the query heads");
    promise(config.head_dim % 2 == 0 && config.head_dim <= 256, "heads are of a supported size");
    promise(config.rope_theta >= 2 && config.rope_theta <= 0x1p40, "a RoPE table can be made");
    const std::string written = rlk::to_json(config);
    promise(rlk::to_json(rlk::parse_model_config(written, rlk::fuzz::kSource)) == written,
            "a config survives writing and reading");
  });
  return rlk::fuzz::loads_or_refuses([&] {
    const std::string written =
        rlk::to_json(rlk::parse_generation_config(bytes, rlk::fuzz::kSource));
    promise(rlk::to_json(rlk::parse_generation_config(written, rlk::fuzz::kSource)) == written,
            "a generation config survives writing and reading");
  });
}
