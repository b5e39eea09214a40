// sandbay group show, sandbay group check
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "group/units.h"
#include "tools/commands.h"
#include "tools/progress.h"
#include "tools/table.h"

namespace sandbay::cli {

void print_check(const nlohmann::json& pool) {
  const auto name = pool.at("pool").get<std::string>();
  const nlohmann::json& wrong = pool.at("wrong");
  const bool verified = pool.at("verified").get<bool>();
  if (verified) {
    say("pool {}: {} pages, {} branches, {} snapshots, which keep {} chunks: {}\n", name,
        pool.at("pages").dump(), pool.at("branches").dump(), pool.at("snapshots").dump(),
        pool.at("kept_chunks").dump(),
        wrong.empty() ? std::string("all is well") : fmt::format("{} findings", wrong.size()));
  } else {
    say("pool {}: cannot be verified: {}\n", name, wrong.front().get<std::string>());
  }
  if (pool.at("doubtful_chunks") != 0) {
    say("  {} chunks are in doubt since an older map was accepted: medium errors until written\n",
        pool.at("doubtful_chunks").dump());
  }
  for (std::size_t i = verified ? 0 : 1; i < wrong.size(); ++i) {
    say("  {}\n", wrong[i].get<std::string>());
  }
}

namespace {

using nlohmann::json;

std::string human_uptime(double seconds) {
  const auto total = static_cast<std::uint64_t>(seconds);
  const std::uint64_t days = total / 86400;
  const std::uint64_t hours = total / 3600 % 24;
  const std::uint64_t minutes = total / 60 % 60;
  if (days > 0) return fmt::format("{}d {}h", days, hours);
  if (hours > 0) return fmt::format("{}h {}min", hours, minutes);
  if (minutes > 0) return fmt::format("{}min {}s", minutes, total % 60);
  return fmt::format("{}s", total);
}

void show_group(const Settings& settings) {
  const json group = expect(Client(settings.management).get("/api/v1/group"));
  if (settings.json) return print_json(group);
  std::string portals;
  for (const json& portal : group.at("portals")) {
    if (!portals.empty()) portals += ", ";
    portals += portal.at("listen").get<std::string>();
    const auto advertised = portal.at("advertised").get<std::string>();
    if (!advertised.empty()) portals += fmt::format(" (as {})", advertised);
    if (portal.at("group_tag").get<int>() != 1) {
      portals += fmt::format(" (group {})", portal.at("group_tag").get<int>());
    }
    const auto member = portal.at("member").get<std::string>();
    if (!member.empty()) portals += fmt::format(" (of {})", member);
  }
  fmt::print("{}", facts({
                       {"name", group.at("name").get<std::string>()},
                       {"uuid", group.at("uuid").get<std::string>()},
                       {"version", group.at("version").get<std::string>()},
                       {"state", group.at("state").get<std::string>()},
                       {"portals", portals},
                       {"reactors", group.at("reactors").dump()},
                       {"memory limit", human_size(group.at("memory_limit"))},
                       {"volumes", fmt::format("{}, {} in all", group.at("volumes").dump(),
                                               human_size(group.at("provisioned")))},
                       {"targets", group.at("targets").dump()},
                       {"sessions", group.at("sessions").dump()},
                       {"up for", human_uptime(group.at("uptime").get<double>())},
                   }));
}

void check(Settings& settings) {
  json answer;
  show_time_of("check of all maps", [&] {
    answer = expect(Client(settings.management).post("/api/v1/group/check", json::object()));
  });
  bool right = true;
  for (const json& pool : answer.at("pools")) right = right && pool.at("wrong").empty();
  if (!right) settings.exit_code = 1;
  if (settings.json) return print_json(answer);
  for (const json& pool : answer.at("pools")) print_check(pool);
  if (answer.at("pools").empty()) say("There are no pools.\n");
}

}  // namespace

void add_group_commands(CLI::App& app, Settings& settings) {
  CLI::App* noun =
      app.add_subcommand("group", "The group that the daemon runs: show, check, export, import");
  noun->require_subcommand(1);
  noun->add_subcommand("show", "Show its name, portals and numbers")->callback([&settings] {
    show_group(settings);
  });
  noun->add_subcommand("check", "Verify the maps of all pools; ends with 1 if something is wrong")
      ->callback([&settings] { check(settings); });
  add_export_verbs(*noun, settings);
}

}  // namespace sandbay::cli
