// What tests of the record log share: records whose content follows from their sequence, an open
// log over a board, and a model of what it must hold.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "../block/on_executor.h"
#include "nvram/nvram.h"
#include "nvram/record_log.h"
#include "nvram/simulated_board.h"
#include "record_content.h"

namespace sandbay::nvram {

using testing::run_in_world;
inline constexpr std::uint64_t kImageBytes = 64 * 1024;
inline constexpr std::uint64_t kLogBytes = 6 * kPageBytes;  // A ring of 16 KiB.

inline std::uint64_t number_in(std::span<const std::byte> descriptor) {
  std::uint64_t number = 0;
  REQUIRE(descriptor.size() >= sizeof number);
  std::memcpy(&number, descriptor.data(), sizeof number);
  return number;
}

inline bool same(std::span<const std::byte> left, std::span<const std::byte> right) {
  return std::ranges::equal(left, right);
}

inline NvramOptions options_for(Durability durability, std::string boot_id = "boot-1") {
  return {.path = "controller-0", .durability = durability, .boot_id = std::move(boot_id)};
}

// An open memory with one region and one log. Dropping it without close() is a kill.
struct Bench {
  std::unique_ptr<Nvram> nvram;
  std::unique_ptr<Region> region;
  std::unique_ptr<RecordLog> log;
  Recovery recovery;
};

inline Task<Bench> open_bench(Executor& home, SimulatedBoard& board, NvramOptions options,
                              std::uint64_t log_bytes = kLogBytes) {
  Bench bench;
  auto opened = co_await Nvram::open(home, board, std::move(options));
  if (!opened.has_value()) FAIL(opened.error());
  bench.nvram = std::move(*opened);
  auto claimed = co_await bench.nvram->claim("journal", log_bytes);
  if (!claimed.has_value()) FAIL(claimed.error());
  bench.region = std::move(*claimed);
  bench.log = std::make_unique<RecordLog>(*bench.region, RecordLogOptions{});
  bench.recovery = bench.log->recover();
  co_return bench;
}

inline Task<void> accept(Bench& bench) {
  const Error accepted = co_await bench.log->accept();
  CHECK(accepted == Error::kNone);
  const Error settled = co_await bench.region->settle();
  CHECK(settled == Error::kNone);
}

inline Task<Bench> start_bench(Executor& home, SimulatedBoard& board, NvramOptions options,
                               std::uint64_t log_bytes = kLogBytes) {
  Bench bench = co_await open_bench(home, board, std::move(options), log_bytes);
  co_await accept(bench);
  co_return bench;
}

inline void check_content(const Record& record, std::uint64_t number,
                          std::size_t most_payload = 1500) {
  const Content content = content_of(number, most_payload);
  REQUIRE(same(record.descriptor, content.descriptor));
  REQUIRE(same(record.payload, content.payload));
}

// The numbers of the records, each checked against its content.
inline std::set<std::uint64_t> numbers_of(const Recovery& recovery,
                                          std::size_t most_payload = 1500) {
  std::set<std::uint64_t> numbers;
  std::uint64_t last_sequence = 0;
  for (const Record& record : recovery.records) {
    REQUIRE(record.id.sequence > last_sequence);
    last_sequence = record.id.sequence;
    const std::uint64_t number = number_in(record.descriptor);
    check_content(record, number, most_payload);
    REQUIRE(numbers.insert(number).second);
  }
  return numbers;
}

}  // namespace sandbay::nvram
