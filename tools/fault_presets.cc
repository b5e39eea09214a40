// Presets as rules.
#include "tools/fault_presets.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sandbay::cli {

namespace {

constexpr std::string_view kEverything = "read,write,flush,unmap,write_zeroes";
// INTERNAL TARGET FAILURE: initiators do not try again.
constexpr std::string_view kFails = "do=check key=4 code=44/00";
constexpr std::uint64_t kMostBlocks = 1024;  // Each is two rules.

std::string rule(const std::string& id, const std::string& volume, std::string_view words) {
  return fmt::format("id={} at=lun:{} {}", id, volume, words);
}

// The volume in ids, which have 64 letters at most: of a long name the beginning, and a number that
// is always the same.
std::string label_of(const std::string& volume) {
  constexpr std::size_t kLongest = 24;
  if (volume.size() <= kLongest) return volume;
  std::uint32_t number = 2166136261;  // FNV-1a.
  for (const char c : volume) number = (number ^ static_cast<unsigned char>(c)) * 16777619U;
  return fmt::format("{}-{:08x}", volume.substr(0, kLongest - 9), number);
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return number;
}

// Adds the blocks of "4096" or "4096-4100"; false: it is neither.
bool add_blocks(std::string_view range, std::vector<std::uint64_t>& blocks) {
  const std::size_t dash = range.find('-');
  const auto first = number_of(range.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : number_of(range.substr(dash + 1));
  if (!first || !last || *last < *first) return false;
  for (std::uint64_t block = *first; blocks.size() <= kMostBlocks; ++block) {
    blocks.push_back(block);
    if (block == *last) break;
  }
  return true;
}

}  // namespace

std::vector<std::string> flaky_rules(const std::string& volume, const FlakyPreset& preset) {
  const std::string phases = fmt::format("up={} down={}", preset.up, preset.down);
  const std::string id = "flaky." + label_of(volume);
  constexpr std::string_view kWrites = "write,unmap,write_zeroes";
  if (preset.drop_writes) {
    return {rule(id, volume, fmt::format("op={} {} do=lost", kWrites, phases))};
  }
  // A flush is a write without data there.
  const std::string_view operations =
      preset.error_writes ? "write,flush,unmap,write_zeroes" : kEverything;
  return {rule(id, volume, fmt::format("op={} {} {}", operations, phases, kFails))};
}

std::vector<std::string> dust_rules(const std::string& volume, const std::string& blocks,
                                    const std::string& run) {
  std::vector<std::uint64_t> bad;
  for (std::string_view left = blocks; !left.empty();) {
    const std::size_t comma = left.find(',');
    if (!add_blocks(left.substr(0, comma), bad)) {
      throw CLI::ValidationError("--blocks", "block numbers such as 4096-4100,5000 are possible");
    }
    left = comma == std::string_view::npos ? std::string_view() : left.substr(comma + 1);
  }
  if (bad.empty() || bad.size() > kMostBlocks) {
    throw CLI::ValidationError("--blocks", fmt::format("1 to {} blocks are possible", kMostBlocks));
  }
  std::ranges::sort(bad);
  bad.erase(std::ranges::unique(bad).begin(), bad.end());
  std::vector<std::string> rules;
  for (const std::uint64_t block : bad) {
    const std::string written = fmt::format("dust.{}.{}", run, block);
    rules.push_back(
        rule(fmt::format("dust.{}.{}", label_of(volume), block), volume,
             fmt::format("op=read lba={}+1 state=!{} do=check key=3 code=11/00", block, written)));
    rules.push_back(
        rule(fmt::format("dust.{}.{}.written", label_of(volume), block), volume,
             fmt::format("op=write,write_zeroes,unmap lba={}+1 state=!{} do=nothing set={}", block,
                         written, written)));
  }
  return rules;
}

std::vector<std::string> delay_rules(const std::string& volume, const DelayPreset& preset) {
  std::vector<std::string> rules;
  const auto add = [&](std::string_view name, std::string_view operations,
                       const std::string& time) {
    if (time.empty()) return;
    rules.push_back(rule(fmt::format("delay.{}.{}", label_of(volume), name), volume,
                         fmt::format("op={} do=slow latency={}", operations, time)));
  };
  add("read", "read", preset.read);
  add("write", "write,unmap,write_zeroes", preset.write);
  add("flush", "flush", preset.flush);
  if (rules.empty()) throw CLI::RequiredError("--read, --write or --flush");
  return rules;
}

std::vector<std::string> error_rules(const std::string& volume) {
  return {rule("error." + label_of(volume), volume, fmt::format("op={} {}", kEverything, kFails))};
}

}  // namespace sandbay::cli
