// TurnWatch: how long the turns of a reactor take, and which code made one long.
//
// A turn is everything between two sleeps in the kernel, submitting included. Its length is by the
// clock on the wall, which the reactor reads anyway. On a busy machine a turn is also long because
// the thread had no processor, so the processor time of the thread is counted beside it: work is
// what the code itself took; the rest of the length is waiting, for the kernel or for a processor.
//
// In builds that name places (turns_are_named(): AddressSanitizer, or without optimization) a
// thread interrupts a reactor whose turn is long and notes its stack and whether it was blocked in
// a system call. In other builds a long turn is counted and reported without its place.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/clock.h"

namespace sandbay {

class Executor;

// Whether this build names the coroutine of a long turn.
bool turns_are_named() noexcept;

// No turn may take longer.
inline constexpr Duration kLongTurn = std::chrono::milliseconds(10);

struct TurnFigures {
  std::uint64_t long_turns = 0;       // Longer than kLongTurn by the clock on the wall.
  std::uint64_t long_work_turns = 0;  // Took more than kLongTurn of processor time.
  Duration longest{};                 // By the clock on the wall.
  Duration longest_work{};            // Processor time of one of the long turns.
};

// From any thread. Nothing is counted for simulated executors.
TurnFigures turn_figures(const Executor& executor);

struct LongTurn {
  unsigned reactor = 0;
  Duration length{};
  Duration work{};            // At most a millisecond too much.
  bool blocked = false;       // It was seen to wait in a system call.
  std::string place;          // Functions, innermost first; empty if not known.
  std::uint64_t further = 0;  // Long turns since the last report that were not reported.
};

// One line: "reactor 0 was held for 35 ms (34 ms of work) by ...".
std::string describe(const LongTurn& turn);

// Called for a long turn, at most once in kReportEvery a reactor; on the reactor's thread, or on
// that of the watch where turns are named. Must not block and must not throw.
using TurnReport = std::function<void(const LongTurn& turn)>;
inline constexpr Duration kReportEvery = std::chrono::seconds(1);

namespace detail {

class TurnNamer;

// One a reactor; everything but figures() and what the namer reads is for the reactor's thread.
class TurnWatch {
 public:
  explicit TurnWatch(unsigned reactor) noexcept : reactor_(reactor) {}

  // Before the reactor runs. `namer` may be null.
  void set_report(TurnReport report, TurnNamer* namer);
  // On the reactor's thread, before its first turn and after its last.
  void enter_thread();
  void leave_thread();

  void turn_starts(TimePoint now) {
    if (started_.load(std::memory_order_relaxed) != 0) turn_ends(now);
    if (now - work_read_at_ > kWorkReadEvery) [[unlikely]]
      read_work(now);
    started_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }
  void turn_ends(TimePoint now) {
    const Duration::rep started = started_.load(std::memory_order_relaxed);
    started_.store(0, std::memory_order_relaxed);
    const Duration length = now.time_since_epoch() - Duration(started);
    if (length > notable_) [[unlikely]]
      note(now, length, started);
  }

  TurnFigures figures() const noexcept;

 private:
  friend class TurnNamer;

  // The processor time at the start of a turn is known to this. A system call each turn would cost
  // more than some turns.
  static constexpr Duration kWorkReadEvery = std::chrono::milliseconds(1);
  static constexpr std::size_t kFrames = 32;

  void read_work(TimePoint now) noexcept;
  void note(TimePoint now, Duration length, Duration::rep started);
  void take_stack() noexcept;  // In a signal handler.
  static void on_signal(int);

  unsigned reactor_;
  std::atomic<int> thread_{0};  // Zero while it does not run.
  TurnReport report_;
  TurnNamer* namer_ = nullptr;
  TimePoint work_read_at_{};
  Duration work_{};     // Processor time of the thread at work_read_at_.
  Duration notable_{};  // A longer turn is the longest so far, or long.
  TimePoint reported_at_{};
  std::uint64_t unreported_ = 0;
  // Zero between turns.
  std::atomic<Duration::rep> started_{0};
  std::atomic<std::uint64_t> long_turns_{0};
  std::atomic<std::uint64_t> long_work_turns_{0};
  std::atomic<Duration::rep> longest_{0};
  std::atomic<Duration::rep> longest_work_{0};
  // Where the turn that started at sampled_turn_ was found by the namer's signal.
  std::array<void*, kFrames> frames_{};
  int frame_count_ = 0;
  Duration::rep sampled_turn_ = 0;
  std::atomic<Duration::rep> blocked_turn_{0};
};

// Looks at the reactors of a group from a thread of its own while it exists.
class TurnNamer {
 public:
  TurnNamer(std::vector<TurnWatch*> watches, TurnReport report);
  ~TurnNamer();  // The reactors do not run any more.
  TurnNamer(const TurnNamer&) = delete;
  TurnNamer& operator=(const TurnNamer&) = delete;

  // From the reactor whose turn was long; `frames` is empty if it was not seen.
  void add(LongTurn turn, std::vector<void*> frames);

 private:
  struct Seen {
    LongTurn turn;
    std::vector<void*> frames;
  };

  void serve();
  void look();

  std::vector<TurnWatch*> watches_;
  std::vector<Duration::rep> looked_at_;  // The turn of each that was sampled last.
  TurnReport report_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Seen> seen_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace detail
}  // namespace sandbay
