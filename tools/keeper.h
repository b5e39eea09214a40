// Keeper: runs work with its processes so that none of them is left, however it ends.
//
// The keeper forks a worker, and the worker starts what it needs. Both adopt orphans
// (PR_SET_CHILD_SUBREAPER of prctl(2)): when the worker is killed, the keeper ends what it had
// started; when the keeper is killed, the worker does. When both are killed at once, the kernel
// still ends what the worker had started itself. All stay in the caller's process group, but those
// with a session of their own, so job control and the terminal's signals work as without a keeper.
//
// Neither process may have other threads when it forks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <expected>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sandbay::cli {

// A process that a signal has ended has this and the signal's number as its code, as in a shell.
inline constexpr int kSignalled = 128;

struct Process {
  std::vector<std::string> words;  // The program, found as a shell would, and its arguments.
  std::vector<std::pair<std::string, std::string>> environment;  // Added to the caller's.
  int output = -1;                                               // Descriptors; -1: the caller's.
  int error = -1;
  int inherited = -1;          // A descriptor that it gets besides.
  bool own_session = false;    // Out of a terminal's reach, and it reads nothing.
  int death_signal = SIGKILL;  // Sent to it when the worker dies.
};

// The process that the kernel asks to end when the worker dies, with SIGTERM. In memory that keeper
// and worker share: the keeper must not ask once more, which would end a daemon before it flushes.
using EndsWithWorker = std::atomic<pid_t>;

class Worker {
 public:
  // The id, or errno.
  std::expected<pid_t, int> start(const Process& process);
  // Starts the command, passes on the signals that come for it, and returns its code; or errno.
  // When the keeper dies, all ends here.
  std::expected<int, int> run(const Process& command);
  // Its code. Kills it when the time is over.
  int wait(pid_t process, std::chrono::milliseconds patience);
  // Its code, if it has ended.
  std::optional<int> ended(pid_t process);
  // Ends all that was started, and what that had started, but `spared`.
  void end_all(pid_t spared);

 private:
  friend int keep(const std::function<void()>& prepare, const std::function<int(Worker&)>& work,
                  const std::function<void()>& clean);
  Worker(pid_t keeper, sigset_t signals, const std::function<void()>& clean,
         EndsWithWorker& ends_with_worker)
      : keeper_(keeper), signals_(signals), clean_(clean), ends_with_worker_(ends_with_worker) {}

  // Does not return if the keeper is dead.
  void follow_keeper();
  // Passes signals on until the command has ended.
  int follow_command(pid_t command);

  pid_t keeper_;
  sigset_t signals_;  // Blocked for those that are started.
  const std::function<void()>& clean_;
  EndsWithWorker& ends_with_worker_;
  std::vector<pid_t> started_;
  std::vector<std::pair<pid_t, int>> ended_;
};

// Runs `prepare` here and `work` in a worker, and returns what that returns, or the code of a
// worker that a signal has ended. The worker gets the signals that other processes send to this
// one; they end it, but for the time of its command. Afterwards `clean` runs, once, in the process
// that is left. What `prepare` throws comes through, and nothing else runs then.
int keep(const std::function<void()>& prepare, const std::function<int(Worker&)>& work,
         const std::function<void()>& clean);

}  // namespace sandbay::cli
