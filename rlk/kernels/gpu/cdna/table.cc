// The tables of profiles cdna2 and cdna3: that of profile portable, but for what is made of
// products. One text, compiled for each chip; the profile is what the chip's instruction computes.
#include "rlk/kernels/gpu/cdna/table.h"

#include "rlk/kernels/gpu/call.h"

namespace rlk {
namespace {

KernelTable table_of(const char* backend, Profile profile) {
  KernelTable table = gpu_kernels();
  table.backend = backend;
  table.profiles = static_cast<std::uint8_t>(1u << static_cast<int>(profile));
#define RLK_OP(name, Args) table.name = &gpu::call<&gpu::cdna::name, Args>;
  RLK_GPU_PRODUCT_OPS(RLK_OP)
#undef RLK_OP
  return table;
}

}  // namespace

const KernelTable& gpu_kernels_cdna3() {
  static const KernelTable kTable = table_of(gpu::kBackendCdna3, Profile::kCdna3);
  return kTable;
}

const KernelTable& gpu_kernels_cdna2() {
  static const KernelTable kTable = table_of(gpu::kBackendCdna2, Profile::kCdna2);
  return kTable;
}

}  // namespace rlk
