// Reactor: the real executor. One thread, one ready queue, and one way to ask the kernel: io_uring,
// or epoll and threads for files where io_uring is not permitted. A turn: run what is ready, run
// what waits for the turn's end, send the gathered messages, submit, and sleep in the kernel until
// a completion, a message or a timer. While waits are shorter than a wake-up costs it looks for
// work a moment before it sleeps; an idle reactor uses no processor time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/start_refusal.h"
#include "runtime/turn_watch.h"

namespace sandbay {

enum class IoMethod : std::uint8_t {
  kAuto,     // io_uring if a ring can be made for every reactor, otherwise epoll.
  kIoUring,  // Needs Linux 6.1 and the permission.
  kEpoll,    // Epoll for sockets; files by threads, as many as wait.
};

inline constexpr std::string_view kIoMethods = "auto, io_uring and epoll";
std::optional<IoMethod> parse_io_method(std::string_view word);

struct ReactorGroupOptions {
  IoMethod io = IoMethod::kAuto;
  unsigned count = 1;
  std::size_t memory_limit_bytes = std::size_t{1} << 30;  // Shared out evenly among the reactors.
  bool pin = false;         // Reactor i to the i-th processor this process may use.
  std::uint64_t seed = 0;   // 0: from the system.
  TurnReport on_long_turn;  // Null: long turns are only counted; see turn_figures().
};

// The reactors of one process. Reactor 0 runs on the thread that calls run().
class ReactorGroup {
 public:
  // The refusal says what is missing, e.g. that io_uring is wanted and switched off here.
  static std::expected<std::unique_ptr<ReactorGroup>, StartRefusal> create(
      ReactorGroupOptions options);
  virtual ~ReactorGroup() = default;

  virtual std::span<Executor* const> executors() const noexcept = 0;
  virtual IoMethod io() const noexcept = 0;  // Not kAuto.
  // If kAuto became epoll: why a ring could not be made. Otherwise empty.
  virtual const std::string& why_epoll() const noexcept = 0;

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
