// sandbay portal list|advertise|state
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/table.h"
#include "tools/whole_number.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

constexpr const char* kPortals = "/api/v1/portals";

void list_portals(const Settings& settings) {
  const json answer = expect(Client(settings.management).get(kPortals));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"PORTAL"},
               {"ADVERTISED"},
               {"TAG", kRight},
               {"STATE"},
               {"MEMBER"},
               {"CONNECTIONS", kRight}});
  for (const json& portal : answer.at("portals")) {
    table.add({text_of(portal.at("listen")), text_of(portal.at("advertised")),
               portal.at("group_tag").dump(), text_of(portal.at("access_state")),
               text_of(portal.at("member")), portal.at("connections").dump()});
  }
  fmt::print("{}", table.text());
}

void advertise(const Settings& settings, const std::string& portal, const std::string& address) {
  if (portal.empty()) throw CLI::ValidationError("PORTAL", "is empty; write a portal's address");
  const std::string path = fmt::format("{}/{}", kPortals, Client::escape(portal));
  const json changed = expect(Client(settings.management).patch(path, {{"advertised", address}}));
  if (settings.json) return print_json(changed);
  const std::string now = text_of(changed.at("advertised"));
  say("portal {}: discovery names {} until the daemon ends\n", portal,
      now == "auto" ? "the address that an initiator has reached"
      : now.empty() ? "where it listens"
                    : now.c_str());
}

void set_state(const Settings& settings, int tag, const std::string& state) {
  const std::string path = fmt::format("/api/v1/portal-groups/{}/access-state", tag);
  const json changed = expect(Client(settings.management).post(path, {{"state", state}}));
  if (settings.json) return print_json(changed);
  say("portal group {}: {} until the daemon ends or a host sets another\n", tag, state);
}

}  // namespace

void add_portal_commands(CLI::App& app, Settings& settings) {
  const auto portal = std::make_shared<std::string>();
  const auto address = std::make_shared<std::string>();
  CLI::App* noun = app.add_subcommand("portal", "Portals: list, advertise, state");
  noun->require_subcommand(1);
  noun->add_subcommand("list", "List all portals")->callback([&settings] {
    list_portals(settings);
  });
  CLI::App* verb = noun->add_subcommand("advertise", "Change what discovery names for a portal");
  verb->add_option("PORTAL", *portal, "Where it listens, as portal list shows it")->required();
  verb->add_option("ADDRESS", *address,
                   "An address such as 192.0.2.1:3260, auto for the one that an initiator has "
                   "reached, or none for where it listens")
      ->required();
  verb->callback([&settings, portal, address] { advertise(settings, *portal, *address); });
  const auto tag = std::make_shared<int>(0);
  const auto state = std::make_shared<std::string>();
  verb = noun->add_subcommand("state",
                              "Set the asymmetric access state of a portal group, as ALUA has it");
  verb->add_option("TAG", *tag, "The group's tag, as portal list shows it")
      ->required()
      ->check(CLI::Range(1, 65535));
  verb->add_option("STATE", *state,
                   "active/optimized, active/non-optimized, standby, unavailable or transitioning")
      ->required()
      ->check(wrong_if_empty);
  verb->callback([&settings, tag, state] { set_state(settings, *tag, *state); });
}

}  // namespace sandbay::cli
