// MemoryDevice against plain bytes and a plain list of mapped pages: random requests of every kind
// with payloads cut anywhere, sizes that are not whole pages, growing, and cancellation of long
// zeroing. The seed chooses the requests.
#include "block/memory_device.h"

#include <catch2/catch.hpp>

#include "on_executor.h"
#include "payload.h"

namespace sandbay::testing {
namespace {

constexpr std::size_t kPage = MemoryDevice::kPageBytes;

// What the device should hold.
struct Model {
  explicit Model(std::size_t byte_count)
      : bytes(byte_count), mapped((byte_count + kPage - 1) / kPage) {}

  void map(std::size_t first, std::size_t end) {
    for (std::size_t page = first / kPage; page * kPage < end; ++page) mapped[page] = true;
  }
  void unmap(std::size_t first, std::size_t end) {
    for (std::size_t page = 0; page < mapped.size(); ++page) {
      const std::size_t page_end = std::min(page * kPage + kPage, bytes.size());
      if (first <= page * kPage && page_end <= end) mapped[page] = false;
    }
  }

  Bytes bytes;
  std::vector<bool> mapped;
};

std::unique_ptr<MemoryDevice> make(Executor& home, std::uint64_t byte_count,
                                   std::uint32_t block_bytes) {
  auto device = MemoryDevice::create(home, {.byte_count = byte_count, .block_bytes = block_bytes});
  REQUIRE(device.has_value());
  return std::move(*device);
}

Task<void> check_provisioning(BlockDevice& device, const Model& model) {
  const std::uint32_t block = device.geometry().block_bytes;
  Lba at = 0;
  std::optional<bool> before;
  while (at < device.geometry().block_count) {
    const auto run = co_await device.provisioning(at, device.geometry().block_count);
    CHECK(run.has_value());
    CHECK(run->block_count > 0);
    CHECK(before != run->mapped);  // Runs are as long as they can be.
    before = run->mapped;
    bool same = true;
    for (Lba lba = at; lba < at + run->block_count; ++lba) {
      same = same && model.mapped[lba * block / kPage] == run->mapped;
    }
    CHECK(same);
    at += run->block_count;
  }
  CHECK(at == device.geometry().block_count);
}

Task<void> one_step(BlockDevice& device, Model& model, Random& random) {
  const std::uint32_t block = device.geometry().block_bytes;
  const std::uint64_t count = device.geometry().block_count;
  const Lba first = random.below(count);
  const std::uint64_t length = random.between(1, std::min<std::uint64_t>(count - first, 64));
  const Extent extent{first, random.chance(0.05) ? count - first : length};
  const std::size_t from = first * block;
  const std::size_t to = extent.end() * block;
  const Cut cut = random.chance(0.5) ? Cut::kAligned : Cut::kAnywhere;
  Completion done;
  switch (random.below(5)) {
    case 0: {
      const Bytes content = random_bytes(to - from, random);
      done = co_await write_blocks(device, first, content, cut, random);
      std::ranges::copy(content, model.bytes.begin() + static_cast<std::ptrdiff_t>(from));
      model.map(from, to);
      break;
    }
    case 1: {
      done = co_await read_blocks(device, extent, cut, random);
      const bool same = std::ranges::equal(content_of(done.data),
                                           std::span(model.bytes).subspan(from, to - from));
      CHECK(same);
      break;
    }
    case 2: {
      done = co_await do_without_data(device, Operation::kUnmap, extent);
      std::fill_n(model.bytes.begin() + static_cast<std::ptrdiff_t>(from), to - from, std::byte{0});
      model.unmap(from, to);
      break;
    }
    case 3: {
      done = co_await do_without_data(device, Operation::kWriteZeroes, extent);
      std::fill_n(model.bytes.begin() + static_cast<std::ptrdiff_t>(from), to - from, std::byte{0});
      model.map(from, to);
      break;
    }
    default:
      done = co_await do_without_data(device, Operation::kFlush, extent);
      break;
  }
  CHECK(done.error == Error::kNone);
}

Task<void> compare_with_model(Executor& home, std::uint64_t seed, std::uint32_t block_bytes,
                              std::uint64_t byte_count) {
  Random random(seed);
  const auto device = make(home, byte_count, block_bytes);
  Model model(byte_count);
  for (int step = 0; step < 300; ++step) {
    co_await one_step(*device, model, random);
    if (step % 20 == 0) co_await check_provisioning(*device, model);
  }
  const Completion all =
      co_await read_blocks(*device, {0, device->geometry().block_count}, Cut::kAligned, random);
  const bool same = content_of(all.data) == model.bytes;
  CHECK(same);
  co_await check_provisioning(*device, model);
}

Task<void> grows(Executor& home) {
  Random random(1);
  const auto device = make(home, 1 << 20, 512);
  const Bytes content = random_bytes(4096, random);
  const Completion wrote = co_await write_blocks(*device, 2040, content, Cut::kAligned, random);
  CHECK(wrote.error == Error::kNone);
  CHECK(device->grow(1 << 19) == Error::kInvalid);
  CHECK(device->grow((1 << 21) + 1) == Error::kInvalid);
  CHECK(device->grow(std::uint64_t{1} << 32) == Error::kNone);
  CHECK(device->geometry().block_count == (std::uint64_t{1} << 32) / 512);
  const Completion read = co_await read_blocks(*device, {2040, 16}, Cut::kAligned, random);
  Bytes expected = content;
  expected.resize(8192);
  const bool same = content_of(read.data) == expected;
  CHECK(same);
  const auto run = co_await device->provisioning(2048, device->geometry().block_count);
  CHECK(run.has_value());
  CHECK_FALSE(run->mapped);
  CHECK(run->block_count == device->geometry().block_count - 2048);
}

Task<void> cancel_soon(Executor& home, Cancellation& cancellation) {
  co_await home.yield();
  cancellation.cancel();
}

Task<void> long_zeroing_can_be_cancelled(Executor& home) {
  const auto device = make(home, std::uint64_t{1} << 30, 4096);
  const Extent all{0, device->geometry().block_count};
  Cancellation cancellation;
  spawn(cancel_soon(home, cancellation));
  const Completion done =
      co_await do_without_data(*device, Operation::kWriteZeroes, all, &cancellation);
  CHECK(done.error == Error::kCancelled);
}

}  // namespace

TEST_CASE("A memory device refuses shapes that it cannot have", "[block]") {
  run_in_world(1, [](Executor& home) -> Task<void> {
    CHECK_FALSE(MemoryDevice::create(home, {.byte_count = 0}).has_value());
    CHECK_FALSE(MemoryDevice::create(home, {.byte_count = 1000}).has_value());
    CHECK_FALSE(MemoryDevice::create(home, {.byte_count = 4096, .block_bytes = 520}).has_value());
    const auto refused = MemoryDevice::create(
        home, {.byte_count = 4096, .block_bytes = 4096, .physical_block_bytes = 512});
    CHECK_FALSE(refused.has_value());
    CHECK(refused.error().find("512-byte physical blocks") != std::string::npos);
    co_return;
  });
}

TEST_CASE("A memory device holds what a plain array holds", "[block]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 9));
  const auto block_bytes = GENERATE(std::uint32_t{512}, std::uint32_t{4096});
  CAPTURE(seed, block_bytes);
  // With small blocks the last page is not whole, and there are more pages than one bitmap word.
  const std::uint64_t byte_count = block_bytes == 512 ? 130 * 4096 + 1536 : 67 * 4096;
  run_in_world(seed, [&](Executor& home) {
    return compare_with_model(home, seed, block_bytes, byte_count);
  });
}

TEST_CASE("A memory device grows and keeps what it has", "[block]") {
  run_in_world(1, [](Executor& home) { return grows(home); });
}

TEST_CASE("Zeroing a large range lets others run and can be cancelled", "[block]") {
  run_in_world(1, [](Executor& home) { return long_zeroing_can_be_cancelled(home); });
}

}  // namespace sandbay::testing
