// Goal: a volume whose creation was acknowledged is there after any crash, one whose deletion was
// acknowledged is not, and nothing is left over that belongs to neither.
// Method: a process of its own creates and deletes volumes without pause and reports each
// acknowledgement through a pipe; it is killed (SIGKILL) at a time drawn from a seed; then the
// group is started again on the same directory and compared.
#include <fmt/core.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "runtime/random.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group {
namespace {

constexpr std::uint64_t kBytes = std::uint64_t{1} << 20;
constexpr unsigned kNames = 4;

int report_pipe = -1;  // Of the child.

// One byte each: what was begun (upper case) or acknowledged (lower case), and which volume.
void report(char what, unsigned name) {
  const char text[2] = {what, static_cast<char>('0' + name)};
  if (::write(report_pipe, text, sizeof text) != sizeof text) ::_exit(3);
}

Task<void> create_and_delete(Group& group) {
  for (;;) {
    const unsigned name = static_cast<unsigned>(Executor::current().random().below(kNames));
    const std::string text = fmt::format("v{}", name);
    const auto there = co_await group.show_volume(text);
    if (!there) {
      CreateVolumeRequest request;
      request.specification.name = text;
      request.specification.size_bytes = kBytes;
      report('C', name);
      const auto made = co_await group.create_volume(request);
      if (!made) ::_exit(4);
      report('c', name);
    } else {
      report('D', name);
      const auto deleted = co_await group.delete_volume(text, false);
      if (!deleted) ::_exit(5);
      report('d', name);
    }
  }
}

// The acknowledged state of each volume; nothing while an operation on it was under way.
std::map<unsigned, std::optional<bool>> read_reports(
    int pipe, std::map<unsigned, std::optional<bool>> known) {
  char text[2];
  while (::read(pipe, text, sizeof text) == sizeof text) {
    const auto name = static_cast<unsigned>(text[1] - '0');
    if (text[0] == 'C' || text[0] == 'D') known[name] = std::nullopt;
    if (text[0] == 'c') known[name] = true;
    if (text[0] == 'd') known[name] = false;
  }
  return known;
}

TEST_CASE("kill -9 while volumes come and go loses and leaves nothing", "[group][crash]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 3));
  CAPTURE(seed);
  Random random(seed);
  const sandbay::testing::ScratchDirectory scratch;
  const std::string state = scratch.file("state");
  std::map<unsigned, std::optional<bool>> known;
  for (int round = 0; round < 8; ++round) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      report_pipe = ends[1];
      run_group(state, "", 1, create_and_delete);
      ::_exit(6);
    }
    ::close(ends[1]);
    std::this_thread::sleep_for(std::chrono::milliseconds(random.between(20, 400)));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    known = read_reports(ends[0], std::move(known));
    ::close(ends[0]);

    static std::map<std::string, std::string> found;  // Name and path.
    found.clear();
    const std::string error = run_group(state, "", 1, [](Group& group) -> Task<void> {
      const auto volumes_now = co_await group.list_volumes();
      const auto& volumes = *volumes_now;
      for (const VolumeInfo& volume : volumes) found[volume.name] = volume.path;
    });
    REQUIRE(error.empty());
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(state + "/volumes")) {
      files.insert(entry.path().string());
    }
    std::set<std::string> expected;
    for (const auto& [name, path] : found) expected.insert(path);
    CHECK(files == expected);
    for (auto& [name, acknowledged] : known) {
      const bool there = found.contains(fmt::format("v{}", name));
      if (acknowledged) CHECK(there == *acknowledged);
      acknowledged = there;
    }
  }
}

}  // namespace
}  // namespace sandbay::group
