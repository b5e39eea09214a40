// Counting turns, and naming the code of long ones. The signal that takes a stack is sent in builds
// that name places only, at most once a long turn.

#include "runtime/turn_watch.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <fstream>
#include <string_view>
#include <utility>

#if __has_feature(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
#endif

namespace sandbay {

bool turns_are_named() noexcept {
#if !defined(__OPTIMIZE__) || __has_feature(address_sanitizer)
  return true;
#else
  return false;
#endif
}

namespace detail {
namespace {

// A turn is seen when it has taken between kLongTurn and kLongTurn + kLookEvery.
constexpr Duration kLookEvery = std::chrono::milliseconds(5);
// How many functions of the stack a report names; the outer ones belong to the reactor.
constexpr std::size_t kFunctionsNamed = 4;

thread_local TurnWatch* watched = nullptr;

int stack_signal() { return SIGRTMIN + 5; }

Duration time_of(clockid_t clock) noexcept {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// The names of the functions at a place, innermost first: inlined ones have the same place.
std::vector<std::string> functions_at(void* place) {
  std::vector<std::string> names;
  Dl_info info{};
  if (::dladdr(place, &info) == 0 || info.dli_fname == nullptr) return names;
  const std::string_view file = info.dli_fname;
  if (file.starts_with("linux-vdso")) return names;  // No file has its names.
#if __has_feature(address_sanitizer)
  std::array<char, 4096> text{};
  __sanitizer_symbolize_pc(place, "%f", text.data(), text.size() - 2);
  for (const char* name = text.data(); *name != 0; name += names.back().size() + 1) {
    names.emplace_back(name);
  }
#else
  const auto offset = static_cast<std::byte*>(place) - static_cast<std::byte*>(info.dli_fbase);
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "+0x%zx", static_cast<std::size_t>(offset));
  names.push_back(std::string(file.substr(file.rfind('/') + 1)) + digits.data());
#endif
  return names;
}

// The name without parameters and unnamed namespaces; empty if the code is not Sandbay's own.
std::string shortened(std::string name) {
  constexpr std::string_view kUnnamed = "(anonymous namespace)::";
  for (auto at = name.find(kUnnamed); at != std::string::npos; at = name.find(kUnnamed)) {
    name.erase(at, kUnnamed.size());
  }
  name = name.substr(0, name.find('('));
  if (!turns_are_named() || name.contains('+')) return name;
  for (const char* const own : {"sandbay::detail::Reactor::", "sandbay::detail::TurnWatch::",
                                "sandbay::detail::RealReactorGroup::", "sandbay::Task<"}) {
    if (name.starts_with(own)) return {};
  }
  return name.starts_with("sandbay::") ? name : std::string();
}

std::string place_of(const std::vector<void*>& frames) {
  std::string text;
  std::string last;
  std::size_t named = 0;
  for (void* const frame : frames) {
    // A return address is that of the next instruction, which may be of another function.
    for (std::string& function : functions_at(static_cast<std::byte*>(frame) - 1)) {
      std::string name = shortened(std::move(function));
      if (name.empty() || name == last || named == kFunctionsNamed) continue;
      text += text.empty() ? name : ", called by " + name;
      last = std::move(name);
      ++named;
    }
  }
  return text;
}

// In a system call that does not end, or waiting for a lock.
bool is_blocked(int thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto state = line.rfind(") ");
  return state != std::string::npos && (line[state + 2] == 'S' || line[state + 2] == 'D');
}

}  // namespace

// TurnWatch ----------------------------------------------------------------------------------

void TurnWatch::set_report(TurnReport report, TurnNamer* namer) {
  report_ = std::move(report);
  namer_ = namer;
}

void TurnWatch::enter_thread() {
  watched = this;
  if (namer_ == nullptr) return;
  // The first call loads what the later ones, in a signal handler, may not.
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), static_cast<int>(frame.size()));
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(stack_signal(), &action, nullptr);
  thread_.store(static_cast<int>(::gettid()), std::memory_order_release);
}

void TurnWatch::leave_thread() {
  thread_.store(0, std::memory_order_release);
  started_.store(0, std::memory_order_relaxed);
  watched = nullptr;
}

void TurnWatch::on_signal(int) {
  const int error = errno;
  if (watched != nullptr) watched->take_stack();
  errno = error;
}

void TurnWatch::take_stack() noexcept {
  frame_count_ = ::backtrace(frames_.data(), static_cast<int>(frames_.size()));
  sampled_turn_ = started_.load(std::memory_order_relaxed);
}

void TurnWatch::read_work(TimePoint now) noexcept {
  work_ = time_of(CLOCK_THREAD_CPUTIME_ID);
  work_read_at_ = now;
}

void TurnWatch::note(TimePoint now, Duration length, Duration::rep started) {
  longest_.store(std::max(longest_.load(std::memory_order_relaxed), length.count()),
                 std::memory_order_relaxed);
  notable_ = std::min(length, kLongTurn);
  if (length <= kLongTurn) return;
  const Duration before = work_;
  read_work(now);
  LongTurn turn{.reactor = reactor_, .length = length, .work = std::min(work_ - before, length)};
  long_turns_.fetch_add(1, std::memory_order_relaxed);
  if (turn.work > kLongTurn) long_work_turns_.fetch_add(1, std::memory_order_relaxed);
  longest_work_.store(std::max(longest_work_.load(std::memory_order_relaxed), turn.work.count()),
                      std::memory_order_relaxed);
  if (!report_) return;
  if (now - reported_at_ < kReportEvery) {
    ++unreported_;
    return;
  }
  reported_at_ = now;
  turn.further = std::exchange(unreported_, 0);
  turn.blocked = blocked_turn_.load(std::memory_order_relaxed) == started;
  if (namer_ == nullptr) return report_(turn);
  std::vector<void*> frames;
  if (sampled_turn_ == started) frames.assign(frames_.begin(), frames_.begin() + frame_count_);
  namer_->add(std::move(turn), std::move(frames));
}

TurnFigures TurnWatch::figures() const noexcept {
  return {.long_turns = long_turns_.load(std::memory_order_relaxed),
          .long_work_turns = long_work_turns_.load(std::memory_order_relaxed),
          .longest = Duration(longest_.load(std::memory_order_relaxed)),
          .longest_work = Duration(longest_work_.load(std::memory_order_relaxed))};
}

// TurnNamer ----------------------------------------------------------------------------------

TurnNamer::TurnNamer(std::vector<TurnWatch*> watches, TurnReport report)
    : watches_(std::move(watches)), looked_at_(watches_.size()), report_(std::move(report)) {
  thread_ = std::thread([this] { serve(); });
}

TurnNamer::~TurnNamer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void TurnNamer::add(LongTurn turn, std::vector<void*> frames) {
  {
    const std::lock_guard lock(mutex_);
    seen_.push_back({.turn = std::move(turn), .frames = std::move(frames)});
  }
  changed_.notify_one();
}

void TurnNamer::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!stopping_ && seen_.empty()) changed_.wait_for(lock, kLookEvery);
    std::vector<Seen> seen = std::exchange(seen_, {});
    if (seen.empty() && stopping_) return;
    lock.unlock();
    look();
    for (Seen& each : seen) {
      each.turn.place = place_of(each.frames);
      report_(each.turn);
    }
    lock.lock();
  }
}

void TurnNamer::look() {
  const Duration now = time_of(CLOCK_MONOTONIC);
  for (std::size_t i = 0; i < watches_.size(); ++i) {
    TurnWatch& watch = *watches_[i];
    const Duration::rep started = watch.started_.load(std::memory_order_relaxed);
    const int thread = watch.thread_.load(std::memory_order_acquire);
    const bool is_long = started != 0 && now - Duration(started) >= kLongTurn;
    if (!is_long || thread == 0) continue;
    if (is_blocked(thread)) watch.blocked_turn_.store(started, std::memory_order_relaxed);
    if (looked_at_[i] == started) continue;
    looked_at_[i] = started;
    ::tgkill(::getpid(), thread, stack_signal());
  }
}

}  // namespace detail

std::string describe(const LongTurn& turn) {
  const auto milliseconds = [](Duration time) {
    return std::to_string(std::chrono::round<std::chrono::milliseconds>(time).count()) + " ms";
  };
  std::string text = "reactor " + std::to_string(turn.reactor) + " was held for " +
                     milliseconds(turn.length) + " (" + milliseconds(turn.work) + " of work" +
                     (turn.blocked ? ", blocked in a system call)" : ")");
  if (!turn.place.empty()) text += " by " + turn.place;
  if (turn.further != 0)
    text += "; " + std::to_string(turn.further) + " more since the last report";
  return text;
}

}  // namespace sandbay
