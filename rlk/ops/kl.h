// kl; formulas and shapes stand at the argument struct.
#pragma once

#include <string_view>

#include "rlk/kernels/kl.h"
#include "rlk/ops/context.h"

namespace rlk {

// Errors  kShape, kDtype, and kInvalidArgument for kl_type none, before any write; kNonFinite where
//         a token's value is not finite.
void kl(Context& ctx, const KlArgs& args);

const char* to_string(Kl kl);
Kl parse_kl(std::string_view name);  // none, k1, k2, k3

}  // namespace rlk
