// The thread is detached: if it is blocked in write(2) when the process ends, nobody waits for it.

#include "runtime/log_queue.h"

#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <utility>

#include "runtime/detached_thread.h"

namespace sandbay {
namespace {

std::atomic<std::uint64_t> dropped_by_all{0};

// A descriptor that cannot be written to has no reader: the rest of the line is lost.
void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

std::expected<std::unique_ptr<LogQueue>, std::string> LogQueue::start() {
  auto shared = std::make_shared<Shared>();
  if (const auto error = detail::start_detached([shared] { serve(shared); })) {
    return std::unexpected("cannot start the thread that writes the log: " + error.message());
  }
  return std::unique_ptr<LogQueue>(new LogQueue(std::move(shared)));
}

LogQueue::~LogQueue() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->changed.notify_one();
}

void LogQueue::post(int descriptor, std::string text) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->bytes += text.size();
    shared_->lines.push_back({.descriptor = descriptor, .text = std::move(text)});
    while (shared_->lines.size() > kMostLines || shared_->bytes > kMostBytes) {
      shared_->bytes -= shared_->lines.front().text.size();
      shared_->lines.pop_front();
      ++shared_->dropped;
      dropped_by_all.fetch_add(1, std::memory_order_relaxed);
    }
  }
  shared_->changed.notify_one();
}

bool LogQueue::finish(Duration patience) {
  std::unique_lock lock(shared_->mutex);
  return shared_->idle.wait_for(lock, patience,
                                [this] { return shared_->lines.empty() && !shared_->writing; });
}

std::uint64_t LogQueue::dropped() noexcept {
  return dropped_by_all.load(std::memory_order_relaxed);
}

void LogQueue::serve(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait(lock, [&] { return shared->stopping || !shared->lines.empty(); });
    if (shared->stopping) return;
    Line line = std::move(shared->lines.front());
    shared->lines.pop_front();
    shared->bytes -= line.text.size();
    const std::uint64_t dropped = std::exchange(shared->dropped, 0);
    shared->writing = true;
    lock.unlock();
    if (dropped != 0) {
      write_all(line.descriptor, "(the log was not read: " + std::to_string(dropped) +
                                     " older lines were dropped)\n");
    }
    write_all(line.descriptor, line.text);
    lock.lock();
    shared->writing = false;
    if (shared->lines.empty()) shared->idle.notify_all();
  }
}

}  // namespace sandbay
