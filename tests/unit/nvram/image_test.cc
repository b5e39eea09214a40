// Real images: made, reopened, refused with a reason, and killed under a process that appends.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "../block/scratch_directory.h"
#include "log_model.h"
#include "nvram/image_layout.h"

namespace sandbay::nvram::image_test {
namespace {

using testing::run_on_reactor;
using testing::ScratchDirectory;

constexpr std::uint64_t kRealBytes = 256 * 1024;

NvramOptions real(const std::string& path, Durability durability = Durability::kProcess) {
  return {.path = path, .byte_count = kRealBytes, .durability = durability, .boot_id = "one"};
}

Bytes read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
}

Task<void> expect_refusal(Executor& home, NvramOptions options, std::string why) {
  const std::string path = options.path;
  const auto opened = co_await Nvram::open(home, std::move(options));
  REQUIRE_FALSE(opened.has_value());
  CHECK(opened.error() == "nvram image " + path + ": " + why);
}

Task<void> make_image(Executor& home, std::string path) {
  auto nvram = co_await Nvram::open(home, real(path));
  if (!nvram.has_value()) FAIL(nvram.error());
  auto region = co_await (*nvram)->claim("cache", 64 * 1024);
  REQUIRE(region.has_value());
  CHECK_FALSE((*region)->settled());
  const Error settled = co_await (*region)->settle();
  CHECK(settled == Error::kNone);
  (*region)->bytes()[5] = std::byte{7};
  co_await expect_refusal(home, real(path), "is in use by another process");

  auto second = co_await (*nvram)->claim("cache", 64 * 1024);
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error() ==
        "nvram image " + path + ": region cache: has an owner already; one is accepted");
  second = co_await (*nvram)->claim("more", kRealBytes);
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error() ==
        "nvram image " + path + ": region more: needs 262144 bytes; at most 180224 are free");
  region->reset();
  second = co_await (*nvram)->claim("cache", 4096);
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error() == "nvram image " + path +
                              ": region cache: has 65536 bytes; the configured 4096 are accepted");
}

Task<void> reopen_image(Executor& home, std::string path) {
  auto nvram = co_await Nvram::open(home, real(path));
  if (!nvram.has_value()) FAIL(nvram.error());
  CHECK((*nvram)->open_count() == 2);
  const auto region = co_await (*nvram)->claim("cache", 64 * 1024);
  REQUIRE(region.has_value());
  CHECK((*region)->settled());
  CHECK((*region)->loss() == Loss::kNone);
  CHECK((*region)->bytes()[5] == std::byte{7});
}

// Makes regions, gives some up, and makes others in their place.
Task<void> use_space(Executor& home, std::string path) {
  auto nvram = co_await Nvram::open(home, real(path));
  if (!nvram.has_value()) FAIL(nvram.error());
  for (const char* const name : {"one", "two", "three"}) {
    const auto region = co_await (*nvram)->claim(name, 64 * 1024);
    REQUIRE(region.has_value());
    std::ranges::fill((*region)->bytes(), std::byte{9});
    const auto owned = co_await (*nvram)->release(name);
    REQUIRE_FALSE(owned.has_value());
    CHECK(owned.error() ==
          "nvram image " + path + ": region " + name + ": has an owner; one without is accepted");
    const Error settled = co_await (*region)->settle();
    CHECK(settled == Error::kNone);
  }
  const auto full = co_await (*nvram)->claim("four", 64 * 1024);
  REQUIRE_FALSE(full.has_value());
  for (const char* const name : {"two", "nobody"}) {
    const auto released = co_await (*nvram)->release(name);
    CHECK(released.has_value());
  }
  CHECK((*nvram)->regions().size() == 2);
  const auto four = co_await (*nvram)->claim("four", 64 * 1024);
  REQUIRE(four.has_value());
  CHECK((*four)->is_new());
  CHECK(std::ranges::count((*four)->bytes(), std::byte{0}) == 64 * 1024);
}

Task<void> look_at_space(Executor& home, std::string path) {
  auto nvram = co_await Nvram::open(home, real(path));
  if (!nvram.has_value()) FAIL(nvram.error());
  for (const char* const name : {"one", "three"}) {
    const auto region = co_await (*nvram)->claim(name, 64 * 1024);
    REQUIRE(region.has_value());
    CHECK((*region)->settled());
    CHECK(std::ranges::count((*region)->bytes(), std::byte{9}) == 64 * 1024);
  }
  const auto four = co_await (*nvram)->claim("four", 64 * 1024);
  REQUIRE(four.has_value());
  CHECK((*four)->is_new());
}

Task<void> open_close(Executor& home, std::string path) {
  auto nvram = co_await Nvram::open(home, real(path));
  if (!nvram.has_value()) FAIL(nvram.error());
  const Error closed = co_await (*nvram)->close();
  CHECK(closed == Error::kNone);
}

class AppendLoop {
 public:
  AppendLoop(const std::string& path, std::uint64_t first, const std::string& durability) {
    int ends[2] = {-1, -1};
    REQUIRE(pipe(ends) == 0);
    output_ = ends[0];
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() /
                                "unit/nvram/nvram-append-loop";
    std::string arguments[] = {program, path, std::to_string(first), durability};
    char* vector[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                      arguments[3].data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    REQUIRE(posix_spawn(&process_, program.c_str(), &actions, nullptr, vector, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }
  ~AppendLoop() {
    kill_now();
    close(output_);
  }
  AppendLoop(const AppendLoop&) = delete;
  AppendLoop& operator=(const AppendLoop&) = delete;

  bool next(std::uint64_t& number) {
    return read(output_, &number, sizeof number) == sizeof number;
  }
  void kill_now() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
  }

 private:
  pid_t process_ = -1;
  int output_ = -1;
};

Task<void> check_killed(Executor& home, std::string path, std::uint64_t first, std::uint64_t last,
                        Durability durability) {
  auto nvram = co_await Nvram::open(home, real(path, durability));
  if (!nvram.has_value()) FAIL(nvram.error());
  auto region = co_await (*nvram)->claim("journal", 64 * 1024);
  REQUIRE(region.has_value());
  RecordLog log(**region, {});
  const Recovery recovery = log.recover();
  CHECK(recovery.whole());
  CHECK(recovery.lost.empty());
  const std::set<std::uint64_t> found = numbers_of(recovery);
  // Record last + 1 may have been under way: then last - 19 may be released already.
  for (std::uint64_t number = first; number <= last; ++number) {
    if (number + 18 >= last) CHECK(found.contains(number));
    if (number + 20 <= last) CHECK_FALSE(found.contains(number));
  }
  for (const std::uint64_t number : found) CHECK((number >= first && number <= last + 1));
}

void kill_and_check(const std::string& durability) {
  const ScratchDirectory directory;
  const std::string path = directory.file("nvram");
  Random random(11);
  std::uint64_t first = 1;
  for (int round = 0; round < 8; ++round) {
    std::uint64_t last = 0;
    {
      AppendLoop loop(path, first, durability);
      const std::uint64_t count = 30 + random.below(400);
      for (std::uint64_t i = 0; i < count; ++i) REQUIRE(loop.next(last));
      loop.kill_now();
      std::uint64_t number = 0;
      while (loop.next(number)) last = number;
    }
    run_on_reactor([&](Executor& home) {
      return check_killed(home, path, first, last,
                          durability == "host" ? Durability::kHost : Durability::kProcess);
    });
    first = last + 2;
  }
}

}  // namespace

TEST_CASE("An image is made, kept by its owner, and found again", "[nvram]") {
  const ScratchDirectory directory;
  const std::string path = directory.file("nvram");
  run_on_reactor([&](Executor& home) { return make_image(home, path); });
  CHECK(std::filesystem::file_size(path) == kRealBytes);
  run_on_reactor([&](Executor& home) { return reopen_image(home, path); });
}

TEST_CASE("The space of a region that was released is free, and zeros", "[nvram]") {
  const ScratchDirectory directory;
  const std::string path = directory.file("nvram");
  run_on_reactor([&](Executor& home) { return use_space(home, path); });
  run_on_reactor([&](Executor& home) { return look_at_space(home, path); });
}

TEST_CASE("What is left of an image that was being made is made anew", "[nvram]") {
  const ScratchDirectory directory;
  const std::string path = directory.file("nvram");
  for (const std::size_t length : {std::size_t{0}, std::size_t{100}, std::size_t{8192}}) {
    write_file(path, Bytes(length));
    run_on_reactor([&](Executor& home) { return open_close(home, path); });
    CHECK(std::filesystem::file_size(path) == kRealBytes);
  }
}

TEST_CASE("An image that cannot be used is refused with one line and left as it is", "[nvram]") {
  const ScratchDirectory directory;
  const std::string path = directory.file("nvram");
  run_on_reactor([&](Executor& home) { return make_image(home, path); });
  const Bytes good = read_file(path);
  const auto refused = [&](const Bytes& content, const std::string& why) {
    write_file(path, content);
    run_on_reactor([&](Executor& home) { return expect_refusal(home, real(path), why); });
    CHECK(read_file(path) == content);
  };
  const auto with_header = [&](auto change) {
    Bytes content = good;
    for (const std::size_t offset : {std::size_t{0}, std::size_t{kPageBytes}}) {
      ImageHeader header{};
      std::memcpy(&header, content.data() + offset, sizeof header);
      change(header);
      seal(header);
      std::memcpy(content.data() + offset, &header, sizeof header);
    }
    return content;
  };
  const std::string damaged = " (removing the file starts an empty one and gives up what it held)";
  refused(Bytes(kRealBytes),
          "is not an NVRAM image; an image, or a path where nothing is yet, is "
          "accepted");
  Bytes longer = good;
  longer.resize(kRealBytes + 4096);
  refused(
      longer,
      "has 266240 bytes; the configured 262144 are accepted (for another size: write the one that "
      "it has, stop the daemon when everything is on the drives, and remove the file)");
  refused(with_header([](ImageHeader& header) { header.version = 9; }),
          "is an NVRAM image of version 9; versions 2 and 3 are accepted");
  refused(with_header([](ImageHeader& header) { header.regions[0].byte_count = kRealBytes; }),
          "is an NVRAM image with a damaged region table or header field; one as it was written is "
          "accepted" +
              damaged);
  Bytes torn = good;
  torn[200] ^= std::byte{1};
  write_file(path, torn);  // One copy is enough.
  run_on_reactor([&](Executor& home) { return open_close(home, path); });
  torn = good;
  torn[200] ^= std::byte{1};
  torn[kPageBytes + 3000] ^= std::byte{4};
  refused(torn,
          "is an NVRAM image with both copies of its header damaged; one good copy is accepted" +
              damaged);
  NvramOptions options = real(path);
  options.byte_count = 5000;
  run_on_reactor([&](Executor& home) {
    return expect_refusal(
        home, options, "cannot have 5000 bytes; a multiple of 4096, at least 65536, is accepted");
  });
}

TEST_CASE("A process is killed while it appends: all it acknowledged is there", "[nvram]") {
  kill_and_check("process");
  kill_and_check("host");
}

}  // namespace sandbay::nvram::image_test
