// The log's levels are spdlog's.
#include "group/log.h"

#include <spdlog/spdlog.h>

namespace sandbay::group {

namespace {

spdlog::level::level_enum level_of(Severity severity) {
  switch (severity) {
    case Severity::kInformation:
      return spdlog::level::info;
    case Severity::kWarning:
      return spdlog::level::warn;
    case Severity::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

std::string_view describe(Severity severity) {
  switch (severity) {
    case Severity::kInformation:
      return "information";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "unknown";
}

void log(Severity severity, std::string_view line) {
  spdlog::default_logger_raw()->log(level_of(severity), line);
}

}  // namespace sandbay::group
