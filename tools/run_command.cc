// sandbay run -- COMMAND…: a daemon of its own around a command.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <vector>

#include "group/configuration.h"
#include "group/document.h"
#include "group/drive_file.h"
#include "group/units.h"
#include "runtime/machine_memory.h"
#include "tools/commands.h"
#include "tools/keeper.h"
#include "tools/run_folder.h"
#include "tools/run_session.h"
#include "tools/whole_number.h"

namespace sandbay::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kDefaultVolume = std::uint64_t{1} << 30;
// Room for the metadata of a daemon, and for its drives if they are files.
constexpr std::uint64_t kRoomOfState = std::uint64_t{64} << 20;
constexpr std::uint64_t kRoomOfDrives = std::uint64_t{4} << 30;

struct RunArguments {
  std::string config;
  std::string array;
  std::vector<std::string> volumes;
  std::vector<std::string> portals;
  std::string faults;
  bool keep = false;
};

[[noreturn]] void fail(const std::string& message) { throw Failure(message, Exit::kNotRun); }

// ---- what is asked for --------------------------------------------------------------------------

// Beside this program as built and as installed; else where the shell finds it.
std::string daemon_program() {
  for (const char* place : {"sandbayd", "../sbin/sandbayd"}) {
    const fs::path path = group::own_folder() / place;
    if (::access(path.c_str(), X_OK) == 0) return path.string();
  }
  return "sandbayd";
}

// The file of an array that comes with Sandbay, in a tree that was built or where it is installed.
std::string file_of_array(const std::string& name) {
  std::vector<std::string> known;
  for (const fs::path& folder : group::installed_folders("arrays")) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (entry.path().extension() != ".toml") continue;
      known.push_back(entry.path().stem().string());
      if (known.back() == name) return fs::canonical(entry.path()).string();
    }
  }
  if (known.empty()) fail("--array: no arrays are installed; name a file with --config");
  std::ranges::sort(known);
  const std::string_view near = nearest(name, known);
  std::string names;
  for (const std::string& each : known) names += (names.empty() ? "" : ", ") + each;
  fail(near.empty()
           ? fmt::format("--array {}: there is no such array; there are {}", name, names)
           : fmt::format("--array {}: there is no such array; did you mean {}?", name, near));
}

NewVolume parse_volume(const std::string& text) {
  NewVolume volume;
  const std::size_t equals = text.find('=');
  if (equals != std::string::npos) {
    volume.name = text.substr(0, equals);
    if (const auto error = group::check_volume_name(volume.name)) {
      fail(fmt::format("--volume {}: the name {}", text, *error));
    }
  }
  const auto bytes = group::parse_size(
      std::string_view(text).substr(equals == std::string::npos ? 0 : equals + 1));
  if (!bytes) fail(fmt::format("--volume {}: {}", text, bytes.error()));
  if (*bytes == 0) fail(fmt::format("--volume {}: is empty; write a size such as 64MiB", text));
  volume.bytes = *bytes;
  return volume;
}

// Without names they are "disk", "disk2", and so on, as far as no other has that name.
std::vector<NewVolume> new_volumes(const RunArguments& a) {
  std::vector<NewVolume> volumes;
  for (const std::string& text : a.volumes) volumes.push_back(parse_volume(text));
  if (volumes.empty() && a.config.empty() && a.array.empty()) {
    volumes.push_back({.bytes = kDefaultVolume});
  }
  const auto taken = [&](const std::string& name) {
    return std::ranges::find(volumes, name, &NewVolume::name) != volumes.end();
  };
  unsigned number = 1;
  for (NewVolume& volume : volumes) {
    while (volume.name.empty()) {
      const std::string name = number == 1 ? "disk" : fmt::format("disk{}", number);
      ++number;
      if (!taken(name)) volume.name = name;
    }
  }
  for (auto one = volumes.begin(); one != volumes.end(); ++one) {
    const auto other = std::find_if(volumes.begin(), one, [&](const NewVolume& volume) {
      return variable_of(volume.name) == variable_of(one->name);
    });
    if (other == one) continue;
    fail(fmt::format("--volume: {} and {} are both {}; give each a name of its own", other->name,
                     one->name, variable_of(one->name)));
  }
  return volumes;
}

std::vector<FaultRule> rules_of(const std::string& file) {
  if (file.empty()) return {};
  auto rules = rules_in(file);
  if (!rules) fail(fmt::format("--faults {}", rules.error()));
  return std::move(*rules);
}

// A pool on one drive, in memory or in a file; twice as large as its volumes, for their snapshots.
std::string own_configuration(const RunPlan& plan, bool in_memory) {
  constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
  std::uint64_t bytes = kDefaultVolume;
  for (const NewVolume& volume : plan.volumes) bytes += 2 * volume.bytes;
  return fmt::format(R"(# Made by sandbay run.
[group]
name = "run"
state = "state"
reactors = 1

[management]
listen = "127.0.0.1:0"

[[portal]]
listen = "127.0.0.1:0"

[[drive]]
name = "d0"
{}
size = "{}MiB"

[[raid]]
name = "set"
level = "jbod"
drives = ["d0"]

[[pool]]
name = "pool"
page = "1MiB"
)",
                     in_memory ? "memory = true" : "file = \"drives/d0.img\"",
                     (bytes + kMebibyte - 1) / kMebibyte);
}

// All of their data may have to be in memory.
void check_memory(const std::vector<NewVolume>& volumes) {
  std::uint64_t left = memory_allowed();
  for (const NewVolume& volume : volumes) {
    if (volume.bytes > left) {
      fail(fmt::format(
          "--volume {}: {} are more than the {} of memory that are left here; make it "
          "smaller, or have it in a file with --keep",
          volume.name, group::format_size(volume.bytes), group::format_size_rounded(left)));
    }
    left -= volume.bytes;
  }
}

int run_in_worker(Worker& worker, const Management& management, const RunPlan& plan) {
  try {
    return run_session(worker, management, plan);
  } catch (const std::exception& error) {
    say_error(error.what());
    return static_cast<int>(Exit::kNotRun);
  }
}

void run(Settings& settings, const RunArguments& a) {
  if (settings.command.empty()) {
    fail("a command is missing; write it behind --: sandbay run -- make test");
  }
  RunPlan plan{.daemon = daemon_program(),
               .config = a.array.empty() ? a.config : file_of_array(a.array),
               .portals = a.portals,
               .volumes = new_volumes(a),
               .faults = a.config.empty() || !a.faults.empty(),
               .rules_given = !a.faults.empty(),
               .rules = rules_of(a.faults),
               .command = settings.command};
  const bool own = plan.config.empty();
  if (own && !a.keep) check_memory(plan.volumes);
  std::optional<RunFolder> folder;
  const auto prepare = [&] {
    folder.emplace(own ? kRoomOfState : kRoomOfDrives, a.keep);
    plan.folder = folder->path();
    plan.lock = folder->lock();
    if (!own) return;
    plan.config = (plan.folder / "sandbayd.toml").string();
    plan.own_config = own_configuration(plan, !a.keep);
  };
  const auto clean = [&] {
    folder->remove();
    if (!a.keep) return;
    say_error(fmt::format("kept in {}; sandbayd --config {} --state {} starts it again",
                          plan.folder.string(), plan.config, (plan.folder / "state").string()));
  };
  settings.exit_code = keep(
      prepare, [&](Worker& worker) { return run_in_worker(worker, settings.management, plan); },
      clean);
}

}  // namespace

void add_run_command(CLI::App& app, Settings& settings) {
  const auto a = std::make_shared<RunArguments>();
  CLI::App* const verb = app.add_subcommand(
      "run", "Run a command with a daemon of its own: run [OPTION…] -- COMMAND…");
  CLI::Option* const config =
      verb->add_option("--config", a->config, "The daemon's configuration; its ports do not count")
          ->type_name("FILE")
          ->check(wrong_if_empty);
  verb->add_option("--array", a->array, "An array that comes with Sandbay, such as ibm-ds3500")
      ->type_name("NAME")
      ->check(wrong_if_empty)
      ->excludes(config);
  verb->add_option(
          "--volume", a->volumes,
          "A volume for every initiator; may be given several times. Without it, and without "
          "--config and --array, there is one of 1GiB, \"disk\"")
      ->type_name("[NAME=]SIZE")
      ->allow_extra_args(false);
  verb->add_option(
          "--portal", a->portals,
          "Listen here instead; may be given several times. Default: free ports of loopback")
      ->type_name("ADDRESS:PORT")
      ->allow_extra_args(false);
  verb->add_option("--faults", a->faults, "Rules of faults, one a line; see sandbay-faults(7)")
      ->type_name("FILE")
      ->check(wrong_if_empty);
  verb->add_flag("--keep", a->keep,
                 "Have everything in files, and keep them with the log in a folder");
  verb->footer(
      "The command finds SANDBAY_URL (iscsi://…, the first volume), SANDBAY_URL_NAME (of each),\n"
      "SANDBAY_PORTAL, SANDBAY_TARGET, SANDBAY_API and SANDBAY_TOKEN in its environment. Volumes "
      "are\n"
      "in memory, and nothing is left afterwards. It ends as the command does; with 125 if the\n"
      "daemon does not start or the group is damaged, 126 or 127 if the command cannot be "
      "started.");
  verb->callback([&settings, a] { run(settings, *a); });
}

}  // namespace sandbay::cli
