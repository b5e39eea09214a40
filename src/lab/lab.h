// lab: what `sandbay lab` does, in this process: reads experiments, runs them in virtual time or
// live, and reports.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "lab/live_run.h"
#include "lab/plan_choice.h"

namespace sandbay::lab {

enum class ReportForm : std::uint8_t { kText, kJson, kCsv };

struct LabOptions {
  std::string file;
  ReportForm form = ReportForm::kText;
  std::string html_folder;  // Empty: no page.
  unsigned threads = 1;     // Cases side by side, in virtual time.
  PlanChoice choice;
  bool live = false;  // Over iSCSI sockets in real time, one case after another.
  LiveOptions live_options;
  std::optional<double> time_scale;  // In place of the file's.
  std::size_t columns = 0;           // Of text; 0: no line is broken.
  bool progress = false;             // A line on `errors` that follows the cases.
};

// The report on `out`, complaints on `errors`. SIGINT ends the cases under way, and the report has
// what was done; a second one ends the process. The exit code: 0; 1 if a figure is outside of its
// tolerance, was not run, or for too short a time, or a target does not do; 2 if the file or the
// options were wrong.
int run_lab(const LabOptions& options, std::FILE* out, std::FILE* errors);
// The table of what fitted parameters do, as text or JSON; SIGINT and exit code likewise.
int run_influences(const LabOptions& options, std::FILE* out, std::FILE* errors);
// The experiment files of a folder with their titles; of a file, the names of all cases.
int list_labs(const std::string& path, std::FILE* out, std::FILE* errors);

}  // namespace sandbay::lab
