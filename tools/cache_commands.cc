// sandbay cache show|flush|discard|adopt|acknowledge
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/table.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

constexpr const char* kCache = "/api/v1/cache";

std::string cache_path(const std::string& set) {
  return fmt::format("{}/sets/{}", kCache, Client::escape(set));
}

std::string percent_of(double share) { return fmt::format("{:.1f} %", 100 * share); }

double share_of(const json& part, const json& whole) {
  const auto all = whole.get<double>();
  return all == 0 ? 0 : part.get<double>() / all;
}

// "85 us / 1.2 ms": half of all, and 99 of 100.
std::string latency_of(const json& latency) {
  if (latency.at("count").get<std::uint64_t>() == 0) return "-";
  const auto words = [](double seconds) {
    if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
    if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
    return fmt::format("{:.1f} s", seconds);
  };
  return fmt::format("{} / {}", words(latency.at("p50").get<double>()),
                     words(latency.at("p99").get<double>()));
}

std::string mean_destage_of(const json& counters) {
  const auto count = counters.at("destages").get<std::uint64_t>();
  if (count == 0) return "-";
  return human_size(counters.at("destage_bytes").get<std::uint64_t>() / count);
}

void print_whole(const json& cache) {
  const json& memory = cache.at("memory");
  const json& dirty = cache.at("dirty");
  const json& nvram = cache.at("nvram");
  const bool has_nvram = nvram.at("size").get<std::uint64_t>() != 0;
  say("{}",
      facts({
          {"memory", fmt::format("{} of {}, {} lines, {} evictions", human_size(memory.at("used")),
                                 human_size(memory.at("size")), memory.at("lines").dump(),
                                 memory.at("evictions").dump())},
          {"dirty", fmt::format("{} of {}, {} stuck", human_size(dirty.at("used")),
                                human_size(dirty.at("limit")), human_size(dirty.at("stuck")))},
          {"destage rate", fmt::format("{}/s", human_size(static_cast<std::uint64_t>(
                                                   dirty.at("destage_rate").get<double>())))},
          {"non-volatile", yes_no(cache.at("non_volatile").get<bool>())},
          {"NVRAM", has_nvram
                        ? fmt::format("{}, {} writes, {} full, battery {}, mirror {}",
                                      human_size(nvram.at("size")), nvram.at("writes").dump(),
                                      percent_of(nvram.at("fullness").get<double>()),
                                      text_of(nvram.at("battery")), text_of(nvram.at("mirror")))
                        : std::string("none")},
          {"read ahead", fmt::format("{} on its way, {} not asked for yet",
                                     human_size(cache.at("read_ahead").at("in_flight")),
                                     human_size(cache.at("read_ahead").at("unread")))},
      }));
}

void print_volumes(const json& volumes) {
  using enum Table::Align;
  Table reads({{"VOLUME"},
               {"MODE"},
               {"READS", kRight},
               {"HITS", kRight},
               {"LATE", kRight},
               {"READ AHEAD", kRight},
               {"WASTED", kRight},
               {"MISS P50 / P99", kRight}});
  Table writes({{"VOLUME"},
                {"WRITES", kRight},
                {"WRITTEN", kRight},
                {"ABSORBED", kRight},
                {"THROUGH", kRight},
                {"THROTTLED", kRight},
                {"P50 / P99", kRight}});
  for (const json& volume : volumes) {
    const json& c = volume.at("counters");
    reads.add({text_of(volume.at("name")), text_of(volume.at("cache")), c.at("reads").dump(),
               percent_of(volume.at("hit_ratio").get<double>()), c.at("late_hits").dump(),
               human_size(c.at("read_ahead_bytes")),
               percent_of(share_of(c.at("read_ahead_wasted_bytes"), c.at("read_ahead_bytes"))),
               latency_of(volume.at("miss_latency"))});
    writes.add({text_of(volume.at("name")), c.at("writes").dump(),
                human_size(c.at("written_bytes")),
                percent_of(share_of(c.at("absorbed_bytes"), c.at("written_bytes"))),
                c.at("write_throughs").dump(),
                fmt::format("{:.1f} s", c.at("throttled_seconds").get<double>()),
                latency_of(volume.at("write_latency"))});
  }
  if (!reads.empty()) say("\n{}\n{}", reads.text(), writes.text());
}

std::string label_of(const json& set) {
  return text_of(set.at(text_of(set.at("name")).empty() ? "uuid" : "name"));
}

std::string lost_place(const json& lost) {
  const auto volume = text_of(lost.at("volume"));
  const auto blocks = lost.at("blocks").get<std::uint64_t>();
  const auto first = lost.at("first_block").get<std::uint64_t>();
  if (blocks == 0) return "nobody knows which blocks";
  const bool of_set = lost.at("of_set").get<bool>();
  return fmt::format("{}{}blocks {} to {}",
                     volume.empty() ? "" : fmt::format("volume {}, ", volume),
                     of_set ? "the set's " : "", first, first + blocks - 1);
}

void print_lost(const json& set) {
  for (const json& range : set.at("lost")) {
    say("set {}: acknowledged writes are lost: {}: {}\n", label_of(set), lost_place(range),
        text_of(range.at("why")));
  }
}

void print_sets(const json& sets) {
  using enum Table::Align;
  Table table({{"SET"},
               {"DIRTY", kRight},
               {"WAITING", kRight},
               {"DESTAGED", kRight},
               {"MEAN", kRight},
               {"FULL", kRight},
               {"PARTIAL", kRight},
               {"FLUSHES", kRight},
               {"STATE"}});
  for (const json& set : sets) {
    const json& c = set.at("counters");
    const bool barred = !text_of(set.at("barred")).empty();
    const auto failure = text_of(set.at("failure"));
    table.add({label_of(set), human_size(set.at("dirty")), human_size(set.at("waiting")),
               human_size(c.at("destage_bytes")), mean_destage_of(c), c.at("full_stripes").dump(),
               c.at("partial_stripes").dump(), c.at("rounds").dump(),
               barred ? "barred" : (failure.empty() ? "good" : failure)});
  }
  if (table.empty()) return;
  say("\n{}", table.text());
  for (const json& set : sets) {
    const auto barred = text_of(set.at("barred"));
    if (!barred.empty()) say("set {}: is not served: {}\n", label_of(set), barred);
    const auto stuck = set.at("stuck").get<std::uint64_t>();
    if (stuck != 0) {
      say("set {}: {} cannot be brought to its drives: {}\n", label_of(set), human_size(stuck),
          text_of(set.at("failure")));
    }
    print_lost(set);
  }
}

void show_caches(const Settings& settings) {
  const json cache = expect(Client(settings.management).get(kCache));
  if (settings.json) return print_json(cache);
  if (cache.at("configured").get<bool>()) {
    print_whole(cache);
  } else {
    say("There is no cache; see [cache] in sandbayd.toml(5).\n");
  }
  for (const json& note : cache.at("notes")) say("attention: {}\n", text_of(note));
  print_volumes(cache.at("volumes"));
  print_sets(cache.at("sets"));
}

void flush(const Settings& settings, const std::string& set) {
  json body = json::object();
  if (!set.empty()) body["set"] = set;
  const json cache = expect(Client(settings.management).post(std::string(kCache) + "/flush", body));
  if (settings.json) return print_json(cache);
  say("{}: everything that was acknowledged is on the drives\n",
      set.empty() ? "cache" : "set " + set);
}

void discard(const Settings& settings, const std::string& set, bool sure) {
  if (!sure) {
    throw CLI::ValidationError(
        "--yes-lose-data",
        fmt::format("is missing: acknowledged writes of set {} would be lost for good", set));
  }
  const json answer = expect(
      Client(settings.management).post(cache_path(set) + "/discard", json{{"confirm", set}}));
  if (settings.json) return print_json(answer);
  const json& bytes = answer.at("discarded");
  say("set {}: {} given up\n", set,
      bytes.is_null() ? fmt::format("what is in NVRAM {} is", text_of(answer.at("nvram")))
                      : human_size(bytes));
  for (const json& range : answer.at("ranges")) say("  {}\n", lost_place(range));
  const auto more = answer.at("more_ranges").get<std::uint64_t>();
  if (more != 0) say("  and {} more; see sandbay cache show\n", more);
}

void adopt(const Settings& settings, const std::string& set) {
  expect(Client(settings.management).post(cache_path(set) + "/adopt", json::object()));
  if (!settings.json) say("set {}: its writes in NVRAM go to the drives\n", set);
}

void acknowledge(const Settings& settings, const std::string& set) {
  expect(Client(settings.management).post(cache_path(set) + "/acknowledge", json::object()));
  print_done(settings, fmt::format("set {}: noted; its losses are no longer shown", set));
}

}  // namespace

void add_cache_commands(CLI::App& app, Settings& settings) {
  const auto set = std::make_shared<std::string>();
  const auto sure = std::make_shared<bool>(false);
  CLI::App* noun = app.add_subcommand(
      "cache", "The controller's cache: show, flush, discard, adopt, acknowledge");
  noun->require_subcommand(1);
  noun->add_subcommand("show", "Show memory, NVRAM, and what the cache did for volumes and sets")
      ->callback([&settings] { show_caches(settings); });
  CLI::App* verb =
      noun->add_subcommand("flush", "Bring everything that was acknowledged to the drives");
  verb->add_option("SET", *set, "Only this set");
  verb->callback([&settings, set] { flush(settings, *set); });
  verb = noun->add_subcommand(
      "discard", "Give up acknowledged writes that cannot be brought to a set's drives");
  verb->add_option("SET", *set, "The set's name or UUID")->required();
  verb->add_flag("--yes-lose-data", *sure, "Yes, they are to be lost for good");
  verb->callback([&settings, set, sure] { discard(settings, *set, *sure); });
  verb = noun->add_subcommand("adopt",
                              "Let writes go to a set's drives that an import did not know of");
  verb->add_option("SET", *set, "The set's name or UUID")->required();
  verb->callback([&settings, set] { adopt(settings, *set); });
  verb = noun->add_subcommand("acknowledge",
                              "Take notice of the writes that the NVRAM has lost of a set");
  verb->add_option("SET", *set, "The set's name or UUID")->required();
  verb->callback([&settings, set] { acknowledge(settings, *set); });
}

}  // namespace sandbay::cli
