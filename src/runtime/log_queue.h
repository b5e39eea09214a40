// LogQueue: lines for the outside world, written by a thread of its own. A reader that does not
// read (a pipe that is full, a terminal that is stopped) blocks that thread and nobody else.
//
// The queue has a limit; when it is full the oldest lines make room and are counted. The first line
// that is written after that says how many were dropped.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <expected>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/clock.h"

namespace sandbay {

class LogQueue {
 public:
  static constexpr std::size_t kMostLines = 4096;
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;

  // Starts the thread; the error is one line.
  static std::expected<std::unique_ptr<LogQueue>, std::string> start();
  // Lines that are not yet written are lost; call finish() first.
  ~LogQueue();
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  // From any thread; never waits for a reader. The text ends with a newline.
  void post(int descriptor, std::string text);

  // Waits until everything is written, at most for `patience`; false if something is not. For the
  // end of the process: may be called again.
  bool finish(Duration patience);

  // Lines dropped by all queues of this process.
  static std::uint64_t dropped() noexcept;

 private:
  struct Line {
    int descriptor;
    std::string text;
  };
  // Outlives the queue in the hands of a thread that cannot be ended.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;  // For the thread.
    std::condition_variable idle;     // For finish().
    std::deque<Line> lines;
    std::size_t bytes = 0;
    std::uint64_t dropped = 0;  // Not yet said.
    bool writing = false;
    bool stopping = false;
  };

  explicit LogQueue(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  static void serve(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
};

}  // namespace sandbay
