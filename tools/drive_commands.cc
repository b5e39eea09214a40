// sandbay drive list|show|fail|replace|erase
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/table.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

constexpr const char* kDrives = "/api/v1/drives";

std::string drive_path(const std::string& drive) {
  return fmt::format("{}/{}", kDrives, Client::escape(drive));
}

// "raid50:3", or what it is a spare of.
std::string set_and_role(const json& drive) {
  const std::string set = text_of(drive.at("set"));
  if (drive.at("role").is_null()) return set.empty() ? "-" : set;
  return fmt::format("{}:{}", set, drive.at("role").dump());
}

void list_drives(const Settings& settings) {
  const json answer = expect(Client(settings.management).get(kDrives));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"NAME"},
               {"SIZE", kRight},
               {"USE"},
               {"SET:ROLE"},
               {"HEALTH"},
               {"READS", kRight},
               {"WRITES", kRight},
               {"ERRORS", kRight},
               {"NOTE"}});
  for (const json& drive : answer.at("drives")) {
    const json& counters = drive.at("counters");
    const auto errors = counters.at("medium_errors").get<std::uint64_t>() +
                        counters.at("other_errors").get<std::uint64_t>() +
                        counters.at("timeouts").get<std::uint64_t>();
    std::string note = text_of(drive.at("why"));
    const auto stale = drive.at("stale_regions").get<std::uint64_t>();
    if (note.empty() && stale > 0) note = fmt::format("{} regions stale", stale);
    table.add({text_of(drive.at("name")), human_size(drive.at("size")), text_of(drive.at("use")),
               set_and_role(drive), text_of(drive.at("health")), counters.at("reads").dump(),
               counters.at("writes").dump(), fmt::format("{}", errors), note});
  }
  if (table.empty()) {
    say("There are no drives; see [[drive]] in sandbayd.toml(5).\n");
    return;
  }
  fmt::print("{}", table.text());
}

std::string modelled(const json& drive) {
  if (drive.at("profile") == "") return "";
  return fmt::format("{:.3f} s at work, {} in its queue", drive.at("modelled_busy").get<double>(),
                     drive.at("modelled_queue").dump());
}

void print_drive(const json& drive) {
  const json& counters = drive.at("counters");
  fmt::print("{}", facts({
                       {"name", text_of(drive.at("name"))},
                       {"use", text_of(drive.at("use"))},
                       {"set and role", set_and_role(drive)},
                       {"health", text_of(drive.at("health"))},
                       {"why", text_of(drive.at("why"))},
                       {"size", fmt::format("{} in blocks of {}", human_size(drive.at("size")),
                                            drive.at("block_size").dump())},
                       {"medium", text_of(drive.at("medium"))},
                       {"path", text_of(drive.at("path"))},
                       {"enclosure", text_of(drive.at("enclosure"))},
                       {"serial", text_of(drive.at("serial"))},
                       {"profile", text_of(drive.at("profile"))},
                       {"modelled", modelled(drive)},
                       {"stale regions", drive.at("stale_regions").dump()},
                       {"unreadable blocks", drive.at("unreadable_blocks").dump()},
                       {"reads", fmt::format("{}, {}", counters.at("reads").dump(),
                                             human_size(counters.at("read_bytes")))},
                       {"writes", fmt::format("{}, {}", counters.at("writes").dump(),
                                              human_size(counters.at("written_bytes")))},
                       {"flushes", counters.at("flushes").dump()},
                       {"metadata", fmt::format("{}, {}", counters.at("metadata_operations").dump(),
                                                human_size(counters.at("metadata_bytes")))},
                       {"medium errors", counters.at("medium_errors").dump()},
                       {"other errors", counters.at("other_errors").dump()},
                       {"timeouts", counters.at("timeouts").dump()},
                       {"slow reads", counters.at("slow_reads").dump()},
                   }));
}

void show_drive(const Settings& settings, const std::string& name) {
  const json drive = expect(Client(settings.management).get(drive_path(name)));
  if (settings.json) return print_json(drive);
  print_drive(drive);
}

void fail(const Settings& settings, const std::string& name) {
  const json drive =
      expect(Client(settings.management).post(drive_path(name) + "/fail", json::object()));
  if (settings.json) return print_json(drive);
  say("drive {}: {}\n", name, text_of(drive.at("use")));
}

void replace(const Settings& settings, const std::string& name, const std::string& by) {
  json body = json::object();
  if (!by.empty()) body["by"] = by;
  const json drive = expect(Client(settings.management).post(drive_path(name) + "/replace", body));
  if (settings.json) return print_json(drive);
  say("drive {}: {} of {}; see sandbay raid show\n", text_of(drive.at("name")),
      text_of(drive.at("use")), set_and_role(drive));
}

void erase(const Settings& settings, const std::string& name) {
  const json drive =
      expect(Client(settings.management).post(drive_path(name) + "/erase", json::object()));
  if (settings.json) return print_json(drive);
  say("drive {}: erased; {}\n", name, text_of(drive.at("use")));
}

}  // namespace

void add_drive_commands(CLI::App& app, Settings& settings) {
  const auto name = std::make_shared<std::string>();
  const auto by = std::make_shared<std::string>();
  CLI::App* noun = app.add_subcommand("drive", "Drives: list, show, fail, replace, erase");
  noun->require_subcommand(1);
  noun->add_subcommand("list", "List all drives")->callback([&settings] { list_drives(settings); });
  CLI::App* verb = noun->add_subcommand("show", "Show a drive and its counters");
  verb->add_option("DRIVE", *name, "The drive's name")->required();
  verb->callback([&settings, name] { show_drive(settings, *name); });
  verb = noun->add_subcommand(
      "fail",
      "Take a drive out of its set for good; a spare takes its place. Refused where the "
      "set would not survive it");
  verb->add_option("DRIVE", *name, "The drive's name")->required();
  verb->callback([&settings, name] { fail(settings, *name); });
  verb = noun->add_subcommand(
      "replace",
      "Copy a drive to another, which then takes its place; a role that has lost its "
      "drive is rebuilt");
  verb->add_option("DRIVE", *name, "The drive's name, or SET:ROLE for a role without one")
      ->required();
  verb->add_option("--by", *by, "A spare or blank drive; the best spare if left out")
      ->type_name("DRIVE");
  verb->callback([&settings, name, by] { replace(settings, *name, *by); });
  verb = noun->add_subcommand(
      "erase",
      "Make a drive blank and delete everything on it. Refused for a drive that a set uses");
  verb->add_option("DRIVE", *name, "The drive's name")->required();
  verb->callback([&settings, name] { erase(settings, *name); });
}

}  // namespace sandbay::cli
