// sandbay session list|drop|negotiate
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/table.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

// Where a session's connections come from, and with more than one their CIDs; and whose portal they
// came to: "192.0.2.7:51110", "192.0.2.7:51110 (CID 0, array2), 192.0.2.7:51112 (CID 1, array1)".
std::string peers_of(const json& session) {
  std::string peers;
  for (const json& connection : session.at("connections")) {
    if (!peers.empty()) peers += ", ";
    peers += connection.at("initiator_address").get<std::string>();
    std::string more;
    if (session.at("connections").size() > 1) {
      more = fmt::format("CID {}", connection.at("cid").get<int>());
    }
    const auto member = connection.at("member").get<std::string>();
    if (!member.empty()) more += (more.empty() ? "" : ", ") + member;
    if (!more.empty()) peers += fmt::format(" ({})", more);
  }
  return peers;
}

void list_sessions(const Settings& settings) {
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
    say("No initiator is logged in.\n");
    return;
  }
  fmt::print("{}", table.text());
}

struct DropRequest {
  int tsih = 0;
  int cid = -1;  // -1: the whole session.
  int logout_seconds = 0;
};

void drop(const Settings& settings, const DropRequest& request) {
  std::string path = fmt::format("/api/v1/sessions/{}", request.tsih);
  if (request.cid >= 0) path += fmt::format("/connections/{}", request.cid);
  if (request.logout_seconds > 0) path += fmt::format("?logout_request={}", request.logout_seconds);
  expect(Client(settings.management).remove(path));
  print_done(settings, request.cid < 0 ? fmt::format("session {}: ended", request.tsih)
                                       : fmt::format("session {}, connection {}: ended",
                                                     request.tsih, request.cid));
}

void negotiate(const Settings& settings, int tsih, int seconds) {
  const std::string path =
      fmt::format("/api/v1/sessions/{}/negotiation-request?within={}", tsih, seconds);
  expect(Client(settings.management).post(path, json::object()));
  print_done(settings, fmt::format("session {}: asked to negotiate", tsih));
}

CLI::Option* add_tsih(CLI::App& verb, int& tsih) {
  return verb.add_option("TSIH", tsih, "The session's number, as session list shows it")
      ->required()
      ->check(CLI::Range(1, 65535));
}

}  // namespace

void add_session_commands(CLI::App& app, Settings& settings) {
  const auto request = std::make_shared<DropRequest>();
  CLI::App* noun = app.add_subcommand("session", "iSCSI sessions: list, drop, negotiate");
  noun->require_subcommand(1);
  noun->add_subcommand("list", "List all sessions")->callback([&settings] {
    list_sessions(settings);
  });
  CLI::App* verb = noun->add_subcommand(
      "drop",
      "End a session; its commands are finished or aborted, and most initiators log in "
      "again");
  add_tsih(*verb, request->tsih);
  verb->add_option("--connection", request->cid, "Only the connection with this CID")
      ->type_name("CID")
      ->check(CLI::Range(0, 65535));
  verb->add_option("--logout-request", request->logout_seconds,
                   "Ask the initiator to log out first, and give it so long")
      ->type_name("SECONDS")
      ->check(CLI::Range(1, 300));
  verb->callback([&settings, request] { drop(settings, *request); });

  const auto tsih = std::make_shared<int>(0);
  const auto seconds = std::make_shared<int>(15);
  verb = noun->add_subcommand("negotiate",
                              "Ask the initiator to negotiate the session's text parameters anew");
  add_tsih(*verb, *tsih);
  verb->add_option("--within", *seconds, "So long it has for it; 15 if left out")
      ->type_name("SECONDS")
      ->check(CLI::Range(1, 300));
  verb->callback([&settings, tsih, seconds] { negotiate(settings, *tsih, *seconds); });
}

}  // namespace sandbay::cli
