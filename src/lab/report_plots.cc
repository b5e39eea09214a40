// From rows and figures to lines and bars.
#include "lab/report_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "lab/svg.h"

namespace sandbay::lab {
namespace {

using Rows = std::vector<const RowResult*>;

std::optional<double> documented(const Report& report, const Wanted& wanted) {
  const Figure* figure = report.plan.figures.find(wanted.figure);
  return figure != nullptr ? figure->value : std::nullopt;
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
  for (const RowResult& row : report.result.rows) {
    const auto same = std::ranges::find_if(experiments, [&](const Rows& rows) {
      return rows.front()->row->experiment == row.row->experiment;
    });
    if (same == experiments.end()) {
      experiments.push_back({&row});
    } else {
      same->push_back(&row);
    }
  }
  return experiments;
}

// What the rows have the most values of, or the first of those.
std::string most_varied(const Rows& rows) {
  std::map<std::string, std::set<std::uint64_t>> values;
  for (const RowResult* row : rows) {
    for (const auto& [key, value] : row->row->variation) values[key].insert(value);
  }
  std::string most;
  for (const auto& [key, value] : rows.front()->row->variation) {
    if (most.empty() || values[key].size() > values[most].size()) most = key;
  }
  return most;
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
using Drafts = std::vector<std::pair<std::string, std::vector<Draft>>>;

std::vector<Draft>& drafts_of(Drafts& all, const std::string& unit) {
  const auto found =
      std::ranges::find(all, unit, &std::pair<std::string, std::vector<Draft>>::first);
  if (found != all.end()) return found->second;
  return all.emplace_back(unit, std::vector<Draft>()).second;
}

void add_row(const Report& report, const RowResult& row, const std::string& varied, Drafts& all) {
  double x = 0;
  std::string others;
  for (const auto& [key, value] : row.row->variation) {
    if (key == varied) {
      x = static_cast<double>(value);
    } else {
      others += fmt::format("{}{} {}", others.empty() ? "" : ", ", key, value);
    }
  }
  for (const Wanted& wanted : row.row->wanted) {
    Draft& draft = draft_for(drafts_of(all, unit_of(report, wanted)), wanted, others);
    // Several figures may be about one quantity of a row.
    if (std::ranges::find(draft.line.ours, x, &svg::Point::x) == draft.line.ours.end()) {
      draft.line.ours.push_back({x, row.value(wanted)});
    }
    if (const auto value = documented(report, wanted)) draft.line.document.push_back({x, *value});
  }
}

std::string plots_by_variation(const Report& report, const Rows& rows) {
  const std::string varied = most_varied(rows);
  Drafts all;
  for (const RowResult* row : rows) add_row(report, *row, varied, all);
  std::string text;
  for (auto& [unit, drafts] : all) {
    const bool several = std::ranges::any_of(
        drafts, [&](const Draft& draft) { return draft.quantity != drafts.front().quantity; });
    svg::LinePlot plot{.x_name = varied, .y_name = unit, .lines = {}};
    for (Draft& draft : drafts) {
      std::string& name = draft.line.name;
      if (several) name = draft.figures;
      if (!draft.others.empty()) name += (name.empty() ? "" : ", ") + draft.others;
      if (name.empty()) name = "ours";
      plot.lines.push_back(std::move(draft.line));
    }
    text += figure_of(fmt::format("{}: {} by {}", rows.front()->row->experiment, unit, varied),
                      svg::draw(plot));
  }
  return text;
}

// The document's value of all volumes together, in the metric itself.
std::optional<double> level_of(const Report& report, const Row& row, Metric metric) {
  for (const Wanted& wanted : row.wanted) {
    if (wanted.metric == metric && !wanted.group && !wanted.volume && !wanted.least &&
        wanted.divide_by == 1) {
      return documented(report, wanted);
    }
  }
  return std::nullopt;
}

std::string plot_by_size(const Report& report, const Rows& rows) {
  Wanted wanted;
  for (const Wanted& one : rows.front()->row->wanted) {
    if (one.metric == Metric::kMegabytes) wanted.metric = one.metric;
  }
  svg::LinePlot plot{.x_name = "transfer size in KiB",
                     .y_name = std::string(describe(wanted.metric)),
                     .logarithmic_x = true,
                     .lines = {}};
  for (const RowResult* row : rows) {
    svg::Line line{.name = row->row->name(),
                   .ours = {},
                   .document = {},
                   .level = level_of(report, *row->row, wanted.metric)};
    for (std::size_t i = 0; i < row->cases.size(); ++i) {
      line.ours.push_back(
          {static_cast<double>(row->row->sweep[i]) / 1024, row->cases[i].value(wanted)});
    }
    std::ranges::sort(line.ours, {}, &svg::Point::x);
    plot.lines.push_back(std::move(line));
  }
  return figure_of(
      fmt::format("{}: {} by transfer size", rows.front()->row->experiment, plot.y_name),
      svg::draw(plot));
}

// So long that there are some of kSampleSeconds, or of a second.
std::string plot_over_time(const Report& report, const Rows& rows) {
  constexpr std::size_t kFewest = 4;
  svg::LinePlot plot{.x_name = "seconds", .y_name = "IOPS", .lines = {}};
  for (const RowResult* row : rows) {
    const CaseResult& best = row->cases[row->best];
    const std::size_t seconds = best.seconds >= kFewest * kSampleSeconds ? kSampleSeconds : 1;
    const std::vector<double> samples = best.samples(seconds);
    if (samples.size() < 2) continue;
    svg::Line line{.name = row->row->name(),
                   .ours = {},
                   .document = {},
                   .level = level_of(report, *row->row, Metric::kIops)};
    for (std::size_t i = 0; i < samples.size(); ++i) {
      line.ours.push_back(
          {static_cast<double>((i + 1) * seconds), samples[i] / static_cast<double>(seconds)});
    }
    plot.lines.push_back(std::move(line));
  }
  return figure_of(fmt::format("{}: IOPS over time", rows.front()->row->experiment),
                   svg::draw(plot));
}

// Of all experiments that vary nothing, by unit.
std::string bars(const Report& report) {
  std::vector<std::pair<std::string, std::vector<svg::Bar>>> by_unit;
  for (const RowResult& row : report.result.rows) {
    if (!row.row->variation.empty()) continue;
    for (const Wanted& wanted : row.row->wanted) {
      const std::string unit = unit_of(report, wanted);
      auto same =
          std::ranges::find(by_unit, unit, &std::pair<std::string, std::vector<svg::Bar>>::first);
      if (same == by_unit.end()) {
        by_unit.emplace_back(unit, std::vector<svg::Bar>());
        same = std::prev(by_unit.end());
      }
      const auto alike = std::ranges::count_if(
          row.row->wanted, [&](const Wanted& other) { return unit_of(report, other) == unit; });
      same->second.push_back({.name = alike == 1 ? row.row->name() : wanted.figure,
                              .ours = row.value(wanted),
                              .document = documented(report, wanted)});
    }
  }
  std::string text;
  for (const auto& [unit, pairs] : by_unit) {
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

// A line for each group of an experiment's volumes.
void add_latencies(const Report& report, const Rows& rows, svg::LinePlot& plot) {
  const std::vector<VolumeGroup>& groups = rows.front()->row->groups;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    svg::Line line;
    line.name = rows.front()->row->experiment;
    if (groups.size() > 1) {
      const std::string& name = groups[group].access.name;
      line.name += ", " + (name.empty() ? fmt::format("group {}", group + 1) : name);
    }
    for (const RowResult* row : rows) {
      if (group >= row->row->groups.size()) continue;
      const double x = outstanding(*row->row, group);
      const Wanted mean{.figure = {}, .metric = Metric::kMilliseconds, .group = group};
      line.ours.push_back({x, row->value(mean)});
      for (const Wanted& wanted : row->row->wanted) {
        const auto value = documented(report, wanted);
        const bool fits = wanted.metric == Metric::kMilliseconds && wanted.divide_by == 1 &&
                          wanted.group.value_or(0) == group;
        if (fits && value) {
          line.document.push_back({outstanding(*row->row, wanted.group), *value});
        }
      }
    }
    std::ranges::sort(line.ours, {}, &svg::Point::x);
    plot.lines.push_back(std::move(line));
  }
}

std::string plot_of_latency(const Report& report, std::span<const Rows> experiments) {
  svg::LinePlot plot{.x_name = "outstanding I/Os",
                     .y_name = "ms",
                     .logarithmic_x = true,
                     .logarithmic_y = true,
                     .lines = {}};
  for (const Rows& rows : experiments) add_latencies(report, rows, plot);
  return figure_of("Mean latency over outstanding I/Os", svg::draw(plot));
}

}  // namespace

std::string to_plots(const Report& report) {
  const std::vector<Rows> experiments = by_experiment(report);
  std::string text = bars(report);
  std::string over_time;
  for (const Rows& rows : experiments) {
    const Row& first = *rows.front()->row;
    if (!first.variation.empty()) text += plots_by_variation(report, rows);
    if (first.sweep.size() > 1) text += plot_by_size(report, rows);
    over_time += plot_over_time(report, rows);
  }
  return text + plot_of_latency(report, experiments) + over_time;
}

}  // namespace sandbay::lab
