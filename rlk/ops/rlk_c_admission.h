// What the contexts of rlk.h may run. For rlk_c.cc only.
#pragma once

#include "rlk/kernels/kernel_table.h"
#include "rlk/ops/admission.h"

namespace rlk::c {

// Admission::own_kernels() for kernels that it admits. Others are tried, once per process, backend
// and contract. Defined where the trial is, a layer above: verify/rlk_c_admission.cc.
Admission admission_for(const KernelTable& kernels, const Contract& contract);

}  // namespace rlk::c
