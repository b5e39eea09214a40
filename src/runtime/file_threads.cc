// Threads are detached, because one that hangs could not be joined. Those that do not hang end
// before ~FileThreads() returns.

#include "runtime/file_threads.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/detached_thread.h"

namespace sandbay::detail {

int carry_out(const FileOperation& operation, int flags) {
  using enum FileOperation::Kind;
  const int descriptor = operation.descriptor;
  const auto slice_count = static_cast<int>(operation.slice_count);
  const auto offset = static_cast<off_t>(operation.offset);
  ssize_t result = -1;
  do {
    switch (operation.kind) {
      case kRead:
        result = ::preadv2(descriptor, operation.slices, slice_count, offset, flags);
        break;
      case kWrite:
        result = ::pwritev2(descriptor, operation.slices, slice_count, offset, flags);
        break;
      case kSync:
        result = ::fdatasync(descriptor);
        break;
      case kAllocate:
        result = ::fallocate(descriptor, operation.mode, offset,
                             static_cast<off_t>(operation.byte_count));
        break;
    }
  } while (result < 0 && errno == EINTR);
  return result < 0 ? -errno : static_cast<int>(result);
}

FileThreads::~FileThreads() {
  stop();
  std::unique_lock lock(shared_->mutex);
  shared_->ended.wait_until(lock, shared_->end, [this] { return shared_->threads == 0; });
}

void FileThreads::stop() noexcept {
  const std::lock_guard lock(shared_->mutex);
  if (std::exchange(shared_->stopping, true)) return;
  shared_->end = std::chrono::steady_clock::now() + kEndPatience;
  shared_->changed.notify_all();
}

bool FileThreads::start() {
  const std::lock_guard lock(shared_->mutex);
  // The reactor may be bound to a processor later, which is not for threads that it starts.
  ::sched_getaffinity(0, sizeof shared_->processors, &shared_->processors);
  return start_thread(shared_, true);
}

void FileThreads::submit(FileOperation& first, FileOperation& last, unsigned count) {
  Shared& shared = *shared_;
  Message& newest = last;
  newest.next = nullptr;
  const std::lock_guard lock(shared.mutex);
  (shared.last == nullptr ? shared.first : shared.last->next) = &first;
  shared.last = &newest;
  shared.waiting += count;
  for (unsigned i = 0; i < std::min(count, kStartsAtOnce) && start_if_wanted(shared_); ++i) {
  }
  for (unsigned i = 0; i < count; ++i) shared.changed.notify_one();
}

// Where the system has no more threads a request waits for one of those that there are.
bool FileThreads::start_if_wanted(const std::shared_ptr<Shared>& shared) {
  return shared->waiting > shared->idle && shared->threads < shared->most &&
         start_thread(shared, false);
}

bool FileThreads::take_back(FileOperation& operation) {
  Shared& shared = *shared_;
  const std::lock_guard lock(shared.mutex);
  Message* previous = nullptr;
  for (Message* message = shared.first; message != nullptr; message = message->next) {
    if (message == &operation) {
      (previous == nullptr ? shared.first : previous->next) = message->next;
      if (shared.last == message) shared.last = previous;
      --shared.waiting;
      return true;
    }
    previous = message;
  }
  return false;
}

bool FileThreads::start_thread(const std::shared_ptr<Shared>& shared, bool stays) {
  if (start_detached([shared, stays] { serve(shared, stays); })) return false;
  ++shared->threads;
  ++shared->idle;
  return true;
}

FileOperation* FileThreads::take(Shared& shared) {
  Message* const message = shared.first;
  if (message == nullptr) return nullptr;
  shared.first = message->next;
  if (shared.first == nullptr) shared.last = nullptr;
  --shared.waiting;
  return static_cast<FileOperation*>(message);
}

// A thread begins as an idle one. It takes the next request before it tells of the last one's end,
// so that both cost the lock once.
void FileThreads::serve(const std::shared_ptr<Shared>& shared, bool stays) {
  ::pthread_setname_np(::pthread_self(), "files");
  ::sched_setaffinity(0, sizeof shared->processors, &shared->processors);
  const auto has_work = [&] { return shared->stopping || shared->first != nullptr; };
  FileOperation* ended = nullptr;
  int result = 0;
  std::unique_lock lock(shared->mutex);
  for (;;) {
    if (ended == nullptr && stays) {
      shared->changed.wait(lock, has_work);
    } else if (ended == nullptr && !shared->changed.wait_for(lock, kIdle, has_work)) {
      break;
    }
    if (shared->stopping) break;  // The reactor may be gone.
    FileOperation* const next = take(*shared);
    if (ended == nullptr && next != nullptr) --shared->idle;
    if (ended != nullptr && next == nullptr) ++shared->idle;
    if (next != nullptr) start_if_wanted(shared);
    lock.unlock();
    if (ended != nullptr) {
      ended->result = result;
      shared->home.send(*ended);
    }
    if (next != nullptr) result = carry_out(*next, 0);
    ended = next;
    lock.lock();
  }
  if (ended == nullptr) --shared->idle;
  --shared->threads;
  shared->ended.notify_all();
}

}  // namespace sandbay::detail
