// The log of the process gets the sentence alone: it has a time and a level of its own.
#include "group/event_log.h"

#include <fmt/core.h>

#include "group/kept_log_functions.h"
#include "group/records.h"
#include "runtime/printable.h"

namespace sandbay::group {

WallTime wall_time() {
  const Executor* const executor = Executor::current_or_null();
  if (executor != nullptr) return executor->wall_time();
  return std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

std::string utc_text(WallTime time) {
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count(), clock.seconds().count(),
                     clock.subseconds().count());
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
  log(event.severity, printable(event.text));
  log_.add(std::move(event));
}

template class KeptLog<EventInfo>;

}  // namespace sandbay::group
