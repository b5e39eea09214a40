// sandbay reservation list|clear|lose
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

struct Unit {
  std::string volume;
  std::string snapshot;  // Empty: the volume itself.

  std::string path() const {
    std::string text = "/api/v1/volumes/" + Client::escape(volume);
    if (!snapshot.empty()) text += "/snapshots/" + Client::escape(snapshot);
    return text + "/reservations";
  }
  std::string name() const {
    return snapshot.empty() ? fmt::format("volume {}", volume)
                            : fmt::format("snapshot {} of volume {}", snapshot, volume);
  }
};

void list_reservations(const Settings& settings, const Unit& unit) {
  const json answer = expect(Client(settings.management).get(unit.path()));
  if (settings.json) return print_json(answer);
  const std::string holder = text_of(answer.at("reserved_by"));
  if (!holder.empty()) {
    say("{}: reserved by {} with RESERVE, until it releases it or its session ends\n", unit.name(),
        holder);
  }
  if (answer.at("lost").get<bool>()) {
    say("{}: its reservations are lost; a host replaces them with REPLACE LOST RESERVATION, or "
        "clear "
        "them\n",
        unit.name());
  }
  using enum Table::Align;
  Table table({{"INITIATOR PORT"}, {"TARGET PORT", kRight}, {"KEY"}, {"HOLDER"}});
  for (const json& each : answer.at("registrations")) {
    table.add({text_of(each.at("initiator_port")), each.at("target_port").dump(),
               text_of(each.at("key")), yes_no(each.at("holder").get<bool>())});
  }
  if (table.empty()) return say("{}: no initiator is registered\n", unit.name());
  say("{}: reservation: {}; kept over a restart: {}; generation {}\n", unit.name(),
      text_of(answer.at("type")), yes_no(answer.at("kept").get<bool>()),
      answer.at("generation").dump());
  fmt::print("{}", table.text());
}

void clear_reservations(const Settings& settings, const Unit& unit) {
  expect(Client(settings.management).remove(unit.path()));
  print_done(settings, fmt::format("{}: reservations cleared", unit.name()));
}

void lose_reservations(const Settings& settings, const Unit& unit) {
  expect(Client(settings.management).post(unit.path() + "/lose", json::object()));
  print_done(settings, fmt::format("{}: reservations lost", unit.name()));
}

void add_unit(CLI::App& verb, Unit& unit) {
  verb.add_option("VOLUME", unit.volume, "The volume")->required()->check(wrong_if_empty);
  verb.add_option("SNAPSHOT", unit.snapshot, "A snapshot of it that is online, instead")
      ->check(wrong_if_empty);
}

}  // namespace

void add_reservation_commands(CLI::App& app, Settings& settings) {
  const auto unit = std::make_shared<Unit>();
  CLI::App* noun =
      app.add_subcommand("reservation", "SCSI reservations of hosts: list, clear, lose");
  noun->require_subcommand(1);
  CLI::App* verb =
      noun->add_subcommand("list", "Show who is registered at a volume, and who has reserved it");
  add_unit(*verb, *unit);
  verb->callback([&settings, unit] { list_reservations(settings, *unit); });
  verb = noun->add_subcommand("clear", "End every registration and reservation; hosts hear it");
  add_unit(*verb, *unit);
  verb->callback([&settings, unit] { clear_reservations(settings, *unit); });
  verb = noun->add_subcommand(
      "lose", "Lose those that outlive the daemon, as a failed memory would, for tests");
  add_unit(*verb, *unit);
  verb->callback([&settings, unit] { lose_reservations(settings, *unit); });
}

}  // namespace sandbay::cli
