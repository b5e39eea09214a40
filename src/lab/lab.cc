// Files, signals and output of `sandbay lab`.
#include "lab/lab.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "lab/experiment.h"
#include "lab/influences.h"
#include "lab/interrupt.h"
#include "lab/live_run.h"
#include "lab/load.h"
#include "lab/plan_choice.h"
#include "lab/plan_run.h"
#include "lab/report.h"

namespace sandbay::lab {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

// Empty, or why not all of it has been taken.
std::string put(std::FILE* out, const std::string& text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  if (written && std::fflush(out) == 0) return {};
  return "the output cannot be written: " + std::generic_category().message(errno);
}

PlanHooks hooks_for(const LabOptions& options, std::FILE* errors) {
  PlanHooks hooks{.progress = {}, .stop = &stop_at_interrupt()};
  if (!options.progress) return hooks;
  const auto began = std::chrono::steady_clock::now();
  hooks.progress = [errors, began](std::size_t done, std::size_t all) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    const double left = took.count() / static_cast<double>(done) * static_cast<double>(all - done);
    put(errors, fmt::format("\r{} of {} cases, about {:.0f} s to go   {}", done, all, left,
                            done == all ? "\n" : ""));
  };
  return hooks;
}

std::string text_of(const Report& report, const LabOptions& options) {
  switch (options.form) {
    case ReportForm::kText:
      return to_text(report, options.columns);
    case ReportForm::kJson:
      return to_json(report);
    case ReportForm::kCsv:
      return to_csv(report);
  }
  return {};
}

std::filesystem::path page_path(const std::string& folder, const Plan& plan) {
  return std::filesystem::path(folder) / page_file_name(plan.name);
}

// In a file of ours beside it, so that a page that is there stays until there is a whole one, and
// nothing else is written to. Empty, or why not.
std::string write_beside(const std::filesystem::path& path, const std::string& page) {
  std::error_code error;
  std::filesystem::remove(path, error);
  errno = 0;
  std::ofstream file(path, std::ios::out | std::ios::noreplace);
  file << page;
  file.close();
  if (file) return {};
  const int reason = errno;
  return fmt::format("{} cannot be written: {}", path.string(),
                     std::generic_category().message(reason));
}

std::filesystem::path beside(std::filesystem::path path) {
  return path += fmt::format(".{}.new", ::getpid());
}

// Before hours of runs. Empty, or why no page can be written there.
std::string check_page(const std::string& folder, const Plan& plan) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return fmt::format("--html {}: no such folder can be made: {}", folder, error.message());
  const std::filesystem::path path = page_path(folder, plan);
  if (std::filesystem::is_directory(path, error)) {
    return fmt::format("--html {}: {} is a folder; the page is to be there", folder, path.string());
  }
  const std::string wrong = write_beside(beside(path), {});
  std::filesystem::remove(beside(path), error);
  return wrong.empty() ? wrong : fmt::format("--html {}: {}", folder, wrong);
}

// Empty, or why not.
std::string write_page(const std::string& folder, const Report& report) {
  const std::filesystem::path path = page_path(folder, report.plan);
  std::error_code error;
  std::string wrong = write_beside(beside(path), to_html(report));
  if (wrong.empty()) {
    std::filesystem::rename(beside(path), path, error);
    if (error) wrong = fmt::format("{} cannot be written: {}", path.string(), error.message());
  }
  if (!wrong.empty()) std::filesystem::remove(beside(path), error);
  return wrong;
}

std::string check_virtual(const LabOptions& options) {
  if (options.time_scale) return "--time-scale is for runs that are live: add --live";
  if (options.live_options.write) return "--write is for targets elsewhere: add --live URL";
  return {};
}

double live_seconds(const Plan& plan, double time_scale) {
  std::chrono::duration<double> sum{};
  for (const Row& row : plan.rows) {
    sum += static_cast<double>(case_names(row).size()) * (row.ramp_up + row.run_time);
  }
  return sum.count() * time_scale;
}

// One case after another: they would take each other's time. A target that is away, or fails, is so
// for all cases.
PlanResult run_live_plan(const Plan& plan, const LiveOptions& options, PlanHooks hooks) {
  const std::atomic<bool>* stop = hooks.stop;
  std::string wrong;
  hooks.run = [&options, &wrong, stop](const ArrayProfile& system,
                                       Case what) -> std::expected<CaseResult, std::string> {
    if (!wrong.empty()) return std::unexpected(wrong);
    auto result = run_live_case(system, std::move(what), options, stop);
    if (result) return std::move(*result);
    if (!result.error().of_case) wrong = result.error().what;
    return std::unexpected(std::move(result.error().what));
  };
  PlanResult result = run_plan(plan, 1, hooks);
  result.live = true;
  result.time_scale = options.time_scale;
  for (const std::string& url : options.urls) result.targets.push_back(without_password(url));
  return result;
}

int complain(std::FILE* errors, const std::string& what, int code) {
  put(errors, fmt::format("sandbay: {}\n", what));
  return code;
}

int print(const std::string& text, std::FILE* out, std::FILE* errors) {
  const std::string wrong = put(out, text);
  return wrong.empty() ? 0 : complain(errors, wrong, kFailed);
}

int list_cases(const std::string& path, std::FILE* out, std::FILE* errors) {
  const auto plan = read_experiments(path);
  if (!plan) return complain(errors, plan.error(), kUsage);
  std::string text;
  for (const Row& row : plan->rows) {
    const double seconds =
        std::chrono::duration<double>(row.ramp_up + row.run_time).count() * plan->time_scale;
    for (const std::string& name : case_names(row)) {
      text += fmt::format("{:<56} {:>6.0f} s\n", name, seconds);
    }
  }
  return print(text, out, errors);
}

}  // namespace

int run_lab(const LabOptions& options, std::FILE* out, std::FILE* errors) {
  auto plan = read_experiments(options.file);
  if (!plan) return complain(errors, plan.error(), kUsage);
  std::string wrong = choose(*plan, options.choice);
  LiveOptions live = options.live_options;
  // Nobody else's time is stretched by what the file says of the system.
  live.time_scale = options.time_scale.value_or(live.urls.empty() ? plan->time_scale : 1);
  if (wrong.empty() && options.live && options.choice.until_steady) {
    wrong = "--until-steady is for virtual time; --seconds says how long is measured live";
  }
  if (wrong.empty()) wrong = options.live ? check_live(*plan, live) : check_virtual(options);
  if (!wrong.empty()) return complain(errors, wrong, kUsage);
  const bool page = !options.html_folder.empty();
  if (page) wrong = check_page(options.html_folder, *plan);
  if (!wrong.empty()) return complain(errors, wrong, kUsage);
  if (options.live && options.progress) {
    put(errors, fmt::format("It takes {:.0f} s\n", live_seconds(*plan, live.time_scale)));
  }
  const PlanHooks hooks = hooks_for(options, errors);
  const PlanResult result =
      options.live ? run_live_plan(*plan, live, hooks) : run_plan(*plan, options.threads, hooks);
  // Nothing to report: such as a target that is not there.
  if (result.rows.empty() && !hooks.stop->load()) return complain(errors, result.wrong, kFailed);
  Report report = make_report(*plan, result);
  if (!options.choice.only.empty()) {
    keep_chosen(report);
  }
  if (report.partial.empty()) report.partial = figures_not_measured(report);
  // The page first: it is there also if the output is full.
  if (page) wrong = write_page(options.html_folder, report);
  const int printed = print(text_of(report, options), out, errors);
  if (!wrong.empty()) return complain(errors, wrong, kFailed);
  if (printed != 0) return printed;
  if (!report.partial.empty()) {
    return complain(errors, "the report is partial: " + report.partial, kFailed);
  }
  const bool good = std::ranges::all_of(report.findings, [](const Finding& finding) {
    return finding.verdict == Verdict::kNone || finding.verdict == Verdict::kPass;
  });
  return good ? 0 : kFailed;
}

int run_influences(const LabOptions& options, std::FILE* out, std::FILE* errors) {
  const auto table =
      find_influences(options.file, options.choice, options.threads, hooks_for(options, errors));
  if (!table) return complain(errors, table.error(), kUsage);
  const bool json = options.form == ReportForm::kJson;
  const int printed = print(json ? to_json(*table) : to_text(*table), out, errors);
  if (printed != 0) return printed;
  return table->complete ? 0 : complain(errors, "the table is partial: " + table->wrong, kFailed);
}

int list_labs(const std::string& path, std::FILE* out, std::FILE* errors) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::fifo) {
    return list_cases(path, out, errors);
  }
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.path().extension() == ".toml") paths.push_back(entry.path().string());
  }
  if (error) {
    return complain(errors,
                    fmt::format("{}: {}; name a folder of experiments, or a file of them", path,
                                error.message()),
                    kUsage);
  }
  std::ranges::sort(paths);
  int code = 0;
  std::string text;
  for (const std::string& file : paths) {
    const auto plan = read_experiments(file);
    if (!plan) {
      code = complain(errors, plan.error(), kUsage);
      continue;
    }
    text += fmt::format("{:<36} {} rows  {}\n", file, plan->rows.size(), plan->title);
  }
  const int printed = print(text, out, errors);
  return code == 0 ? printed : code;
}

}  // namespace sandbay::lab
