// sandbay session list|drop
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/table.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

// Where a session's connections come from: "192.0.2.7:51110, 192.0.2.7:51112".
std::string peers_of(const json& session) {
  std::string peers;
  for (const json& connection : session.at("connections")) {
    if (!peers.empty()) peers += ", ";
    peers += connection.at("initiator_address").get<std::string>();
  }
  return peers;
}

void list(const Settings& settings) {
  const json answer = expect(Client(settings.management).get("/api/v1/sessions"));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"TSIH", kRight},
               {"INITIATOR"},
               {"TARGET"},
               {"STATE"},
               {"COMMANDS", kRight},
               {"IN FLIGHT", kRight},
               {"FROM"}});
  for (const json& session : answer.at("sessions")) {
    const auto target = session.at("target").get<std::string>();
    table.add({session.at("tsih").dump(), session.at("initiator").get<std::string>(),
               target.empty() ? "(discovery)" : target, session.at("state").get<std::string>(),
               session.at("commands").dump(), session.at("commands_in_flight").dump(),
               peers_of(session)});
  }
  if (table.empty()) {
    fmt::print("No initiator is logged in.\n");
    return;
  }
  fmt::print("{}", table.text());
}

void drop(const Settings& settings, int tsih) {
  expect(Client(settings.management).remove(fmt::format("/api/v1/sessions/{}", tsih)));
  if (!settings.json) fmt::print("session {}: ended\n", tsih);
}

}  // namespace

void add_session_commands(CLI::App& app, Settings& settings) {
  const auto tsih = std::make_shared<int>(0);
  CLI::App* noun = app.add_subcommand("session", "iSCSI sessions: list, drop");
  noun->require_subcommand(1);
  noun->add_subcommand("list", "List all sessions")->callback([&settings] { list(settings); });
  CLI::App* verb = noun->add_subcommand(
      "drop",
      "End a session; its commands are finished or aborted, and most initiators log in "
      "again");
  verb->add_option("TSIH", *tsih, "The session's number, as session list shows it")
      ->required()
      ->check(CLI::Range(1, 65535));
  verb->callback([&settings, tsih] { drop(settings, *tsih); });
}

}  // namespace sandbay::cli
