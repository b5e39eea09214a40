// sandbay snapshot
// create|list|show|restore|delete|online|offline|clone|schedule|schedules|unschedule
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "group/units.h"
#include "tools/commands.h"
#include "tools/table.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

struct SnapshotArguments {
  std::string volume;
  std::string name;
  std::string clone;
  std::vector<std::string> with;
  std::string every;
  int keep = 1;
  bool writable = false;
  bool force = false;
  bool full_copy = false;
  bool wait = false;
};

std::string snapshot_path(const SnapshotArguments& a, const std::string& verb = "") {
  std::string path = fmt::format("/api/v1/volumes/{}/snapshots", Client::escape(a.volume));
  if (!a.name.empty()) path += "/" + Client::escape(a.name);
  return verb.empty() ? path : path + "/" + verb;
}

std::string snapshot_state(const json& snapshot) {
  const auto reason = text_of(snapshot.at("reason"));
  if (!reason.empty()) return reason;
  if (!snapshot.at("online").get<bool>()) return "offline";
  return snapshot.at("writable").get<bool>() ? "online, takes writes" : "online";
}

void list_snapshots(const Settings& settings, const SnapshotArguments& a) {
  const Client client(settings.management);
  const json answer = expect(client.get(snapshot_path(a)));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"NAME"}, {"TIME"}, {"SIZE", kRight}, {"KEPT", kRight}, {"STATE"}, {"TARGET"}});
  for (const json& snapshot : answer.at("snapshots")) {
    table.add({text_of(snapshot.at("name")), text_of(snapshot.at("time")),
               human_size(snapshot.at("size")), human_size(snapshot.at("kept")),
               snapshot_state(snapshot), text_of(snapshot.at("target"))});
  }
  if (table.empty()) {
    say("There are no snapshots. Take one: sandbay snapshot create {}\n", a.volume);
    return;
  }
  fmt::print("{}", table.text());
  const json volume = expect(client.get("/api/v1/volumes/" + Client::escape(a.volume)));
  const auto taken = volume.at("snapshot_bytes").get<std::uint64_t>();
  const auto reserve = volume.at("reserve_bytes").get<std::uint64_t>();
  if (reserve == 0) {
    say("They take {}; there is no reserve.\n", human_size(taken));
    return;
  }
  say("They take {} of a reserve of {}; {} are left ({}).\n", human_size(taken),
      human_size(reserve), human_size(reserve - std::min(taken, reserve)),
      text_of(volume.at("reserve_policy")));
}

void show_snapshot(const Settings& settings, const SnapshotArguments& a) {
  const json snapshot = expect(Client(settings.management).get(snapshot_path(a)));
  if (settings.json) return print_json(snapshot);
  fmt::print("{}", facts({{"name", text_of(snapshot.at("name"))},
                          {"volume", text_of(snapshot.at("volume"))},
                          {"time", text_of(snapshot.at("time"))},
                          {"size", human_size(snapshot.at("size"))},
                          {"kept", human_size(snapshot.at("kept"))},
                          {"state", snapshot_state(snapshot)},
                          {"target", text_of(snapshot.at("target"))},
                          {"uuid", text_of(snapshot.at("uuid"))}}));
}

void create(const Settings& settings, SnapshotArguments a) {
  json body = json::object();
  if (!a.name.empty()) body["name"] = a.name;
  if (!a.with.empty()) body["with"] = a.with;
  a.name.clear();
  bool created = false;
  json answer = expect(Client(settings.management).post(snapshot_path(a), body, &created));
  answer["created"] = created;
  if (settings.json) return print_json(answer);
  for (const json& snapshot : answer.at("snapshots")) {
    say("volume {}: snapshot {}{}\n", text_of(snapshot.at("volume")), text_of(snapshot.at("name")),
        created ? "" : " exists already, of " + text_of(snapshot.at("time")));
  }
}

void restore(const Settings& settings, const SnapshotArguments& a) {
  const json volume = expect(
      Client(settings.management).post(snapshot_path(a, "restore"), json{{"force", a.force}}));
  if (settings.json) return print_json(volume);
  say("volume {}: as it was in snapshot {}, {}\n", a.volume, a.name, human_size(volume.at("size")));
}

void remove_snapshot(const Settings& settings, const SnapshotArguments& a) {
  expect(Client(settings.management).remove(snapshot_path(a) + (a.force ? "?force=true" : "")));
  print_done(settings, fmt::format("volume {}: snapshot {} deleted", a.volume, a.name));
}

void set_online(const Settings& settings, const SnapshotArguments& a) {
  const json snapshot = expect(
      Client(settings.management).post(snapshot_path(a, "online"), json{{"writable", a.writable}}));
  if (settings.json) return print_json(snapshot);
  say("snapshot {}: {} LUN 0\n", a.name, text_of(snapshot.at("target")));
}

void set_offline(const Settings& settings, const SnapshotArguments& a) {
  const json snapshot = expect(
      Client(settings.management).post(snapshot_path(a, "offline"), json{{"force", a.force}}));
  if (settings.json) return print_json(snapshot);
  say("snapshot {}: offline\n", a.name);
}

void make_clone(const Settings& settings, const SnapshotArguments& a) {
  const json volume = expect(
      Client(settings.management)
          .post(snapshot_path(a, "clone"), json{{"name", a.clone}, {"full_copy", a.full_copy}}));
  if (a.wait) wait_for_task(settings, "copy", a.clone);
  if (settings.json) return print_json(volume);
  say("volume {}: {}, {} LUN {}\n", a.clone, human_size(volume.at("size")),
      text_of(volume.at("target")), volume.at("lun").dump());
}

std::string schedules_of(const SnapshotArguments& a) {
  return fmt::format("/api/v1/volumes/{}/schedules", Client::escape(a.volume));
}

void make_schedule(const Settings& settings, const SnapshotArguments& a) {
  const json body{{"name", a.name}, {"every", a.every}, {"keep", a.keep}};
  const json schedule = expect(Client(settings.management).post(schedules_of(a), body));
  if (settings.json) return print_json(schedule);
  say("volume {}: a snapshot every {}, {} are kept\n", a.volume, a.every,
      schedule.at("keep").dump());
}

void list_schedules(const Settings& settings, const SnapshotArguments& a) {
  const json answer = expect(Client(settings.management).get(schedules_of(a)));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"NAME"}, {"EVERY", kRight}, {"KEEP", kRight}, {"THERE", kRight}, {"LAST"}});
  for (const json& schedule : answer.at("schedules")) {
    const json& last = schedule.at("last");
    const std::chrono::duration<double> every(schedule.at("every").get<double>());
    table.add({text_of(schedule.at("name")),
               group::format_duration(std::chrono::round<std::chrono::milliseconds>(every)),
               schedule.at("keep").dump(), schedule.at("snapshots").dump(),
               last.is_null() ? "never" : text_of(last)});
  }
  if (table.empty()) {
    say("There are no schedules.\n");
  } else {
    fmt::print("{}", table.text());
  }
}

void remove_schedule(const Settings& settings, const SnapshotArguments& a) {
  expect(Client(settings.management).remove(schedules_of(a) + "/" + Client::escape(a.name)));
  print_done(settings, fmt::format("volume {}: schedule {} deleted", a.volume, a.name));
}

}  // namespace

void add_snapshot_commands(CLI::App& app, Settings& settings) {
  const auto a = std::make_shared<SnapshotArguments>();
  CLI::App* noun =
      app.add_subcommand("snapshot", "Snapshots: take, show, restore, clone and schedule them");
  noun->require_subcommand(1);
  const auto add = [&](const char* verb, const char* help, bool named) {
    CLI::App* const added = noun->add_subcommand(verb, help);
    added->add_option("VOLUME", a->volume)->required();
    if (named) added->add_option("NAME", a->name, "The snapshot")->required();
    return added;
  };
  CLI::App* verb = add("create", "Take a snapshot of a volume on a pool", false);
  verb->add_option("NAME", a->name, "The time otherwise");
  verb->add_option("--with", a->with, "Other volumes to take a snapshot of at the same moment")
      ->delimiter(',')
      ->type_name("VOLUMES");
  verb->callback([&settings, a] { create(settings, *a); });
  verb = add("list", "List the snapshots of a volume, oldest first", false);
  verb->callback([&settings, a] { list_snapshots(settings, *a); });
  verb = add("show", "Show one snapshot", true);
  verb->callback([&settings, a] { show_snapshot(settings, *a); });
  verb = add("restore", "Make the volume's content the snapshot's", true);
  verb->add_flag("--force", a->force,
                 "Also while it is in use: its initiators get a unit attention");
  verb->callback([&settings, a] { restore(settings, *a); });
  verb = add("delete", "Delete a snapshot", true);
  verb->add_flag("--force", a->force, "Also while it is online");
  verb->callback([&settings, a] { remove_snapshot(settings, *a); });
  verb = add("online", "Give a snapshot a target of its own", true);
  verb->add_flag("--writable", a->writable, "It takes writes, which stay apart from the snapshot");
  verb->callback([&settings, a] { set_online(settings, *a); });
  verb = add("offline", "Take a snapshot's target away", true);
  verb->add_flag("--force", a->force, "Also while it is in use: its sessions are ended");
  verb->callback([&settings, a] { set_offline(settings, *a); });
  verb = add("schedule", "Take one every so often, and keep the newest", false);
  verb->add_option("NAME", a->name, "Name of the schedule")->required();
  verb->add_option("--every", a->every, "Such as 1h or 30min")->required()->type_name("TIME");
  verb->add_option("--keep", a->keep, "How many are kept")->required()->check(CLI::Range(1, 1024));
  verb->callback([&settings, a] { make_schedule(settings, *a); });
  verb = add("schedules", "List the schedules of a volume", false);
  verb->callback([&settings, a] { list_schedules(settings, *a); });
  verb = add("unschedule", "Delete a schedule; what it has taken stays", false);
  verb->add_option("NAME", a->name, "Name of the schedule")->required();
  verb->callback([&settings, a] { remove_schedule(settings, *a); });
  verb = add("clone", "Make a thin volume that begins as the snapshot", true);
  verb->add_option("NEW", a->clone, "The new volume's name")->required();
  CLI::Option* const copy = verb->add_flag("--full-copy", a->full_copy,
                                           "Copy everything in the background; see task list");
  verb->add_flag("--wait", a->wait, "Show the copy's progress, and end when it has ended")
      ->needs(copy);
  verb->callback([&settings, a] { make_clone(settings, *a); });
}

}  // namespace sandbay::cli
