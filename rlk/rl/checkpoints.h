// Checkpoints of a run: <out>/checkpoints/step-000020/ is a Hugging Face folder with
// trainer.safetensors.
#pragma once

#include <cstdint>
#include <string>

#include "rlk/model/config.h"
#include "rlk/trainer/trainer.h"

namespace rlk {

// Writes the folder under another name and renames it when it is whole; then deletes the oldest
// beyond `keep` (0 keeps all). `source_folder` is where tokenizer.json comes from.
// Errors  kIo.
void write_checkpoint(const std::string& out, std::int64_t step, Trainer& trainer,
                      const ModelConfig& config, const std::string& source_folder, int keep);

// Loads the newest whole checkpoint of a step that is at most last_step; returns its step, or 0
// with the trainer untouched when there is none.
std::int64_t load_latest_checkpoint(const std::string& out, std::int64_t last_step,
                                    Trainer& trainer);

bool has_checkpoints(const std::string& out);

// Those that a resumed run will write again. They can only be there when run.db was put back from a
// copy; kept, they would count as the newest.
void delete_checkpoints_after(const std::string& out, std::int64_t step);

}  // namespace rlk
