// The page: what was found, plots, and tables of figures, times and parameters.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "lab/plan_choice.h"
#include "lab/report.h"
#include "lab/report_plots.h"
#include "lab/svg.h"

namespace sandbay::lab {
namespace {

using svg::escape;

constexpr std::string_view kPageStyle =
    R"(body{font:15px/1.45 sans-serif;margin:2em auto;padding:0 1.2em;max-width:1500px;
background:var(--paper);color:var(--ink)}
h1{margin-bottom:.2em}h2{margin:1.6em 0 .4em}h3{margin:1.2em 0 .6em;font-size:1.05em}
.plots{display:flex;flex-wrap:wrap;gap:1.2em;align-items:flex-start}
figure{margin:0;break-inside:avoid;max-width:100%}
figcaption{font-weight:600;font-size:14px;max-width:430px}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px}
th,td{padding:3px 9px;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top}
th{position:sticky;top:0;background:var(--paper)}td:first-child{white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.figures td:last-child{min-width:24em}.figures td:nth-child(2){min-width:19em}
.figures td:nth-last-child(3){white-space:nowrap}
.pass{color:var(--good)}.fail{color:var(--bad);font-weight:600}
.partial{border-left:4px solid var(--bad);padding-left:.8em}
.key{display:inline-block;width:.75em;height:.75em;margin:0 .35em 0 .9em;background:var(--c);
print-color-adjust:exact}
@media (max-width:700px){.figures td:nth-child(2){min-width:12em}}
@media print{@page{margin:12mm}body{font-size:10pt;max-width:none;margin:0;padding:0}
.figures td{min-width:0!important}
figcaption{font-size:9pt}
.plots{gap:4mm}.plots figure{width:calc(50% - 2mm)}.scroll{overflow:visible}
table{font-size:7pt}th{position:static}th,td{padding:1px 4px}td:first-child{white-space:normal}
tr{break-inside:avoid}}
)";

constexpr std::string_view kPlotsHead =
    "<h2>Plots</h2>\n<p>Dots and lines are ours; diamonds and dashed lines are the document's, "
    "with "
    "what ours may differ from them.</p>\n";

std::string text_cell(std::string_view text) { return fmt::format("<td>{}</td>", escape(text)); }

std::string number_cell(std::optional<double> value) {
  return value ? fmt::format("<td class=\"n\">{:.5g}</td>", *value)
               : std::string("<td class=\"n\">-</td>");
}

std::string percent_cell(double value) { return fmt::format("<td class=\"n\">{:.1f}</td>", value); }

std::string verdict_cell(Verdict verdict) {
  const std::string_view look = verdict == Verdict::kPass   ? "pass"
                                : verdict == Verdict::kNone ? ""
                                                            : "fail";
  return fmt::format("<td class=\"{}\">{}</td>", look, describe(verdict));
}

std::string table_of(std::string_view head, const std::string& body) {
  return fmt::format(
      "<div class=\"scroll\"><table>\n<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n"
      "</table></div>\n",
      head, body);
}

std::string figure_rows(const Report& report) {
  const std::string scale =
      report.result.live ? fmt::format("<td>x{:g}</td>", report.result.time_scale) : std::string();
  std::string text;
  for (const Finding& finding : report.findings) {
    const Figure& figure = *finding.figure;
    text += "<tr>" + text_cell(figure.id) + text_cell(figure.what) + number_cell(figure.value) +
            number_cell(finding.ours) + text_cell(figure.unit) + scale +
            fmt::format("<td class=\"n\">{}</td><td class=\"n\">{}</td>",
                        describe_difference(finding), escape(describe_tolerance(finding))) +
            text_cell(describe(figure.role)) + verdict_cell(finding.verdict) +
            text_cell(figure.note) + "</tr>\n";
  }
  return text;
}

std::string figure_section(const Report& report) {
  const std::string head = fmt::format(
      "<th>figure</th><th>what</th><th class=\"n\">document</th><th class=\"n\">ours</th>"
      "<th>unit</th>{}<th class=\"n\">difference</th><th class=\"n\">tolerance</th><th>role</th>"
      "<th>verdict</th><th>note</th>",
      report.result.live ? "<th>time</th>" : "");
  return "<h2>Figures</h2>\n<div class=\"figures\">" + table_of(head, figure_rows(report)) +
         "</div>\n";
}

std::string key(std::size_t colour, std::string_view name) {
  return fmt::format("<span class=\"key s{}\"></span>{}", colour, name);
}

// Of every run, sweeps' as well.
std::string time_section(const Report& report) {
  if (!knows_system(report) || report.result.rows.empty()) return {};
  std::string body;
  for (const RowResult& row : report.result.rows) {
    const std::vector<std::string> names = case_names(*row.row);
    for (std::size_t i = 0; i < row.cases.size(); ++i) {
      const TimeShares s = time_shares(row.cases[i]);
      const std::array layers = {s.host, s.port, s.controller, s.storage};
      const std::array drives = {s.seeking, s.rotating, s.transferring};
      body += "<tr>" + text_cell(names[i]) + fmt::format("<td>{}</td>", svg::draw_parts(layers));
      for (const double share : layers) body += percent_cell(share);
      body += fmt::format("<td>{}</td>", svg::draw_parts(drives));
      for (const double share : drives) body += percent_cell(share);
      body += percent_cell(s.idle) + "</tr>\n";
    }
  }
  return "<h2>Where the time went</h2>\n<p>Of the requests, in per cent:" + key(0, "host") +
         key(1, "port") + key(2, "controller") + key(3, "storage: cache, RAID and drives") +
         ". Of the drives' own time:" + key(0, "seeking") + key(1, "rotating") +
         key(2, "transferring") + "; the rest is idle.</p>\n" +
         table_of(
             "<th>run</th><th>requests</th><th class=\"n\">host</th><th class=\"n\">port</th>"
             "<th class=\"n\">controller</th><th class=\"n\">storage</th><th>drives</th>"
             "<th class=\"n\">seek</th><th class=\"n\">rotate</th><th class=\"n\">transfer"
             "</th><th class=\"n\">idle</th>",
             body);
}

std::string parameter_section(const Report& report) {
  if (!knows_system(report) || report.plan.system.parameters.empty()) return {};
  std::string body;
  for (const Parameter& parameter : report.plan.system.parameters) {
    body += "<tr>" + text_cell(parameter.name) + text_cell(parameter.value) +
            text_cell(parameter.origin) + text_cell(parameter.source) + "</tr>\n";
  }
  return "<h2>Parameters</h2>\n" +
         table_of("<th>parameter</th><th>value</th><th>origin</th><th>source</th>", body);
}

std::string opening(const Report& report) {
  const auto count = [&](Verdict verdict) {
    return std::ranges::count(report.findings, verdict, &Finding::verdict);
  };
  const PlanResult& result = report.result;
  const auto too_short = count(Verdict::kTooShort);
  std::string text = fmt::format(
      "<h1>{}</h1>\n<p>{}<br/>{}</p>\n<p>{}: {:.0f} s in {:.1f} s. <span class=\"pass\">{} passed"
      "</span>, <span class=\"{}\">{} failed</span>, {} not run{}.</p>\n",
      escape(report.plan.name), escape(report.plan.title), escape(report.plan.figures.document),
      how_it_was_run(report), result.virtual_seconds, result.real_seconds, count(Verdict::kPass),
      count(Verdict::kFail) > 0 ? "fail" : "", count(Verdict::kFail), count(Verdict::kNotRun),
      too_short == 0 ? std::string() : fmt::format(", {} too short", too_short));
  for (const std::string& target : result.targets) {
    text += fmt::format("<p>Against {}</p>\n", escape(target));
  }
  if (!report.partial.empty()) {
    text += fmt::format("<p class=\"partial\">This report is partial: {}.</p>\n",
                        escape(report.partial));
  }
  return text;
}

}  // namespace

std::string to_html(const Report& report) {
  const std::string plots = to_plots(report);
  return fmt::format(
             "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
             "<meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{}</title>\n"
             "<style>\n{}{}</style></head>\n<body>\n",
             escape(report.plan.name), svg::style(), kPageStyle) +
         opening(report) + (plots.empty() ? "" : std::string(kPlotsHead) + plots) +
         figure_section(report) + time_section(report) + parameter_section(report) +
         "</body></html>\n";
}

std::string page_file_name(const std::string& plan_name) {
  constexpr std::size_t kLongest = 200;  // Bytes; file systems have 255.
  std::string name;
  for (const char letter : plan_name.substr(0, kLongest)) {
    const auto code = static_cast<unsigned char>(letter);
    const bool fits = std::isalnum(code) != 0 || letter == '-' || letter == '_' || letter == '.';
    name += fits ? letter : '-';
  }
  if (name.empty()) name = "lab";
  if (name.front() == '.') name.front() = '-';
  return name + ".html";
}

}  // namespace sandbay::lab
