// The style sheet of report.html.
#pragma once

namespace rlk {

extern const char* const kReportStyle;

}  // namespace rlk
