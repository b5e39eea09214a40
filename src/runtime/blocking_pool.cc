// Threads are detached, because one that hangs could not be joined. Those that do not hang end
// before ~BlockingPool() returns.

#include "runtime/blocking_pool.h"

#include <new>
#include <utility>

#include "runtime/detached_thread.h"
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

// Stands for the filesystem, which cannot be asked. Keys that are no paths share one.
std::string folder_of(const std::string& key) {
  const auto slash = key.rfind('/');
  return slash == std::string::npos ? std::string() : key.substr(0, slash);
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
  // The thread of a call that hangs also keeps the calls that have not begun: destroying them may
  // close files of the same filesystem.
}

void BlockingPool::submit(std::shared_ptr<BlockingJob> job) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->stopping) return;
  if (job->key.empty()) {
    ++shared_->running;
    shared_->ready.push_back(std::move(job));
  } else {
    const auto [under_way, first] = shared_->by_key.try_emplace(job->key);
    if (!first) {
      under_way->second.push_back(std::move(job));
      return;
    }
    Folder& folder = shared_->by_folder[folder_of(job->key)];
    folder.waiting.push_back(std::move(job));
    if (!admit(*shared_, folder)) return;
  }
  if (shared_->ready.size() > shared_->idle && shared_->threads < kMostThreads) {
    // Where the system has no more threads the job waits for one of those that there are.
    (void)start_thread(shared_, false);
  }
  shared_->changed.notify_one();
}

bool BlockingPool::start_thread(const std::shared_ptr<Shared>& shared, bool stays) {
  if (start_detached([shared, stays] { serve(shared, stays); })) return false;
  ++shared->threads;
  return true;
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

// Makes the first call that waits in the folder ready, if the folder may have another thread.
bool BlockingPool::admit(Shared& shared, Folder& folder) {
  if (folder.waiting.empty()) return false;
  if (shared.running + kFreePerUsed * folder.running >= kMostThreads) return false;
  shared.ready.push_back(std::move(folder.waiting.front()));
  folder.waiting.pop_front();
  ++folder.running;
  ++shared.running;
  return true;
}

// A call with this key has ended; the next one waits in the folder from now on.
void BlockingPool::release(Shared& shared, const std::string& key) {
  const auto folder = shared.by_folder.find(folder_of(key));
  const auto under_way = shared.by_key.find(key);
  --folder->second.running;
  if (under_way->second.empty()) {
    shared.by_key.erase(under_way);
  } else {
    folder->second.waiting.push_back(std::move(under_way->second.front()));
    under_way->second.pop_front();
  }
  const bool unused = folder->second.running == 0 && folder->second.waiting.empty();
  if (unused) shared.by_folder.erase(folder);
}

void BlockingPool::finish(Shared& shared, const Job& job) {
  if (shared.stopping) return;  // Its home may be gone.
  --shared.running;
  if (!job->key.empty()) release(shared, job->key);
  // One call may begin: of the same folder, which has one less now, or of any other.
  const auto own = shared.by_folder.find(folder_of(job->key));
  bool admitted = own != shared.by_folder.end() && admit(shared, own->second);
  for (auto other = shared.by_folder.begin(); !admitted && other != shared.by_folder.end();
       ++other) {
    admitted = admit(shared, other->second);
  }
  if (admitted) shared.changed.notify_one();
  if (job->home == nullptr) return;
  job->self = job;
  job->home->send(*job);
}

}  // namespace sandbay::detail
