// SVG: plots and bars that need no scripts and nothing from elsewhere. Colours come from the page's
// style sheet, which has style() once, so that they suit light and dark. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sandbay::lab::svg {

// Text as a document of markup can have it.
std::string escape(std::string_view text);
std::string_view style();

struct Point {
  double x = 0;
  double y = 0;
};

// The document's.
struct Mark {
  double x = 0;
  double y = 0;
  double allowed = 0;  // How far ours may be from it; 0: nothing is said.
};

// What is not a finite number is left out.
struct Line {
  std::string name;
  std::vector<Point> ours;  // Joined by a line, unless two have the same x.
  std::vector<Mark> document;
  std::optional<double> level;  // Of the document, whatever x is.
};

struct LinePlot {
  std::string x_name;
  std::string y_name;
  // Where all values are positive.
  bool logarithmic_x = false;
  bool logarithmic_y = false;
  bool small = false;  // One of many: without a legend.
  std::vector<Line> lines;
};

// A picture with a legend below of what has a name; without one if nothing is finite.
std::string draw(const LinePlot& plot);

struct Bar {
  std::string name;
  std::optional<double> ours;  // None: it was not measured.
  std::optional<double> document;
  double allowed = 0;  // As of a Mark.
};

// Ours beside the document's, one pair below the other; without one if nothing is finite.
std::string draw(std::string_view unit, std::span<const Bar> bars);

// A small bar for a table: parts of a whole, in per cent.
std::string draw_parts(std::span<const double> parts);

}  // namespace sandbay::lab::svg
