// FileDevice on real files and on simulated ones: the image stays the image, random requests
// against a plain array, thin and reserved space, and power cuts. Payloads are cut at any byte, so
// that the copy through aligned memory is always among what is tested.
#include "block/file_device.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "on_executor.h"
#include "payload.h"
#include "scratch_directory.h"

namespace sandbay::testing {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

Bytes read_whole_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(bytes, bytes + text.size());
}

void write_whole_file(const std::string& path, const Bytes& content) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(reinterpret_cast<const char*>(content.data()),
               static_cast<std::streamsize>(content.size()));
}

std::uint64_t allocated_bytes(const std::string& path) {
  struct stat status{};
  REQUIRE(stat(path.c_str(), &status) == 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

Task<std::unique_ptr<FileDevice>> open(Executor& home, FileDeviceOptions options) {
  auto opened = co_await FileDevice::open(home, std::move(options));
  if (!opened.has_value()) FAIL(opened.error());
  co_return std::move(*opened);
}

Task<void> locked(Executor& home, std::string path, std::string link) {
  auto first =
      co_await open(home, {.path = path, .create = true, .byte_count = kMiB, .lock = true});
  std::filesystem::create_hard_link(path, link);
  Error cause = Error::kNone;
  const auto second = co_await FileDevice::open(home, {.path = link, .lock = true}, &cause);
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error() == "file " + link + ": is in use by another process");
  CHECK(cause == Error::kNotReady);
  first.reset();
  const auto third = co_await FileDevice::open(home, {.path = link, .lock = true}, &cause);
  CHECK(third.has_value());
}

Task<void> pipe(Executor& home, std::string path) {
  const auto opened = co_await FileDevice::open(home, {.path = path, .read_only = true});
  REQUIRE_FALSE(opened.has_value());
  CHECK(opened.error() == "file " + path + ": is neither a file nor a block device");
}

Task<void> no_device(Executor& home, std::string path) {
  write_whole_file(path, Bytes(kMiB));
  const auto opened = co_await FileDevice::open(home, {.path = path, .only_device = true});
  REQUIRE_FALSE(opened.has_value());
  CHECK(opened.error() == "file " + path + ": is no block device; write file instead of device");
}

Task<void> image_stays(Executor& home, std::string path, bool direct) {
  Random random(3);
  Bytes image = random_bytes(kMiB + 512, random);
  write_whole_file(path, image);
  {
    const auto device = co_await open(home, {.path = path, .direct = direct});
    CHECK(device->geometry().block_count == image.size() / 512);
    const Completion all =
        co_await read_blocks(*device, {0, image.size() / 512}, Cut::kAligned, random);
    const bool same = content_of(all.data) == image;
    CHECK(same);
    const Bytes patch = random_bytes(5 * 512, random);
    const Completion wrote = co_await write_blocks(*device, 77, patch, Cut::kAnywhere, random);
    CHECK(wrote.error == Error::kNone);
    std::ranges::copy(patch, image.begin() + 77 * 512);
    const Completion flushed = co_await do_without_data(*device, Operation::kFlush, {});
    CHECK(flushed.error == Error::kNone);
  }
  const bool unchanged_elsewhere = read_whole_file(path) == image;
  CHECK(unchanged_elsewhere);
}

Task<void> one_step(BlockDevice& device, Bytes& model, Random& random) {
  const std::uint32_t block = device.geometry().block_bytes;
  const std::uint64_t count = device.geometry().block_count;
  const Lba first = random.below(count);
  const std::uint64_t most = std::min<std::uint64_t>(count - first, random.chance(0.1) ? 1200 : 40);
  const Extent extent{first, random.between(1, most)};
  const auto from = static_cast<std::ptrdiff_t>(first * block);
  const std::size_t length = extent.byte_count(block);
  const Cut cut = random.chance(0.5) ? Cut::kAligned : Cut::kAnywhere;
  Completion done;
  switch (random.below(6)) {
    case 0:
    case 1: {
      const Bytes content = random_bytes(length, random);
      done = co_await write_blocks(device, first, content, cut, random, random.chance(0.1));
      std::ranges::copy(content, model.begin() + from);
      break;
    }
    case 2:
    case 3: {
      done = co_await read_blocks(device, extent, cut, random, random.chance(0.1));
      const bool same = std::ranges::equal(
          content_of(done.data), std::span(model).subspan(static_cast<std::size_t>(from), length));
      CHECK(same);
      break;
    }
    case 4: {
      const bool unmap = random.chance(0.5) && device.geometry().unmap;
      done = co_await do_without_data(device, unmap ? Operation::kUnmap : Operation::kWriteZeroes,
                                      extent);
      std::fill_n(model.begin() + from, length, std::byte{0});
      break;
    }
    default: {
      const Operation operation = random.chance(0.5) ? Operation::kFlush : Operation::kAdvise;
      done = co_await do_without_data(device, operation, extent);
      break;
    }
  }
  CHECK(done.error == Error::kNone);
}

struct Shape {
  std::uint32_t block_bytes = 512;
  bool direct = true;
  bool preallocate = false;
};

// What is not mapped reads as zeros, and the runs cover the device.
Task<void> check_provisioning(BlockDevice& device, const Bytes& model) {
  const std::uint32_t block = device.geometry().block_bytes;
  Lba at = 0;
  while (at < device.geometry().block_count) {
    const auto run = co_await device.provisioning(at, device.geometry().block_count);
    CHECK(run.has_value());
    CHECK(run->block_count > 0);
    const auto content = std::span(model).subspan(at * block, run->block_count * block);
    const bool zeros =
        std::ranges::all_of(content, [](std::byte byte) { return byte == std::byte{0}; });
    CHECK((run->mapped || zeros));
    at += run->block_count;
  }
  CHECK(at == device.geometry().block_count);
}

Task<void> compare_with_model(Executor& home, std::string path, std::uint64_t seed, Shape shape) {
  Random random(seed);
  const std::uint64_t byte_count = 4 * kMiB;
  Bytes model(byte_count);
  FileDeviceOptions options{.path = std::move(path),
                            .create = true,
                            .byte_count = byte_count,
                            .block_bytes = shape.block_bytes,
                            .preallocate = shape.preallocate,
                            .direct = shape.direct};
  for (int opening = 0; opening < 3; ++opening) {
    const auto device = co_await open(home, options);
    for (int step = 0; step < 60; ++step) co_await one_step(*device, model, random);
    co_await check_provisioning(*device, model);
    Completion all =
        co_await read_blocks(*device, {0, byte_count / shape.block_bytes}, Cut::kAligned, random);
    const bool same = content_of(all.data) == model;
    CHECK(same);
  }
}

Task<void> thin_file(Executor& home, std::string path) {
  Random random(5);
  const auto device = co_await open(home, {.path = path, .create = true, .byte_count = 64 * kMiB});
  CHECK(allocated_bytes(path) < kMiB);
  CHECK(device->geometry().unmap);
  CHECK(device->geometry().unmap_zeroes);
  const Bytes content = random_bytes(8 * kMiB, random);
  Completion done = co_await write_blocks(*device, 2048, content, Cut::kAligned, random, true);
  CHECK(done.error == Error::kNone);
  const std::uint64_t full = allocated_bytes(path);
  CHECK(full >= 8 * kMiB);
  auto run = co_await device->provisioning(0, 131072);
  CHECK((run.has_value() && !run->mapped && run->block_count == 2048));
  run = co_await device->provisioning(2048, 131072);
  CHECK((run.has_value() && run->mapped && run->block_count == 16384));
  done = co_await do_without_data(*device, Operation::kUnmap, {2048, 8192});
  CHECK(done.error == Error::kNone);
  CHECK(allocated_bytes(path) <= full - 4 * kMiB);
  run = co_await device->provisioning(0, 131072);
  CHECK((run.has_value() && !run->mapped && run->block_count == 10240));
  done = co_await read_blocks(*device, {2048, 8192}, Cut::kAligned, random);
  const bool zeros = content_of(done.data) == Bytes(4 * kMiB);
  CHECK(zeros);
}

Task<void> reserved_file(Executor& home, std::string path) {
  const auto device = co_await open(
      home, {.path = path, .create = true, .byte_count = 8 * kMiB, .preallocate = true});
  CHECK(allocated_bytes(path) >= 8 * kMiB);
  CHECK_FALSE(device->geometry().unmap);
  Completion done = co_await do_without_data(*device, Operation::kUnmap, {0, 1024});
  CHECK(done.error == Error::kUnsupported);
  done = co_await do_without_data(*device, Operation::kWriteZeroes, {0, 8192});
  CHECK(done.error == Error::kNone);
  CHECK(allocated_bytes(path) >= 8 * kMiB);
  const auto run = co_await device->provisioning(0, 16384);
  CHECK((run.has_value() && run->mapped && run->block_count == 16384));
}

Task<void> grows(Executor& home, std::string path) {
  Random random(9);
  const auto device = co_await open(home, {.path = path, .create = true, .byte_count = kMiB});
  const Bytes content = random_bytes(512, random);
  Completion done = co_await write_blocks(*device, 2047, content, Cut::kAligned, random);
  Error error = co_await device->grow(kMiB / 2);
  CHECK(error == Error::kInvalid);
  error = co_await device->grow(2 * kMiB + 1);
  CHECK(error == Error::kInvalid);
  error = co_await device->grow(2 * kMiB);
  CHECK(error == Error::kNone);
  CHECK(device->geometry().block_count == 4096);
  done = co_await read_blocks(*device, {2047, 2}, Cut::kAligned, random);
  Bytes expected = content;
  expected.resize(1024);
  const bool same = content_of(done.data) == expected;
  CHECK(same);
}

Task<void> read_only(Executor& home, std::string path) {
  Random random(2);
  const Bytes image = random_bytes(8192, random);
  write_whole_file(path, image);
  const auto device = co_await open(home, {.path = path, .read_only = true});
  CHECK(device->geometry().read_only);
  CHECK_FALSE(device->geometry().volatile_cache);
  Completion done = co_await write_blocks(*device, 0, Bytes(512), Cut::kAligned, random);
  CHECK(done.error == Error::kReadOnly);
  done = co_await do_without_data(*device, Operation::kUnmap, {0, 1});
  CHECK(done.error == Error::kReadOnly);
  done = co_await do_without_data(*device, Operation::kWriteZeroes, {0, 1});
  CHECK(done.error == Error::kReadOnly);
  done = co_await do_without_data(*device, Operation::kFlush, {});
  CHECK(done.error == Error::kNone);
  done = co_await read_blocks(*device, {0, 16}, Cut::kAnywhere, random, true);
  const bool same = content_of(done.data) == image;
  CHECK(same);
}

Task<void> odd_size(Executor& home, std::string path) {
  Random random(2);
  write_whole_file(path, random_bytes(5000, random));
  auto opened = co_await FileDevice::open(home, {.path = path});
  CHECK_FALSE(opened.has_value());
  CHECK(opened.error() ==
        "file " + path + ": its 5000 bytes are not a multiple of the 512-byte block");
  write_whole_file(path, random_bytes(512 * 3, random));
  opened = co_await FileDevice::open(home, {.path = path, .block_bytes = 4096});
  CHECK_FALSE(opened.has_value());
  CHECK(opened.error() ==
        "file " + path + ": its 1536 bytes are not a multiple of the 4096-byte block");
  write_whole_file(path, {});
  opened = co_await FileDevice::open(home, {.path = path});
  CHECK_FALSE(opened.has_value());
  CHECK(opened.error() == "file " + path + ": is empty");
  const std::string directory = std::filesystem::path(path).parent_path();
  opened = co_await FileDevice::open(home, {.path = directory});
  CHECK_FALSE(opened.has_value());
  CHECK(opened.error() == "file " + directory + ": is neither a file nor a block device");
}

// What the blocks may hold after a power cut: what was there at the last flush, or anything that
// was written to them since.
struct CrashModel {
  std::vector<std::vector<std::uint8_t>> possible;  // Fill bytes, by block.
};

Task<void> write_until_cut(Executor& home, CrashModel& model, std::uint64_t seed, bool fua) {
  Random random(seed);
  const auto device = co_await open(
      home, {.path = "disk.img", .create = true, .byte_count = model.possible.size() * 512});
  const std::uint64_t steps = random.between(1, 60);
  for (std::uint64_t step = 0; step < steps; ++step) {
    const Lba lba = random.below(model.possible.size());
    const auto fill = static_cast<std::uint8_t>(random.between(1, 255));
    model.possible[lba].push_back(fill);
    const bool force = fua && random.chance(0.3);
    const Completion wrote = co_await write_blocks(*device, lba, Bytes(512, std::byte{fill}),
                                                   Cut::kAligned, random, force);
    CHECK(wrote.error == Error::kNone);
    if (force) model.possible[lba] = {fill};
    if (fua || random.chance(0.8)) continue;
    const Completion flushed = co_await do_without_data(*device, Operation::kFlush, {});
    CHECK(flushed.error == Error::kNone);
    for (auto& fills : model.possible) fills = {fills.back()};
  }
}

Task<void> check_after_cut(Executor& home, const CrashModel& model) {
  Random random(1);
  const auto device = co_await open(home, {.path = "disk.img"});
  for (Lba lba = 0; lba < model.possible.size(); ++lba) {
    const Completion read = co_await read_blocks(*device, {lba, 1}, Cut::kAligned, random);
    const Bytes content = content_of(read.data);
    const bool allowed = std::ranges::any_of(model.possible[lba], [&](std::uint8_t fill) {
      return content == Bytes(512, std::byte{fill});
    });
    CHECK(allowed);
  }
}

}  // namespace

TEST_CASE("A raw image served as blocks stays that image, byte for byte", "[block]") {
  const bool direct = GENERATE(true, false);
  CAPTURE(direct);
  const ScratchDirectory scratch;
  run_on_reactor(
      [&](Executor& home) { return image_stays(home, scratch.file("image.raw"), direct); });
}

TEST_CASE("A real file holds what a plain array holds", "[block]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 4));
  const auto block_bytes = GENERATE(std::uint32_t{512}, std::uint32_t{4096});
  const bool direct = GENERATE(true, false);
  const bool preallocate = GENERATE(true, false);
  CAPTURE(seed, block_bytes, direct, preallocate);
  const ScratchDirectory scratch;
  run_on_reactor([&](Executor& home) {
    return compare_with_model(home, scratch.file("disk.img"), seed,
                              {block_bytes, direct, preallocate});
  });
}

TEST_CASE("A simulated file holds what a plain array holds", "[block][sim]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 9));
  const auto block_bytes = GENERATE(std::uint32_t{512}, std::uint32_t{4096});
  CAPTURE(seed, block_bytes);
  run_in_world(seed, [&](Executor& home) {
    return compare_with_model(home, "disk.img", seed, {block_bytes, true, seed % 2 == 0});
  });
}

TEST_CASE("A thin file takes space when written and gives it back when unmapped", "[block]") {
  const ScratchDirectory scratch;
  run_on_reactor([&](Executor& home) { return thin_file(home, scratch.file("disk.img")); });
}

TEST_CASE("A preallocated file keeps its space", "[block]") {
  const ScratchDirectory scratch;
  run_on_reactor([&](Executor& home) { return reserved_file(home, scratch.file("disk.img")); });
}

TEST_CASE("A file device grows", "[block]") {
  const ScratchDirectory scratch;
  run_on_reactor([&](Executor& home) { return grows(home, scratch.file("disk.img")); });
}

TEST_CASE("A read-only file refuses changes", "[block]") {
  const ScratchDirectory scratch;
  run_on_reactor([&](Executor& home) { return read_only(home, scratch.file("disk.img")); });
}

TEST_CASE("A locked file is refused to every other opener, by whatever name", "[block]") {
  const ScratchDirectory scratch;
  run_on_reactor([&](Executor& home) {
    return locked(home, scratch.file("disk.img"), scratch.file("link.img"));
  });
}

TEST_CASE("A file where a device is meant is refused", "[block]") {
  const ScratchDirectory scratch;
  run_on_reactor([&](Executor& home) { return no_device(home, scratch.file("file.img")); });
}

TEST_CASE("A pipe is refused at once", "[block]") {
  const ScratchDirectory scratch;
  REQUIRE(::mkfifo(scratch.file("pipe").c_str(), 0600) == 0);
  run_on_reactor([&](Executor& home) { return pipe(home, scratch.file("pipe")); });
}

TEST_CASE("A file of an odd size is refused by name", "[block]") {
  const ScratchDirectory scratch;
  run_on_reactor([&](Executor& home) { return odd_size(home, scratch.file("disk.img")); });
}

// Goal: a write followed by a flush, and a FUA write, survive a power cut; and a block is never
// anything but old or new.
TEST_CASE("Flushed and FUA writes survive a power cut", "[block][sim]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 65));
  const bool fua = GENERATE(false, true);
  CAPTURE(seed, fua);
  const auto world = sim::World::create({.seed = seed});
  Executor& home = *world->executors()[0];
  CrashModel model{std::vector<std::vector<std::uint8_t>>(32, {0})};
  const bool wrote = world->run([&] { return write_until_cut(home, model, seed, fua); });
  REQUIRE(wrote);
  world->cut_power();
  const bool checked = world->run([&] { return check_after_cut(home, model); });
  REQUIRE(checked);
}

}  // namespace sandbay::testing
