// sandbay apply FILE: shows what lies between a document and the daemon, and brings it about.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

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

// Access of those targets alone, and schedules of those volumes, that the document has.
PresentGroup look(const Client& client, const ApplyDocument& wanted) {
  PresentGroup present;
  present.pools = list_at(client, "/api/v1/pools", "pools");
  present.volumes = list_at(client, "/api/v1/volumes", "volumes");
  for (const json& target : list_at(client, "/api/v1/targets", "targets")) {
    present.targets.insert(target.at("name").get<std::string>());
  }
  std::set<std::string> targets;
  std::set<std::string> names;
  for (const WantedVolume& volume : wanted.volumes) {
    targets.insert(target_of(volume, present.volumes));
    names.insert(volume.name);
  }
  for (const json& volume : present.volumes) {
    const auto name = volume.at("name").get<std::string>();
    const auto target = volume.at("target").get<std::string>();
    const std::string path = "/api/v1/volumes/" + Client::escape(name);
    if (targets.contains(target) && !present.access.contains(target)) {
      present.access[target] = list_at(client, path + "/access", "access");
    }
    if (names.contains(name) && volume.at("backing") == "pool") {
      present.schedules[name] = list_at(client, path + "/schedules", "schedules");
    }
  }
  return present;
}

bool confirmed(std::size_t count) {
  if (::isatty(STDIN_FILENO) == 0) {
    throw Failure("nothing was changed: there is no terminal to ask on; add --yes or --dry-run");
  }
  fmt::print(stderr, "Apply {} change{}? [y/N] ", count, count == 1 ? "" : "s");
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "yes";
}

void make(const Client& client, const std::vector<ApplyStep>& steps) {
  for (std::size_t done = 0; done < steps.size(); ++done) {
    const ApplyStep& step = steps[done];
    const Client::Answer answer = step.method == "POST"    ? client.post(step.path, step.body)
                                  : step.method == "PATCH" ? client.patch(step.path, step.body)
                                                           : client.remove(step.path);
    if (!answer) {
      throw Failure(stopped_words(steps, done, answer.error().message), answer.error().exit);
    }
  }
}

// The daemon shows none, so whether it has those of the document nobody can say.
bool has_secrets(const ApplyDocument& wanted) {
  return std::ranges::any_of(wanted.volumes, [](const WantedVolume& volume) {
    return std::ranges::any_of(volume.access,
                               [](const json& access) { return access.contains("chap_secret"); });
  });
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
    for (const ApplyStep& step : steps) say("{} {}\n", step.sign, step.text);
    if (steps.empty()) {
      say("{}: everything is as it says{}\n", arguments.file,
          has_secrets(wanted) ? "; secrets of CHAP are not compared" : "");
    }
  }
  const bool applies =
      !arguments.dry_run && !steps.empty() && (arguments.yes || confirmed(steps.size()));
  if (applies) make(client, steps);
  if (settings.json) return print_json(shown(steps, applies));
  if (applies) say("Applied: {} change{}.\n", steps.size(), steps.size() == 1 ? "" : "s");
  if (!applies && !steps.empty()) say("Nothing was changed.\n");
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
