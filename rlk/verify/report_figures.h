// The figures of report.html: every run on one axis each.
#pragma once

#include <string>
#include <vector>

#include "rlk/verify/report_run.h"

namespace rlk {

std::string report_figures(const std::vector<ReportRun>& runs);

}  // namespace rlk
