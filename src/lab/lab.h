// lab: what `sandbay lab` does, in this process: reads experiments, runs them in virtual time, and
// reports.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace sandbay::lab {

enum class ReportForm : std::uint8_t { kText, kJson, kCsv };

struct LabOptions {
  std::string file;
  ReportForm form = ReportForm::kText;
  std::string html_folder;  // Empty: no page.
  unsigned threads = 1;     // Cases side by side.
  bool progress = false;    // A line on `errors` that follows the cases.
};

// The report on `out`, complaints on `errors`. SIGINT ends the cases under way, and the report has
// what was done; a second one ends the process. The exit code: 0; 1 if a figure is outside of its
// tolerance or was not run; 2 if the file was wrong.
int run_lab(const LabOptions& options, std::FILE* out, std::FILE* errors);
// The table of what fitted parameters do.
int run_influences(const LabOptions& options, std::FILE* out, std::FILE* errors);
// The experiment files of a folder with their titles.
int list_labs(const std::string& folder, std::FILE* out, std::FILE* errors);

}  // namespace sandbay::lab
