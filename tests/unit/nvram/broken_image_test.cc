// Files that fail under a running image: cut short by somebody, or never to be had whole.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "../block/scratch_directory.h"
#include "log_model.h"
#include "nvram/image_layout.h"

namespace sandbay::nvram {
namespace {

using testing::run_on_reactor;
using testing::ScratchDirectory;

constexpr std::uint64_t kRealBytes = 256 * 1024;

NvramOptions real(const std::string& path) {
  return {.path = path, .byte_count = kRealBytes, .boot_id = "one"};
}

struct Cut {
  std::uint64_t bytes;  // What is left of the file.
  bool touched;         // Somebody stores into it before anybody looks.
};

Task<void> cut_short(Executor& home, std::string path, Cut cut) {
  auto opened = co_await Nvram::open(home, real(path));
  if (!opened.has_value()) FAIL(opened.error());
  Nvram& nvram = **opened;
  auto region = co_await nvram.claim("journal", 128 * 1024);
  REQUIRE(region.has_value());
  RecordLog log(**region, {});
  (void)log.recover();
  const Error accepted = co_await log.accept();
  const Error settled = co_await (*region)->settle();
  REQUIRE((accepted == Error::kNone && settled == Error::kNone));
  Result<RecordId> id = co_await append(log, 1);
  REQUIRE(id.has_value());
  std::vector<Error> told;
  nvram.on_failure = [&](Error error) { told.push_back(error); };
  co_await nvram.check();
  CHECK(told.empty());

  std::filesystem::resize_file(path, cut.bytes);
  if (cut.touched) {
    id = co_await append(log, 2);
    REQUIRE_FALSE(id.has_value());
    CHECK(id.error() == Error::kHardware);
  } else {
    co_await nvram.check();
  }
  CHECK(nvram.failure() == Error::kHardware);
  CHECK_FALSE(nvram.non_volatile());
  CHECK(nvram.content_gone());
  CHECK(nvram.cut_short());
  CHECK(told == std::vector{Error::kHardware});
  // All of it can be used, also where nobody has been yet; what is in the file is the file's.
  std::span<std::byte> image = nvram.image();
  for (std::size_t at = 0; at < image.size(); at += kPageBytes) image[at] = std::byte{7};
  for (std::size_t at = 0; at < image.size(); at += kPageBytes) CHECK(image[at] == std::byte{7});
  co_await nvram.check();
  CHECK(image[image.size() - kPageBytes] == std::byte{7});
  CHECK(told.size() == 1);
  CHECK(std::filesystem::file_size(path) == cut.bytes);
  const Error closed = co_await nvram.close();
  CHECK(closed == Error::kHardware);
}

TEST_CASE("A file that is cut short under its image fails the image, not the process", "[nvram]") {
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{8192}, kHeaderBytes + 100}) {
    for (const bool touched : {true, false}) {
      const ScratchDirectory directory;
      const std::string path = directory.file("nvram");
      run_on_reactor([&](Executor& home) {
        return cut_short(home, path, {.bytes = bytes, .touched = touched});
      });
    }
  }
}

Task<void> what_was_found(Executor& home, std::string path, Found expected) {
  auto nvram = co_await Nvram::open(home, real(path));
  if (!nvram.has_value()) FAIL(nvram.error());
  CHECK((*nvram)->found() == expected);
  const Error closed = co_await (*nvram)->close();
  CHECK(closed == Error::kNone);
}

TEST_CASE("An image says what stood in its place", "[nvram]") {
  const ScratchDirectory directory;
  const std::string path = directory.file("nvram");
  for (const Found found : {Found::kNothing, Found::kImage, Found::kShortFile, Found::kImage}) {
    if (found == Found::kShortFile) std::filesystem::resize_file(path, 4096);
    run_on_reactor([&](Executor& home) { return what_was_found(home, path, found); });
  }
}

// No file of this process gets longer while it lives.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    earlier_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &earlier_) == 0);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = earlier_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &earlier_);
    ::signal(SIGXFSZ, earlier_handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit earlier_{};
  void (*earlier_handler_)(int) = nullptr;
};

Task<void> cannot_be_made(Executor& home, std::string path) {
  NvramOptions options = real(path);
  Error cause = Error::kNone;
  options.cause = &cause;
  const auto nvram = co_await Nvram::open(home, options);
  REQUIRE_FALSE(nvram.has_value());
  CHECK_THAT(nvram.error(), Catch::Contains("cannot be made 262144 bytes long: "));
  CHECK(cause == Error::kOutOfRange);
}

TEST_CASE("An image for which there is no room leaves nothing behind", "[nvram]") {
  const ScratchDirectory directory;
  const std::string path = directory.file("nvram");
  const FileLimit limit(64 * 1024);
  run_on_reactor([&](Executor& home) { return cannot_be_made(home, path); });
  CHECK_FALSE(std::filesystem::exists(path));
  std::ofstream(path).put('x');  // One that was there stays.
  run_on_reactor([&](Executor& home) { return cannot_be_made(home, path); });
  CHECK(std::filesystem::file_size(path) == 0);
}

}  // namespace
}  // namespace sandbay::nvram
