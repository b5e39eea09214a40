// Text, JSON and CSV.
#include "lab/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

namespace sandbay::lab {
namespace {

using nlohmann::json;

std::string number(std::optional<double> value) {
  if (!value) return "-";
  const double size = std::abs(*value);
  if (size >= 1000) return fmt::format("{:.0f}", *value);
  return size >= 100 ? fmt::format("{:.1f}", *value) : fmt::format("{:.2f}", *value);
}

std::string remark(const Finding& finding) {
  if (finding.verdict != Verdict::kNone) return std::string(describe(finding.verdict));
  return fmt::format("({})", describe(finding.figure->role));
}

std::string scale_of(const Report& report) { return fmt::format("{:g}", report.result.time_scale); }

std::string figure_table(const Report& report) {
  // How far time was stretched stands with every figure.
  const bool live = report.result.live;
  const std::string scale = live ? fmt::format(" {:>5}", "x" + scale_of(report)) : std::string();
  std::string text =
      fmt::format("{:<26} {:>10} {:>10} {:<5}{} {:>8} {:>8}  {:<9} {}\n", "figure", "document",
                  "ours", "", live ? "  time" : "", "differ", "allowed", "role", "verdict");
  for (const Finding& finding : report.findings) {
    const Figure& figure = *finding.figure;
    const bool judged = finding.verdict != Verdict::kNone || figure.role == Role::kPredicted;
    if (!finding.ours && !figure.value && !judged) continue;
    const std::string differ =
        finding.difference_percent ? fmt::format("{:+.1f} %", *finding.difference_percent) : "-";
    text += fmt::format("{:<26} {:>10} {:>10} {:<5}{} {:>8} {:>8}  {:<9} {}\n", figure.id,
                        number(figure.value), number(finding.ours), figure.unit, scale, differ,
                        describe_tolerance(finding), describe(figure.role), remark(finding));
  }
  return text;
}

std::string unscored_list(const Report& report) {
  std::string text;
  for (const Finding& finding : report.findings) {
    if (finding.figure->note.empty()) continue;
    text += fmt::format("  {}: {}\n", finding.figure->id, finding.figure->note);
  }
  return text.empty() ? text : "\nNotes\n" + text;
}

double percent(Duration part, Duration whole) {
  return whole.count() == 0
             ? 0
             : 100 * static_cast<double>(part.count()) / static_cast<double>(whole.count());
}

// Where the time of the requests went, and what the drives did.
std::string time_table(const Report& report) {
  std::string text = fmt::format(
      "\nTime of the requests by layer, and of the drives (per cent)\n{:<30} {:>6} "
      "{:>6} {:>10} {:>8} | {:>5} {:>7} {:>9}\n",
      "row", "host", "port", "controller", "storage", "seek", "rotate", "transfer");
  for (const RowResult& row : report.result.rows) {
    const TimeShares shares = time_shares(row.cases[row.best]);
    text +=
        fmt::format("{:<30} {:>6.1f} {:>6.1f} {:>10.1f} {:>8.1f} | {:>5.1f} {:>7.1f} {:>9.1f}\n",
                    row.row->name(), shares.host, shares.port, shares.controller, shares.storage,
                    shares.seeking, shares.rotating, shares.transferring);
  }
  return text;
}

std::string parameter_table(const ArrayProfile& system) {
  std::string text = "\nParameters\n";
  for (const Parameter& parameter : system.parameters) {
    text += fmt::format("  {:<38} {:<12} {:<10} {}\n", parameter.name, parameter.value,
                        parameter.origin, parameter.source);
  }
  return text;
}

std::string system_tables(const Report& report) {
  if (!knows_system(report)) return {};
  return time_table(report) + parameter_table(report.plan.system);
}

std::string summary(const Report& report) {
  const PlanResult& result = report.result;
  const auto count = [&](Verdict verdict) {
    return std::ranges::count(report.findings, verdict, &Finding::verdict);
  };
  std::string text =
      fmt::format("\n{} passed, {} failed, {} not run. {}: {:.0f} s in {:.1f} s.\n",
                  count(Verdict::kPass), count(Verdict::kFail), count(Verdict::kNotRun),
                  how_it_was_run(report), result.virtual_seconds, result.real_seconds);
  for (const std::string& target : result.targets) text += fmt::format("Against {}\n", target);
  text +=
      fmt::format("{} requests {}, {:.0f} a second of one processor.\n", result.simulated_requests,
                  result.live ? "sent" : "simulated",
                  result.processor_seconds > 0
                      ? static_cast<double>(result.simulated_requests) / result.processor_seconds
                      : 0);
  if (!result.complete) text += fmt::format("Not complete: {}.\n", result.wrong);
  return text;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) quoted += letter == '"' ? "\"\"" : std::string(1, letter);
  return quoted + "\"";
}

std::string plain(std::optional<double> value) {
  return value ? fmt::format("{:.6g}", *value) : std::string();
}

std::optional<double> tolerance_percent(const Finding& finding) {
  if (!(finding.allowed > 0) || finding.figure->tolerance_in_points) return std::nullopt;
  return finding.allowed;
}

json json_or_null(std::optional<double> value) { return value ? json(*value) : json(); }

json run_of(const Report& report, const RowResult& row, std::size_t number) {
  const CaseResult& result = row.cases[number];
  json run = {{"best", number == row.best},
              {"iops", result.value({.figure = {}, .metric = Metric::kIops})},
              {"mib_per_s", result.value({.figure = {}, .metric = Metric::kMebibytes})},
              {"mean_ms", result.value({.figure = {}, .metric = Metric::kMilliseconds})},
              {"seconds", result.seconds}};
  if (!row.row->sweep.empty()) run["transfer_bytes"] = row.row->sweep[number];
  if (!knows_system(report)) return run;
  const TimeShares shares = time_shares(result);
  run["layers_pct"] = {{"host", shares.host},
                       {"port", shares.port},
                       {"controller", shares.controller},
                       {"storage", shares.storage}};
  run["drives_pct"] = {{"seeking", shares.seeking},
                       {"rotating", shares.rotating},
                       {"transferring", shares.transferring},
                       {"idle", shares.idle}};
  return run;
}

json rows_of(const Report& report) {
  json rows = json::array();
  for (const RowResult& row : report.result.rows) {
    json runs = json::array();
    for (std::size_t i = 0; i < row.cases.size(); ++i) runs.push_back(run_of(report, row, i));
    rows.push_back({{"row", row.row->name()}, {"runs", std::move(runs)}});
  }
  return rows;
}

json figures_of(const Report& report) {
  json figures = json::array();
  for (const Finding& finding : report.findings) {
    const Figure& figure = *finding.figure;
    json entry = {{"figure", figure.id},
                  {"unit", figure.unit},
                  {"role", describe(figure.role)},
                  {"verdict", describe(finding.verdict)}};
    entry["value"] = json_or_null(finding.ours);
    entry["document"] = json_or_null(figure.value);
    entry["difference_pct"] = json_or_null(finding.difference_percent);
    entry["tolerance_pct"] = json_or_null(tolerance_percent(finding));
    if (figure.tolerance_in_points) entry["tolerance_points"] = figure.tolerance;
    if (report.result.live) entry["time_scale"] = report.result.time_scale;
    figures.push_back(std::move(entry));
  }
  return figures;
}

}  // namespace

Report make_report(const Plan& plan, const PlanResult& result) {
  return {.plan = plan, .result = result, .findings = judge(plan.figures, result.measured)};
}

void keep_chosen(Report& report) {
  std::map<std::string, double> chosen;
  for (const Row& row : report.plan.rows) {
    for (const Wanted& wanted : row.wanted) chosen[wanted.figure] = 1;
  }
  const std::vector<Finding> of_chosen = judge(report.plan.figures, chosen);
  std::erase_if(report.findings, [&of_chosen](const Finding& finding) {
    const auto same = std::ranges::find(of_chosen, finding.figure, &Finding::figure);
    return same == of_chosen.end() || !same->ours;
  });
}

std::string how_it_was_run(const Report& report) {
  return fmt::format("{}, time scale {}, seed {}",
                     report.result.live ? "Live over iSCSI" : "Virtual time", scale_of(report),
                     report.plan.seed);
}

std::string describe_tolerance(const Finding& finding) {
  const Figure& figure = *finding.figure;
  if (figure.shape.rule != Rule::kNone) return describe_bounds(figure.shape);
  if (figure.minimum) return "at least";
  if (!(finding.allowed > 0)) return "-";
  return fmt::format("{:g} {}", finding.allowed, figure.tolerance_in_points ? "pt" : "%");
}

TimeShares time_shares(const CaseResult& result) {
  const LayerTimes& layers = result.layers;
  const Duration sum = layers.host + layers.link + layers.controller + layers.storage;
  const DriveShares& drives = result.drives;
  const double busy = drives.seeking + drives.rotating + drives.transferring;
  return {.host = percent(layers.host, sum),
          .port = percent(layers.link, sum),
          .controller = percent(layers.controller, sum),
          .storage = percent(layers.storage, sum),
          .seeking = 100 * drives.seeking,
          .rotating = 100 * drives.rotating,
          .transferring = 100 * drives.transferring,
          .idle = 100 * std::max(0.0, 1 - busy)};
}

bool knows_system(const Report& report) { return report.result.targets.empty(); }

std::string to_text(const Report& report) {
  return fmt::format("{}: {}\n{}\n\n", report.plan.name, report.plan.title,
                     report.plan.figures.document) +
         figure_table(report) + unscored_list(report) + system_tables(report) + summary(report);
}

std::string to_json(const Report& report) {
  const PlanResult& result = report.result;
  json whole = {{"name", report.plan.name},
                {"document", report.plan.figures.document},
                {"figures", figures_of(report)},
                {"rows", rows_of(report)},
                {"seed", report.plan.seed},
                {"live", result.live},
                {"targets", result.targets},
                {"time_scale", result.time_scale},
                {"virtual_seconds", result.virtual_seconds},
                {"real_seconds", result.real_seconds},
                {"processor_seconds", result.processor_seconds},
                {"simulated_requests", result.simulated_requests},
                {"complete", result.complete}};
  if (!result.complete) whole["reason"] = result.wrong;
  return whole.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string to_csv(const Report& report) {
  std::string text =
      "figure,role,unit,document,value,difference_pct,tolerance_pct,tolerance,verdict,time_scale,"
      "seed\n";
  for (const Finding& finding : report.findings) {
    const Figure& figure = *finding.figure;
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{}\n", csv_field(figure.id),
                        describe(figure.role), csv_field(figure.unit), plain(figure.value),
                        plain(finding.ours), plain(finding.difference_percent),
                        plain(tolerance_percent(finding)), csv_field(describe_tolerance(finding)),
                        describe(finding.verdict), scale_of(report), report.plan.seed);
  }
  return text;
}

}  // namespace sandbay::lab
