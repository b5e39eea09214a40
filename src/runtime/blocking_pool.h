// The threads behind run_blocking(); see blocking.h. Included by the runtime's own files only.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "runtime/error.h"
#include "runtime/message.h"
#include "runtime/sync.h"

namespace sandbay::detail {

// One call. The pool and the coroutine that waits for it own it, until its home has heard of its
// end.
struct BlockingJob : Message {
  std::string key;
  std::function<void()> work;
  Error error = Error::kNone;
  Executor* home = nullptr;
  Event ended;                        // Home's.
  std::shared_ptr<BlockingJob> self;  // While the message is on its way.
};

class BlockingPool {
 public:
  static constexpr unsigned kMostThreads = 256;
  // A folder has at most a third as many threads as are free: 64 if it alone has any. So a
  // folder whose filesystem hangs leaves threads for the next, and the next leaves some too.
  static constexpr unsigned kFreePerUsed = 3;
  static constexpr auto kIdle = std::chrono::seconds(10);  // A thread that has no work ends.
  static constexpr auto kEndPatience = std::chrono::seconds(1);

  // Starts the first thread, which stays; without it nothing could be opened. False if the system
  // has no thread to give.
  bool start();
  // Waits a moment for calls that are under way. One that hangs keeps its thread until the process
  // ends, and nobody hears of its end.
  ~BlockingPool();
  BlockingPool() = default;
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;

  void submit(std::shared_ptr<BlockingJob> job);

 private:
  using Job = std::shared_ptr<BlockingJob>;
  // The calls with keys in one folder.
  struct Folder {
    unsigned running = 0;  // Or ready.
    std::deque<Job> waiting;
  };
  // Outlives the pool in the hands of a thread whose call hangs.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;  // For the threads.
    std::condition_variable ended;    // For the end.
    std::deque<Job> ready;
    // A key is here while a call with it runs, is ready or waits in its folder; its calls behind
    // that one are in the queue.
    std::unordered_map<std::string, std::deque<Job>> by_key;
    std::unordered_map<std::string, Folder> by_folder;  // None that has no call.
    unsigned running = 0;                               // Or ready.
    unsigned threads = 0;
    unsigned idle = 0;
    bool stopping = false;
  };

  static bool start_thread(const std::shared_ptr<Shared>& shared, bool stays);
  static void serve(const std::shared_ptr<Shared>& shared, bool stays);
  // Under the lock.
  static bool admit(Shared& shared, Folder& folder);
  static void release(Shared& shared, const std::string& key);
  static void finish(Shared& shared, const Job& job);

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace sandbay::detail
