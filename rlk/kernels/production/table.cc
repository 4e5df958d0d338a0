#include "rlk/kernels/production/table.h"

namespace rlk {
namespace {

KernelTable make_table() {
  KernelTable table = cpu_kernels();
  table.backend = "production";
  table.pack_weight = production::pack_weight;
  table.gemm = production::gemm;
  table.gemm_backward_weight = production::gemm_backward_weight;
  table.bias_backward = production::bias_backward;
  return table;
}

}  // namespace

const KernelTable& production_kernels() {
  static const KernelTable kTable = make_table();
  return kTable;
}

}  // namespace rlk
