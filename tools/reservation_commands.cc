// sandbay reservation list|clear
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

std::string path_of(const std::string& volume) {
  return fmt::format("/api/v1/volumes/{}/reservations", Client::escape(volume));
}

void list_reservations(const Settings& settings, const std::string& volume) {
  const json answer = expect(Client(settings.management).get(path_of(volume)));
  if (settings.json) return print_json(answer);
  if (answer.at("reserved_by_reserve").get<bool>()) {
    say("volume {}: reserved with RESERVE, until its holder releases it or logs out\n", volume);
  }
  using enum Table::Align;
  Table table({{"INITIATOR PORT"}, {"TARGET PORT", kRight}, {"KEY"}, {"HOLDER"}});
  for (const json& each : answer.at("registrations")) {
    table.add({text_of(each.at("initiator_port")), each.at("target_port").dump(),
               text_of(each.at("key")), yes_no(each.at("holder").get<bool>())});
  }
  if (table.empty()) return say("volume {}: no initiator is registered\n", volume);
  say("volume {}: reservation: {}; kept over a restart: {}; generation {}\n", volume,
      text_of(answer.at("type")), yes_no(answer.at("kept").get<bool>()),
      answer.at("generation").dump());
  fmt::print("{}", table.text());
}

void clear_reservations(const Settings& settings, const std::string& volume) {
  expect(Client(settings.management).remove(path_of(volume)));
  print_done(settings, fmt::format("volume {}: reservations cleared", volume));
}

}  // namespace

void add_reservation_commands(CLI::App& app, Settings& settings) {
  const auto volume = std::make_shared<std::string>();
  CLI::App* noun = app.add_subcommand("reservation", "SCSI reservations of hosts: list, clear");
  noun->require_subcommand(1);
  CLI::App* verb =
      noun->add_subcommand("list", "Show who is registered at a volume, and who has reserved it");
  verb->add_option("VOLUME", *volume, "The volume")->required()->check(wrong_if_empty);
  verb->callback([&settings, volume] { list_reservations(settings, *volume); });
  verb = noun->add_subcommand("clear", "End every registration and reservation; hosts hear it");
  verb->add_option("VOLUME", *volume, "The volume")->required()->check(wrong_if_empty);
  verb->callback([&settings, volume] { clear_reservations(settings, *volume); });
}

}  // namespace sandbay::cli
