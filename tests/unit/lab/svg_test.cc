// Plots as SVG.
#include "lab/svg.h"

#include <catch2/catch.hpp>
#include <limits>

namespace sandbay::lab::svg {
namespace {

std::size_t count(const std::string& text, std::string_view what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace

TEST_CASE("Lines have a legend below the plot, and the document's points are marked",
          "[lab][svg]") {
  const std::string text = draw({.x_name = "members",
                                 .y_name = "IOPS",
                                 .lines = {{.name = "RAID <10>",
                                            .ours = {{1, 100}, {2, 200}},
                                            .document = {{1, 110}, {2, 190, 10}}},
                                           {.name = "RAID 50", .ours = {{1, 50}, {2, 99}}}}});
  CHECK(count(text, "class=\"line s0 d0\" d=\"M42.3") == 1);
  CHECK(count(text, "class=\"line s1 d0\" d=\"M42.3") == 1);
  CHECK(count(text, "class=\"whisker s0 d0\"") == 1);
  CHECK(count(text, "<title>document: ") == 2);
  CHECK(count(text, ">RAID &lt;10&gt;</text>") == 1);
  CHECK(count(text, ">document, and tolerance</text>") == 1);
  // The plot ends at 226, the numbers and the name of x at 270.
  CHECK(count(text, "<g transform=\"translate(10 278.5)\">") == 1);
}

TEST_CASE("Numbers have four digits or more, and numbers at an axis do not touch", "[lab][svg]") {
  const std::string text =
      draw({.x_name = "x",
            .y_name = "y",
            .lines = {{.name = "a", .ours = {{1, 0.01234567}, {1.1, 12345.6}, {50000, 1234567}}}}});
  CHECK(count(text, ">a: 1, 0.01235 y<") == 1);
  CHECK(count(text, ">a: 1.1, 12\u202f346 y<") == 1);
  CHECK(count(text, ">a: 50\u202f000, 1\u202f234\u202f567 y<") == 1);
  CHECK(count(text, ">1.1</text>") == 0);
}

TEST_CASE("A small plot has no legend", "[lab][svg]") {
  const LinePlot plot{.x_name = "x",
                      .y_name = "y",
                      .small = true,
                      .lines = {{.name = "a", .ours = {{1, 1}, {2, 2}}, .level = 2}}};
  const std::string text = draw(plot);
  CHECK(count(text, ">a</text>") == 0);
  CHECK(count(text, "class=\"level s0") == 1);
  CHECK(count(text, "viewBox=\"0 0 232 ") == 1);
}

TEST_CASE("Points of one x are not joined, and what is no number is left out", "[lab][svg]") {
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  const std::string same =
      draw({.x_name = "x", .y_name = "y", .lines = {{.name = "a", .ours = {{1, 1}, {1, 2}}}}});
  CHECK(count(same, "<circle class=\"dot s0 d0\" cx=\"") == 3);  // One in the legend.
  CHECK(count(same, "class=\"line") == 1);                       // Nor is there another than that.
  const LinePlot odd{.x_name = "x",
                     .y_name = "y",
                     .logarithmic_x = true,
                     .logarithmic_y = true,
                     .lines = {{.name = "a", .ours = {{0, 1}, {5, nothing}, {10, 0}}}}};
  CHECK(count(draw(odd), "nan") == 0);
  CHECK(count(draw(odd), "inf") == 0);
  CHECK(draw({.x_name = "x", .y_name = "y", .lines = {{.name = "a", .ours = {{1, nothing}}}}}) ==
        "");
}

TEST_CASE("Bars are ours and the document's in pairs, also below zero", "[lab][svg]") {
  const std::vector<Bar> bars = {{.name = "read", .ours = 10, .document = 12},
                                 {.name = "withheld", .ours = -2, .document = {}},
                                 {.name = "write", .document = 12, .allowed = 3}};
  const std::string text = draw("IOPS", bars);
  CHECK(count(text, ">not measured</text>") == 1);
  CHECK(count(text, "class=\"whisker \"") == 2);  // One in the legend.
  CHECK(count(text, "<title>ours: ") == 2);
  CHECK(count(text, "<title>document: 12<") == 2);
  CHECK(count(text, "width=\"-") == 0);
  CHECK(draw("IOPS", {}) == "");
  // No two numbers of an axis with little room touch.
  const std::vector<Bar> large = {{.name = std::string(38, 'n'), .ours = 123456789}};
  const std::string crowded = draw("bytes", large);
  CHECK(count(crowded, "class=\"grid\"") == 3);
  CHECK(count(crowded, ">50\u202f000\u202f000</text>") == 1);
  CHECK(count(crowded, ">100\u202f000\u202f000</text>") == 0);
}

TEST_CASE("Parts are as wide as their shares", "[lab][svg]") {
  const std::vector<double> parts = {25, 75};
  const std::string text = draw_parts(parts);
  CHECK(count(text, "s0\" x=\"0.00\" y=\"0\" width=\"50.00\"") == 1);
  CHECK(count(text, "s1\" x=\"50.00\" y=\"0\" width=\"150.00\"") == 1);
}

}  // namespace sandbay::lab::svg
