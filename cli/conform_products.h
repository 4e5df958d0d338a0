// `rlk conform --products`: which algorithms of the GPU vendor's library give our products.
#pragma once

#include <string>

#include "cli/engine.h"

namespace rlk::cli {

// Tries every product of one chain of the model in this folder, empty: of Qwen3-8B, and prints a
// row for each algorithm. Returns the exit code: kNotAvailable where one could not be tried.
int conform_products(const std::string& library, const std::string& model,
                     const EngineFlags& engine);

}  // namespace rlk::cli
