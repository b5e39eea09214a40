// sandbay audit list
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

std::string or_dash(std::string text) { return text.empty() ? "-" : text; }

void list_changes(const Settings& settings, std::uint64_t since) {
  const json answer =
      expect(Client(settings.management).get(fmt::format("/api/v1/audit?since={}", since)));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"NUMBER", kRight}, {"TIME"}, {"WHO"}, {"FROM"}, {"STATUS", kRight}, {"WHAT"}});
  for (const json& change : answer.at("changes")) {
    std::string what = text_of(change.at("target"));
    const std::string request = text_of(change.at("request"));
    if (!request.empty() && request != "{}") what += " " + request;
    const std::string refusal = text_of(change.at("refusal"));
    if (!refusal.empty()) what += ": " + refusal;
    table.add({change.at("number").dump(), text_of(change.at("time")),
               or_dash(text_of(change.at("caller"))), text_of(change.at("address")),
               change.at("status").dump(), what});
  }
  if (table.empty()) {
    say("Nothing was changed{}.\n", since == 0 ? "" : " after that");
    return;
  }
  fmt::print("{}", table.text());
}

}  // namespace

void add_audit_commands(CLI::App& app, Settings& settings) {
  const auto since = std::make_shared<std::uint64_t>(0);
  CLI::App* noun =
      app.add_subcommand("audit", "Requests for changes, with caller and outcome: list");
  noun->require_subcommand(1);
  CLI::App* verb = noun->add_subcommand("list", "List requests for changes, the newest last");
  verb->add_option("--since", *since, "Only those with a greater number")
      ->type_name("NUMBER")
      ->check(wrong_number);
  verb->callback([&settings, since] { list_changes(settings, *since); });
}

}  // namespace sandbay::cli
