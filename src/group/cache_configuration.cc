// Defaults are those of a small controller: what a newcomer's machine can spare.
#include "group/cache_configuration.h"

#include <fmt/core.h>

#include <algorithm>

#include "group/document.h"
#include "group/units.h"

namespace sandbay::group {

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kDefaultMemory = 64 * kMiB;
constexpr std::uint64_t kLeastCacheMemory = 16 * kMiB;
constexpr std::uint64_t kMostCacheMemory = std::uint64_t{1} << 40;
constexpr std::uint64_t kLeastSlabs = 8;  // Of the data in NVRAM; see cache/write_memory.h.
constexpr std::uint64_t kLeastNvram = 18 * kMiB;
constexpr std::uint64_t kLeastDestage = 64 << 10;
constexpr std::uint64_t kLeastDriveWrite = 4 << 10;
constexpr std::uint64_t kMostDestage = 64 * kMiB;
constexpr std::uint64_t kMostWindow = 1024 * kMiB;
constexpr unsigned kMostDestages = 256;

void read_memory(TableReader& reader, CacheConfiguration& cache) {
  cache::CacheOptions& options = cache.options;
  options.memory_bytes =
      reader.size("memory", kLeastCacheMemory, kMostCacheMemory).value_or(kDefaultMemory);
  options.dirty_limit_bytes = options.memory_bytes / 4;
  if (const auto limit = reader.size("dirty_limit", kMiB, kMostCacheMemory)) {
    options.dirty_limit_bytes = *limit;
    if (*limit > options.memory_bytes / 4 * 3) {
      reader.mistake("dirty_limit",
                     fmt::format("{} is more than three quarters of memory; write "
                                 "at most {}",
                                 format_size(*limit), format_size(options.memory_bytes / 4 * 3)));
    }
  }
  options.read_ahead_limit_bytes = options.memory_bytes / 4;
  if (const auto limit = reader.size("read_ahead_limit", kMiB, kMostCacheMemory)) {
    options.read_ahead_limit_bytes = *limit;
    if (*limit > options.memory_bytes / 2) {
      reader.mistake("read_ahead_limit",
                     fmt::format("{} is more than half of memory; write at most {}",
                                 format_size(*limit), format_size(options.memory_bytes / 2)));
    }
  }
  options.read_ahead_share = static_cast<double>(options.read_ahead_limit_bytes) /
                             static_cast<double>(options.memory_bytes);
  cache.read_ahead = reader.boolean("read_ahead").value_or(true);
  cache.window_bytes =
      reader.size("read_ahead_window", kLeastDestage, kMostWindow).value_or(cache.window_bytes);
  if (const auto nvram = reader.size("nvram", kLeastNvram, kMostCacheMemory)) {
    cache.nvram_bytes = *nvram;
    if (*nvram % nvram::kPageBytes != 0) {
      reader.mistake("nvram", fmt::format("{} is not a multiple of 4KiB", format_size(*nvram)));
    }
    if (reader.has("dirty_limit")) {
      reader.mistake("dirty_limit",
                     "means nothing with nvram, whose size is the limit; write one of both");
    }
  }
}

void read_destaging(TableReader& reader, cache::CacheOptions& options, std::uint64_t nvram_bytes) {
  const auto percent = [&](std::string_view key, double& share) {
    if (const auto value = reader.integer(key, 1, 100)) share = static_cast<double>(*value) / 100;
  };
  percent("low_watermark", options.low_watermark);
  percent("high_watermark", options.high_watermark);
  if (options.low_watermark > options.high_watermark) {
    const bool low = reader.has("low_watermark");
    const double other = 100 * (low ? options.high_watermark : options.low_watermark);
    reader.mistake(
        low ? "low_watermark" : "high_watermark",
        fmt::format("destaging goes down to low_watermark, and {} is {:.0f}; write {}",
                    low ? "high_watermark" : "low_watermark", other,
                    low ? fmt::format("1 to {:.0f}", other) : fmt::format("{:.0f} to 100", other)));
  }
  constexpr Duration kLeast = std::chrono::milliseconds(1);
  constexpr Duration kMost = std::chrono::hours(24);
  options.age_limit = reader.duration("age_limit", kLeast, kMost).value_or(options.age_limit);
  options.idle_flush = reader.duration("idle_flush", kLeast, kMost).value_or(options.idle_flush);
  if (const auto writes = reader.integer("destages_in_flight", 1, kMostDestages)) {
    options.destages_in_flight = static_cast<unsigned>(*writes);
  }
  if (const auto bytes = reader.size("destage", kLeastDestage, kMostDestage)) {
    options.destage_bytes = *bytes;
    if (*bytes % kLeastDestage != 0) {
      reader.mistake("destage", fmt::format("{} is not a multiple of 64KiB", format_size(*bytes)));
    }
    // A write has to fit into the room for what is dirty, several times.
    const std::uint64_t room = nvram_bytes != 0 ? nvram_bytes : options.dirty_limit_bytes;
    const std::uint64_t most = std::max(room / 4 / kLeastDestage * kLeastDestage, kLeastDestage);
    if (*bytes > most) {
      reader.mistake(
          "destage",
          fmt::format("{} is more than a quarter of {}; write at most {}", format_size(*bytes),
                      nvram_bytes != 0 ? "nvram" : "the room for what is dirty",
                      format_size(most)));
    }
  }
}

}  // namespace

std::string_view describe(cache::Mode mode) {
  switch (mode) {
    case cache::Mode::kWriteBack:
      return "write-back";
    case cache::Mode::kWriteThrough:
      return "write-through";
    case cache::Mode::kNone:
      return "none";
  }
  return "unknown";
}

std::optional<cache::Mode> parse_cache_mode(std::string_view word) {
  for (const auto mode :
       {cache::Mode::kWriteBack, cache::Mode::kWriteThrough, cache::Mode::kNone}) {
    if (describe(mode) == word) return mode;
  }
  return std::nullopt;
}

NvramShares shares_of(std::uint64_t nvram_bytes) {
  constexpr std::uint64_t kSlab = BufferPool::kSlabBytes;
  std::uint64_t data = nvram_bytes / kSlab * kSlab;
  while (data >= kLeastSlabs * kSlab && data + cache::default_log_bytes(data) > nvram_bytes) {
    data -= kSlab;
  }
  if (data < kLeastSlabs * kSlab) return {};
  return {.data_bytes = data, .log_bytes = nvram_bytes - data};
}

std::optional<CacheConfiguration> read_cache(TableReader& root, Mistakes& mistakes) {
  const Value* const section = root.table("cache");
  if (section == nullptr) return std::nullopt;
  TableReader reader(*section, "cache", mistakes);
  CacheConfiguration cache{.options = {},
                           .line = section->line,
                           .memory_line = section->line,
                           .nvram_line = section->line};
  read_memory(reader, cache);
  read_destaging(reader, cache.options, cache.nvram_bytes);
  cache.drive_write_bytes = reader.size("drive_write", kLeastDriveWrite, kMostDestage).value_or(0);
  if (reader.has("memory")) cache.memory_line = reader.line_of("memory");
  if (reader.has("nvram")) cache.nvram_line = reader.line_of("nvram");
  reader.finish();
  return cache;
}

}  // namespace sandbay::group
