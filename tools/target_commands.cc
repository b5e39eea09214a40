// sandbay target list|show
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/table.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

void list_targets(const Settings& settings) {
  const json answer = expect(Client(settings.management).get("/api/v1/targets"));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"TARGET"}, {"LUNS", kRight}, {"ACCESS RECORDS", kRight}, {"SESSIONS", kRight}});
  for (const json& target : answer.at("targets")) {
    table.add({target.at("name").get<std::string>(), fmt::format("{}", target.at("luns").size()),
               fmt::format("{}", target.at("access").size()), target.at("sessions").dump()});
  }
  if (table.empty()) {
    say("There are no targets. A volume brings one: sandbay volume create NAME --size "
        "10GiB\n");
    return;
  }
  fmt::print("{}", table.text());
}

void print_target(const json& target) {
  const auto text = [&](const char* key) { return target.at(key).get<std::string>(); };
  std::string groups;
  for (const json& tag : target.at("portal_groups")) {
    groups += (groups.empty() ? "" : ", ") + tag.dump();
  }
  std::string redirect = text("redirect");
  if (!redirect.empty()) {
    redirect += target.at("redirect_permanent").get<bool>() ? " (permanently)" : " (temporarily)";
  }
  std::vector<std::pair<std::string, std::string>> list{
      {"name", text("name")},
      {"alias", text("alias")},
      {"portal groups", groups.empty() ? "all" : groups},
      {"mutual chap", text("mutual_chap_user")},
      {"redirects to", redirect},
      {"queue depth", target.at("queue_depth").dump()},
      {"sessions", fmt::format("{} of at most {}", target.at("sessions").dump(),
                               target.at("maximum_sessions").dump())},
      {"exclusive", yes_no(target.at("exclusive").get<bool>())},
      {"declared", target.at("declared").get<bool>() ? "in the configuration file" : "no"},
  };
  for (const auto& [key, value] : target.at("keys").items()) {
    list.emplace_back("key " + key, value.get<std::string>());
  }
  for (const json& unit : target.at("luns")) {
    list.emplace_back("lun " + unit.at("lun").dump(), unit.at("volume").get<std::string>());
  }
  fmt::print("{}", facts(list));
}

void show_target(const Settings& settings, const std::string& name) {
  if (name.empty()) throw CLI::ValidationError("IQN", "is empty; write a target's name");
  const std::string path = "/api/v1/targets/" + Client::escape(name);
  const json target = expect(Client(settings.management).get(path));
  if (settings.json) return print_json(target);
  print_target(target);
}

}  // namespace

void add_target_commands(CLI::App& app, Settings& settings) {
  const auto name = std::make_shared<std::string>();
  CLI::App* noun = app.add_subcommand("target", "iSCSI targets: list, show");
  noun->require_subcommand(1);
  noun->add_subcommand("list", "List all targets")->callback([&settings] {
    list_targets(settings);
  });
  CLI::App* verb = noun->add_subcommand("show", "Show one target, its LUNs and settings");
  verb->add_option("IQN", *name)->required();
  verb->callback([&settings, name] { show_target(settings, *name); });
}

}  // namespace sandbay::cli
