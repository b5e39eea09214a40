// sandbay pool list|show|create|delete|discard|accept-older-map, task list, rebalance show
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "group/units.h"
#include "tools/commands.h"
#include "tools/progress.h"
#include "tools/table.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

struct PoolArguments {
  std::string name;
  std::vector<std::string> members;
  std::string page;
  bool sure = false;
};

void list_pools(const Settings& settings) {
  const json answer = expect(Client(settings.management).get(kPools));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"NAME"},
               {"SIZE", kRight},
               {"FREE", kRight},
               {"PROVISIONED", kRight},
               {"VOLUMES", kRight},
               {"MEMBERS"},
               {"STATE"}});
  for (const json& pool : answer.at("pools")) {
    const auto reason = text_of(pool.at("reason"));
    table.add({text_of(pool.at("name")), human_size(pool.at("size")), human_size(pool.at("free")),
               human_size(pool.at("provisioned")), pool.at("volumes").dump(),
               joined(pool.at("members")), reason.empty() ? "open" : reason});
  }
  if (table.empty()) {
    say("There are no pools. Make one: sandbay pool create NAME\n");
    return;
  }
  fmt::print("{}", table.text());
}

void print_stores(const json& pool) {
  using enum Table::Align;
  Table table({{"SET"}, {"MEMBER"}, {"LEVEL"}, {"SIZE", kRight}, {"FREE", kRight}, {"STATE"}});
  for (const json& store : pool.at("stores")) {
    const auto reason = text_of(store.at("reason"));
    table.add({text_of(store.at("set")), text_of(store.at("member")), text_of(store.at("level")),
               human_size(store.at("size")), human_size(store.at("free")),
               reason.empty() ? text_of(store.at("state")) : reason});
  }
  if (!table.empty()) say("\n{}", table.text());
  for (const json& set : pool.at("outside")) {
    say("set {}: no part of the pool: {}\n", text_of(set.at("set")), text_of(set.at("reason")));
  }
}

void show_pool(const Settings& settings, const PoolArguments& arguments) {
  const json pool = expect(Client(settings.management).get(pool_path(arguments.name)));
  if (settings.json) return print_json(pool);
  const json& counters = pool.at("counters");
  const auto reason = text_of(pool.at("reason"));
  say("{}",
      facts({
          {"name", text_of(pool.at("name"))},
          {"state", reason.empty() ? "open" : "not open: " + reason},
          {"size",
           fmt::format("{}, {} free", human_size(pool.at("size")), human_size(pool.at("free")))},
          {"provisioned", fmt::format("{} in {} volumes", human_size(pool.at("provisioned")),
                                      pool.at("volumes").dump())},
          {"snapshots", fmt::format("{}, which keep {}", pool.at("snapshots").dump(),
                                    human_size(pool.at("snapshot_reserve")))},
          {"page", human_size(pool.at("page"))},
          {"block size", pool.at("block_size").dump()},
          {"members", joined(pool.at("members"))},
          {"map", pool.at("map_in_nvram").get<bool>() ? "logged in NVRAM" : "logged in metadata"},
          {"pages",
           fmt::format("{} allocated, {} freed, {} moved", counters.at("pages_allocated").dump(),
                       counters.at("pages_freed").dump(), counters.at("pages_moved").dump())},
          {"uuid", text_of(pool.at("uuid"))},
      }));
  print_stores(pool);
}

void create(const Settings& settings, const PoolArguments& arguments) {
  json body{{"name", arguments.name}};
  if (!arguments.members.empty()) body["members"] = arguments.members;
  if (!arguments.page.empty()) {
    const auto size = group::parse_size(arguments.page);
    if (!size) throw CLI::ValidationError("--page", size.error());
    body["page"] = *size;
  }
  const json pool = expect(Client(settings.management).post(kPools, body));
  if (settings.json) return print_json(pool);
  if (pool.at("members").empty()) {
    say("pool {}: of no member yet; give it one: sandbay member add NAME --pool {}\n",
        arguments.name, arguments.name);
    return;
  }
  say("pool {}: {} of {}\n", arguments.name, human_size(pool.at("size")),
      joined(pool.at("members")));
  for (const json& set : pool.at("outside")) {
    say("set {}: no part of the pool: {}\n", text_of(set.at("set")), text_of(set.at("reason")));
  }
}

void remove_pool(const Settings& settings, const PoolArguments& arguments) {
  expect(Client(settings.management).remove(pool_path(arguments.name)));
  print_done(settings, fmt::format("pool {}: deleted", arguments.name));
}

void discard(Settings& settings, const PoolArguments& arguments) {
  const std::string& name = arguments.name;
  if (!arguments.sure) {
    throw CLI::ValidationError(
        "--yes-lose-data",
        fmt::format("is missing: changes of the map of pool {} would be lost for good", name));
  }
  const json answer = expect(
      Client(settings.management).post(pool_path(name) + "/discard", json{{"confirm", name}}));
  if (!answer.at("check").at("wrong").empty()) settings.exit_code = 1;
  if (settings.json) return print_json(answer);
  say("pool {}: {}; it is open without them\n"
      "What was written since to places that were new is lost. What was unmapped, moved or\n"
      "deleted since may be there again, or show what others have written there: see what is\n"
      "on the volumes before they are used.\n",
      name, text_of(answer.at("reason")));
  for (const json& one : answer.at("missing")) {
    const bool snapshot = text_of(one).find('/') != std::string::npos;
    say("{} {}: nothing is left of it; delete it\n", snapshot ? "snapshot" : "volume",
        text_of(one));
  }
  print_check(answer.at("check"));
}

void accept_older_map(Settings& settings, const PoolArguments& arguments) {
  const std::string& name = arguments.name;
  if (!arguments.sure) {
    throw CLI::ValidationError(
        "--yes-lose-data",
        fmt::format("is missing: all data of pool {} on sets that are newer than its map would be "
                    "lost for good",
                    name));
  }
  const json answer =
      expect(Client(settings.management)
                 .post(pool_path(name) + "/accept-older-map", json{{"confirm", name}}));
  if (!answer.at("check").at("wrong").empty()) settings.exit_code = 1;
  if (settings.json) return print_json(answer);
  say("pool {}: its older map is used\n"
      "Its data on the newer sets are medium errors until they are written in whole chunks of\n"
      "64 KiB, or unmapped.\n",
      name);
  print_check(answer.at("check"));
}

// With a kind, of that kind alone.
void list_tasks(const Settings& settings, const std::string& kind) {
  const json answer = expect(Client(settings.management).get("/api/v1/tasks"));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"KIND"},
               {"POOL"},
               {"OF"},
               {"DONE", kRight},
               {"LEFT", kRight},
               {"TIME LEFT", kRight},
               {"STATE"}});
  for (const json& task : answer.at("tasks")) {
    if (!kind.empty() && text_of(task.at("kind")) != kind) continue;
    const json& seconds = task.at("seconds_left");
    const auto stuck = text_of(task.at("stuck"));
    table.add({text_of(task.at("kind")), text_of(task.at("pool")), text_of(task.at("object")),
               human_size(task.at("done")), human_size(task.at("left")),
               seconds.is_null() ? "-" : fmt::format("{:.0f} s", seconds.get<double>()),
               stuck.empty() ? "under way" : "waits: " + stuck});
  }
  if (table.empty()) {
    say("Nothing is under way.\n");
  } else {
    fmt::print("{}", table.text());
  }
}

}  // namespace

void wait_for_task(const Settings& settings, const std::string& kind, const std::string& object) {
  const Client client(settings.management);
  Progress progress;
  for (;;) {
    const json answer = expect(client.get("/api/v1/tasks"));
    const json* found = nullptr;
    for (const json& task : answer.at("tasks")) {
      if (task.at("kind") == kind && task.at("object") == object) found = &task;
    }
    if (found == nullptr) return;
    const auto done = found->at("done").get<double>();
    const auto all = done + found->at("left").get<double>();
    const auto stuck = text_of(found->at("stuck"));
    progress.update(stuck.empty() ? fmt::format("{} of {}", kind, object)
                                  : fmt::format("{} of {} waits: {}", kind, object, stuck),
                    all == 0 ? 0 : done / all);
    std::this_thread::sleep_for(kLookEvery);
  }
}

void add_task_commands(CLI::App& app, Settings& settings) {
  CLI::App* noun = app.add_subcommand("task", "What goes on in the background: list");
  noun->require_subcommand(1);
  noun->add_subcommand("list", "List it, with how much is done and left")->callback([&settings] {
    list_tasks(settings, "");
  });
  noun = app.add_subcommand("rebalance", "The spreading of pages over a pool's sets: show");
  noun->require_subcommand(1);
  noun->add_subcommand("show", "Show how far it is")->callback([&settings] {
    list_tasks(settings, "balance");
  });
}

void add_pool_commands(CLI::App& app, Settings& settings) {
  const auto a = std::make_shared<PoolArguments>();
  CLI::App* noun =
      app.add_subcommand("pool", "Pools of pages: list, show, create, delete, discard");
  noun->require_subcommand(1);
  noun->add_subcommand("list", "List all pools")->callback([&settings] { list_pools(settings); });

  CLI::App* verb = noun->add_subcommand("show", "Show one pool and its sets");
  verb->add_option("NAME", a->name)->required();
  verb->callback([&settings, a] { show_pool(settings, *a); });

  verb = noun->add_subcommand("create", "Make a pool of the free sets of its members");
  verb->add_option("NAME", a->name, "Letters, digits, dots, dashes and underscores")->required();
  verb->add_option("--members", a->members, "Its members, with commas; the first of the file")
      ->delimiter(',')
      ->type_name("NAMES");
  verb->add_option("--page", a->page, "The size of its pages, 1MiB to 64MiB; 15MiB otherwise")
      ->type_name("SIZE");
  verb->callback([&settings, a] { create(settings, *a); });

  verb = noun->add_subcommand("delete", "Delete a pool that has no volumes");
  verb->add_option("NAME", a->name)->required();
  verb->callback([&settings, a] { remove_pool(settings, *a); });

  verb = noun->add_subcommand(
      "discard", "Open a pool without the changes of its map that are lost with an NVRAM");
  verb->add_option("NAME", a->name)->required();
  verb->add_flag("--yes-lose-data", a->sure, "Yes, they are to be lost for good");
  verb->callback([&settings, a] { discard(settings, *a); });

  verb = noun->add_subcommand("accept-older-map",
                              "Use a map that is older than the pool's sets, and lose their data");
  verb->add_option("NAME", a->name)->required();
  verb->add_flag("--yes-lose-data", a->sure,
                 "Yes, the pool's data on newer sets are lost for good");
  verb->callback([&settings, a] { accept_older_map(settings, *a); });
}

}  // namespace sandbay::cli
