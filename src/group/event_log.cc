// The log of the process gets the sentence alone: it has a time and a level of its own.
#include "group/event_log.h"

#include <spdlog/spdlog.h>

#include "group/kept_log_functions.h"
#include "group/records.h"
#include "runtime/printable.h"

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

WallTime wall_time() {
  const Executor* const executor = Executor::current_or_null();
  if (executor != nullptr) return executor->wall_time();
  return std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

EventLog::EventLog(std::size_t most_events)
    : log_({.prefix = kEventPrefix,
            .name = "events",
            .key = event_key,
            .encode = encode,
            .decode = decode_event},
           most_events) {}

void EventLog::add(EventInfo event) {
  event.time = wall_time();
  spdlog::log(level_of(event.severity), "{}", printable(event.text));
  log_.add(std::move(event));
}

template class KeptLog<EventInfo>;

}  // namespace sandbay::group
