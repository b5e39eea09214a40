// From rows and figures to lines and bars.
#include "lab/report_plots.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "group/units.h"
#include "lab/svg.h"

namespace sandbay::lab {
namespace {

// A row, and what it did; none if it was not run.
struct Shown {
  const Row* row = nullptr;
  const RowResult* result = nullptr;
};
using Rows = std::vector<Shown>;  // Of one experiment; there are some.

// Nothing of a row in which nothing ended.
std::optional<double> ours(const Report& report, const Wanted& wanted) {
  const auto found = report.result.measured.find(wanted.figure);
  return found == report.result.measured.end() ? std::nullopt : std::optional(found->second);
}

std::optional<double> documented(const Report& report, const Wanted& wanted) {
  const Figure* figure = report.plan.figures.find(wanted.figure);
  return figure != nullptr ? figure->value : std::nullopt;
}

// How far ours may be from the document's, in the unit.
double allowed(const Report& report, const Wanted& wanted) {
  const Figure* figure = report.plan.figures.find(wanted.figure);
  if (figure == nullptr || !figure->value) return 0;
  return figure->tolerance_in_points ? figure->tolerance : *figure->value * figure->tolerance / 100;
}

std::string unit_of(const Report& report, const Wanted& wanted) {
  const Figure* figure = report.plan.figures.find(wanted.figure);
  return figure != nullptr && !figure->unit.empty() ? figure->unit
                                                    : std::string(describe(wanted.metric));
}

std::string figure_of(const std::string& title, const std::string& picture) {
  if (picture.empty()) return {};
  return fmt::format("<figure><figcaption>{}</figcaption>\n{}</figure>\n", svg::escape(title),
                     picture);
}

// In the plan's order.
std::vector<Rows> by_experiment(const Report& report) {
  std::vector<Rows> experiments;
  for (const Row& row : report.plan.rows) {
    Shown shown{.row = &row};
    for (const RowResult& result : report.result.rows) {
      if (result.row == &row) shown.result = &result;
    }
    const auto same = std::ranges::find_if(experiments, [&](const Rows& rows) {
      return rows.front().row->experiment == row.experiment;
    });
    if (same == experiments.end()) {
      experiments.push_back({shown});
    } else {
      same->push_back(shown);
    }
  }
  return experiments;
}

// "nodes 2, record 32" of those keys that are good.
template <class Good>
std::string values_of(const Row& row, Good good) {
  std::string text;
  for (const auto& [key, value] : row.variation) {
    if (good(key)) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, value);
  }
  return text;
}

std::string all_values_of(const Row& row) {
  return values_of(row, [](const std::string& /*key*/) { return true; });
}

// " (not run: volumes 3)" of those rows.
std::string missing(const Rows& rows) {
  std::string text;
  for (const Shown& shown : rows) {
    if (shown.result != nullptr) continue;
    text += (text.empty() ? " (not run: " : "; ") + all_values_of(*shown.row);
  }
  return text.empty() ? text : text + ")";
}

// What the rows have the most values of, or the first of those.
std::string most_varied(const Rows& rows) {
  std::map<std::string, std::set<std::uint64_t>> values;
  for (const Shown& shown : rows) {
    for (const auto& [key, value] : shown.row->variation) values[key].insert(value);
  }
  std::string most;
  for (const auto& [key, value] : rows.front().row->variation) {
    if (most.empty() || values[key].size() > values[most].size()) most = key;
  }
  return most;
}

// Whether that is how many KiB the requests have.
bool is_size(const Rows& rows, const std::string& varied) {
  return std::ranges::all_of(rows, [&](const Shown& shown) {
    return std::ranges::any_of(shown.row->variation, [&](const auto& each) {
      return each.first == varied && !shown.row->groups.empty() &&
             !shown.row->groups.front().access.lines.empty() &&
             shown.row->groups.front().access.lines.front().bytes == each.second << 10;
    });
  });
}

// The same of every row, whatever the figures are called.
auto quantity_of(const Wanted& wanted) {
  return std::tuple(wanted.metric, wanted.group, wanted.volume, wanted.least, wanted.divide_by);
}
using Quantity = decltype(quantity_of(Wanted{}));

// A line that is being made.
struct Draft {
  Quantity quantity;
  std::string others;   // "nodes 2": what else is varied.
  std::string figures;  // What the names of its figures begin with.
  svg::Line line;
};

std::string common_beginning(const std::string& a, const std::string& b) {
  const auto end = std::ranges::mismatch(a, b).in1;
  std::string same(a.begin(), end);
  if (same != a || same != b) same.erase(same.find_last_not_of("-_. ") + 1);
  return same;
}

Draft& draft_for(std::vector<Draft>& drafts, const Wanted& wanted, const std::string& others) {
  const Quantity quantity = quantity_of(wanted);
  const auto found = std::ranges::find_if(drafts, [&](const Draft& draft) {
    return draft.quantity == quantity && draft.others == others;
  });
  if (found != drafts.end()) {
    found->figures = common_beginning(found->figures, wanted.figure);
    return *found;
  }
  drafts.push_back({.quantity = quantity, .others = others, .figures = wanted.figure, .line = {}});
  return drafts.back();
}

// By unit, in the figures' order.
template <class Content>
using ByUnit = std::vector<std::pair<std::string, std::vector<Content>>>;

template <class Content>
std::vector<Content>& of_unit(ByUnit<Content>& all, const std::string& unit) {
  for (auto& [other, content] : all) {
    if (other == unit) return content;
  }
  return all.emplace_back(unit, std::vector<Content>()).second;
}

std::optional<double> value_of(const CaseResult& result, const Wanted& wanted) {
  const bool some = std::ranges::any_of(result.volumes, [&](const VolumeResult& volume) {
    return volume.requests > 0 && (!wanted.group || volume.group == *wanted.group) &&
           (!wanted.volume || volume.number == *wanted.volume);
  });
  return some ? std::optional(result.value(wanted)) : std::nullopt;
}

// What is wanted of any of the rows, each quantity of a unit once.
std::vector<Wanted> quantities_of(const Report& report, const Rows& rows) {
  std::vector<Wanted> quantities;
  for (const Shown& shown : rows) {
    for (const Wanted& wanted : shown.row->wanted) {
      const bool there = std::ranges::any_of(quantities, [&](const Wanted& other) {
        return quantity_of(other) == quantity_of(wanted) &&
               unit_of(report, other) == unit_of(report, wanted);
      });
      if (!there) quantities.push_back(wanted);
    }
  }
  return quantities;
}

// Of a row without such a figure: what it came to all the same.
std::optional<double> without_figure(const Shown& shown, const Wanted& quantity) {
  const bool of_time = quantity.metric == Metric::kVariation || quantity.metric == Metric::kTrend;
  if (shown.result == nullptr || of_time) return std::nullopt;
  return value_of(shown.result->cases[shown.result->best], quantity);
}

void add_quantity(const Report& report, const Shown& shown, const std::string& varied,
                  const Wanted& quantity, std::vector<Draft>& drafts) {
  double x = 0;
  for (const auto& [key, value] : shown.row->variation) {
    if (key == varied) x = static_cast<double>(value);
  }
  const std::string others =
      values_of(*shown.row, [&](const std::string& key) { return key != varied; });
  std::optional<double> value;
  bool named = false;
  // Several figures may be about one quantity of a row.
  for (const Wanted& wanted : shown.row->wanted) {
    if (quantity_of(wanted) != quantity_of(quantity) ||
        unit_of(report, wanted) != unit_of(report, quantity)) {
      continue;
    }
    svg::Line& line = draft_for(drafts, wanted, others).line;
    const auto theirs = documented(report, wanted);
    if (theirs) line.document.push_back({x, *theirs, allowed(report, wanted)});
    if (!value) value = ours(report, wanted);
    named = true;
  }
  if (!named) value = without_figure(shown, quantity);
  if (value) draft_for(drafts, quantity, others).line.ours.push_back({x, *value});
}

bool is_point(const svg::Line& line) {
  std::set<double> xs;
  for (const svg::Point& point : line.ours) xs.insert(point.x);
  for (const svg::Mark& mark : line.document) xs.insert(mark.x);
  return xs.size() < 2;
}

// Lines of a point each say nothing as lines.
std::string bars_of(const std::string& unit, const std::string& varied,
                    const std::vector<Draft>& drafts) {
  std::vector<svg::Bar> bars;
  for (const Draft& draft : drafts) {
    svg::Bar bar{.name = draft.figures};
    double x = 0;
    for (const svg::Point& point : draft.line.ours)
      std::tie(x, bar.ours) = std::tie(point.x, point.y);
    for (const svg::Mark& mark : draft.line.document) {
      std::tie(x, bar.document, bar.allowed) = std::tie(mark.x, mark.y, mark.allowed);
    }
    bar.name += fmt::format(", {} {:g}", varied, x);
    if (!draft.others.empty()) bar.name += ", " + draft.others;
    bars.push_back(std::move(bar));
  }
  return svg::draw(unit, bars);
}

std::string plots_by_variation(const Report& report, const Rows& rows) {
  const std::string varied = most_varied(rows);
  const std::string& experiment = rows.front().row->experiment;
  const bool size = is_size(rows, varied);
  ByUnit<Draft> all;
  for (const Wanted& quantity : quantities_of(report, rows)) {
    for (const Shown& shown : rows) {
      add_quantity(report, shown, varied, quantity, of_unit(all, unit_of(report, quantity)));
    }
  }
  std::string text;
  for (auto& [unit, drafts] : all) {
    const auto of_point = [](const Draft& draft) { return is_point(draft.line); };
    if (std::ranges::all_of(drafts, of_point)) {
      text += figure_of(fmt::format("{}: {}{}", experiment, unit, missing(rows)),
                        bars_of(unit, varied, drafts));
      continue;
    }
    const bool several = std::ranges::any_of(
        drafts, [&](const Draft& draft) { return draft.quantity != drafts.front().quantity; });
    svg::LinePlot plot{.x_name = size ? varied + " in KiB" : varied,
                       .y_name = unit,
                       .logarithmic_x = size,
                       .lines = {}};
    for (Draft& draft : drafts) {
      std::string& name = draft.line.name;
      if (several) name = draft.figures;
      if (!draft.others.empty()) name += (name.empty() ? "" : ", ") + draft.others;
      if (name.empty()) name = "ours";
      plot.lines.push_back(std::move(draft.line));
    }
    text += figure_of(fmt::format("{}: {} by {}{}", experiment, unit, varied, missing(rows)),
                      svg::draw(plot));
  }
  return text;
}

// The figure of all volumes together, in the metric itself.
const Wanted* whole_of(const Row& row, Metric metric) {
  for (const Wanted& wanted : row.wanted) {
    if (wanted.metric == metric && !wanted.group && !wanted.volume && !wanted.least &&
        wanted.divide_by == 1) {
      return &wanted;
    }
  }
  return nullptr;
}

std::optional<double> level_of(const Report& report, const Row& row, Metric metric) {
  const Wanted* const wanted = whole_of(row, metric);
  return wanted == nullptr ? std::nullopt : documented(report, *wanted);
}

// In the unit of the document, where that is the metric's.
std::string plot_by_size(const Report& report, const Rows& rows) {
  const Row& first = *rows.front().row;
  Wanted wanted;
  for (const Wanted& one : first.wanted) {
    if (one.metric == Metric::kMegabytes) wanted.metric = one.metric;
  }
  const Wanted* const whole = whole_of(first, wanted.metric);
  svg::LinePlot plot{
      .x_name = "transfer size in KiB",
      .y_name = whole == nullptr ? std::string(describe(wanted.metric)) : unit_of(report, *whole),
      .logarithmic_x = true,
      .lines = {}};
  for (const Shown& shown : rows) {
    svg::Line line{.name = all_values_of(*shown.row),
                   .ours = {},
                   .document = {},
                   .level = level_of(report, *shown.row, wanted.metric)};
    if (line.name.empty()) line.name = "ours";
    for (std::size_t i = 0; shown.result != nullptr && i < shown.result->cases.size(); ++i) {
      const auto value = value_of(shown.result->cases[i], wanted);
      const double x = static_cast<double>(shown.row->sweep[i]) / 1024;
      if (value) line.ours.push_back({x, *value});
    }
    std::ranges::sort(line.ours, {}, &svg::Point::x);
    plot.lines.push_back(std::move(line));
  }
  return figure_of(
      fmt::format("{}: {} by transfer size{}", first.experiment, plot.y_name, missing(rows)),
      svg::draw(plot));
}

// Of a sweep its first size, as other sizes are other numbers of requests. Samples are so long that
// there are some of kSampleSeconds, or of a second. One row alone has a small plot.
std::string plot_over_time(const Report& report, const Rows& rows) {
  constexpr std::size_t kFewest = 4;
  svg::LinePlot plot{.x_name = "seconds", .y_name = "IOPS", .small = rows.size() == 1, .lines = {}};
  for (const Shown& shown : rows) {
    if (shown.result == nullptr) continue;
    const CaseResult& first = shown.result->cases.front();
    const std::size_t seconds = first.seconds >= kFewest * kSampleSeconds ? kSampleSeconds : 1;
    const std::vector<double> samples = first.samples(seconds);
    if (samples.size() < 2) continue;
    svg::Line line{.name = all_values_of(*shown.row), .ours = {}, .document = {}, .level = {}};
    if (shown.row->sweep.empty()) line.level = level_of(report, *shown.row, Metric::kIops);
    if (line.name.empty()) line.name = "ours";
    for (std::size_t i = 0; i < samples.size(); ++i) {
      line.ours.push_back(
          {static_cast<double>((i + 1) * seconds), samples[i] / static_cast<double>(seconds)});
    }
    plot.lines.push_back(std::move(line));
  }
  const Row& row = *rows.front().row;
  const std::string size = row.sweep.empty() ? "" : "/" + group::format_size(row.sweep.front());
  return figure_of(row.experiment + size, svg::draw(plot));
}

// Of one row, each quantity once.
ByUnit<svg::Bar> bars_of_row(const Report& report, const Row& row) {
  ByUnit<svg::Bar> all;
  std::vector<std::pair<Quantity, std::string>> there;  // And the units.
  for (const Wanted& wanted : row.wanted) {
    const std::string unit = unit_of(report, wanted);
    const std::pair quantity(quantity_of(wanted), unit);
    std::vector<svg::Bar>& bars = of_unit(all, unit);
    const auto theirs = documented(report, wanted);
    svg::Bar bar{.name = wanted.figure,
                 .ours = ours(report, wanted),
                 .document = theirs,
                 .allowed = allowed(report, wanted)};
    const auto same = std::ranges::find(there, quantity);
    if (same == there.end()) {
      bars.push_back(std::move(bar));
      there.push_back(quantity);
      continue;
    }
    const auto before =
        std::count_if(there.begin(), same, [&](const auto& other) { return other.second == unit; });
    svg::Bar& first = bars[static_cast<std::size_t>(before)];
    if (theirs && !first.document) first = std::move(bar);
  }
  for (auto& [unit, bars] : all) {
    if (bars.size() == 1) bars.front().name = row.name();
  }
  return all;
}

// Of all experiments that vary nothing, by unit.
std::string bars(const Report& report) {
  ByUnit<svg::Bar> all;
  for (const Row& row : report.plan.rows) {
    if (!row.variation.empty()) continue;
    for (auto& [unit, of_row] : bars_of_row(report, row)) {
      std::ranges::move(of_row, std::back_inserter(of_unit(all, unit)));
    }
  }
  std::string text;
  for (const auto& [unit, pairs] : all) {
    text += figure_of(fmt::format("Ours and the document's: {}", unit), svg::draw(unit, pairs));
  }
  return text;
}

double outstanding(const VolumeGroup& group) {
  return static_cast<double>(group.volume_count()) * group.workers * group.requests();
}

double outstanding(const Row& row, std::optional<std::size_t> of) {
  double sum = 0;
  for (std::size_t i = 0; i < row.groups.size(); ++i) {
    if (!of || *of == i) sum += outstanding(row.groups[i]);
  }
  return sum;
}

// Whether rows that differ in it alone have other numbers of outstanding requests.
bool changes_load(const Rows& rows, const std::string& varied) {
  std::map<std::string, double> seen;
  return std::ranges::any_of(rows, [&](const Shown& shown) {
    const std::string others =
        values_of(*shown.row, [&](const std::string& key) { return key != varied; });
    const double load = outstanding(*shown.row, std::nullopt);
    return seen.emplace(others, load).first->second != load;
  });
}

svg::Line& line_called(std::vector<svg::Line>& lines, const std::string& name) {
  const auto found = std::ranges::find(lines, name, &svg::Line::name);
  if (found != lines.end()) return *found;
  lines.push_back({.name = name});
  return lines.back();
}

// Of a sweep the first size: latencies of different sizes have nothing in common.
void add_latency(const Report& report, const Shown& shown, const std::string& values,
                 std::vector<svg::Line>& lines) {
  const std::vector<VolumeGroup>& groups = shown.row->groups;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    std::string name = shown.row->experiment;
    if (!values.empty()) name += ", " + values;
    if (!shown.row->sweep.empty()) name += "/" + group::format_size(shown.row->sweep.front());
    if (groups.size() > 1) {
      const std::string& access = groups[group].access.name;
      name += ", " + (access.empty() ? fmt::format("group {}", group + 1) : access);
    }
    svg::Line& line = line_called(lines, name);
    const double x = outstanding(*shown.row, group);
    const Wanted mean{.figure = {}, .metric = Metric::kMilliseconds, .group = group};
    const auto value = value_of(shown.result->cases.front(), mean);
    if (value) line.ours.push_back({x, *value});
    for (const Wanted& wanted : shown.row->wanted) {
      const auto theirs = documented(report, wanted);
      const bool fits = wanted.metric == Metric::kMilliseconds && wanted.divide_by == 1 &&
                        wanted.group.value_or(0) == group && shown.row->sweep.empty();
      if (fits && theirs) {
        line.document.push_back(
            {outstanding(*shown.row, wanted.group), *theirs, allowed(report, wanted)});
      }
    }
  }
}

// An experiment's lines stay together, with those of others as long as they are few.
std::string latency_lines(std::vector<std::vector<svg::Line>> experiments) {
  constexpr std::size_t kManyLines = 6;
  std::vector<std::vector<svg::Line>> plots;
  for (std::vector<svg::Line>& lines : experiments) {
    if (lines.empty()) continue;
    if (plots.empty() || plots.back().size() + lines.size() > kManyLines) plots.emplace_back();
    std::ranges::move(lines, std::back_inserter(plots.back()));
  }
  std::string text;
  for (std::size_t i = 0; i < plots.size(); ++i) {
    for (svg::Line& line : plots[i]) std::ranges::sort(line.ours, {}, &svg::Point::x);
    const svg::LinePlot plot{.x_name = "outstanding I/Os",
                             .y_name = "ms",
                             .logarithmic_x = true,
                             .logarithmic_y = true,
                             .lines = std::move(plots[i])};
    text += figure_of(
        "Mean latency over outstanding I/Os" +
            (plots.size() == 1 ? std::string() : fmt::format(" ({} of {})", i + 1, plots.size())),
        svg::draw(plot));
  }
  return text;
}

// Lines where what is varied changes how much is outstanding, bars of everything else.
std::string plots_of_latency(const Report& report, std::span<const Rows> experiments) {
  std::vector<std::vector<svg::Line>> lines;  // Of each experiment.
  std::vector<svg::Bar> alone;
  for (const Rows& rows : experiments) {
    std::vector<svg::Line> found;
    lines.emplace_back();
    for (const Shown& shown : rows) {
      if (shown.result == nullptr) continue;
      const std::string values =
          values_of(*shown.row, [&](const std::string& key) { return !changes_load(rows, key); });
      add_latency(report, shown, values, found);
    }
    for (svg::Line& line : found) {
      if (!is_point(line)) {
        lines.back().push_back(std::move(line));
      } else if (!line.ours.empty()) {
        svg::Bar bar{.name = fmt::format("{} ({:g})", line.name, line.ours.front().x),
                     .ours = line.ours.front().y};
        if (!line.document.empty()) {
          bar.document = line.document.front().y;
          bar.allowed = line.document.front().allowed;
        }
        alone.push_back(std::move(bar));
      }
    }
  }
  return latency_lines(std::move(lines)) +
         figure_of("Mean latency (with so many I/Os outstanding)", svg::draw("ms", alone));
}

// Small plots are not beside large ones.
constexpr const char* kNewRow = "</div>\n<div class=\"plots\">\n";

std::string section(std::string_view title, const std::string& figures) {
  if (figures.empty()) return {};
  return fmt::format("<h3>{}</h3>\n<div class=\"plots\">\n{}</div>\n", title, figures);
}

}  // namespace

std::string to_plots(const Report& report) {
  const std::vector<Rows> experiments = by_experiment(report);
  std::string text = bars(report);
  std::string over_time;
  std::string small;
  for (const Rows& rows : experiments) {
    const Row& first = *rows.front().row;
    if (!first.variation.empty()) text += plots_by_variation(report, rows);
    if (first.sweep.size() > 1) text += plot_by_size(report, rows);
    (rows.size() == 1 ? small : over_time) += plot_over_time(report, rows);
  }
  return section("Figures of the document", text) +
         section("Latency", plots_of_latency(report, experiments)) +
         section("IOPS over time",
                 over_time + (over_time.empty() || small.empty() ? "" : kNewRow) + small);
}

}  // namespace sandbay::lab
