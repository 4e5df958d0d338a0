// The tables of the CPU backend, and the choice between them.
#include "rlk/core/error.h"
#include "rlk/core/instruction_sets.h"
#include "rlk/kernels/cpu/table.h"

namespace rlk {
namespace {

template <Isa I>
KernelTable make_table(const char* backend) {
  return {.backend = backend,
          .profiles = kEveryProfile,  // by the models of numerics/mma
#define RLK_OP(name, Args) .name = &cpu::name<I>,
          RLK_OPS(RLK_OP)
#undef RLK_OP
  };
}

}  // namespace

bool available(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return true;
    case Isa::kAvx2: return has_avx2();
    case Isa::kAvx512: return has_avx512();
  }
  return false;
}

const KernelTable& cpu_kernels(Isa isa) {
  RLK_ASSERT(available(isa));
  static const KernelTable kScalar = make_table<Isa::kScalar>("cpu.scalar");
  static const KernelTable kAvx2 = make_table<Isa::kAvx2>("cpu.avx2");
  static const KernelTable kAvx512 = make_table<Isa::kAvx512>("cpu.avx512");
  switch (isa) {
    case Isa::kAvx2: return kAvx2;
    case Isa::kAvx512: return kAvx512;
    default: return kScalar;
  }
}

const KernelTable& cpu_kernels() {
  static const Isa kBest = available(Isa::kAvx512) ? Isa::kAvx512
                           : available(Isa::kAvx2) ? Isa::kAvx2
                                                   : Isa::kScalar;
  return cpu_kernels(kBest);
}

}  // namespace rlk
