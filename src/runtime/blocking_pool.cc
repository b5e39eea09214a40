// Threads are detached, because one that hangs could not be joined. Those that do not hang end
// before ~BlockingPool() returns.

#include "runtime/blocking_pool.h"

#include <pthread.h>

#include <csignal>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/executor.h"

namespace sandbay::detail {
namespace {

Error run_guarded(const std::function<void()>& work) noexcept {
  try {
    work();
  } catch (const std::bad_alloc&) {
    return Error::kNoMemory;
  } catch (...) {
    return Error::kHardware;
  }
  return Error::kNone;
}

}  // namespace

bool BlockingPool::start() {
  const std::lock_guard lock(shared_->mutex);
  return start_thread(shared_, true);
}

BlockingPool::~BlockingPool() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
  shared_->ended.wait_for(lock, kEndPatience, [this] { return shared_->threads == 0; });
  shared_->ready.clear();
  shared_->by_key.clear();
}

void BlockingPool::submit(std::shared_ptr<BlockingJob> job) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->stopping) return;
  if (!job->key.empty()) {
    const auto [under_way, first] = shared_->by_key.try_emplace(job->key);
    if (!first) {
      under_way->second.push_back(std::move(job));
      return;
    }
  }
  shared_->ready.push_back(std::move(job));
  if (shared_->ready.size() > shared_->idle && shared_->threads < kMostThreads) {
    // Where the system has no more threads the job waits for one of those that there are.
    (void)start_thread(shared_, false);
  }
  shared_->changed.notify_one();
}

// Signals are for the threads that wait for them.
bool BlockingPool::start_thread(const std::shared_ptr<Shared>& shared, bool stays) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread([shared, stays] { serve(shared, stays); }).detach();
    ++shared->threads;
  } catch (const std::system_error&) {
    started = false;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

void BlockingPool::serve(const std::shared_ptr<Shared>& shared, bool stays) {
  std::unique_lock lock(shared->mutex);
  const auto has_work = [&] { return shared->stopping || !shared->ready.empty(); };
  for (;;) {
    ++shared->idle;
    if (stays) {
      shared->changed.wait(lock, has_work);
    } else {
      shared->changed.wait_for(lock, kIdle, has_work);
    }
    --shared->idle;
    if (shared->stopping || shared->ready.empty()) break;
    const Job job = std::move(shared->ready.front());
    shared->ready.pop_front();
    lock.unlock();
    job->error = run_guarded(job->work);
    job->work = nullptr;  // The captures are destroyed here, since that may block too.
    lock.lock();
    finish(*shared, job);
  }
  --shared->threads;
  shared->ended.notify_all();
}

void BlockingPool::finish(Shared& shared, const Job& job) {
  if (shared.stopping) return;  // Its home may be gone.
  const auto under_way = shared.by_key.find(job->key);
  if (under_way != shared.by_key.end()) {
    if (under_way->second.empty()) {
      shared.by_key.erase(under_way);
    } else {
      shared.ready.push_back(std::move(under_way->second.front()));
      under_way->second.pop_front();
      shared.changed.notify_one();
    }
  }
  if (job->home == nullptr) return;
  job->self = job;
  job->home->send(*job);
}

}  // namespace sandbay::detail
