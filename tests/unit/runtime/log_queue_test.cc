// A log that nobody reads: posting never waits, the oldest lines are dropped and counted, and the
// end does not wait for the reader.
#include "runtime/log_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <string>

namespace sandbay {
namespace {

using namespace std::chrono_literals;

struct Pipe {
  std::array<int, 2> ends{};

  Pipe() { REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }

  // Leaves no room for another byte.
  void fill() const {
    REQUIRE(::fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    const std::string page(4096, '.');
    while (::write(ends[1], page.data(), page.size()) > 0) {
    }
    REQUIRE(::fcntl(ends[1], F_SETFL, 0) == 0);
  }
  // Everything up to `last`.
  std::string read_until(std::string_view last) const {
    std::string text;
    std::array<char, 65536> part{};
    while (!text.ends_with(last)) {
      const ssize_t count = ::read(ends[0], part.data(), part.size());
      REQUIRE(count > 0);
      text.append(part.data(), static_cast<std::size_t>(count));
    }
    return text;
  }
};

// The thread may have said how many are missing before all were.
std::uint64_t sum_of_dropped(const std::string& text) {
  constexpr std::string_view kBefore = "(the log was not read: ";
  std::uint64_t sum = 0;
  for (auto at = text.find(kBefore); at != std::string::npos; at = text.find(kBefore, at + 1)) {
    sum += std::stoull(text.substr(at + kBefore.size()));
  }
  return sum;
}

std::unique_ptr<LogQueue> start_queue() {
  auto queue = LogQueue::start();
  if (!queue) FAIL(queue.error());
  return std::move(*queue);
}

TEST_CASE("Lines of a log are written in order", "[log]") {
  const Pipe pipe;
  const auto queue = start_queue();
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    expected += line;
    queue->post(pipe.ends[1], line);
  }
  REQUIRE(queue->finish(60s));
  CHECK(pipe.read_until("line 99\n") == expected);
}

TEST_CASE("A log that is not read drops its oldest lines and says how many", "[log][G-S4]") {
  const Pipe pipe;
  pipe.fill();
  const std::uint64_t before = LogQueue::dropped();
  {
    const auto queue = start_queue();
    constexpr int kLines = 3 * static_cast<int>(LogQueue::kMostLines);
    for (int i = 0; i < kLines; ++i) {
      queue->post(pipe.ends[1], "line " + std::to_string(i) + "\n");
    }
    CHECK_FALSE(queue->finish(10ms));
    const std::uint64_t dropped = LogQueue::dropped() - before;
    CHECK(dropped >= kLines - LogQueue::kMostLines - 1);
    const std::string last = "line " + std::to_string(kLines - 1) + "\n";
    const std::string text = pipe.read_until(last);
    CHECK(sum_of_dropped(text) == dropped);
    CHECK(text.contains("line " + std::to_string(kLines - 2) + "\n"));
    REQUIRE(queue->finish(60s));
  }
}

TEST_CASE("A log that is not read takes a bounded amount of memory", "[log][G-S4]") {
  const Pipe pipe;
  pipe.fill();
  const auto queue = start_queue();
  const std::uint64_t before = LogQueue::dropped();
  const std::string line(64 << 10, 'x');
  for (int i = 0; i < 100; ++i) queue->post(pipe.ends[1], line + "\n");
  CHECK(LogQueue::dropped() - before >= 100 - LogQueue::kMostBytes / line.size() - 1);
  queue->post(pipe.ends[1], "end\n");
  (void)pipe.read_until("end\n");
  REQUIRE(queue->finish(60s));
}

}  // namespace
}  // namespace sandbay
