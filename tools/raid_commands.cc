// sandbay raid list|show|verify|start
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/commands.h"
#include "tools/progress.h"
#include "tools/table.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

constexpr const char* kSets = "/api/v1/raid-sets";

std::string set_path(const std::string& set) {
  return fmt::format("{}/{}", kSets, Client::escape(set));
}

double done_of(const json& progress) {
  const auto all = progress.at("all_stripes").get<double>();
  return all == 0 ? 0 : progress.at("done_stripes").get<double>() / all;
}

// "rebuild 42 %", or a dash.
std::string work_of(const json& set) {
  const json& progress = set.at("progress");
  const std::string kind = text_of(progress.at("kind"));
  if (kind == "nothing") return "-";
  return fmt::format("{} {:.0f} %", kind, 100 * done_of(progress));
}

std::string set_state(const json& set) {
  return set.at("running").get<bool>() ? text_of(set.at("health")) : "not running";
}

void list_sets(const Settings& settings) {
  const json answer = expect(Client(settings.management).get(kSets));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"NAME"},
               {"LEVEL"},
               {"DRIVES", kRight},
               {"SIZE", kRight},
               {"FREE", kRight},
               {"HEALTH"},
               {"WORK"},
               {"VOLUMES"}});
  for (const json& set : answer.at("sets")) {
    const std::string volumes = joined(set.at("volumes"));
    table.add({text_of(set.at("name")), text_of(set.at("level")), set.at("drives").dump(),
               human_size(set.at("size")), human_size(set.at("free")), set_state(set), work_of(set),
               volumes.empty() ? "-" : volumes});
  }
  if (table.empty()) {
    say("There are no RAID sets; see [[raid]] in sandbayd.toml(5).\n");
    return;
  }
  fmt::print("{}", table.text());
}

void print_roles(const json& set) {
  using enum Table::Align;
  Table table({{"ROLE", kRight}, {"DRIVE"}, {"STATE"}, {"STALE", kRight}, {"COPIED TO"}});
  std::size_t role = 0;
  for (const json& each : set.at("roles")) {
    const std::string drive = text_of(each.at("drive"));
    const std::string replacement = text_of(each.at("replacement"));
    table.add({fmt::format("{}", role++), drive.empty() ? "-" : drive, text_of(each.at("state")),
               each.at("stale_regions").dump(), replacement.empty() ? "-" : replacement});
  }
  if (!table.empty()) say("\n{}", table.text());
}

void print_set(const json& set) {
  const json& counters = set.at("counters");
  const json& journal = set.at("journal");
  say("{}",
      facts({
          {"name", text_of(set.at("name"))},
          {"uuid", text_of(set.at("uuid"))},
          {"level", fmt::format("{}, {} drives in {} group(s), strip {}", text_of(set.at("level")),
                                set.at("drives").dump(), set.at("groups").dump(),
                                human_size(set.at("strip")))},
          {"size",
           fmt::format("{}, {} free", human_size(set.at("size")), human_size(set.at("free")))},
          {"integrity", yes_no(set.at("integrity").get<bool>())},
          {"health", set_state(set)},
          {"reason", text_of(set.at("reason"))},
          {"work", work_of(set)},
          {"unverified", fmt::format("{} of {} regions", set.at("unverified_regions").dump(),
                                     set.at("regions").dump())},
          {"lost", fmt::format("{} run(s) of blocks", set.at("lost").size())},
          {"journal",
           fmt::format("{} of {} in use, {} written", human_size(journal.at("used")),
                       human_size(journal.at("size")), human_size(journal.at("written_bytes")))},
          {"host reads", fmt::format("{}, {}", counters.at("host_reads").dump(),
                                     human_size(counters.at("host_read_bytes")))},
          {"host writes", fmt::format("{}, {}", counters.at("host_writes").dump(),
                                      human_size(counters.at("host_written_bytes")))},
          {"stripes written", fmt::format("{} full, {} read-modify-write, {} reconstruct-write",
                                          counters.at("full_stripe_writes").dump(),
                                          counters.at("read_modify_writes").dump(),
                                          counters.at("reconstruct_writes").dump())},
          {"reconstructions", counters.at("reconstructions").dump()},
          {"corrections", counters.at("corrections").dump()},
          {"corruptions",
           fmt::format("{}, {} wrong entries, {} mended", counters.at("corruptions").dump(),
                       counters.at("false_entries").dump(), counters.at("entries_mended").dump())},
          {"spares of its own", joined(set.at("spares"))},
          {"volumes", joined(set.at("volumes"))},
      }));
  print_roles(set);
  for (const json& note : set.at("notes")) say("\nnote: {}\n", note.get<std::string>());
}

void show_set(const Settings& settings, const std::string& name) {
  const json set = expect(Client(settings.management).get(set_path(name)));
  if (settings.json) return print_json(set);
  print_set(set);
}

std::uint64_t last_event(const Client& client) {
  const json events = expect(client.get("/api/v1/events")).at("events");
  return events.empty() ? 0 : events.back().at("number").get<std::uint64_t>();
}

// The event that says that the set's verify has ended; null: not yet.
json end_of_verify(const Client& client, const std::string& name, std::uint64_t* since) {
  const json answer = expect(client.get(fmt::format("/api/v1/events?since={}", *since)));
  for (const json& event : answer.at("events")) {
    *since = event.at("number").get<std::uint64_t>();
    if (event.at("kind") == "verify ended" && event.at("set") == name) return event;
  }
  return nullptr;
}

void verify(const Settings& settings, const std::string& name, bool wait) {
  const Client client(settings.management);
  std::uint64_t since = last_event(client);
  json set = expect(client.post(set_path(name) + "/verify", json::object()));
  if (!wait) {
    if (settings.json) return print_json(set);
    say("set {}: verify begins; see sandbay raid show {}\n", name, name);
    return;
  }
  Progress progress;
  json ended;
  while (ended.is_null()) {
    std::this_thread::sleep_for(kLookEvery);
    set = expect(client.get(set_path(name)));
    const json& work = set.at("progress");
    const std::string kind = text_of(work.at("kind"));
    if (kind != "nothing") progress.update(fmt::format("set {}: {}", name, kind), done_of(work));
    ended = end_of_verify(client, name, &since);
    if (ended.is_null() && !set.at("running").get<bool>()) {
      progress.end();
      throw Failure(fmt::format("set {} has stopped: {}", name, text_of(set.at("reason"))));
    }
  }
  progress.end();
  if (settings.json) return print_json(ended);
  say("{}\n", text_of(ended.at("text")));
}

void start(const Settings& settings, const std::string& name, bool accept_loss) {
  const Client client(settings.management);
  const json set =
      expect(client.post(set_path(name) + "/start", json::object({{"accept_loss", accept_loss}})));
  if (settings.json) return print_json(set);
  say("set {} runs: {}\n", name, set_state(set));
}

}  // namespace

void add_raid_commands(CLI::App& app, Settings& settings) {
  const auto name = std::make_shared<std::string>();
  const auto wait = std::make_shared<bool>(false);
  CLI::App* noun = app.add_subcommand("raid", "RAID sets: list, show, verify, start");
  noun->require_subcommand(1);
  noun->add_subcommand("list", "List all RAID sets")->callback([&settings] {
    list_sets(settings);
  });
  CLI::App* verb = noun->add_subcommand("show", "Show a set, its roles and its counters");
  verb->add_option("SET", *name, "The set's name")->required();
  verb->callback([&settings, name] { show_set(settings, *name); });
  verb = noun->add_subcommand(
      "verify", "Read everything in the background, repair what does not match, and report");
  verb->add_option("SET", *name, "The set's name")->required();
  verb->add_flag("--wait", *wait, "Show how far it is, and end when it has ended");
  verb->callback([&settings, name, wait] { verify(settings, *name, *wait); });
  const auto accept_loss = std::make_shared<bool>(false);
  verb = noun->add_subcommand("start", "Start a set that does not run");
  verb->add_option("SET", *name, "The set's name")->required();
  verb->add_flag("--accept-loss", *accept_loss,
                 "Start without what only a lost journal and missing drives had");
  verb->callback([&settings, name, accept_loss] { start(settings, *name, *accept_loss); });
}

}  // namespace sandbay::cli
