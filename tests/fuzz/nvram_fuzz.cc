// Fuzzes the opening of an NVRAM image and the recovery of a log in it: the input is a list of
// patches to a good image, each followed by the checksums being made right or not.
//
// Whatever the image holds: it is refused with a message, or what is recovered lies within it, can
// be accepted, and the log then takes and gives back records.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "nvram/damage.h"
#include "nvram/image_layout.h"
#include "nvram/nvram.h"
#include "nvram/record_layout.h"
#include "nvram/record_log.h"
#include "nvram/simulated_board.h"
#include "runtime/simulation.h"

namespace sandbay::nvram {
namespace {

constexpr std::uint64_t kLogBytes = 4 * kPageBytes;  // A ring of two pages.
constexpr std::uint64_t kControlOffset = kHeaderBytes;
constexpr std::uint64_t kRingOffset = kHeaderBytes + 2 * kPageBytes;
constexpr std::uint64_t kRingBytes = kLogBytes - 2 * kPageBytes;

void expect(bool condition) {
  if (!condition) std::abort();
}

struct Bench {
  std::unique_ptr<Nvram> nvram;
  std::unique_ptr<Region> region;
  std::unique_ptr<RecordLog> log;
};

NvramOptions options_for(bool host, bool crashed) {
  return {.path = "image",
          .durability = host ? Durability::kHost : Durability::kProcess,
          .boot_id = crashed ? "two" : "one"};
}

Task<bool> open(Executor& home, SimulatedBoard& board, NvramOptions options, Bench& bench) {
  auto nvram = co_await Nvram::open(home, board, std::move(options));
  if (!nvram.has_value()) {
    expect(!nvram.error().empty());
    co_return false;
  }
  bench.nvram = std::move(*nvram);
  auto region = co_await bench.nvram->claim("journal", kLogBytes);
  if (!region.has_value()) {
    expect(!region.error().empty());
    co_return false;
  }
  bench.region = std::move(*region);
  bench.log = std::make_unique<RecordLog>(*bench.region, RecordLogOptions{});
  co_return true;
}

Task<void> start(Bench& bench) {
  const Error accepted = co_await bench.log->accept();
  expect(accepted == Error::kNone);
  const Error settled = co_await bench.region->settle();
  expect(settled == Error::kNone);
}

Task<RecordId> append(RecordLog& log, std::uint8_t fill, std::size_t byte_count) {
  std::vector<std::byte> payload(byte_count, std::byte{fill});
  const IoSlice slice{payload.data(), payload.size()};
  const Result<RecordId> id = co_await log.append(std::span(payload).first(8), {&slice, 1});
  expect(id.has_value());
  co_return *id;
}

Task<void> make(Executor& home, SimulatedBoard& board, bool host) {
  Bench bench;
  const bool opened = co_await open(home, board, options_for(host, false), bench);
  expect(opened);
  bench.log->recover();
  co_await start(bench);
  for (std::uint8_t i = 0; i < 30; ++i) {
    const RecordId id = co_await append(*bench.log, i, 8 + i * 20);
    if (i < 18 || i % 5 == 0) bench.log->release(id);
  }
}

Task<void> use(Executor& home, SimulatedBoard& board, NvramOptions options) {
  Bench bench;
  const bool opened = co_await open(home, board, std::move(options), bench);
  if (!opened) co_return;
  const std::span<const std::byte> image = bench.nvram->image();
  const Recovery recovery = bench.log->recover();
  for (const Record& record : recovery.records) {
    expect(record.payload.data() >= image.data() &&
           record.payload.data() + record.payload.size() <= image.data() + image.size());
  }
  co_await start(bench);
  expect(bench.log->live_records() == recovery.records.size());
  for (const Record& record : recovery.records) bench.log->release(record.id);
  for (std::uint8_t i = 0; i < 20; ++i) {
    const RecordId id = co_await append(*bench.log, i, 900);
    bench.log->release(id);
  }
}

// Makes the checksums right again, so that the fuzzer gets behind them.
void seal_all(std::span<std::byte> image) {
  for (const std::size_t offset : {std::size_t{0}, std::size_t{kPageBytes}}) {
    ImageHeader header{};
    std::memcpy(&header, image.data() + offset, sizeof header);
    seal(header);
    std::memcpy(image.data() + offset, &header, sizeof header);
    ControlBlock block{};
    std::memcpy(&block, image.data() + kControlOffset + offset, sizeof block);
    block.checksum = checksum_of(block);
    std::memcpy(image.data() + kControlOffset + offset, &block, sizeof block);
  }
  const auto ring = image.subspan(kRingOffset, kRingBytes);
  for (std::size_t at = 0; at < ring.size(); at += kRecordAlignment) {
    RecordHeader header{};
    std::memcpy(&header, ring.data() + at, sizeof header);
    if (header.magic != kRecordMagic) continue;
    if (header.descriptor_bytes > ring.size() - at - sizeof header) continue;
    header.checksum =
        checksum_of(header, ring.subspan(at + sizeof header, header.descriptor_bytes));
    std::memcpy(ring.data() + at, &header, sizeof header);
  }
}

// Each patch is a place (two bytes, in the part of the image that is used), a length and bytes.
void patch(std::span<std::byte> image, std::span<const std::uint8_t> input) {
  while (input.size() >= 4) {
    const std::size_t place = (std::size_t{input[0]} << 8U | input[1]) % (kHeaderBytes + kLogBytes);
    const std::size_t length = std::min<std::size_t>(input[2] % 32, input.size() - 3);
    for (std::size_t i = 0; i < length && place + i < image.size(); ++i) {
      image[place + i] = std::byte{input[3 + i]};
    }
    input = input.subspan(3 + length);
  }
}

void run(std::span<const std::uint8_t> input) {
  if (input.empty()) return;
  const unsigned how = input[0];
  const bool host = (how & 1U) != 0;
  static const auto kBoards = [] {
    std::vector<SimulatedBoard> boards;
    for (const bool to_host : {false, true}) {
      boards.emplace_back(kLeastImageBytes);
      const auto world = sim::World::create({.seed = 1});
      Executor& home = *world->executors()[0];
      expect(world->run([&] { return make(home, boards.back(), to_host); }));
    }
    return boards;
  }();
  SimulatedBoard board = kBoards[host ? 1 : 0];
  patch(board.memory(), input.subspan(1));
  if ((how & 2U) != 0) seal_all(board.memory());
  const auto world = sim::World::create({.seed = 1});
  Executor& home = *world->executors()[0];
  const NvramOptions options = options_for(host, (how & 4U) != 0);
  // Twice: what the first one left is good for the second.
  for (int round = 0; round < 2; ++round) {
    expect(world->run([&] { return use(home, board, options); }));
  }
}

}  // namespace
}  // namespace sandbay::nvram

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sandbay::nvram::run({data, size});
  return 0;
}
