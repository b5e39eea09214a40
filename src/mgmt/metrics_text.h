// Prometheus' text format: families of samples with labels.
//
// A family is begun once and all its samples follow; values of labels are escaped by whoever makes
// the labels.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/latency_histogram.h"

namespace sandbay::mgmt {

// A label's value with backslash, quote and newline escaped.
inline std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\n') {
      escaped += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

class Text {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    fmt::format_to(out(), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <class Value>
  void sample(std::string_view labels, Value value) {
    suffixed("", labels, value);
  }
  template <class Value>
  void suffixed(std::string_view suffix, std::string_view labels, Value value) {
    if (labels.empty()) {
      fmt::format_to(out(), "{}{} {}\n", name_, suffix, value);
    } else {
      fmt::format_to(out(), "{}{}{{{}}} {}\n", name_, suffix, labels, value);
    }
  }
  // The samples of a family of histograms, in seconds.
  void latency(const std::string& labels, const LatencyHistogram& histogram) {
    std::uint64_t count = 0;
    std::uint64_t microseconds = 1;
    for (std::size_t i = 0; i < LatencyHistogram::kBuckets; ++i, microseconds *= 2) {
      count += histogram.count[i];
      const bool last = i + 1 == LatencyHistogram::kBuckets;
      const std::string bound =
          last ? "+Inf" : fmt::format("{}", static_cast<double>(microseconds) / 1e6);
      suffixed("_bucket", fmt::format("{},le=\"{}\"", labels, bound), count);
    }
    suffixed("_sum", labels, static_cast<double>(histogram.total_nanoseconds) / 1e9);
    suffixed("_count", labels, count);
  }
  std::string take() { return std::move(text_); }

 private:
  std::back_insert_iterator<std::string> out() { return std::back_inserter(text_); }
  std::string name_;
  std::string text_;
};

}  // namespace sandbay::mgmt
