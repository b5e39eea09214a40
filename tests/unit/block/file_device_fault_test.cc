// FileDevice when its file misbehaves: unreadable blocks, refused writes, failed and hanging syncs,
// filesystems without holes, and direct I/O that insists on alignment. All in virtual time, on a
// FaultyExecutor, whose files also assert that direct I/O is never handed a misaligned slice.
#include <catch2/catch.hpp>

#include "block/file_device.h"
#include "faulty_file.h"
#include "on_executor.h"
#include "payload.h"

namespace sandbay::testing::file_device_fault_test {
namespace {

constexpr std::uint64_t kBytes = std::uint64_t{1} << 20;
constexpr std::uint32_t kBlock = 512;
constexpr std::uint64_t kBlocks = kBytes / kBlock;

// A device over a file that fails on demand. `test` gets all of them.
struct Bench {
  explicit Bench(Executor& real) : home(real, faults), random(7) {}
  FileFaults faults;
  FaultyExecutor home;
  Random random;
  std::unique_ptr<FileDevice> device;
};

Task<void> open_bench(Bench& bench, FileDeviceOptions options) {
  options.path = "disk.img";
  options.create = true;
  options.byte_count = kBytes;
  auto opened = co_await FileDevice::open(bench.home, options);
  if (!opened.has_value()) FAIL(opened.error());
  bench.device = std::move(*opened);
}

Task<void> finds_first_bad_block(Executor& real, std::uint64_t seed) {
  Bench bench(real);
  Random& random = bench.random;
  random = Random(seed);
  co_await open_bench(bench, {});
  const Bytes content = random_bytes(kBytes, random);
  const Completion wrote = co_await write_blocks(*bench.device, 0, content, Cut::kAligned, random);
  CHECK(wrote.error == Error::kNone);
  for (int round = 0; round < 20; ++round) {
    const Lba bad = random.below(kBlocks);
    const Lba worse = random.between(bad, kBlocks - 1);
    bench.faults.unreadable = {{worse * kBlock, kBlock}, {bad * kBlock, kBlock}};
    const Lba first = random.below(kBlocks);
    const Extent extent{first, random.between(1, kBlocks - first)};
    const Completion read = co_await read_blocks(*bench.device, extent, Cut::kAnywhere, random);
    const bool touches_bad = first <= bad && bad < extent.end();
    const bool touches_worse = first <= worse && worse < extent.end();
    if (touches_bad || touches_worse) {
      CHECK(read.error == Error::kMediumError);
      CHECK(read.first_bad_lba == (touches_bad ? bad : worse));
    } else {
      CHECK(read.error == Error::kNone);
    }
    CHECK(read.data.byte_count() == extent.byte_count(kBlock));
  }
}

Task<void> forgives_transient_read_errors(Executor& real) {
  Bench bench(real);
  co_await open_bench(bench, {});
  const Bytes content = random_bytes(64 * kBlock, bench.random);
  const Completion wrote =
      co_await write_blocks(*bench.device, 8, content, Cut::kAligned, bench.random);
  CHECK(wrote.error == Error::kNone);
  // The read itself, then a few of the reads that look for the bad block: none is found.
  for (std::uint64_t failures = 1; failures < 7; ++failures) {
    bench.faults.fail_next_reads = failures;
    const Completion read =
        co_await read_blocks(*bench.device, {8, 64}, Cut::kAligned, bench.random);
    CHECK(read.error == Error::kNone);
    const bool same = content_of(read.data) == content;
    CHECK(same);
  }
}

Task<void> passes_errors_on(Executor& real) {
  Bench bench(real);
  co_await open_bench(bench, {});
  const Bytes block = random_bytes(kBlock, bench.random);
  bench.faults.read_error = Error::kCancelled;
  const Completion cancelled =
      co_await read_blocks(*bench.device, {0, 4}, Cut::kAligned, bench.random);
  CHECK(cancelled.error == Error::kCancelled);
  bench.faults.write_error = Error::kNoSpace;
  const Completion full =
      co_await write_blocks(*bench.device, 0, block, Cut::kAligned, bench.random);
  CHECK(full.error == Error::kNoSpace);
  bench.faults.write_error = Error::kOutOfRange;  // A limit of the filesystem.
  const Completion limit =
      co_await write_blocks(*bench.device, 0, block, Cut::kAligned, bench.random);
  CHECK(limit.error == Error::kNoSpace);
  bench.faults.write_error = Error::kHardware;
  const Completion broken =
      co_await write_blocks(*bench.device, 0, block, Cut::kAnywhere, bench.random);
  CHECK(broken.error == Error::kHardware);
  CHECK(broken.data.byte_count() == kBlock);
}

Task<void> tells_its_failures(Executor& real) {
  Bench bench(real);
  std::vector<std::pair<Operation, Error>> told;
  FileDeviceOptions options;
  options.on_failure = [&told](Operation operation, Error error) {
    told.emplace_back(operation, error);
  };
  co_await open_bench(bench, options);
  const Bytes block = random_bytes(kBlock, bench.random);
  bench.faults.read_error = Error::kCancelled;
  (void)co_await read_blocks(*bench.device, {0, 4}, Cut::kAligned, bench.random);
  CHECK(told.empty());
  CHECK(bench.device->health() == Health::kGood);

  bench.faults.write_error = Error::kNoSpace;
  (void)co_await write_blocks(*bench.device, 0, block, Cut::kAligned, bench.random);
  bench.faults.read_error = Error::kHardware;
  (void)co_await read_blocks(*bench.device, {4, 1}, Cut::kAligned, bench.random);
  using Failure = std::pair<Operation, Error>;
  const std::vector<Failure> expected = {{Operation::kWrite, Error::kNoSpace},
                                         {Operation::kRead, Error::kMediumError}};
  const bool same = told == expected;
  CHECK(same);
  CHECK(bench.device->health() == Health::kDegraded);

  bench.faults.write_error = Error::kNone;
  bench.faults.read_error = Error::kNone;
  co_await real.sleep_for(std::chrono::seconds(59));
  (void)co_await write_blocks(*bench.device, 0, block, Cut::kAligned, bench.random);
  CHECK(bench.device->health() == Health::kDegraded);
  co_await real.sleep_for(std::chrono::seconds(2));
  CHECK(bench.device->health() == Health::kGood);
}

// Reads past the new end, and the rest of the file: nothing is taken from it or put into it, or
// what is put there would make it as long as before, with zeros where data was.
Task<void> fails_when_cut_short(Executor& real) {
  Bench bench(real);
  std::vector<std::pair<Operation, Error>> told;
  FileDeviceOptions options;
  options.on_failure = [&told](Operation operation, Error error) {
    told.emplace_back(operation, error);
  };
  co_await open_bench(bench, options);
  const Bytes content = random_bytes(kBytes, bench.random);
  Completion done = co_await write_blocks(*bench.device, 0, content, Cut::kAligned, bench.random);
  CHECK(done.error == Error::kNone);
  auto file = co_await real.open_file("disk.img", {});
  REQUIRE(file.has_value());
  const Error cut = co_await (*file)->resize(kBytes / 2 + 100);
  REQUIRE(cut == Error::kNone);
  done = co_await read_blocks(*bench.device, {kBlocks / 2 - 4, 8}, Cut::kAligned, bench.random);
  CHECK(done.error == Error::kHardware);
  CHECK(done.data.byte_count() == 8 * kBlock);
  CHECK(bench.device->health() == Health::kFailed);
  using Failure = std::pair<Operation, Error>;
  CHECK((told == std::vector<Failure>{{Operation::kRead, Error::kHardware}}));
  const Bytes block = random_bytes(kBlock, bench.random);
  done = co_await write_blocks(*bench.device, kBlocks - 1, block, Cut::kAligned, bench.random);
  CHECK(done.error == Error::kHardware);
  for (const Operation operation :
       {Operation::kUnmap, Operation::kWriteZeroes, Operation::kFlush}) {
    done = co_await do_without_data(*bench.device, operation, {0, 4});
    CHECK(done.error == Error::kHardware);
  }
  done = co_await read_blocks(*bench.device, {0, 1}, Cut::kAligned, bench.random);
  CHECK(done.error == Error::kHardware);
  const auto run = co_await bench.device->provisioning(0, 8);
  CHECK(!run.has_value());
  const auto size = co_await (*file)->size();
  CHECK((size.has_value() && *size == kBytes / 2 + 100));
}

// Written to before it is read, the file is longer again, but not what it was.
Task<void> flush_finds_the_file_cut_short(Executor& real) {
  Bench bench(real);
  co_await open_bench(bench, {});
  auto file = co_await real.open_file("disk.img", {});
  REQUIRE(file.has_value());
  const Error cut = co_await (*file)->resize(kBytes / 2);
  REQUIRE(cut == Error::kNone);
  co_await real.sleep_for(std::chrono::seconds(2));
  const Bytes block = random_bytes(kBlock, bench.random);
  Completion done =
      co_await write_blocks(*bench.device, kBlocks - 9, block, Cut::kAligned, bench.random);
  CHECK(done.error == Error::kNone);
  done = co_await do_without_data(*bench.device, Operation::kFlush, {});
  CHECK(done.error == Error::kHardware);
  CHECK(bench.device->health() == Health::kFailed);
}

Task<void> fua_syncs(Executor& real) {
  Bench bench(real);
  co_await open_bench(bench, {});
  const Bytes block = random_bytes(kBlock, bench.random);
  const std::uint64_t before = bench.faults.syncs;
  Completion done = co_await write_blocks(*bench.device, 0, block, Cut::kAligned, bench.random);
  CHECK(bench.faults.syncs == before);
  done = co_await write_blocks(*bench.device, 1, block, Cut::kAligned, bench.random, true);
  CHECK(done.error == Error::kNone);
  CHECK(bench.faults.syncs == before + 1);
  // Nothing has changed since: neither a flush nor a FUA read has anything to sync.
  done = co_await do_without_data(*bench.device, Operation::kFlush, {});
  done = co_await read_blocks(*bench.device, {0, 1}, Cut::kAligned, bench.random, true);
  CHECK(bench.faults.syncs == before + 1);
  done = co_await write_blocks(*bench.device, 2, block, Cut::kAligned, bench.random);
  done = co_await read_blocks(*bench.device, {2, 1}, Cut::kAligned, bench.random, true);
  CHECK(bench.faults.syncs == before + 2);
  bench.faults.sync_error = Error::kHardware;
  done = co_await write_blocks(*bench.device, 2, block, Cut::kAligned, bench.random, true);
  CHECK(done.error == Error::kHardware);
}

Task<void> failed_sync_stays(Executor& real, bool direct) {
  Bench bench(real);
  bench.faults.direct_alignment = direct ? 512 : 0;
  co_await open_bench(bench, {});
  CHECK(bench.device->direct() == direct);
  const Bytes block = random_bytes(kBlock, bench.random);
  Completion done = co_await write_blocks(*bench.device, 0, block, Cut::kAligned, bench.random);
  bench.faults.sync_error = Error::kHardware;
  done = co_await do_without_data(*bench.device, Operation::kFlush, {});
  CHECK(done.error == Error::kHardware);
  bench.faults.sync_error = Error::kNone;
  done = co_await do_without_data(*bench.device, Operation::kFlush, {});
  CHECK(done.error == Error::kHardware);
  CHECK(bench.device->health() == Health::kFailed);
}

// What was not tried says nothing about what is on stable storage.
Task<void> untried_sync_is_repeated(Executor& real) {
  Bench bench(real);
  co_await open_bench(bench, {});
  const Bytes block = random_bytes(kBlock, bench.random);
  Completion done = co_await write_blocks(*bench.device, 0, block, Cut::kAligned, bench.random);
  bench.faults.sync_error = Error::kNoMemory;
  done = co_await do_without_data(*bench.device, Operation::kFlush, {});
  CHECK(done.error == Error::kNoMemory);
  bench.faults.sync_error = Error::kNone;
  done = co_await do_without_data(*bench.device, Operation::kFlush, {});
  CHECK(done.error == Error::kNone);
}

// Whatever changes blocks is stable when it ends, if that is what was asked for.
Task<void> stable_changes(Executor& real) {
  Bench bench(real);
  co_await open_bench(bench, {});
  const Bytes block = random_bytes(kBlock, bench.random);
  const Completion wrote =
      co_await write_blocks(*bench.device, 0, block, Cut::kAligned, bench.random);
  CHECK(wrote.error == Error::kNone);
  std::uint64_t syncs = bench.faults.syncs;
  for (const Operation operation : {Operation::kUnmap, Operation::kWriteZeroes}) {
    for (const bool stable : {false, true}) {
      Request request{.operation = operation,
                      .force_unit_access = stable,
                      .extent = {.first = 0, .block_count = 8}};
      const Completion done = co_await bench.device->submit(std::move(request));
      CHECK(done.error == Error::kNone);
      if (stable) ++syncs;
      CHECK(bench.faults.syncs == syncs);
    }
  }
}

Task<void> flush_into(Bench& bench, Cancellation* cancellation, std::vector<Error>& results) {
  const Completion done =
      co_await do_without_data(*bench.device, Operation::kFlush, {}, cancellation);
  results.push_back(done.error);
}

Task<void> hanging_sync_can_be_cancelled(Executor& real) {
  Bench bench(real);
  co_await open_bench(bench, {});
  const Bytes block = random_bytes(kBlock, bench.random);
  const Completion done =
      co_await write_blocks(*bench.device, 0, block, Cut::kAligned, bench.random);
  CHECK(done.error == Error::kNone);
  bench.faults.hold_syncs = true;
  const std::uint64_t before = bench.faults.syncs;
  Cancellation first;
  Cancellation second;
  Cancellation third;
  std::vector<Error> results;
  spawn(flush_into(bench, &first, results));  // Runs the sync.
  co_await bench.home.sleep_for(std::chrono::milliseconds(1));
  spawn(flush_into(bench, &second, results));  // These two wait for the next.
  spawn(flush_into(bench, &third, results));
  co_await bench.home.sleep_for(std::chrono::milliseconds(1));
  CHECK(bench.faults.syncs == before + 1);
  second.cancel();
  co_await bench.home.sleep_for(std::chrono::milliseconds(1));
  CHECK(results == std::vector{Error::kCancelled});
  first.cancel();  // The third takes over.
  co_await bench.home.sleep_for(std::chrono::milliseconds(1));
  CHECK(results == std::vector{Error::kCancelled, Error::kCancelled});
  CHECK(bench.faults.syncs == before + 2);
  CHECK(bench.faults.syncs_held == 1);
  bench.faults.release_syncs();
  co_await bench.home.sleep_for(std::chrono::milliseconds(10));
  CHECK(results == std::vector{Error::kCancelled, Error::kCancelled, Error::kNone});
}

// A filesystem that only knows holes: what is zeroed keeps its space all the same, or there is
// none.
Task<void> zeroes_keep_their_space(Executor& real) {
  Bench bench(real);
  co_await open_bench(bench, {});
  bench.faults.write_zeroes_error = Error::kUnsupported;
  Bytes content = random_bytes(kBytes, bench.random);
  Completion done = co_await write_blocks(*bench.device, 0, content, Cut::kAligned, bench.random);
  const std::uint64_t before = bench.faults.allocations;
  done = co_await do_without_data(*bench.device, Operation::kWriteZeroes, {3, 1000});
  CHECK(done.error == Error::kNone);
  CHECK(bench.faults.allocations == before + 1);
  std::fill_n(content.begin() + 3 * kBlock, 1000 * kBlock, std::byte{0});
  const Completion read =
      co_await read_blocks(*bench.device, {0, kBlocks}, Cut::kAligned, bench.random);
  const bool same = content_of(read.data) == content;
  CHECK(same);
  done = co_await do_without_data(*bench.device, Operation::kUnmap, {3, 1000});
  CHECK(bench.faults.allocations == before + 1);
  bench.faults.allocate_error = Error::kNoSpace;
  done = co_await do_without_data(*bench.device, Operation::kWriteZeroes, {3, 1000});
  CHECK(done.error == Error::kNoSpace);
  bench.faults.allocate_error = Error::kUnsupported;
  done = co_await do_without_data(*bench.device, Operation::kWriteZeroes, {3, 1000});
  CHECK(done.error == Error::kNone);
}

Task<void> zeroes_without_the_filesystem(Executor& real, bool device_node) {
  Bench bench(real);
  bench.faults.direct_alignment = 512;
  if (!device_node) bench.faults.punch_error = Error::kUnsupported;
  bench.faults.write_zeroes_error = Error::kUnsupported;
  co_await open_bench(bench, {});
  // A device node tells only when asked, so there unmap is offered and then done by writing.
  bench.faults.block_device = device_node;
  CHECK(bench.device->geometry().unmap == device_node);
  bench.faults.punch_error = Error::kUnsupported;
  Bytes content = random_bytes(kBytes, bench.random);
  Completion done = co_await write_blocks(*bench.device, 0, content, Cut::kAligned, bench.random);
  done = co_await do_without_data(*bench.device, Operation::kWriteZeroes, {3, 1000});
  CHECK(done.error == Error::kNone);
  std::fill_n(content.begin() + 3 * kBlock, 1000 * kBlock, std::byte{0});
  done = co_await do_without_data(*bench.device, Operation::kUnmap, {1500, 500});
  CHECK(done.error == (device_node ? Error::kNone : Error::kUnsupported));
  if (device_node) std::fill_n(content.begin() + 1500 * kBlock, 500 * kBlock, std::byte{0});
  const Completion read =
      co_await read_blocks(*bench.device, {0, kBlocks}, Cut::kAligned, bench.random);
  const bool same = content_of(read.data) == content;
  CHECK(same);
}

Task<void> bounces_without_pool_memory(Executor& real) {
  Bench bench(real);
  bench.faults.direct_alignment = 512;
  co_await open_bench(bench, {});
  const Bytes content = random_bytes(kBytes, bench.random);
  Request request{.operation = Operation::kWrite,
                  .extent = {0, kBlocks},
                  .data = make_payload(real, content, Cut::kAnywhere, bench.random)};
  BufferList room = make_room(real, kBytes, Cut::kAnywhere, bench.random);
  std::vector<Buffer> everything;
  for (std::size_t size = BufferPool::kLargestBlock; size >= 512; size /= 2) {
    while (true) {
      Buffer piece = real.buffers().try_allocate_contiguous(size);
      if (piece.empty()) break;
      everything.push_back(std::move(piece));
    }
  }
  const Completion wrote = co_await bench.device->submit(std::move(request));
  CHECK(wrote.error == Error::kNone);
  Request again{.operation = Operation::kRead, .extent = {0, kBlocks}, .data = std::move(room)};
  const Completion read = co_await bench.device->submit(std::move(again));
  CHECK(read.error == Error::kNone);
  const bool same = content_of(read.data) == content;
  CHECK(same);
}

Task<void> blocks_smaller_than_direct_alignment(Executor& real) {
  Bench bench(real);
  bench.faults.direct_alignment = 4096;
  co_await open_bench(bench, {});
  CHECK_FALSE(bench.device->direct());
  CHECK(bench.device->description() ==
        "file disk.img, through the page cache: direct I/O there needs multiples of 4096 bytes, "
        "a block has 512");
  bench.device.reset();
  co_await open_bench(bench, {.block_bytes = 4096});
  CHECK(bench.device->direct());
  CHECK(bench.device->description() == "file disk.img");
}

Task<void> says_what_cannot_be_opened(Executor& real) {
  Bench bench(real);
  const auto refused = [](const auto& result, std::string_view why) {
    CHECK_FALSE(result.has_value());
    if (!result.has_value()) CHECK(result.error() == why);
  };
  FileDeviceOptions options{.path = "disk.img"};
  auto opened = co_await FileDevice::open(bench.home, options);
  refused(opened, "file disk.img: cannot be opened: not found");
  options.create = true;
  opened = co_await FileDevice::open(bench.home, options);
  refused(opened, "file disk.img: not found, and no size is given to make it with");
  options.byte_count = 1000;
  opened = co_await FileDevice::open(bench.home, options);
  refused(opened, "file disk.img: a size of 1000 bytes is not a multiple of the 512-byte block");
  options.byte_count = 4096;
  options.preallocate = true;
  bench.faults.allocate_error = Error::kNoSpace;
  opened = co_await FileDevice::open(bench.home, options);
  refused(opened, "file disk.img: its 4096 bytes cannot be reserved: no space left");
  options.byte_count = 8192;
  opened = co_await FileDevice::open(bench.home, options);
  refused(opened, "file disk.img: has 4096 bytes where 8192 are configured");
  options.block_bytes = 520;
  opened = co_await FileDevice::open(bench.home, options);
  refused(opened, "file disk.img: 520-byte logical blocks; 512 or 4096 are possible");
}

}  // namespace

TEST_CASE("A read error names the first bad block", "[block]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 9));
  CAPTURE(seed);
  run_in_world(seed, [&](Executor& real) { return finds_first_bad_block(real, seed); });
}

TEST_CASE("A read error that goes away while it is looked for is forgiven", "[block]") {
  run_in_world(1, [](Executor& real) { return forgives_transient_read_errors(real); });
}

TEST_CASE("Errors of the file become errors of the request", "[block]") {
  run_in_world(1, [](Executor& real) { return passes_errors_on(real); });
}

TEST_CASE("A device tells that its file fails, and is degraded for a minute", "[block]") {
  run_in_world(1, [](Executor& real) { return tells_its_failures(real); });
}

TEST_CASE("A file that is cut short while it is open has failed as a whole", "[block]") {
  run_in_world(1, [](Executor& real) { return fails_when_cut_short(real); });
  run_in_world(1, [](Executor& real) { return flush_finds_the_file_cut_short(real); });
}

TEST_CASE("FUA writes are synced, and FUA reads follow a sync of what was written", "[block]") {
  run_in_world(1, [](Executor& real) { return fua_syncs(real); });
}

TEST_CASE("UNMAP and zeroing with FUA are synced as writes are", "[block]") {
  run_in_world(1, [](Executor& real) { return stable_changes(real); });
}

TEST_CASE("A sync that was not tried for want of memory is repeated", "[block]") {
  run_in_world(1, [](Executor& real) { return untried_sync_is_repeated(real); });
}

TEST_CASE("After a failed sync, of the page cache or of a drive, no flush succeeds", "[block]") {
  const bool direct = GENERATE(false, true);
  CAPTURE(direct);
  run_in_world(1, [&](Executor& real) { return failed_sync_stays(real, direct); });
}

TEST_CASE("Flushes behind a sync that hangs can be cancelled", "[block]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 9));
  CAPTURE(seed);
  run_in_world(seed, [](Executor& real) { return hanging_sync_can_be_cancelled(real); });
}

TEST_CASE("Zeros keep their space where the system only knows holes", "[block]") {
  run_in_world(1, [](Executor& real) { return zeroes_keep_their_space(real); });
}

TEST_CASE("Zeros are written where the system cannot make them", "[block]") {
  const bool device_node = GENERATE(false, true);
  CAPTURE(device_node);
  run_in_world(1, [&](Executor& real) { return zeroes_without_the_filesystem(real, device_node); });
}

TEST_CASE("Misaligned payloads pass even when the pool has no memory left", "[block]") {
  run_in_world(1, [](Executor& real) { return bounces_without_pool_memory(real); });
}

TEST_CASE("Blocks finer than direct I/O needs go through the page cache", "[block]") {
  run_in_world(1, [](Executor& real) { return blocks_smaller_than_direct_alignment(real); });
}

TEST_CASE("A file that cannot be opened gives one line that names it", "[block]") {
  run_in_world(1, [](Executor& real) { return says_what_cannot_be_opened(real); });
}

}  // namespace sandbay::testing::file_device_fault_test
