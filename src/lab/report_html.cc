// The page: the table of figures and a plot for each experiment, as SVG that needs nothing else.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "lab/report.h"

namespace sandbay::lab {
namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 300;
constexpr double kLeft = 60;
constexpr double kBottom = 40;
constexpr double kMargin = 15;

std::string escape(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    if (letter == '<') {
      out += "&lt;";
    } else if (letter == '&') {
      out += "&amp;";
    } else if (letter == '"') {
      out += "&quot;";
    } else {
      out += letter;
    }
  }
  return out;
}

struct Point {
  double x = 0;
  double y = 0;
};

struct Series {
  std::string name;
  std::vector<Point> points;
  bool document = false;  // Marks alone.
};

struct Plot {
  std::string title;
  std::string x_name;
  std::string y_name;
  bool logarithmic = false;  // Its x.
  std::vector<Series> series;
};

class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot) {
    for (const Series& series : plot.series) {
      for (const Point& point : series.points) {
        low_ = std::min(low_, place(point.x));
        high_ = std::max(high_, place(point.x));
        most_ = std::max(most_, point.y);
      }
    }
    if (high_ <= low_) high_ = low_ + 1;
    most_ = most_ > 0 ? most_ * 1.1 : 1;
  }

  std::string svg() const {
    std::string text =
        fmt::format("<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n",
                    kWidth, kHeight);
    text += axes();
    static constexpr std::string_view kColours[] = {"#1f77b4", "#2ca02c", "#9467bd", "#8c564b",
                                                    "#17becf", "#7f7f7f", "#bcbd22", "#e377c2"};
    for (std::size_t i = 0; i < plot_.series.size(); ++i) {
      const Series& series = plot_.series[i];
      const std::string_view colour =
          series.document ? "#d62728" : kColours[i % std::size(kColours)];
      text += series.document ? marks(series, colour) : line(series, colour);
      text +=
          fmt::format("<text x=\"{}\" y=\"{}\" fill=\"{}\" font-size=\"11\">{}</text>\n", kLeft + 8,
                      kMargin + 12 + 13 * static_cast<double>(i), colour, escape(series.name));
    }
    return text + "</svg>\n";
  }

 private:
  double place(double x) const { return plot_.logarithmic ? std::log2(x) : x; }
  double column(double x) const {
    return kLeft + (place(x) - low_) / (high_ - low_) * (kWidth - kLeft - kMargin);
  }
  double row(double y) const {
    return kHeight - kBottom - y / most_ * (kHeight - kBottom - kMargin);
  }

  std::string axes() const {
    std::string text = fmt::format("<path d=\"M{0} {1}V{2}H{3}\" fill=\"none\" stroke=\"#444\"/>\n",
                                   kLeft, kMargin, kHeight - kBottom, kWidth - kMargin);
    for (int i = 0; i <= 4; ++i) {
      const double y = most_ * i / 4;
      text += fmt::format(
          "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" font-size=\"11\">{:.0f}</text>\n", kLeft - 5,
          row(y) + 4, y);
    }
    std::map<double, bool> columns;
    for (const Series& series : plot_.series) {
      for (const Point& point : series.points) columns[point.x] = true;
    }
    // As many as have room.
    constexpr std::size_t kMostLabels = 16;
    const std::size_t step = columns.size() / kMostLabels + 1;
    std::size_t number = 0;
    for (const auto& [x, there] : columns) {
      if (number++ % step != 0) continue;
      text += fmt::format(
          "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-size=\"11\">{:g}</text>\n",
          column(x), kHeight - kBottom + 15, x);
    }
    return text + fmt::format(
                      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-size=\"12\">{}"
                      "</text>\n<text x=\"5\" y=\"12\" font-size=\"12\">{}</text>\n",
                      kWidth / 2, kHeight - 8, escape(plot_.x_name), escape(plot_.y_name));
  }

  std::string line(const Series& series, std::string_view colour) const {
    std::string path;
    std::string dots;
    for (const Point& point : series.points) {
      path +=
          fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", column(point.x), row(point.y));
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>",
                          column(point.x), row(point.y), colour);
    }
    return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\"/>{}\n", path, colour, dots);
  }

  std::string marks(const Series& series, std::string_view colour) const {
    std::string text;
    for (const Point& point : series.points) {
      text += fmt::format(
          "<path d=\"M{0:.1f} {1:.1f}l8 8m0 -8l-8 8\" stroke=\"{2}\" stroke-width=\"2\"/>\n",
          column(point.x) - 4, row(point.y) - 4, colour);
    }
    return text;
  }

  const Plot& plot_;
  double low_ = std::numeric_limits<double>::max();
  double high_ = std::numeric_limits<double>::lowest();
  double most_ = 0;
};

std::optional<double> documented(const Report& report, const std::string& id) {
  const Figure* figure = report.plan.figures.find(id);
  return figure != nullptr ? figure->value : std::nullopt;
}

// Over what is varied first; the rows of one experiment are one line.
Plot plot_by_variation(const Report& report, const std::vector<const RowResult*>& rows) {
  const Row& first = *rows.front()->row;
  Plot plot{.title = first.experiment, .x_name = first.variation.front().first, .y_name = {}};
  std::map<Metric, std::pair<Series, Series>> by_metric;
  for (const RowResult* row : rows) {
    const auto x = static_cast<double>(row->row->variation.front().second);
    for (const Wanted& wanted : row->row->wanted) {
      auto& [ours, theirs] = by_metric[wanted.metric];
      ours.points.push_back({x, row->value(wanted)});
      if (const auto value = documented(report, wanted.figure))
        theirs.points.push_back({x, *value});
    }
  }
  for (auto& [metric, pair] : by_metric) {
    plot.y_name = describe(metric);
    pair.first.name = fmt::format("ours, {}", describe(metric));
    pair.second.name = fmt::format("document, {}", describe(metric));
    pair.second.document = true;
    plot.series.push_back(std::move(pair.first));
    if (!pair.second.points.empty()) plot.series.push_back(std::move(pair.second));
  }
  return plot;
}

Plot plot_by_size(const std::vector<const RowResult*>& rows) {
  Plot plot{.title = rows.front()->row->experiment + ", by transfer size",
            .x_name = "KiB",
            .y_name = "MiB/s",
            .logarithmic = true};
  for (const RowResult* row : rows) {
    Series series{.name = row->row->name(), .points = {}};
    for (std::size_t i = 0; i < row->cases.size(); ++i) {
      series.points.push_back({static_cast<double>(row->row->sweep[i]) / 1024,
                               row->cases[i].value({.figure = {}, .metric = Metric::kMebibytes})});
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

// Of a row that is judged by how its rate goes over time.
Plot plot_by_time(const RowResult& row) {
  Plot plot{.title = row.row->name() + ", over time",
            .x_name = fmt::format("seconds, in samples of {}", kSampleSeconds),
            .y_name = "IOPS",
            .series = {{.name = "ours", .points = {}}}};
  const std::vector<double> samples = row.cases[row.best].samples();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    plot.series[0].points.push_back(
        {static_cast<double>((i + 1) * kSampleSeconds), samples[i] / kSampleSeconds});
  }
  return plot;
}

bool is_of_time(const RowResult& row) {
  return std::ranges::any_of(row.row->wanted, [](const Wanted& wanted) {
    return wanted.metric == Metric::kVariation || wanted.metric == Metric::kTrend;
  });
}

std::string plots(const Report& report) {
  std::map<std::string, std::vector<const RowResult*>> experiments;
  for (const RowResult& row : report.result.rows) {
    experiments[row.row->experiment].push_back(&row);
  }
  std::string text;
  const auto add = [&text](const Plot& plot) {
    text += fmt::format("<figure><figcaption>{}</figcaption>{}</figure>\n", escape(plot.title),
                        Drawing(plot).svg());
  };
  for (const auto& [name, rows] : experiments) {
    const Row& first = *rows.front()->row;
    if (!first.variation.empty() && !first.wanted.empty()) add(plot_by_variation(report, rows));
    if (first.sweep.size() > 1) add(plot_by_size(rows));
    for (const RowResult* row : rows) {
      if (is_of_time(*row)) add(plot_by_time(*row));
    }
  }
  return text;
}

std::string table(const Report& report) {
  const bool live = report.result.live;
  const std::string scale =
      live ? fmt::format("<td>x{:g}", report.result.time_scale) : std::string();
  std::string text = fmt::format(
      "<table><tr><th>figure<th>document<th>ours<th>unit{}<th>difference<th>role<th>verdict</tr>\n",
      live ? "<th>time" : "");
  const auto cell = [](std::optional<double> value) {
    return value ? fmt::format("<td>{:.5g}", *value) : std::string("<td>-");
  };
  for (const Finding& finding : report.findings) {
    text += fmt::format("<tr><td>{}{}{}<td>{}{}{}<td>{}<td>{}</tr>\n", escape(finding.figure->id),
                        cell(finding.figure->value), cell(finding.ours),
                        escape(finding.figure->unit), scale, cell(finding.difference_percent),
                        describe(finding.figure->role), describe(finding.verdict));
  }
  return text + "</table>\n";
}

}  // namespace

std::string to_html(const Report& report) {
  return fmt::format(
             "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{0}</title>\n"
             "<style>body{{font-family:sans-serif;margin:2em}}td,th{{padding:2px 8px;"
             "text-align:left}}figure{{display:inline-block}}</style>\n<h1>{0}</h1><p>{1}<p>{2}. "
             "{3}.\n",
             escape(report.plan.name), escape(report.plan.title),
             escape(report.plan.figures.document), how_it_was_run(report)) +
         plots(report) + table(report) + "</html>\n";
}

}  // namespace sandbay::lab
