// The log of the process gets the sentence alone: it has a time and a level of its own.
#include "group/event_log.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cassert>

#include "group/records.h"
#include "runtime/executor.h"

namespace sandbay::group {

namespace {

constexpr std::size_t kEntriesAtOnce = 256;
// What happens within this time is written together.
constexpr Duration kGather = std::chrono::milliseconds(50);
constexpr Duration kTryAgainAfter = std::chrono::seconds(10);

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

EventLog::~EventLog() { assert(store_ == nullptr); }

Task<Error> EventLog::open(metadata::Store& store) {
  assert(store_ == nullptr && total_ == 0);
  std::string after;
  for (;;) {
    const auto part = co_await store.list(std::string(kEventPrefix), after, kEntriesAtOnce);
    if (!part) co_return part.error();
    for (const auto& [key, value] : *part) {
      auto event = decode_event(value);
      if (!event || event_key(event->number) != key) {
        spdlog::warn("metadata {} {}: left out", key, event ? "has another number" : event.error());
        continue;
      }
      if (events_.empty()) oldest_kept_ = event->number;
      total_ = event->number;
      events_.push_back(std::move(*event));
      if (events_.size() > most_events_) events_.pop_front();
    }
    if (part->size() < kEntriesAtOnce) break;
    after = part->back().first;
  }
  if (events_.empty()) oldest_kept_ = total_ + 1;
  kept_ = total_;
  store_ = &store;
  co_return Error::kNone;
}

Task<void> EventLog::close() {
  closing_.set();
  co_await gate_.close();
  if (store_ == nullptr) co_return;
  while (kept_ < total_) {
    std::uint64_t last = 0;
    std::uint64_t oldest = 0;
    const Error error = co_await store_->commit(next_batch(&last, &oldest));
    if (error != Error::kNone) break;
    kept_ = last;
    oldest_kept_ = oldest;
  }
  store_ = nullptr;
}

void EventLog::add(EventInfo event) {
  event.number = ++total_;
  event.time = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  spdlog::log(level_of(event.severity), "{}", event.text);
  events_.push_back(std::move(event));
  if (events_.size() > most_events_) events_.pop_front();
  if (store_ == nullptr || writing_ || !gate_.enter()) return;
  writing_ = true;
  spawn(write_out());
}

std::vector<EventInfo> EventLog::since(std::uint64_t number) const {
  const auto first = std::ranges::upper_bound(events_, number, {}, &EventInfo::number);
  return {first, events_.end()};
}

// The oldest that are not kept yet, and the end of as many in the store as have become too old.
metadata::Batch EventLog::next_batch(std::uint64_t* last, std::uint64_t* oldest) const {
  metadata::Batch batch;
  const auto first = std::ranges::upper_bound(events_, kept_, {}, &EventInfo::number);
  *last = total_;
  std::size_t count = 0;
  for (auto event = first; event != events_.end() && count < kEntriesAtOnce; ++event, ++count) {
    batch.put(event_key(event->number), encode(*event));
    *last = event->number;
  }
  const std::uint64_t begin = events_.empty() ? total_ + 1 : events_.front().number;
  *oldest = std::max(begin, oldest_kept_);
  for (std::uint64_t number = oldest_kept_; number < std::min(begin, kept_ + 1); ++number) {
    batch.erase(event_key(number));
  }
  return batch;
}

Task<void> EventLog::write_out() {
  Executor& home = Executor::current();
  Duration pause = kGather;
  while (kept_ < total_ && !closing_.is_set()) {
    co_await closing_.wait_until(home.now() + pause);
    if (closing_.is_set()) break;
    std::uint64_t last = 0;
    std::uint64_t oldest = 0;
    const Error error = co_await store_->commit(next_batch(&last, &oldest));
    pause = error == Error::kNone ? kGather : kTryAgainAfter;
    if (error != Error::kNone && !failing_) {
      spdlog::error("events are not kept over a restart: the metadata cannot be written: {}",
                    describe(error));
    }
    failing_ = error != Error::kNone;
    if (failing_) continue;
    kept_ = last;
    oldest_kept_ = oldest;
    moved_.notify_all();
  }
  writing_ = false;
  gate_.leave();
}

Task<bool> EventLog::kept(TimePoint deadline) {
  while (kept_ < total_) {
    if (store_ == nullptr) co_return false;
    const bool in_time = co_await moved_.wait_until(deadline);
    if (!in_time) co_return kept_ >= total_;
  }
  co_return true;
}

}  // namespace sandbay::group
