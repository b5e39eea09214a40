// A ControllerCache with boards for its NVRAM and its mirror, and its books in memory: what a kill
// leaves of all that can be kept at any moment, and be started from.
#pragma once

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "block/memory_device.h"
#include "group/controller_cache.h"
#include "nvram/simulated_board.h"
#include "runtime/known.h"
#include "tests/unit/group/books.h"

namespace sandbay::group::testing {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr Uuid kSetUuid = {1, 2, 3};

// What is bolted in for a run.
struct Rack {
  nvram::SimulatedBoard* nvram = nullptr;  // Null: there is none.
  nvram::SimulatedBoard* mirror = nullptr;
  std::string boot = "one";
  nvram::Durability durability = nvram::Durability::kProcess;
  std::string cache = "nvram = \"18MiB\"\n";  // Of the section; empty: no section.
};

inline Configuration configuration_of(const Rack& rack) {
  std::string text =
      "[group]\nname = \"t\"\nstate = \"s\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n"
      "[[drive]]\nname = \"d\"\nfile = \"d\"\nsize = \"64MiB\"\n"
      "[[raid]]\nname = \"r\"\nlevel = \"jbod\"\ndrives = [\"d\"]\n";
  if (rack.nvram != nullptr) {
    text += "[nvram]\nsize = \"24MiB\"\npower_loss_only_emulated = true\n";
    if (rack.mirror != nullptr) text += "mirror = \"m\"\n";
  }
  if (!rack.cache.empty()) {
    text += "[cache]\nmemory = \"16MiB\"\nidle_flush = \"1h\"\nage_limit = \"1h\"\n" + rack.cache;
  }
  auto configuration = parse_configuration(text, "x.toml");
  INFO((configuration ? std::string() : configuration.error().front()));
  REQUIRE(configuration.has_value());
  return std::move(*configuration);
}

// One run of a controller, from its start to its end.
struct Run {
  Configuration configuration;
  EventLog events;
  std::unique_ptr<nvram::Nvram> nvram;
  std::unique_ptr<ControllerCache> cache;

  unsigned told(std::string_view kind) const {
    const auto all = events.since(0);
    return static_cast<unsigned>(std::ranges::count(all, kind, &EventInfo::kind));
  }
  std::string text(std::string_view kind) const {
    const auto all = events.since(0);
    const auto found = std::ranges::find(all, kind, &EventInfo::kind);
    return found == all.end() ? std::string() : found->text;
  }
};

// Everything before start(), as Hardware does it.
inline Task<std::unique_ptr<Run>> prepare(Executor& home, Books& books, Rack rack) {
  auto run = std::make_unique<Run>(configuration_of(rack));
  if (rack.nvram != nullptr) {
    nvram::NvramOptions options{.path = "board",
                                .durability = rack.durability,
                                .boot_id = rack.boot,
                                .power_loss_only_emulated = true};
    auto opened = co_await nvram::Nvram::open(home, *rack.nvram, std::move(options));
    REQUIRE(opened.has_value());
    run->nvram = std::move(*opened);
  }
  run->cache = std::make_unique<ControllerCache>(home, run->configuration, books, run->events,
                                                 [](const Uuid&) { return std::string("r"); });
  run->configuration.open_image = [rack](Executor& executor, nvram::NvramOptions options) {
    options.boot_id = rack.boot;
    options.durability = rack.durability;
    return nvram::Nvram::open(executor, *rack.mirror, std::move(options));
  };
  co_return run;
}

inline Task<std::unique_ptr<Run>> begin(Executor& home, Books& books, Rack rack) {
  auto run = co_await prepare(home, books, rack);
  const auto started = co_await run->cache->start(run->nvram.get());
  INFO((started ? std::string() : started.error().text));
  REQUIRE(started.has_value());
  co_return run;
}

inline Task<void> end(Run& run) {
  const bool ended = co_await run.cache->stop(kNever);
  REQUIRE(ended);
  co_await run.cache->finish();
  if (run.nvram != nullptr) (void)co_await run.nvram->close();
}

inline Task<Error> write(BlockDevice& device, Lba first, std::uint8_t byte) {
  Request request{.operation = Operation::kWrite, .extent = {.first = first, .block_count = 8}};
  request.data = co_await device.home().buffers().allocate(4096);
  const std::vector<std::byte> content(4096, std::byte{byte});
  request.data.copy_from(content);
  const Completion done = co_await device.submit(std::move(request));
  co_return done.error;
}

// The byte of which the eight blocks are full; -1: not of one.
inline Task<int> read(BlockDevice& device, Lba first) {
  Request request{.operation = Operation::kRead, .extent = {.first = first, .block_count = 8}};
  request.data = co_await device.home().buffers().allocate(4096);
  const Completion done = co_await device.submit(std::move(request));
  REQUIRE(done.error == Error::kNone);
  std::vector<std::byte> content(4096);
  done.data.copy_to(content);
  const bool same =
      std::ranges::all_of(content, [&](std::byte byte) { return byte == content[0]; });
  co_return same ? std::to_integer<int>(content[0]) : -1;
}

inline std::unique_ptr<MemoryDevice> memory_set(Executor& home) {
  auto made = MemoryDevice::create(home, {.byte_count = 8 * kMiB, .block_bytes = 512});
  REQUIRE(made.has_value());
  return std::move(*made);
}

// What a board holds, without its zeros.
class Content {
 public:
  Content() = default;
  explicit Content(const nvram::SimulatedBoard& board) {
    const auto memory = board.memory();
    static constexpr std::array<std::byte, nvram::kPageBytes> kZeros{};
    for (std::size_t at = 0; at < memory.size(); at += nvram::kPageBytes) {
      const auto page = memory.subspan(at, nvram::kPageBytes);
      // Without optimization std::ranges would take minutes for these boards.
      if (std::memcmp(page.data(), kZeros.data(), page.size()) == 0) continue;
      pages_[at].assign(page.begin(), page.end());
    }
  }
  // Into a board that has held an image before.
  void put_into(nvram::SimulatedBoard& board) const {
    std::memset(board.memory().data(), 0, board.memory().size());
    for (const auto& [at, page] : pages_) {
      std::memcpy(&board.memory()[at], page.data(), page.size());
    }
  }

 private:
  std::map<std::size_t, std::vector<std::byte>> pages_;
};

// What a kill leaves.
struct Moment {
  Content nvram;
  Content mirror;
  Books::Entries entries;
};

inline Moment moment_of(const Books& books, const Rack& rack) {
  return {.nvram = rack.nvram == nullptr ? Content() : Content(*rack.nvram),
          .mirror = rack.mirror == nullptr ? Content() : Content(*rack.mirror),
          .entries = books.entries};
}

inline void go_back(const Moment& moment, Books& books, const Rack& rack) {
  if (rack.nvram != nullptr) moment.nvram.put_into(*rack.nvram);
  if (rack.mirror != nullptr) moment.mirror.put_into(*rack.mirror);
  books.entries = moment.entries;
}

// Leaves a dirty write of `byte` at block 0 in the NVRAM and its mirror, as a kill does.
inline Task<void> leave_dirty(Executor& home, Books& books, Rack rack, BlockDevice& set,
                              std::uint8_t byte = 7) {
  auto run = co_await begin(home, books, rack);
  BlockDevice& device = run->cache->above(kSetUuid, set);
  Error error = co_await write(device, 0, 1);
  REQUIRE(error == Error::kNone);
  co_await home.sleep_for(std::chrono::milliseconds(10));
  // What the drives have is older than what is acknowledged.
  error = co_await write(device, 0, byte);
  REQUIRE(error == Error::kNone);
  const Moment killed = moment_of(books, rack);
  co_await end(*run);
  go_back(killed, books, rack);
  error = co_await write(set, 0, 1);
  REQUIRE(error == Error::kNone);
}

}  // namespace sandbay::group::testing
