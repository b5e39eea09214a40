// The coroutine side of the blocking pool: a job is shared by the pool and by the coroutine that
// waits for it, so that either may end first.
#include "runtime/blocking.h"

#include <utility>

#include "runtime/blocking_pool.h"
#include "runtime/reactor_internal.h"

namespace sandbay {
namespace {

std::shared_ptr<detail::BlockingJob> make_job(std::string key, std::function<void()> work) {
  auto job = std::make_shared<detail::BlockingJob>();
  job->key = std::move(key);
  job->work = std::move(work);
  return job;
}

}  // namespace

Task<Error> run_blocking(Executor& home, std::string key, std::function<void()> work,
                         Duration patience) {
  auto* const reactor = dynamic_cast<detail::Reactor*>(&home);
  if (reactor == nullptr) {
    work();
    co_return Error::kNone;
  }
  assert(Executor::current_or_null() == reactor);
  const auto job = make_job(std::move(key), std::move(work));
  job->home = reactor;
  job->run = [](Message& message) {
    const auto ended = std::move(static_cast<detail::BlockingJob&>(message).self);
    ended->ended.set();
  };
  reactor->blocking().submit(job);
  const TimePoint deadline = patience == kForever ? kNever : home.now() + patience;
  const bool ended = co_await job->ended.wait_until(deadline);
  co_return ended ? job->error : Error::kTimedOut;
}

void start_blocking(Executor& home, std::string key, std::function<void()> work) {
  auto* const reactor = dynamic_cast<detail::Reactor*>(&home);
  if (reactor == nullptr) {
    work();
    return;
  }
  reactor->blocking().submit(make_job(std::move(key), std::move(work)));
}

}  // namespace sandbay
