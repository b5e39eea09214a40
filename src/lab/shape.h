// Shape: what a document says in words, or draws without numbers, as a predicate over figures of
// ours.
//
//   near-linear  the figures are of 1, 2, 3 … of something: the N-th is `at_least` to `at_most`
//                times N times the first, or times `limit`, if that is less
//   rising       each is `at_least` to `at_most` times the one before
//   within       what was measured for the figure itself is `at_least` to `at_most`
//
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandbay::lab {

enum class Rule : std::uint8_t { kNone, kNearLinear, kRising, kWithin };
std::optional<Rule> parse_rule(std::string_view word);

struct Shape {
  Rule rule = Rule::kNone;           // None: it is not scored.
  std::vector<std::string> figures;  // In order; none with kWithin.
  std::optional<double> at_least;
  std::optional<double> at_most;
  // Beyond it nothing grows, for another reason than what is measured, such as the hosts. With
  // kNearLinear.
  std::optional<double> limit;
};

// Why there can be no such shape, in half a sentence, or an empty text.
std::string shape_error(const Shape& shape);
std::string describe_bounds(const Shape& shape);  // "0.9 to 1.25", ">= 0.9"

// Of the ratios that the rule is about the one that is farthest out, or the least of those within;
// nothing if a figure has not been measured. `id` is that of the figure with the shape.
std::optional<double> measure_shape(const Shape& shape, const std::string& id,
                                    const std::map<std::string, double>& measured);
bool holds(const Shape& shape, double ratio);

}  // namespace sandbay::lab
