#include "rlk/kernels/kernel_table.h"

namespace rlk {

const char* to_string(Op op) {
  static constexpr const char* kNames[] = {
#define RLK_OP(name, Args) #name,
      RLK_OPS(RLK_OP)
#undef RLK_OP
  };
  return op < Op::kCount ? kNames[static_cast<int>(op)] : "unknown";
}

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "unknown";
}

}  // namespace rlk
