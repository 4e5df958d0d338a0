// The tables of profiles cdna2 and cdna3: that of profile portable, but for what is made of
// products. One text, compiled for each chip; the profile is what the chip's instruction computes.
#include "rlk/kernels/gpu/cdna/table.h"

#include "rlk/kernels/gpu/call.h"

namespace rlk::gpu {
namespace {

KernelTable table_of(const KernelTable& backend) {
  KernelTable table = with_kernels_of(portable_kernels(), backend);
#define RLK_OP(name, Args) table.name = &call<&cdna::name, Args>;
  RLK_GPU_PRODUCT_OPS(RLK_OP)
#undef RLK_OP
  return table;
}

}  // namespace

const KernelTable& cdna3_kernels() {
  static const KernelTable kTable = table_of(kCdna3Backend);
  return kTable;
}

const KernelTable& cdna2_kernels() {
  static const KernelTable kTable = table_of(kCdna2Backend);
  return kTable;
}

}  // namespace rlk::gpu
