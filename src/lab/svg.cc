// Axes, legends, lines and bars.
#include "lab/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace sandbay::lab::svg {
namespace {

constexpr double kWidth = 600;
constexpr double kLeft = 62;
constexpr double kRight = 18;
constexpr double kTop = 26;
constexpr double kPlotHeight = 240;
constexpr double kBelowAxis = 44;  // Numbers and the name of the axis.
constexpr double kLegendRow = 16;
constexpr std::size_t kColours = 8;

struct Axis {
  double low = 0;
  double high = 1;
  double from = 0;  // Pixels.
  double to = 1;
  bool logarithmic = false;

  double place(double value) const { return logarithmic ? std::log2(value) : value; }
  double at(double value) const {
    return from + (place(value) - place(low)) / (place(high) - place(low)) * (to - from);
  }
};

struct Extent {
  double least = std::numeric_limits<double>::max();
  double most = std::numeric_limits<double>::lowest();

  void add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  bool empty() const { return most < least; }
};

std::string shown(double value) { return fmt::format("{:.5g}", value); }

// 1, 2 or 5 times a power of ten.
double round_step(double step) {
  const double power = std::pow(10, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::vector<double> ticks(const Axis& axis) {
  std::vector<double> values;
  if (!axis.logarithmic) {
    const double step = round_step((axis.high - axis.low) / 6);
    const auto first = static_cast<std::int64_t>(std::ceil(axis.low / step - 1e-9));
    for (std::int64_t i = first; static_cast<double>(i) * step <= axis.high * (1 + 1e-9); ++i) {
      values.push_back(static_cast<double>(i) * step);
    }
    return values;
  }
  const bool wide = axis.high / axis.low > 2000;
  for (double power = std::pow(10, std::floor(std::log10(axis.low))); power <= axis.high;
       power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (wide && factor != 1) continue;
      const double value = factor * power;
      if (value >= axis.low && value <= axis.high) values.push_back(value);
    }
  }
  return values;
}

// From zero on if it is not logarithmic and `zero`, with a little room above.
Axis axis_over(const Extent& extent, bool logarithmic, bool zero) {
  if (logarithmic && extent.least > 0) {
    return {.low = extent.least / 1.3, .high = extent.most * 1.3, .logarithmic = true};
  }
  Axis axis{.low = extent.least, .high = extent.most};
  if (zero) axis = {.low = std::min(0.0, extent.least), .high = std::max(0.0, extent.most * 1.08)};
  if (!(axis.high > axis.low)) axis = {.low = axis.low - 1, .high = axis.low + 1};
  return axis;
}

// As much as has room, without cutting a letter of several bytes.
std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return escape(text);
  std::size_t end = most - 1;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return escape(text.substr(0, end)) + "…";
}

// The class of a series: a colour, and another dash once all colours are used.
std::string look(std::size_t number) {
  return fmt::format("s{} d{}", number % kColours, number / kColours % 3);
}

std::string diamond(double x, double y) {
  return fmt::format("M{:.1f} {:.1f}l5 5l-5 5l-5 -5z", x, y - 5);
}

std::string open_picture(double height) {
  return fmt::format(
      "<svg class=\"plot\" viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" height=\"{1:g}\" "
      "role=\"img\">\n",
      kWidth, height);
}

// Two columns below everything else.
struct Legend {
  struct Entry {
    std::string sign;  // Drawn where the origin is.
    std::string name;
  };
  std::vector<Entry> entries;

  double height() const { return kLegendRow * static_cast<double>((entries.size() + 1) / 2); }
  std::string draw(double top) const {
    std::string text;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      text += fmt::format(
          "<g transform=\"translate({:g} {:g})\">{}<text x=\"26\" y=\"4\">{}</text></g>\n",
          i % 2 == 0 ? kLeft - 40 : kWidth / 2,
          top + kLegendRow * (static_cast<double>(i / 2) + 0.5), entries[i].sign,
          shortened(entries[i].name, 44));
    }
    return text;
  }
};

class LineDrawing {
 public:
  explicit LineDrawing(const LinePlot& plot) : plot_(plot) {
    Extent x;
    Extent y;
    for (Line line : plot.lines) {
      for (std::vector<Point>* points : {&line.ours, &line.document}) {
        std::erase_if(*points, [](const Point& point) {
          return !std::isfinite(point.x) || !std::isfinite(point.y);
        });
        for (const Point& point : *points) {
          x.add(point.x);
          y.add(point.y);
          columns_.push_back(point.x);
        }
      }
      if (line.level && !std::isfinite(*line.level)) line.level.reset();
      if (line.level) y.add(*line.level);
      lines_.push_back(std::move(line));
    }
    empty_ = x.empty();
    if (empty_) return;
    std::ranges::sort(columns_);
    columns_.erase(std::ranges::unique(columns_).begin(), columns_.end());
    x_ = axis_over(x, plot.logarithmic_x, false);
    x_.from = kLeft + 12;
    x_.to = kWidth - kRight - 12;
    y_ = axis_over(y, plot.logarithmic_y, true);
    y_.from = kTop + kPlotHeight;
    y_.to = kTop;
  }

  std::string picture() const {
    if (empty_) return {};
    const Legend legend = make_legend();
    const double bottom = kTop + kPlotHeight + kBelowAxis;
    std::string text = open_picture(bottom + legend.height() + 6) + rows() + columns();
    for (std::size_t i = 0; i < lines_.size(); ++i) text += draw_line(lines_[i], look(i));
    // On top of all lines.
    for (std::size_t i = 0; i < lines_.size(); ++i) text += draw_marks(lines_[i], look(i));
    return text + legend.draw(bottom) + "</svg>\n";
  }

 private:
  std::string rows() const {
    std::string text;
    for (const double value : ticks(y_)) {
      const double y = y_.at(value);
      text += fmt::format(
          "<path class=\"grid\" d=\"M{:g} {:.1f}H{:g}\"/><text class=\"end\" x=\"{:g}\" "
          "y=\"{:.1f}\">{}</text>\n",
          kLeft, y, kWidth - kRight, kLeft - 6, y + 4, shown(value));
    }
    return text +
           fmt::format(
               "<path class=\"axis\" d=\"M{0:g} {1:g}V{2:g}H{3:g}\"/><text x=\"8\" y=\"14\">{4}"
               "</text>\n",
               kLeft, kTop, kTop + kPlotHeight, kWidth - kRight, escape(plot_.y_name));
  }

  // Where points are, if they are few.
  std::string columns() const {
    constexpr std::size_t kMostColumns = 12;
    constexpr double kRoom = 40;  // Pixels between two numbers.
    const double bottom = kTop + kPlotHeight;
    std::string text;
    double last = -kRoom;
    for (const double value : columns_.size() <= kMostColumns ? columns_ : ticks(x_)) {
      const double x = x_.at(value);
      if (x < last + kRoom) continue;
      last = x;
      text += fmt::format(
          "<path class=\"axis\" d=\"M{0:.1f} {1:g}v4\"/><text class=\"middle\" x=\"{0:.1f}\" "
          "y=\"{2:g}\">{3}</text>\n",
          x, bottom, bottom + 17, shown(value));
    }
    return text + fmt::format("<text class=\"middle\" x=\"{:g}\" y=\"{:g}\">{}</text>\n",
                              (kLeft + kWidth - kRight) / 2, bottom + 34, escape(plot_.x_name));
  }

  std::string draw_line(const Line& line, const std::string& look) const {
    std::string path;
    std::string dots;
    bool joined = line.ours.size() > 1;
    for (const Point& point : line.ours) {
      const double x = x_.at(point.x);
      const double y = y_.at(point.y);
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
      dots += fmt::format(
          "<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{}: {}, {} {}"
          "</title></circle>\n",
          look, x, y, escape(line.name), shown(point.x), shown(point.y), escape(plot_.y_name));
      joined = joined && std::ranges::count(line.ours, point.x, &Point::x) == 1;
    }
    std::string text;
    if (line.level) {
      text = fmt::format("<path class=\"level {}\" d=\"M{:g} {:.1f}H{:g}\"/>\n", look, kLeft,
                         y_.at(*line.level), kWidth - kRight);
    }
    if (joined) text += fmt::format("<path class=\"line {}\" d=\"{}\"/>\n", look, path);
    return text + dots;
  }

  std::string draw_marks(const Line& line, const std::string& look) const {
    std::string text;
    for (const Point& point : line.document) {
      text += fmt::format(
          "<path class=\"mark {}\" d=\"{}\"><title>document: {}, {} {}</title></path>\n", look,
          diamond(x_.at(point.x), y_.at(point.y)), shown(point.x), shown(point.y),
          escape(plot_.y_name));
    }
    return text;
  }

  Legend make_legend() const {
    Legend legend;
    bool marks = false;
    bool levels = false;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      marks = marks || !lines_[i].document.empty();
      levels = levels || lines_[i].level.has_value();
      legend.entries.push_back(
          {.sign = fmt::format("<path class=\"line {0}\" d=\"M0 0h20\"/>"
                               "<circle class=\"dot {0}\" cx=\"10\" cy=\"0\" r=\"3\"/>",
                               look(i)),
           .name = lines_[i].name});
    }
    if (marks) {
      legend.entries.push_back(
          {.sign = fmt::format("<path class=\"mark\" d=\"{}\"/>", diamond(10, 0)),
           .name = "document"});
    }
    if (levels) {
      legend.entries.push_back(
          {.sign = "<path class=\"level\" d=\"M0 0h20\"/>", .name = "document, as a whole"});
    }
    return legend;
  }

  const LinePlot& plot_;
  std::vector<Line> lines_;
  std::vector<double> columns_;
  bool empty_ = true;
  Axis x_;
  Axis y_;
};

constexpr double kBarHeight = 10;
constexpr double kPairHeight = 2 * kBarHeight + 8;
constexpr double kBarLeft = 236;
constexpr double kBarRight = 54;  // For the number behind the longest one.

std::string one_bar(const Axis& axis, double top, double value, std::string_view look,
                    std::string_view who) {
  const double zero = axis.at(0);
  const double end = axis.at(value);
  return fmt::format(
      "<rect class=\"fill {}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:g}\"><title>"
      "{}: {}</title></rect><text class=\"small\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
      look, std::min(zero, end), top, std::max(std::abs(end - zero), 1.0), kBarHeight - 1, who,
      shown(value), std::max(zero, end) + 4, top + kBarHeight - 1.5, shown(value));
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    if (letter == '<') {
      out += "&lt;";
    } else if (letter == '>') {
      out += "&gt;";
    } else if (letter == '&') {
      out += "&amp;";
    } else if (letter == '"') {
      out += "&quot;";
    } else {
      // Markup has no other control characters.
      out += static_cast<unsigned char>(letter) < ' ' || letter == '\x7f' ? ' ' : letter;
    }
  }
  return out;
}

std::string_view style() {
  return R"(:root{color-scheme:light dark;--ink:#1d2429;--paper:#fff;--grid:#dde2e6;--good:#1a7f37;
--bad:#c62828;--document:#d55e00;--s0:#0072b2;--s1:#00805c;--s2:#b0448c;--s3:#8a5a00;--s4:#5b4bb5;
--s5:#2b9ec7;--s6:#7a8a00;--s7:#6b7278}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9eb;--paper:#15191c;--grid:#343b40;
--good:#5fd17f;--bad:#ff7b72;--document:#ff9d4d;--s0:#5db4f0;--s1:#35c79a;--s2:#e58cc6;--s3:#d9a441;
--s4:#a99cf5;--s5:#8adcf5;--s6:#c3d34d;--s7:#a3abb1}}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}
.s5{--c:var(--s5)}.s6{--c:var(--s6)}.s7{--c:var(--s7)}.theirs{--c:var(--document)}
svg{max-width:100%;height:auto}svg text{fill:var(--ink);font:11px sans-serif}
svg text.small{font-size:9.5px}.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:var(--grid)}.axis{stroke:var(--ink);fill:none}
.line{stroke:var(--c);stroke-width:1.8;fill:none}.d1{stroke-dasharray:7 3}.d2{stroke-dasharray:2 3}
.dot,.fill{fill:var(--c);stroke:none}
.mark{stroke:var(--c,var(--ink));stroke-width:2;fill:none;stroke-dasharray:none}
.level{stroke:var(--c,var(--ink));stroke-dasharray:5 4}
)";
}

std::string draw(const LinePlot& plot) { return LineDrawing(plot).picture(); }

std::string draw(std::string_view unit, std::span<const Bar> bars) {
  Extent extent;
  for (const Bar& bar : bars) {
    for (const std::optional<double>& value : {bar.ours, bar.document}) {
      if (value && std::isfinite(*value)) extent.add(*value);
    }
  }
  if (extent.empty()) return {};
  Axis axis = axis_over(extent, false, true);
  axis.from = kBarLeft;
  axis.to = kWidth - kBarRight;
  const double bottom = kTop + kPairHeight * static_cast<double>(bars.size());
  std::string text;
  for (const double value : ticks(axis)) {
    text += fmt::format(
        "<path class=\"grid\" d=\"M{0:.1f} {1:g}V{2:g}\"/><text class=\"middle\" x=\"{0:.1f}\" "
        "y=\"{3:g}\">{4}</text>\n",
        axis.at(value), kTop, bottom, bottom + 14, shown(value));
  }
  double top = kTop + 4;
  for (const Bar& bar : bars) {
    text += fmt::format("<text class=\"end\" x=\"{:g}\" y=\"{:.1f}\">{}</text>\n", kBarLeft - 8,
                        top + kBarHeight + 4, shortened(bar.name, 40));
    if (bar.ours && std::isfinite(*bar.ours)) text += one_bar(axis, top, *bar.ours, "s0", "ours");
    if (bar.document && std::isfinite(*bar.document)) {
      text += one_bar(axis, top + kBarHeight, *bar.document, "theirs", "document");
    }
    top += kPairHeight;
  }
  const auto key = [](std::string_view look) {
    return fmt::format("<rect class=\"fill {}\" x=\"10\" y=\"-5\" width=\"10\" height=\"10\"/>",
                       look);
  };
  const Legend legend{.entries = {{.sign = key("s0"), .name = "ours"},
                                  {.sign = key("theirs"), .name = "document"}}};
  return open_picture(bottom + kBelowAxis + legend.height()) + text +
         fmt::format("<text class=\"middle\" x=\"{:g}\" y=\"{:g}\">{}</text>\n",
                     (kBarLeft + kWidth - kBarRight) / 2, bottom + 30, escape(unit)) +
         legend.draw(bottom + kBelowAxis - 6) + "</svg>\n";
}

std::string draw_parts(std::span<const double> parts) {
  std::string text =
      "<svg class=\"parts\" viewBox=\"0 0 200 12\" width=\"200\" height=\"12\" role=\"img\">";
  double x = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double width = std::isfinite(parts[i]) ? 2 * std::clamp(parts[i], 0.0, 100.0) : 0;
    text += fmt::format(
        "<rect class=\"fill s{}\" x=\"{:.2f}\" y=\"0\" width=\"{:.2f}\" height=\"12\"/>",
        i % kColours, x, width);
    x += width;
  }
  return text + "</svg>";
}

}  // namespace sandbay::lab::svg
