// The first line elsewhere than on a terminal comes after 10 s: short work stays silent.
#include "tools/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <future>

#include "runtime/printable.h"

namespace sandbay::cli {

namespace {

constexpr auto kLineEvery = std::chrono::seconds(10);
constexpr auto kDrawEvery = std::chrono::milliseconds(200);
constexpr std::size_t kBarWidth = 40;

}  // namespace

Progress::Progress()
    : terminal_(::isatty(STDERR_FILENO) == 1),
      next_line_(std::chrono::steady_clock::now() + kLineEvery) {}

bool Progress::line_is_due() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_line_) return false;
  next_line_ = now + kLineEvery;
  return true;
}

void Progress::update(const std::string& what, double done) {
  done = std::clamp(done, 0.0, 1.0);
  if (terminal_) {
    const auto filled = static_cast<std::size_t>(done * static_cast<double>(kBarWidth));
    fmt::print(stderr, "\r\x1b[K{} [{}{}] {:3.0f} %", printable(what), std::string(filled, '#'),
               std::string(kBarWidth - filled, '.'), 100 * done);
    std::fflush(stderr);
    drawn_ = true;
  } else if (line_is_due()) {
    fmt::print(stderr, "{}: {:.0f} %\n", printable(what), 100 * done);
  }
}

void Progress::update(const std::string& what) {
  if (terminal_) {
    fmt::print(stderr, "\r\x1b[K{}", printable(what));
    std::fflush(stderr);
    drawn_ = true;
  } else if (line_is_due()) {
    fmt::print(stderr, "{}\n", printable(what));
  }
}

void Progress::end() {
  if (drawn_) fmt::print(stderr, "\r\x1b[K");
  drawn_ = false;
}

void show_time_of(const std::string& what, const std::function<void()>& work) {
  Progress progress;
  const auto begin = std::chrono::steady_clock::now();
  std::future<void> ended = std::async(std::launch::async, work);
  while (ended.wait_for(kDrawEvery) != std::future_status::ready) {
    const auto seconds =
        std::chrono::floor<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
    progress.update(fmt::format("{}: under way for {} s", what, seconds.count()));
  }
  progress.end();
  ended.get();
}

}  // namespace sandbay::cli
