// in_time(): ends a wait, not the work. What the task does goes on behind the deadline, so all that
// it uses must stay until it has ended, or for good.
#pragma once

#include <memory>
#include <utility>

#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/sync.h"
#include "runtime/task.h"

namespace sandbay {

namespace detail {

struct TimedWork {
  Event ended;
  Error error = Error::kNone;
};

inline Task<void> run_to_its_end(Task<Error> task, std::shared_ptr<TimedWork> work) {
  work->error = co_await std::move(task);
  work->ended.set();
}

}  // namespace detail

// The task's own result; kTimedOut if it has not by the deadline.
inline Task<Error> in_time(Task<Error> task, TimePoint deadline) {
  const auto work = std::make_shared<detail::TimedWork>();
  spawn(detail::run_to_its_end(std::move(task), work));
  const bool ended = co_await work->ended.wait_until(deadline);
  co_return ended ? work->error : Error::kTimedOut;
}

}  // namespace sandbay
