// sandbay apply FILE: shows what lies between a document and the daemon, and brings it about.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/apply_plan.h"
#include "tools/commands.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

struct ApplyArguments {
  std::string file;
  bool dry_run = false;
  bool yes = false;
  bool prune = false;
};

std::vector<json> list_at(const Client& client, const std::string& path, const char* key) {
  const json answer = expect(client.get(path));
  return answer.at(key).get<std::vector<json>>();
}

// Access and schedules of those volumes alone that the document has.
PresentGroup look(const Client& client, const ApplyDocument& wanted) {
  PresentGroup present;
  present.pools = list_at(client, "/api/v1/pools", "pools");
  present.volumes = list_at(client, "/api/v1/volumes", "volumes");
  for (const WantedVolume& volume : wanted.volumes) {
    const auto same = [&](const json& there) { return there.at("name") == volume.name; };
    const auto found = std::ranges::find_if(present.volumes, same);
    if (found == present.volumes.end()) continue;
    const std::string path = "/api/v1/volumes/" + Client::escape(volume.name);
    present.access[volume.name] = list_at(client, path + "/access", "access");
    if (found->at("backing") == "pool") {
      present.schedules[volume.name] = list_at(client, path + "/schedules", "schedules");
    }
  }
  return present;
}

bool confirmed(std::size_t count) {
  if (::isatty(STDIN_FILENO) == 0) {
    throw Failure("nothing was changed: nobody can be asked here; add --yes, or --dry-run");
  }
  fmt::print("Apply {} change{}? [y/N] ", count, count == 1 ? "" : "s");
  std::fflush(stdout);
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "yes";
}

void make(const Client& client, const ApplyStep& step) {
  const Client::Answer answer = step.method == "POST"    ? client.post(step.path, step.body)
                                : step.method == "PATCH" ? client.patch(step.path, step.body)
                                                         : client.remove(step.path);
  if (!answer) throw Failure(fmt::format("{} {}: {}", step.sign, step.text, answer.error()));
}

json shown(const std::vector<ApplyStep>& steps, bool applied) {
  json changes = json::array();
  for (const ApplyStep& step : steps) {
    changes.push_back({{"change", std::string(1, step.sign)},
                       {"text", step.text},
                       {"method", step.method},
                       {"path", step.path}});
  }
  return {{"changes", std::move(changes)}, {"applied", applied}};
}

void apply(const Settings& settings, const ApplyArguments& arguments) {
  const ApplyDocument wanted = read_apply_document(arguments.file);
  const Client client(settings.management);
  const std::vector<ApplyStep> steps = plan_apply(wanted, look(client, wanted), arguments.prune);
  if (!settings.json) {
    for (const ApplyStep& step : steps) fmt::print("{} {}\n", step.sign, step.text);
    if (steps.empty()) fmt::print("{}: everything is as it says\n", arguments.file);
  }
  const bool applies =
      !arguments.dry_run && !steps.empty() && (arguments.yes || confirmed(steps.size()));
  if (applies) {
    for (const ApplyStep& step : steps) make(client, step);
  }
  if (settings.json) return print_json(shown(steps, applies));
  if (applies) fmt::print("Applied: {} change{}.\n", steps.size(), steps.size() == 1 ? "" : "s");
  if (!applies && !steps.empty()) fmt::print("Nothing was changed.\n");
}

}  // namespace

void add_apply_command(CLI::App& app, Settings& settings) {
  const auto a = std::make_shared<ApplyArguments>();
  CLI::App* verb = app.add_subcommand(
      "apply",
      "Make pools, volumes, access and schedules what a file says, and show the difference");
  verb->add_option("FILE", a->file, "In TOML or JSON; see sandbay(1)")->required();
  verb->add_flag("--dry-run", a->dry_run, "Only show the difference");
  verb->add_flag("--yes", a->yes, "Do not ask");
  verb->add_flag("--prune", a->prune,
                 "Also delete volumes, pools, access records and schedules that it does not name");
  verb->callback([&settings, a] { apply(settings, *a); });
}

}  // namespace sandbay::cli
