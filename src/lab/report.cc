// Text, JSON and CSV.
#include "lab/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

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
  const std::string_view role = describe(finding.figure->role);
  if (finding.verdict == Verdict::kNone) return std::string(role);
  return fmt::format("{}, {}", describe(finding.verdict), role);
}

std::string scale_of(const Report& report) { return fmt::format("{:g}", report.result.time_scale); }

using Cells = std::vector<std::string>;

// Columns as wide as what is in them; `sides` has '<' or '>' for each.
std::string aligned(const std::vector<Cells>& lines, std::string_view sides) {
  std::vector<std::size_t> widths(sides.size());
  for (const Cells& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const Cells& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      const bool last = i + 1 == line.size();
      const std::string space(widths[i] - line[i].size(), ' ');
      if (i > 0) text += ' ';
      if (sides[i] == '>') text += space;
      text += line[i];
      if (sides[i] == '<' && !last) text += space;
    }
    text += '\n';
  }
  return text;
}

std::string trim_end(std::string text) { return text.erase(text.find_last_not_of(' ') + 1); }

// Broken between words, the lines that follow as far in as `indent`; 0 columns: one line.
std::string wrapped(std::string_view text, std::size_t first_indent, std::size_t indent,
                    std::size_t columns) {
  std::string lines(first_indent, ' ');
  std::size_t at = first_indent;
  bool begins = true;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (!begins && columns > 0 && at + 1 + word.size() > columns) {
      lines += '\n' + std::string(indent, ' ');
      at = indent;
      begins = true;
    }
    if (!begins) lines += ' ';
    lines += word;
    at += word.size() + (begins ? 0 : 1);
    begins = false;
  }
  return lines + '\n';
}

std::string figure_table(const Report& report) {
  const bool live = report.result.live;
  std::vector<Cells> lines = {
      {"figure", "document", "ours", "", "differ", "tol.", "verdict, role"}};
  for (const Finding& finding : report.findings) {
    const Figure& figure = *finding.figure;
    const bool judged = finding.verdict != Verdict::kNone || figure.role == Role::kPredicted;
    if (!finding.ours && !figure.value && !judged) continue;
    lines.push_back({figure.id, number(figure.value), number(finding.ours), figure.unit,
                     describe_difference(finding), describe_tolerance(finding), remark(finding)});
  }
  if (!live) return aligned(lines, "<>><>><");
  // How far time was stretched stands with every figure.
  for (Cells& line : lines) {
    line.insert(line.begin() + 4, &line == &lines.front() ? "time" : "x" + scale_of(report));
  }
  return aligned(lines, "<>><>>><");
}

// Each once, with all figures that have it.
std::string unscored_list(const Report& report, std::size_t columns) {
  std::vector<std::pair<std::string, std::string>> notes;  // And the figures.
  for (const Finding& finding : report.findings) {
    const std::string& note = finding.figure->note;
    if (note.empty()) continue;
    const auto same = std::ranges::find(notes, note, &std::pair<std::string, std::string>::first);
    if (same == notes.end()) {
      notes.emplace_back(note, finding.figure->id);
    } else {
      same->second += ", " + finding.figure->id;
    }
  }
  std::string text;
  for (const auto& [note, figures] : notes) {
    text += wrapped(fmt::format("{}: {}", figures, note), 2, 6, columns);
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
  std::vector<Cells> lines = {
      {"row", "host", "port", "controller", "storage", "|", "seek", "rotate", "transfer"}};
  const auto share = [](double value) { return fmt::format("{:.1f}", value); };
  for (const RowResult& row : report.result.rows) {
    const TimeShares s = time_shares(row.cases[row.best]);
    lines.push_back({row.row->name(), share(s.host), share(s.port), share(s.controller),
                     share(s.storage), "|", share(s.seeking), share(s.rotating),
                     share(s.transferring)});
  }
  return "\nTime of the requests by layer, and of the drives (per cent)\n" +
         aligned(lines, "<>>>>>>>>");
}

std::string parameter_table(const ArrayProfile& system, std::size_t columns) {
  std::vector<Cells> lines;
  for (const Parameter& parameter : system.parameters) {
    lines.push_back({"  " + parameter.name, parameter.value, parameter.origin, parameter.source});
  }
  if (columns == 0) return "\nParameters\n" + aligned(lines, "<<<<");
  std::string text = "\nParameters\n";
  // A source that has no room beside its parameter is below it.
  for (Cells& line : lines) line.back() = "\t" + line.back();
  std::istringstream table(aligned(lines, "<<<<"));
  for (std::string line; std::getline(table, line);) {
    const std::size_t tab = line.find('\t');
    if (line.size() - 1 <= columns) {
      text += line.erase(tab, 1) + "\n";
    } else {
      text += trim_end(line.substr(0, tab)) + "\n" + wrapped(line.substr(tab + 1), 6, 6, columns);
    }
  }
  return text;
}

std::string system_tables(const Report& report, std::size_t columns) {
  if (!knows_system(report)) return {};
  return time_table(report) + parameter_table(report.plan.system, columns);
}

std::string summary(const Report& report) {
  const PlanResult& result = report.result;
  const auto count = [&](Verdict verdict) {
    return std::ranges::count(report.findings, verdict, &Finding::verdict);
  };
  std::string text = fmt::format("\n{} passed, {} failed, {} not run", count(Verdict::kPass),
                                 count(Verdict::kFail), count(Verdict::kNotRun));
  const auto too_short = count(Verdict::kTooShort);
  if (too_short > 0) text += fmt::format(", {} too short", too_short);
  text += fmt::format(". {}: {:.0f} s in {:.1f} s.\n", how_it_was_run(report),
                      result.virtual_seconds, result.real_seconds);
  for (const std::string& target : result.targets) text += fmt::format("Against {}\n", target);
  text +=
      fmt::format("{} requests {}, {:.0f} a second of one processor.\n", result.simulated_requests,
                  result.live ? "sent" : "simulated",
                  result.processor_seconds > 0
                      ? static_cast<double>(result.simulated_requests) / result.processor_seconds
                      : 0);
  if (!report.partial.empty()) text += fmt::format("Not complete: {}.\n", report.partial);
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
    if (!row.too_short.empty()) rows.back()["too_short"] = row.too_short;
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

// Though their rows were run.
std::set<std::string> figures_without_value(const PlanResult& result) {
  std::set<std::string> without;
  for (const RowResult& row : result.rows) {
    for (const Wanted& wanted : row.row->wanted) {
      if (!result.measured.contains(wanted.figure)) without.insert(wanted.figure);
    }
  }
  return without;
}

}  // namespace

Report make_report(const Plan& plan, const PlanResult& result) {
  Report report{.plan = plan,
                .result = result,
                .findings = judge(plan.figures, result.measured),
                .partial = result.complete ? std::string() : result.wrong};
  const std::set<std::string> without = figures_without_value(result);
  for (Finding& finding : report.findings) {
    const Figure& figure = *finding.figure;
    const auto is_without = [&without](const std::string& id) { return without.contains(id); };
    const bool too_short = is_without(figure.id) || std::ranges::any_of(figure.terms, is_without) ||
                           std::ranges::any_of(figure.shape.figures, is_without);
    if (too_short && finding.verdict == Verdict::kNotRun) finding.verdict = Verdict::kTooShort;
  }
  const std::string too_short = rows_too_short(result);
  if (!report.partial.empty() && !too_short.empty()) report.partial += "; ";
  report.partial += too_short;
  return report;
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

std::string figures_not_measured(const Report& report) {
  const auto found = std::ranges::find(report.findings, Verdict::kNotRun, &Finding::verdict);
  if (found == report.findings.end()) return {};
  return fmt::format("{}: no experiment measures it", found->figure->id);
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
  // At both ends a part of what they did may belong to the times before and after: together they
  // have all of the time at most.
  const auto of_drives = [busy](double share) { return 100 * share / std::max(1.0, busy); };
  return {.host = percent(layers.host, sum),
          .port = percent(layers.link, sum),
          .controller = percent(layers.controller, sum),
          .storage = percent(layers.storage, sum),
          .seeking = of_drives(drives.seeking),
          .rotating = of_drives(drives.rotating),
          .transferring = of_drives(drives.transferring),
          .idle = 100 * std::max(0.0, 1 - busy)};
}

bool knows_system(const Report& report) { return report.result.targets.empty(); }

std::string describe_difference(const Finding& finding) {
  const Figure& figure = *finding.figure;
  if (!finding.ours || !figure.value || !finding.difference_percent) return "-";
  if (figure.tolerance_in_points) return fmt::format("{:+.1f} pt", *finding.ours - *figure.value);
  return fmt::format("{:+.1f} %", *finding.difference_percent);
}

std::size_t text_columns(const char* variable, std::size_t of_terminal) {
  const std::string_view text = variable == nullptr ? "" : variable;
  std::size_t columns = 0;
  const auto read = std::from_chars(text.begin(), text.end(), columns);
  // As everywhere, what is no number above 0 is as if it was not set.
  if (read.ec != std::errc() || read.ptr != text.end() || columns == 0) columns = of_terminal;
  return columns == 0 ? 0 : std::max(columns, kLeastColumns);
}

std::string to_text(const Report& report, std::size_t columns) {
  return fmt::format("{}: {}\n{}\n\n", report.plan.name, report.plan.title,
                     report.plan.figures.document) +
         figure_table(report) + unscored_list(report, columns) + system_tables(report, columns) +
         summary(report);
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
                {"complete", report.partial.empty()}};
  if (!report.partial.empty()) whole["reason"] = report.partial;
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
