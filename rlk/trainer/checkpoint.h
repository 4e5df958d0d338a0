// Trainer state in a safetensors file: masters, moments and counters, enough to go on to the same
// bits.
#pragma once

#include <map>
#include <string>

#include "rlk/trainer/trainer.h"

namespace rlk {

// Writes trainer state atomically. `extra` travels in the file's metadata.
void save_trainer_state(const std::string& path, Trainer& trainer,
                        const std::map<std::string, std::string>& extra);

// Reads it back: masters and moments as they were, weights = bf16(masters), the weight version
// restored. Returns the metadata.
// Errors  kIo; kFormat (missing or misshapen tensor, missing counter); kContract when the file was
//         written under another backward digest.
std::map<std::string, std::string> load_trainer_state(const std::string& path, Trainer& trainer);

}  // namespace rlk
