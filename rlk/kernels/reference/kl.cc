#include "rlk/kernels/kl.h"

#include "rlk/kernels/reference/loss_terms.h"
#include "rlk/kernels/reference/table.h"

namespace rlk::reference {

void kl(Exec& exec, const KlArgs& args) {
  for (std::int64_t t = 0; t < args.kl.shape(0); ++t) {
    KlTerm term{0.0f, 0.0f};
    if (is_active(args.weight, t)) {
      term = kl_term(args.kl_type, *args.logp.at<float>(t), *args.ref.at<float>(t));
    }
    if (!numerics::is_finite(term.value)) exec.fault.report(t);
    store(args.kl, t, term.value);
    store(args.slope, t, term.slope);
  }
}

}  // namespace rlk::reference
