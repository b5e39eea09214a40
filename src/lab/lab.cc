// Files, signals and output of `sandbay lab`.
#include "lab/lab.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <vector>

#include "lab/experiment.h"
#include "lab/plan_run.h"
#include "lab/report.h"

namespace sandbay::lab {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

std::atomic<bool> stop_asked{false};

void ask_to_stop(int /*signal*/) { stop_asked.store(true, std::memory_order_relaxed); }

// The next one has its default effect.
void stop_at_interrupt() {
  stop_asked.store(false, std::memory_order_relaxed);
  struct sigaction action{};
  action.sa_handler = ask_to_stop;
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
}

PlanHooks hooks_for(const LabOptions& options, std::FILE* errors) {
  stop_at_interrupt();
  PlanHooks hooks{.progress = {}, .stop = &stop_asked};
  if (!options.progress) return hooks;
  const auto began = std::chrono::steady_clock::now();
  hooks.progress = [errors, began](std::size_t done, std::size_t all) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    const double left = took.count() / static_cast<double>(done) * static_cast<double>(all - done);
    fmt::print(errors, "\r{} of {} cases, about {:.0f} s to go   {}", done, all, left,
               done == all ? "\n" : "");
    std::fflush(errors);
  };
  return hooks;
}

std::string text_of(const Report& report, ReportForm form) {
  switch (form) {
    case ReportForm::kText:
      return to_text(report);
    case ReportForm::kJson:
      return to_json(report);
    case ReportForm::kCsv:
      return to_csv(report);
  }
  return {};
}

// Empty, or why not.
std::string write_page(const std::string& folder, const Report& report) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::filesystem::path path = std::filesystem::path(folder) / (report.plan.name + ".html");
  std::ofstream file(path);
  file << to_html(report);
  file.close();
  return file ? std::string() : fmt::format("{} cannot be written", path.string());
}

int complain(std::FILE* errors, const std::string& what, int code) {
  fmt::print(errors, "sandbay: {}\n", what);
  return code;
}

}  // namespace

int run_lab(const LabOptions& options, std::FILE* out, std::FILE* errors) {
  const auto plan = read_experiments(options.file);
  if (!plan) return complain(errors, plan.error(), kUsage);
  const PlanResult result = run_plan(*plan, options.threads, hooks_for(options, errors));
  const Report report = make_report(*plan, result);
  fmt::print(out, "{}", text_of(report, options.form));
  if (!options.html_folder.empty()) {
    const std::string wrong = write_page(options.html_folder, report);
    if (!wrong.empty()) return complain(errors, wrong, kFailed);
  }
  if (!result.complete) return complain(errors, "the report is partial: " + result.wrong, kFailed);
  const bool good = std::ranges::all_of(report.findings, [](const Finding& finding) {
    return finding.verdict == Verdict::kNone || finding.verdict == Verdict::kPass;
  });
  return good ? 0 : kFailed;
}

int run_influences(const LabOptions& options, std::FILE* out, std::FILE* errors) {
  const auto text = influences(options.file, options.threads, hooks_for(options, errors));
  if (!text) return complain(errors, text.error(), kUsage);
  fmt::print(out, "{}", *text);
  return 0;
}

int list_labs(const std::string& folder, std::FILE* out, std::FILE* errors) {
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".toml") paths.push_back(entry.path().string());
  }
  if (error) {
    return complain(errors,
                    fmt::format("{}: {}; name a folder of experiments", folder, error.message()),
                    kUsage);
  }
  std::ranges::sort(paths);
  int code = 0;
  for (const std::string& path : paths) {
    const auto plan = read_experiments(path);
    if (!plan) {
      code = complain(errors, plan.error(), kUsage);
      continue;
    }
    fmt::print(out, "{:<36} {} rows  {}\n", path, plan->rows.size(), plan->title);
  }
  return code;
}

}  // namespace sandbay::lab
