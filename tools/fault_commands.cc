// sandbay fault add|list|clear, sandbay event list
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/commands.h"
#include "tools/table.h"
#include "tools/whole_number.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

constexpr const char* kFaults = "/api/v1/faults";

// A rule may come as one argument or as its words.
void add(const Settings& settings, const std::vector<std::string>& words) {
  std::string rule;
  for (const std::string& word : words) rule += (rule.empty() ? "" : " ") + word;
  const json added = expect(Client(settings.management).post(kFaults, {{"rule", rule}}));
  if (settings.json) return print_json(added);
  say("fault {}: {}\n", text_of(added.at("id")), text_of(added.at("rule")));
}

void list_faults(const Settings& settings) {
  const json answer = expect(Client(settings.management).get(kFaults));
  if (settings.json) return print_json(answer);
  if (!answer.at("enabled").get<bool>()) {
    say("Faults are not enabled; see [faults] in sandbayd.toml(5) and sandbay-faults(7).\n");
    return;
  }
  using enum Table::Align;
  Table table(
      {{"ID"}, {"ACTIVE"}, {"MATCHED", kRight}, {"FIRED", kRight}, {"STRUCK", kRight}, {"RULE"}});
  for (const json& fault : answer.at("faults")) {
    table.add({text_of(fault.at("id")), yes_no(fault.at("active").get<bool>()),
               fault.at("matched").dump(), fault.at("fired").dump(), fault.at("struck").dump(),
               text_of(fault.at("rule"))});
  }
  if (table.empty()) {
    say("There are no fault rules.\n");
    return;
  }
  fmt::print("{}", table.text());
}

void clear(const Settings& settings, const std::string& id) {
  const std::string path = id.empty() ? kFaults : fmt::format("{}/{}", kFaults, Client::escape(id));
  expect(Client(settings.management).remove(path));
  if (settings.json) return print_json({{"done", true}});
  if (id.empty()) {
    say("all faults: cleared\n");
  } else {
    say("fault {}: cleared\n", id);
  }
}

void list_events(const Settings& settings, std::uint64_t since) {
  const json answer =
      expect(Client(settings.management).get(fmt::format("/api/v1/events?since={}", since)));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"NUMBER", kRight}, {"TIME"}, {"SEVERITY"}, {"KIND"}, {"TEXT"}});
  for (const json& event : answer.at("events")) {
    table.add({event.at("number").dump(), text_of(event.at("time")), text_of(event.at("severity")),
               text_of(event.at("kind")), text_of(event.at("text"))});
  }
  if (table.empty()) {
    say("There are no events{}.\n", since == 0 ? "" : " after that one");
    return;
  }
  fmt::print("{}", table.text());
}

}  // namespace

void add_fault_commands(CLI::App& app, Settings& settings) {
  const auto words = std::make_shared<std::vector<std::string>>();
  const auto id = std::make_shared<std::string>();
  CLI::App* noun = app.add_subcommand("fault", "Faults on command: add, list, clear");
  noun->require_subcommand(1);
  CLI::App* verb = noun->add_subcommand(
      "add", "Add a fault rule, such as: at=drive:d3 do=fail; see sandbay-faults(7)");
  verb->add_option("RULE", *words, "The words of the rule")->required();
  verb->callback([&settings, words] { add(settings, *words); });
  noun->add_subcommand("list", "List all rules and what they have done")->callback([&settings] {
    list_faults(settings);
  });
  verb = noun->add_subcommand(
      "clear", "Clear a rule, or all of them: what they do ends, damage to data stays");
  verb->add_option("ID", *id, "The rule's id, as fault list shows it; all if left out");
  verb->callback([&settings, id] { clear(settings, *id); });
}

void add_event_commands(CLI::App& app, Settings& settings) {
  const auto since = std::make_shared<std::uint64_t>(0);
  CLI::App* noun = app.add_subcommand("event", "What happened to drives and sets: list");
  noun->require_subcommand(1);
  CLI::App* verb = noun->add_subcommand("list", "List events, the newest last");
  verb->add_option("--since", *since, "Only those with a greater number")
      ->type_name("NUMBER")
      ->check(wrong_number);
  verb->callback([&settings, since] { list_events(settings, *since); });
}

}  // namespace sandbay::cli
