// Log: the daemon's log, one line a call. log.cc alone pays for spdlog's headers; the program
// chooses where lines go and from which level on. Any thread may write.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string_view>

namespace sandbay::group {

enum class Severity : std::uint8_t { kInformation, kWarning, kError };
std::string_view describe(Severity severity);  // "information", "warning", "error"

void log(Severity severity, std::string_view line);

template <class... Values>
void log_info(fmt::format_string<Values...> form, Values&&... values) {
  log(Severity::kInformation, fmt::vformat(form, fmt::make_format_args(values...)));
}
template <class... Values>
void log_warning(fmt::format_string<Values...> form, Values&&... values) {
  log(Severity::kWarning, fmt::vformat(form, fmt::make_format_args(values...)));
}
template <class... Values>
void log_error(fmt::format_string<Values...> form, Values&&... values) {
  log(Severity::kError, fmt::vformat(form, fmt::make_format_args(values...)));
}

}  // namespace sandbay::group
