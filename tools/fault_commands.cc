// sandbay fault add|list|show|enable|disable|release|heal|clear|journal|preset|kinds|places, and
// sandbay event list
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tools/commands.h"
#include "tools/fault_presets.h"
#include "tools/fault_rules.h"
#include "tools/table.h"
#include "tools/whole_number.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

constexpr const char* kFaults = "/api/v1/faults";

void say_fault(const json& fault) {
  say("fault {}: {}\n", text_of(fault.at("id")), text_of(fault.at("rule")));
}

// A rule may come as one argument or as its words.
void add(const Settings& settings, const std::vector<std::string>& words) {
  std::string rule;
  for (const std::string& word : words) rule += (rule.empty() ? "" : " ") + word;
  const json added = expect(Client(settings.management).post(kFaults, {{"rule", rule}}));
  if (settings.json) return print_json(added);
  say_fault(added);
}

void add_preset(const Settings& settings, const std::vector<std::string>& rules, bool only_show) {
  if (only_show) {
    if (settings.json) return print_json({{"rules", rules}});
    for (const std::string& rule : rules) fmt::print("{}\n", rule);
    return;
  }
  const json added =
      expect(Client(settings.management).post("/api/v1/fault-sets", {{"rules", rules}}));
  if (settings.json) return print_json(added);
  for (const json& fault : added.at("faults")) say_fault(fault);
}

void add_file(const Settings& settings, const std::string& file) {
  const auto rules = rules_in(file);
  if (!rules) throw Failure(rules.error());
  if (rules->empty()) throw Failure(fmt::format("{}: has no rules; write one a line", file));
  json texts = json::array();
  for (const FaultRule& rule : *rules) texts.push_back(rule.text);
  const auto added =
      Client(settings.management).post("/api/v1/fault-sets", {{"rules", std::move(texts)}});
  if (!added) throw Failure(in_file(*rules, added.error().message), added.error().exit);
  if (settings.json) return print_json(*added);
  for (const json& fault : added->at("faults")) say_fault(fault);
}

// As `add --file` reads it.
void write_file(const std::string& file, const std::string& head, const json& rules) {
  std::ofstream stream(file);
  stream << head;
  for (const json& rule : rules) stream << rule.get<std::string>() << '\n';
  stream.close();
  if (!stream) throw Failure(fmt::format("{}: cannot be written", file));
}

void list_faults(const Settings& settings, const std::string& file) {
  const json answer = expect(Client(settings.management).get(kFaults));
  if (!file.empty() && answer.at("enabled").get<bool>()) {
    json rules = json::array();
    for (const json& fault : answer.at("faults")) rules.push_back(fault.at("rule"));
    write_file(file, "", rules);
  }
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

std::string path_of(const std::string& id) {
  return fmt::format("{}/{}", kFaults, Client::escape(id));
}

void show(const Settings& settings, const std::string& id) {
  const json fault = expect(Client(settings.management).get(path_of(id)));
  if (settings.json) return print_json(fault);
  fmt::print("{}", facts({{"id", text_of(fault.at("id"))},
                          {"rule", text_of(fault.at("rule"))},
                          {"enabled", yes_no(fault.at("enabled").get<bool>())},
                          {"active", yes_no(fault.at("active").get<bool>())},
                          {"held", fault.at("held").dump()},
                          {"matched", fault.at("matched").dump()},
                          {"fired", fault.at("fired").dump()},
                          {"struck", fault.at("struck").dump()},
                          {"spared", fault.at("spared").dump()}}));
}

// `verb`: enable, disable or release.
void change(const Settings& settings, const std::string& id, const std::string& verb) {
  const json answer =
      expect(Client(settings.management).post(path_of(id) + "/" + verb, json::object()));
  if (settings.json) return print_json(answer);
  if (verb != "release") return say("fault {}: {}d\n", id, verb);
  say("fault {}: released {} operations\n", id, answer.at("released").dump());
}

void heal(const Settings& settings, const std::string& drive) {
  const json healed = expect(Client(settings.management).post(path_of("heal"), {{"drive", drive}}));
  if (settings.json) return print_json(healed);
  say("drive {}: healed\n", drive);
}

void list_firings(const Settings& settings, std::uint64_t since) {
  const json answer =
      expect(Client(settings.management).get(fmt::format("/api/v1/fault-journal?since={}", since)));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"NUMBER", kRight},
               {"TIME"},
               {"RULE"},
               {"FAULT"},
               {"TARGET"},
               {"OPERATION", kRight},
               {"BLOCKS"},
               {"EFFECT"}});
  for (const json& firing : answer.at("firings")) {
    const bool has_blocks = firing.at("blocks") != 0;
    table.add(
        {firing.at("number").dump(), text_of(firing.at("time")), text_of(firing.at("rule")),
         text_of(firing.at("fault")), text_of(firing.at("target")),
         firing.at("operation") == 0 ? "-" : firing.at("operation").dump(),
         has_blocks ? firing.at("first_block").dump() + "+" + firing.at("blocks").dump() : "-",
         text_of(firing.at("effect"))});
  }
  if (table.empty()) return say("No rule has had an effect{}.\n", since == 0 ? "" : " since");
  fmt::print("{}", table.text());
}

// All that has fired, as rules that do the same to the same operations.
void write_replay(const Settings& settings, const std::string& file) {
  const json replay = expect(Client(settings.management).get("/api/v1/fault-replay"));
  const bool complete = replay.at("complete").get<bool>();
  const bool timed = std::ranges::any_of(replay.at("rules"), [](const json& rule) {
    return rule.get<std::string>().find(" from=") != std::string::npos;
  });
  std::string head =
      fmt::format("# For [faults] of a daemon with seed = {}: the rules count from its start.\n",
                  replay.at("seed").dump());
  if (timed)
    head += "# from= says when a rule was added: operations have to come at those times.\n";
  if (!complete) head += "# Not all that fired can be said by rules.\n";
  write_file(file, head, replay.at("rules"));
  if (settings.json) return print_json(replay);
  say("{}: {} rules{}\n", file, replay.at("rules").size(), complete ? "" : ", not all that fired");
}

std::string joined(const json& texts) {
  std::string line;
  for (const json& text : texts) line += (line.empty() ? "" : " ") + text_of(text);
  return line;
}

// All, or what the manual says about one.
void list_kinds(const Settings& settings, const std::string& name) {
  json answer = expect(Client(settings.management).get("/api/v1/fault-kinds"));
  json& kinds = answer.at("kinds");
  if (!name.empty()) {
    kinds.erase(std::remove_if(kinds.begin(), kinds.end(),
                               [&](const json& kind) { return kind.at("fault") != name; }),
                kinds.end());
    if (kinds.empty()) {
      throw Failure(fmt::format("there is no fault {}; sandbay fault kinds lists them", name),
                    Exit::kNotFound);
    }
  }
  if (settings.json) return print_json(answer);
  if (!name.empty()) {
    const json& kind = kinds[0];
    fmt::print("{}\n", text_of(kind.at("about")));
    fmt::print("{}", facts({{"manner", text_of(kind.at("manner"))},
                            {"places", joined(kind.at("places"))},
                            {"words", joined(kind.at("words"))}}));
    return;
  }
  Table table({{"FAULT"}, {"MANNER"}, {"PLACES"}, {"WORDS"}});
  for (const json& kind : answer.at("kinds")) {
    table.add({text_of(kind.at("fault")), text_of(kind.at("manner")), joined(kind.at("places")),
               joined(kind.at("words"))});
  }
  fmt::print("{}", table.text());
}

void list_places(const Settings& settings) {
  const json answer = expect(Client(settings.management).get("/api/v1/fault-places"));
  if (settings.json) return print_json(answer);
  for (const json& place : answer.at("places")) fmt::print("{}\n", text_of(place));
}

void clear(const Settings& settings, const std::string& id) {
  const std::string path = id.empty() ? kFaults : path_of(id);
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

void add_preset_commands(CLI::App& noun, Settings& settings) {
  struct Arguments {
    std::string volume;
    std::string blocks;
    FlakyPreset flaky;
    DelayPreset delay;
    bool show = false;
  };
  const auto a = std::make_shared<Arguments>();
  CLI::App* const preset = noun.add_subcommand(
      "preset", "Rules that do to a volume what dm-flakey, dm-dust, dm-delay and dm-error do");
  preset->require_subcommand(1);
  CLI::App* verb = nullptr;
  const auto kind = [&](const char* name, const char* help, auto rules) {
    verb = preset->add_subcommand(name, help);
    verb->add_option("VOLUME", a->volume, "The volume")->required()->check(wrong_if_empty);
    verb->add_flag("--show", a->show, "Print the rules and add none");
    verb->callback([&settings, a, rules] { add_preset(settings, rules(*a), a->show); });
  };
  kind("flaky", "It works for a time, fails for a time, and so on",
       [](const Arguments& given) { return flaky_rules(given.volume, given.flaky); });
  verb->add_option("--up", a->flaky.up, "How long it works")
      ->type_name("TIME")
      ->capture_default_str();
  verb->add_option("--down", a->flaky.down, "How long it fails")
      ->type_name("TIME")
      ->capture_default_str();
  CLI::Option* const drop = verb->add_flag("--drop-writes", a->flaky.drop_writes,
                                           "While it fails, writes are lost and reads served");
  verb->add_flag("--error-writes", a->flaky.error_writes,
                 "While it fails, writes fail and reads are served")
      ->excludes(drop);
  kind("dust", "Some blocks cannot be read until they have been written",
       [](const Arguments& given) {
         const auto now = std::chrono::system_clock::now().time_since_epoch().count();
         return dust_rules(given.volume, given.blocks, fmt::format("{:x}", now));
       });
  verb->add_option("--blocks", a->blocks, "Which, such as 4096-4100,5000")
      ->required()
      ->type_name("BLOCKS");
  kind("delay", "Its operations are late",
       [](const Arguments& given) { return delay_rules(given.volume, given.delay); });
  verb->add_option("--read", a->delay.read, "How late reads are")->type_name("TIME");
  verb->add_option("--write", a->delay.write, "How late writes are")->type_name("TIME");
  verb->add_option("--flush", a->delay.flush, "How late flushes are")->type_name("TIME");
  kind("error", "All its operations fail",
       [](const Arguments& given) { return error_rules(given.volume); });
}

}  // namespace

void add_fault_commands(CLI::App& app, Settings& settings) {
  struct Arguments {
    std::vector<std::string> words;
    std::string file;
    std::string name;
    std::uint64_t since = 0;
  };
  const auto a = std::make_shared<Arguments>();
  CLI::App* const noun = app.add_subcommand("fault", "Faults on command: add, list, show, clear …");
  noun->require_subcommand(1);
  CLI::App* verb = noun->add_subcommand(
      "add", "Add a fault rule, such as: at=drive:d3 do=fail; see sandbay-faults(7)");
  CLI::Option* const words = verb->add_option("RULE", a->words, "The words of the rule");
  verb->add_option("--file", a->file, "All rules of a file, one a line; none if one is wrong")
      ->check(wrong_if_empty)
      ->excludes(words);
  verb->callback([&settings, a] {
    if (!a->file.empty()) return add_file(settings, a->file);
    if (a->words.empty()) throw CLI::RequiredError("RULE or --file");
    add(settings, a->words);
  });
  verb = noun->add_subcommand("list", "List all rules and what they have done");
  verb->add_option("--file", a->file, "Write the rules to a file, too, as add --file reads them")
      ->check(wrong_if_empty);
  verb->callback([&settings, a] { list_faults(settings, a->file); });
  const auto of_rule = [&](const char* name, const char* help, auto act) {
    verb = noun->add_subcommand(name, help);
    verb->add_option("ID", a->name, "The rule's id, as fault list shows it")
        ->required()
        ->check(wrong_if_empty);
    verb->callback([&settings, a, act] { act(settings, a->name); });
  };
  of_rule("show", "Show a rule and what it has done", show);
  for (const auto& [name, help] :
       {std::pair{"enable", "Enable a rule that is disabled"},
        std::pair{"disable", "Disable a rule: what it does ends"},
        std::pair{"release", "Let the operations go on that a rule holds"}}) {
    of_rule(name, help, [name](const Settings& s, const std::string& id) { change(s, id, name); });
  }
  verb =
      noun->add_subcommand("heal", "Take the damage away that rules have done to a drive's data");
  verb->add_option("DRIVE", a->name, "The drive's name")->required();
  verb->callback([&settings, a] { heal(settings, a->name); });
  verb = noun->add_subcommand(
      "clear", "Clear a rule, or all of them: what they do ends, damage to data stays");
  verb->add_option("ID", a->name, "The rule's id, as fault list shows it; all if left out")
      ->check(wrong_if_empty);
  verb->callback([&settings, a] { clear(settings, a->name); });
  verb = noun->add_subcommand("journal", "List the latest effects of rules, the newest last");
  CLI::Option* const since =
      verb->add_option("--since", a->since, "Only those with a greater number")
          ->type_name("NUMBER")
          ->check(wrong_number);
  verb->add_option("--file", a->file, "Write what fired to a file of rules that do it again")
      ->check(wrong_if_empty)
      ->excludes(since);
  verb->callback([&settings, a] {
    if (!a->file.empty()) return write_replay(settings, a->file);
    list_firings(settings, a->since);
  });
  add_preset_commands(*noun, settings);
  verb = noun->add_subcommand("kinds", "List the faults and their words, or explain one");
  verb->add_option("FAULT", a->name, "As do= names it")->check(wrong_if_empty);
  verb->callback([&settings, a] { list_kinds(settings, a->name); });
  noun->add_subcommand("places", "List what a rule may name after at=")->callback([&settings] {
    list_places(settings);
  });
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
