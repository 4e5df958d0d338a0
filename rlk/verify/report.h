// report.html: what one run did, or two routes side by side, in one file without any outside part.
#pragma once

#include <string>
#include <vector>

namespace rlk {

// run_folders: folders with run.db (or the files themselves), in the order of the columns;
// normally the strict run, then the production run. Text from runs is escaped.
// Errors  kInvalidArgument without folders, kIo (nothing is left half written).
void write_report(const std::string& path, const std::vector<std::string>& run_folders);

// The page itself.
std::string report_html(const std::vector<std::string>& run_folders);

}  // namespace rlk
