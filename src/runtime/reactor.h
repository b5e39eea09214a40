// Reactor: the real executor. One thread, one io_uring (SINGLE_ISSUER | DEFER_TASKRUN), one ready
// queue. A turn: run what is ready, run what waits for the turn's end, send the gathered messages,
// submit, and sleep in the kernel until a completion, a message or a timer. While waits are shorter
// than a wake-up costs it looks for work a moment before it sleeps; an idle reactor uses no
// processor time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/start_refusal.h"
#include "runtime/turn_watch.h"

namespace sandbay {

struct ReactorGroupOptions {
  unsigned count = 1;
  std::size_t memory_limit_bytes = std::size_t{1} << 30;  // Shared out evenly among the reactors.
  bool pin = false;         // Reactor i to the i-th processor this process may use.
  std::uint64_t seed = 0;   // 0: from the system.
  TurnReport on_long_turn;  // Null: long turns are only counted; see turn_figures().
};

// The reactors of one process. Reactor 0 runs on the thread that calls run().
class ReactorGroup {
 public:
  // The refusal says what is missing, e.g. that io_uring is switched off here.
  static std::expected<std::unique_ptr<ReactorGroup>, StartRefusal> create(
      ReactorGroupOptions options);
  virtual ~ReactorGroup() = default;

  virtual std::span<Executor* const> executors() const noexcept = 0;

  // Runs `main` on reactor 0 and every reactor until it ends, then stops them. `main` has then
  // waited for everything that it started.
  virtual void run(std::function<Task<void>()> main) = 0;
};

// How long opening waits for a file or device that another process has locked: 200 ms unless this
// says otherwise. For all reactors of the process, from any thread.
void set_lock_patience(Duration patience);

// Waits for one of the signals (blocked in every thread of the group) on the current reactor.
// Call block_signals() before any thread is started.
void block_signals(std::span<const int> signals);
Task<int> wait_for_signal(std::vector<int> signals);

}  // namespace sandbay
