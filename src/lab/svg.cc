// Axes, legends, lines and bars.
#include "lab/svg.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "runtime/known.h"

namespace sandbay::lab::svg {
namespace {

constexpr double kWidth = 430;
constexpr double kSmallWidth = 232;
constexpr double kRight = 14;
constexpr double kTop = 26;
constexpr double kPlotHeight = 200;
constexpr double kSmallHeight = 84;
constexpr double kBelowAxis = 44;  // Numbers and the name of the axis.
constexpr double kLegendRow = 17;
constexpr double kLetter = 6.1;  // How wide one is, about.
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

// Four digits, or all of a large number, in groups of three.
std::string shown(double value) {
  constexpr double kWhole = 999.95;
  if (!(std::abs(value) >= kWhole) || std::abs(value) > 1e15) return fmt::format("{:.4g}", value);
  std::string text = fmt::format("{:.0f}", std::abs(value));
  constexpr std::size_t kUngrouped = 4;
  for (std::size_t at = text.size(); text.size() > kUngrouped && at > 3;) {
    at -= 3;
    text.insert(at, "\u202f");
  }
  return value < 0 ? "-" + text : text;
}

// Of what is shown, about, in pixels: of several bytes of a letter the first counts.
double width_of(std::string_view text) {
  const auto letters = std::ranges::count_if(
      text, [](char letter) { return (static_cast<unsigned char>(letter) & 0xC0) != 0x80; });
  return kLetter * static_cast<double>(letters);
}

// 1, 2 or 5 times a power of ten.
double round_step(double step) {
  const double power = std::pow(10, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::vector<double> ticks(const Axis& axis, double most = 6) {
  std::vector<double> values;
  if (!axis.logarithmic) {
    const double step = round_step((axis.high - axis.low) / most);
    const auto first = static_cast<std::int64_t>(std::ceil(axis.low / step - 1e-9));
    for (std::int64_t i = first; static_cast<double>(i) * step <= axis.high * (1 + 1e-9); ++i) {
      values.push_back(static_cast<double>(i) * step);
    }
    return values;
  }
  constexpr std::array kFactors = {1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0};
  constexpr std::array kFewFactors = {1.0, 2.0, 5.0};
  const double ratio = axis.high / axis.low;
  std::span<const double> factors = kFewFactors;
  if (ratio > 2000) factors = factors.first(1);
  if (ratio < 6) factors = kFactors;
  for (double power = std::pow(10, std::floor(std::log10(axis.low))); power <= axis.high;
       power *= 10) {
    for (const double factor : factors) {
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

std::string open_picture(double width, double height) {
  return fmt::format(
      "<svg class=\"plot\" viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" height=\"{1:g}\" "
      "role=\"img\">\n",
      width, height);
}

// From one place to another, with a stroke across each end.
std::string whisker(std::string_view look, double x1, double y1, double x2, double y2) {
  constexpr double kStroke = 3;
  const bool upright = x1 == x2;
  const double dx = upright ? kStroke : 0;
  const double dy = upright ? 0 : kStroke;
  return fmt::format(
      "<path class=\"whisker {}\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}M{:.1f} {:.1f}L{:.1f} "
      "{:.1f}M{:.1f} "
      "{:.1f}L{:.1f} {:.1f}\"/>\n",
      look, x1, y1, x2, y2, x1 - dx, y1 - dy, x1 + dx, y1 + dy, x2 - dx, y2 - dy, x2 + dx, y2 + dy);
}

// Below everything else, in as many columns as have room.
struct Legend {
  struct Entry {
    std::string sign;  // Drawn where the origin is.
    std::string name;
  };
  std::vector<Entry> entries;

  std::size_t columns() const {
    double widest = 0;
    for (const Entry& entry : entries) widest = std::max(widest, width_of(entry.name));
    constexpr double kAround = 44;  // The sign, and what is between columns.
    return static_cast<std::size_t>(std::clamp((kWidth - 10) / (widest + kAround), 1.0, 4.0));
  }
  double height() const {
    const std::size_t rows = (entries.size() + columns() - 1) / columns();
    return kLegendRow * static_cast<double>(rows);
  }
  std::string draw(double top) const {
    std::string text;
    const std::size_t across = columns();
    const double width = (kWidth - 10) / static_cast<double>(across);
    const auto room = static_cast<std::size_t>((width - 30) / kLetter);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      text += fmt::format(
          "<g transform=\"translate({:g} {:g})\">{}<text x=\"26\" y=\"4\">{}</text></g>\n",
          10 + width * static_cast<double>(i % across),
          top + kLegendRow * (static_cast<double>(i / across) + 0.5), entries[i].sign,
          shortened(entries[i].name, room));
    }
    return text;
  }
};

// Nothing if there is no room behind the one that ends at `last`.
std::string number_below(double value, double x, double y, double& last) {
  constexpr double kRoom = 8;
  const double half = width_of(shown(value)) / 2;
  if (x - half < last + kRoom) return {};
  last = x + half;
  return fmt::format("<text class=\"middle\" x=\"{:.1f}\" y=\"{:g}\">{}</text>", x, y,
                     shown(value));
}

// A line of more has smaller ones.
constexpr std::size_t kMostLargeDots = 16;

class LineDrawing {
 public:
  explicit LineDrawing(const LinePlot& plot) : plot_(plot) {
    Extent x;
    Extent y;
    const auto add = [&](const auto& point) {
      x.add(point.x);
      y.add(point.y);
      columns_.push_back(point.x);
    };
    const auto unfit = [](const auto& point) {
      return !std::isfinite(point.x) || !std::isfinite(point.y);
    };
    for (Line line : plot.lines) {
      std::erase_if(line.ours, unfit);
      std::erase_if(line.document, unfit);
      std::ranges::for_each(line.ours, add);
      std::ranges::for_each(line.document, add);
      for (const Mark& mark : line.document) y.add(mark.y + mark.allowed);
      if (line.level && !std::isfinite(*line.level)) line.level.reset();
      if (line.level) y.add(*line.level);
      lines_.push_back(std::move(line));
    }
    empty_ = x.empty();
    if (empty_) return;
    std::ranges::sort(columns_);
    columns_.erase(std::ranges::unique(columns_).begin(), columns_.end());
    width_ = plot.small ? kSmallWidth : kWidth;
    bottom_ = kTop + (plot.small ? kSmallHeight : kPlotHeight);
    y_ = axis_over(y, plot.logarithmic_y, true);
    y_.from = bottom_;
    y_.to = kTop;
    for (const double value : ticks(y_, most_rows())) {
      left_ = std::max(left_, width_of(shown(value)) + 12);
    }
    x_ = axis_over(x, plot.logarithmic_x, false);
    x_.from = left_ + 12;
    x_.to = width_ - kRight - 12;
  }

  std::string picture() const {
    if (empty_) return {};
    const Legend legend = make_legend();
    const double bottom = bottom_ + kBelowAxis;
    std::string text = open_picture(width_, bottom + legend.height() + 4) + rows() + columns();
    for (std::size_t i = 0; i < lines_.size(); ++i) text += draw_line(lines_[i], look(i));
    // On top of all lines.
    for (std::size_t i = 0; i < lines_.size(); ++i) text += draw_marks(lines_[i], look(i));
    return text + legend.draw(bottom) + "</svg>\n";
  }

 private:
  double most_rows() const { return plot_.small ? 3 : 6; }

  std::string rows() const {
    std::string text;
    for (const double value : ticks(y_, most_rows())) {
      const double y = y_.at(value);
      text += fmt::format(
          "<path class=\"grid\" d=\"M{:g} {:.1f}H{:g}\"/><text class=\"end\" x=\"{:g}\" "
          "y=\"{:.1f}\">{}</text>\n",
          left_, y, width_ - kRight, left_ - 6, y + 4, shown(value));
    }
    return text +
           fmt::format(
               "<path class=\"axis\" d=\"M{0:g} {1:g}V{2:g}H{3:g}\"/><text x=\"8\" y=\"14\">{4}"
               "</text>\n",
               left_, kTop, bottom_, width_ - kRight, escape(plot_.y_name));
  }

  // Where points are, if they are few.
  std::string columns() const {
    constexpr std::size_t kMostColumns = 12;
    const bool few = columns_.size() <= kMostColumns && !plot_.small;
    std::string text;
    double last = 0;
    for (const double value : few ? columns_ : ticks(x_, most_rows())) {
      const double x = x_.at(value);
      const std::string number = number_below(value, x, bottom_ + 17, last);
      if (number.empty()) continue;
      text += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:g}v4\"/>{}\n", x, bottom_, number);
    }
    return text + fmt::format("<text class=\"middle\" x=\"{:g}\" y=\"{:g}\">{}</text>\n",
                              (left_ + width_ - kRight) / 2, bottom_ + 34, escape(plot_.x_name));
  }

  std::string draw_line(const Line& line, const std::string& look) const {
    std::string path;
    std::string dots;
    bool joined = line.ours.size() > 1;
    const int radius = plot_.small || line.ours.size() > kMostLargeDots ? 2 : 3;
    for (const Point& point : line.ours) {
      const double x = x_.at(point.x);
      const double y = y_.at(point.y);
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
      dots += fmt::format(
          "<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{}: {}, {} {}"
          "</title></circle>\n",
          look, x, y, radius, escape(line.name), shown(point.x), shown(point.y),
          escape(plot_.y_name));
      joined = joined && std::ranges::count(line.ours, point.x, &Point::x) == 1;
    }
    std::string text;
    if (line.level) {
      text = fmt::format("<path class=\"level {}\" d=\"M{:g} {:.1f}H{:g}\"/>\n", look, left_,
                         y_.at(*line.level), width_ - kRight);
    }
    if (joined) text += fmt::format("<path class=\"line {}\" d=\"{}\"/>\n", look, path);
    return text + dots;
  }

  std::string draw_marks(const Line& line, const std::string& look) const {
    std::string text;
    for (const Mark& mark : line.document) {
      const double x = x_.at(mark.x);
      const double least = std::max(mark.y - mark.allowed, y_.low);
      if (mark.allowed > 0) {
        text += whisker(look, x, y_.at(least), x, y_.at(mark.y + mark.allowed));
      }
      text += fmt::format(
          "<path class=\"mark {}\" d=\"{}\"><title>document: {}, {} {}</title></path>\n", look,
          diamond(x, y_.at(mark.y)), shown(mark.x), shown(mark.y), escape(plot_.y_name));
    }
    return text;
  }

  Legend make_legend() const {
    Legend legend;
    if (plot_.small) return legend;
    bool marks = false;
    bool levels = false;
    bool whiskers = false;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      marks = marks || !lines_[i].document.empty();
      levels = levels || lines_[i].level.has_value();
      whiskers = whiskers || std::ranges::any_of(lines_[i].document,
                                                 [](const Mark& mark) { return mark.allowed > 0; });
      legend.entries.push_back(
          {.sign = fmt::format("<path class=\"line {0}\" d=\"M0 0h20\"/>"
                               "<circle class=\"dot {0}\" cx=\"10\" cy=\"0\" r=\"3\"/>",
                               look(i)),
           .name = lines_[i].name});
    }
    if (marks) {
      legend.entries.push_back(
          {.sign = (whiskers ? whisker("", 10, -8, 10, 8) : std::string()) +
                   fmt::format("<path class=\"mark\" d=\"{}\"/>", diamond(10, 0)),
           .name = whiskers ? "document, and tolerance" : "document"});
    }
    if (levels) {
      legend.entries.push_back(
          {.sign = "<path class=\"level\" d=\"M0 0h20\"/>", .name = "document"});
    }
    return legend;
  }

  const LinePlot& plot_;
  std::vector<Line> lines_;
  std::vector<double> columns_;
  bool empty_ = true;
  double width_ = kWidth;
  double left_ = 30;
  double bottom_ = 0;
  Axis x_;
  Axis y_;
};

constexpr double kBarHeight = 11;
constexpr double kBarTop = 6;
constexpr double kBarRight = 54;  // For the number behind the longest one.
constexpr std::size_t kLongestName = 38;

class BarDrawing {
 public:
  BarDrawing(std::string_view unit, std::span<const Bar> bars) : unit_(unit), bars_(bars) {
    Extent extent;
    double widest = 0;
    for (const Bar& bar : bars) {
      if (fits(bar.ours)) extent.add(known(bar.ours));
      if (fits(bar.document)) {
        pairs_ = true;
        extent.add(known(bar.document) + bar.allowed);
        whiskers_ = whiskers_ || bar.allowed > 0;
      }
      widest = std::max(widest, width_of(bar.name));
    }
    empty_ = extent.empty();
    if (empty_) return;
    axis_ = axis_over(extent, false, true);
    axis_.from = std::min(widest, kLetter * kLongestName) + 16;
    axis_.to = kWidth - kBarRight;
  }

  std::string picture() const {
    if (empty_) return {};
    const double bottom = kBarTop + height_of_one() * static_cast<double>(bars_.size());
    std::string text = grid(bottom);
    double top = kBarTop + 4;
    for (const Bar& bar : bars_) {
      text += one(bar, top);
      top += height_of_one();
    }
    const Legend legend = make_legend();
    return open_picture(kWidth, bottom + kBelowAxis + legend.height()) + text +
           fmt::format("<text class=\"middle\" x=\"{:g}\" y=\"{:g}\">{}</text>\n",
                       (axis_.from + axis_.to) / 2, bottom + 30, escape(unit_)) +
           legend.draw(bottom + kBelowAxis - 6) + "</svg>\n";
  }

 private:
  static bool fits(const std::optional<double>& value) {
    return value.has_value() && std::isfinite(*value);
  }
  double height_of_one() const { return (pairs_ ? 2 : 1) * kBarHeight + 7; }

  std::string grid(double bottom) const {
    std::string text;
    double last = 0;
    for (const double value : ticks(axis_, 5)) {
      const double x = axis_.at(value);
      text += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:g}V{:g}\"/>", x, kBarTop, bottom);
      text += number_below(value, x, bottom + 14, last) + "\n";
    }
    return text;
  }

  std::string one(const Bar& bar, double top) const {
    std::string text =
        fmt::format("<text class=\"end\" x=\"{:g}\" y=\"{:.1f}\">{}</text>\n", axis_.from - 8,
                    top + height_of_one() / 2, shortened(bar.name, kLongestName));
    const bool alone = pairs_ && !fits(bar.document);
    if (fits(bar.ours)) {
      text += rectangle(alone ? top + kBarHeight / 2 : top, known(bar.ours), 0, "s0", "ours");
    } else {
      text += fmt::format("<text class=\"small\" x=\"{:.1f}\" y=\"{:.1f}\">not measured</text>\n",
                          axis_.at(0) + 4, top + kBarHeight - 2);
    }
    if (fits(bar.document)) {
      text += rectangle(top + kBarHeight, known(bar.document), bar.allowed, "theirs", "document");
    }
    return text;
  }

  std::string rectangle(double top, double value, double allowed, std::string_view look,
                        std::string_view who) const {
    const double zero = axis_.at(0);
    const double end = axis_.at(value);
    const double middle = top + (kBarHeight - 1) / 2;
    const double most = std::max({zero, end, axis_.at(value + allowed)});
    std::string text = fmt::format(
        "<rect class=\"fill {}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:g}\">"
        "<title>{}: {}</title></rect><text class=\"small\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
        look, std::min(zero, end), top, std::max(std::abs(end - zero), 1.0), kBarHeight - 1, who,
        shown(value), most + 6, top + kBarHeight - 2, shown(value));
    if (!(allowed > 0)) return text;
    const double least = std::max(value - allowed, axis_.low);
    return text + whisker("", axis_.at(least), middle, axis_.at(value + allowed), middle);
  }

  Legend make_legend() const {
    if (!pairs_) return {};
    const auto key = [](std::string_view look) {
      return fmt::format("<rect class=\"fill {}\" x=\"2\" y=\"-5\" width=\"14\" height=\"10\"/>",
                         look);
    };
    return {.entries = {
                {.sign = key("s0"), .name = "ours"},
                {.sign = key("theirs") + (whiskers_ ? whisker("", 10, 0, 21, 0) : std::string()),
                 .name = whiskers_ ? "document, and tolerance" : "document"}}};
  }

  std::string_view unit_;
  std::span<const Bar> bars_;
  bool pairs_ = false;
  bool whiskers_ = false;
  bool empty_ = true;
  Axis axis_;
};

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
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6e9eb;--paper:#15191c;--grid:#343b40;
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
.whisker{stroke:var(--c,var(--ink));stroke-width:1.2;fill:none;stroke-dasharray:none}
.level{stroke-width:1.4}
.level{stroke:var(--c,var(--ink));stroke-dasharray:5 4}
)";
}

std::string draw(const LinePlot& plot) { return LineDrawing(plot).picture(); }

std::string draw(std::string_view unit, std::span<const Bar> bars) {
  return BarDrawing(unit, bars).picture();
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
