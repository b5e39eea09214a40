// sandbay volume list|show|create|expand|shrink|rename|cache|online|offline|read-only|limits|delete
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "group/snapshot_reserve.h"
#include "group/units.h"
#include "tools/commands.h"
#include "tools/table.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

struct VolumeArguments {
  std::string name;
  std::string new_name;
  std::string size;
  std::string file;
  std::string device;
  std::string raid;
  std::string pool;
  std::string on;
  std::string raid_level;
  int thin_warning = -1;
  int thin_limit = -1;
  std::string snapshot_reserve;
  std::string reserve_policy;
  std::int64_t operations_limit = -1;
  std::string bytes_limit;
  std::string target;
  std::vector<std::string> initiators;
  int lun = -1;
  int block_size = 0;
  std::string eui64;
  int rotation = -1;
  std::string unmap_limit;
  std::string write_same_limit;
  bool removable = false;
  bool writes = false;
  std::string cache;
  bool memory = false;
  bool thin = false;
  bool preallocate = false;
  bool read_only = false;
  bool write_through = false;
  bool force = false;
  bool full_copy = false;
  bool wait = false;
};

std::string named_volume(const std::string& name) {
  if (name.empty()) throw CLI::ValidationError("NAME", "is empty; write a volume's name");
  return volume_path(name);
}

// The size in bytes, checked here so that a slip is told before anything is asked.
std::uint64_t bytes_of(const std::string& text, const char* option = "--size") {
  const auto size = group::parse_size(text);
  if (!size) throw CLI::ValidationError(option, size.error());
  return *size;
}

void list_volumes(const Settings& settings) {
  const json answer = expect(Client(settings.management).get(kVolumes));
  if (settings.json) return print_json(answer);
  using enum Table::Align;
  Table table({{"NAME"},
               {"SIZE", kRight},
               {"ON"},
               {"LUN", kRight},
               {"TARGET"},
               {"SESSIONS", kRight},
               {"HEALTH"}});
  for (const json& volume : answer.at("volumes")) {
    table.add({volume.at("name").get<std::string>(), human_size(volume.at("size")),
               volume.at("backing").get<std::string>(), volume.at("lun").dump(),
               volume.at("target").get<std::string>(), volume.at("sessions").dump(),
               volume.at("online").get<bool>() ? volume.at("health").get<std::string>()
                                               : std::string("offline")});
  }
  if (table.empty()) {
    say("There are no volumes. Make one: sandbay volume create NAME --size 10GiB\n");
    return;
  }
  fmt::print("{}", table.text());
}

std::string where(const json& volume) {
  const auto path = volume.at("path").get<std::string>();
  const auto backing = volume.at("backing").get<std::string>();
  if (backing == "raid") return "set " + volume.at("raid").get<std::string>();
  if (backing == "pool") return "pool " + volume.at("pool").get<std::string>();
  return path.empty() ? backing : fmt::format("{} {}", backing, path);
}

std::string limits_of(const json& volume) {
  if (volume.at("backing").get<std::string>() != "pool") return {};
  std::string text;
  const auto add = [&](const std::string& words) { text += (text.empty() ? "" : ", ") + words; };
  if (volume.at("thin").get<bool>()) {
    add(fmt::format("warning at {} %, at most {} % of its size", volume.at("thin_warning").dump(),
                    volume.at("thin_limit").dump()));
  }
  if (volume.at("reserve_bytes") != 0) {
    add(fmt::format("snapshots: {} of {} ({}), {}", human_size(volume.at("snapshot_bytes")),
                    human_size(volume.at("reserve_bytes")),
                    volume.at("snapshot_reserve").get<std::string>(),
                    volume.at("reserve_policy").get<std::string>()));
    for (const auto& [key, words] : {std::pair("reserve_deleted", "deleted"),
                                     std::pair("reserve_taken_offline", "taken offline")}) {
      if (volume.at(key) != 0) add(fmt::format("{} of them {}", volume.at(key).dump(), words));
    }
  }
  if (volume.at("operations_limit") != 0) {
    add(volume.at("operations_limit").dump() + " operations a second");
  }
  if (volume.at("bytes_limit") != 0) {
    add(group::format_rate(volume.at("bytes_limit").get<std::uint64_t>()));
  }
  return text;
}

// Empty: the daemon's default.
std::string limit_of(const json& volume, const char* key) {
  return volume.at(key) == 0 ? std::string() : human_size(volume.at(key));
}

std::string rotation_of(const json& volume) {
  const auto rotation = volume.at("rotation").get<unsigned>();
  if (rotation == 0) return {};
  return rotation == 1 ? std::string("no rotation") : fmt::format("{} rpm", rotation);
}

// Empty: no host has it sanitized.
std::string sanitize_of(const json& volume) {
  if (!volume.contains("sanitize")) return {};
  const json& sanitize = volume.at("sanitize");
  const auto method = sanitize.at("method").get<std::string>();
  if (sanitize.at("failed").get<bool>()) return method + " has failed";
  const auto waits = sanitize.at("waits").get<std::string>();
  return fmt::format("{}, {:.0f} % done{}", method, sanitize.at("progress").get<double>() * 100,
                     waits.empty() ? "" : fmt::format(", waits: {}", waits));
}

void print_volume(const json& volume) {
  const json& counters = volume.at("counters");
  const auto text = [&](const char* key) { return volume.at(key).get<std::string>(); };
  const auto flag = [&](const char* key) { return yes_no(volume.at(key).get<bool>()); };
  say("{}",
      facts({
          {"name", text("name")},
          {"size",
           fmt::format("{} ({} bytes)", human_size(volume.at("size")), volume.at("size").dump())},
          {"on", where(volume)},
          {"block size", fmt::format("{} ({} physical)", volume.at("block_size").dump(),
                                     volume.at("physical_block_size").dump())},
          {"target", text("target")},
          {"lun", volume.at("lun").dump()},
          {"sessions", volume.at("sessions").dump()},
          {"health", text("reason").empty()
                         ? text("health")
                         : fmt::format("{}: {}", text("health"), text("reason"))},
          {"online", flag("online")},
          {"thin", flag("thin")},
          {"allocated",
           text("backing") == "pool" ? human_size(volume.at("allocated")) : std::string()},
          {"limits", limits_of(volume)},
          {"snapshots", volume.at("snapshots").dump()},
          {"read only", flag("read_only")},
          {"write cache", flag("write_cache")},
          {"cache",
           text("backing") == "raid" || text("backing") == "pool" ? text("cache") : std::string()},
          {"to clear",
           volume.at("uncleared") == 0 ? std::string() : human_size(volume.at("uncleared"))},
          {"sanitize", sanitize_of(volume)},
          {"declared", volume.at("declared").get<bool>() ? "in the configuration file" : "no"},
          {"reactor", volume.at("reactor").dump()},
          {"uuid", text("uuid")},
          {"serial", text("serial")},
          {"naa", text("naa")},
          {"eui64", text("eui64")},
          {"removable", flag("removable")},
          {"rotation", rotation_of(volume)},
          {"unmap limit", limit_of(volume, "unmap_limit")},
          {"write same limit", limit_of(volume, "write_same_limit")},
          {"inquiry", fmt::format("{} {} {}", text("vendor"), text("product"), text("revision"))},
          {"read", fmt::format("{} commands, {}", counters.at("reads").dump(),
                               human_size(counters.at("read_bytes")))},
          {"written", fmt::format("{} commands, {}", counters.at("writes").dump(),
                                  human_size(counters.at("written_bytes")))},
          {"in flight", counters.at("in_flight").dump()},
          {"errors", counters.at("errors").dump()},
      }));
}

void show_volume(const Settings& settings, const VolumeArguments& arguments) {
  const json volume = expect(Client(settings.management).get(named_volume(arguments.name)));
  if (settings.json) return print_json(volume);
  print_volume(volume);
}

void add_reserve(const VolumeArguments& a, json& body) {
  if (!a.snapshot_reserve.empty()) {
    const auto reserve = group::parse_reserve(a.snapshot_reserve);
    if (!reserve) throw CLI::ValidationError("--snapshot-reserve", reserve.error());
    body["snapshot_reserve"] = a.snapshot_reserve;
  }
  if (!a.reserve_policy.empty()) body["reserve_policy"] = a.reserve_policy;
}

void add_rates(const VolumeArguments& a, json& body) {
  if (a.operations_limit >= 0) body["operations_limit"] = a.operations_limit;
  if (a.bytes_limit.empty()) return;
  const auto rate = group::parse_rate(a.bytes_limit);
  if (!rate) throw CLI::ValidationError("--rate", rate.error());
  body["bytes_limit"] = *rate;
}

void add_presentation(const VolumeArguments& a, json& body) {
  if (a.removable) body["removable"] = true;
  if (a.rotation >= 0) body["rotation"] = a.rotation;
  if (!a.eui64.empty()) body["eui64"] = a.eui64;
  if (!a.unmap_limit.empty()) body["unmap_limit"] = bytes_of(a.unmap_limit, "--unmap-limit");
  if (!a.write_same_limit.empty()) {
    body["write_same_limit"] = bytes_of(a.write_same_limit, "--write-same-limit");
  }
}

json body_of(const VolumeArguments& a) {
  json body{{"name", a.name}, {"read_only", a.read_only}};
  if (a.block_size != 0) body["block_size"] = a.block_size;
  if (!a.pool.empty()) body["pool"] = a.pool;
  if (!a.on.empty()) body["on"] = a.on;
  if (!a.raid_level.empty()) body["raid_level"] = a.raid_level;
  if (a.thin_warning >= 0) body["thin_warning"] = a.thin_warning;
  if (a.thin_limit >= 0) body["thin_limit"] = a.thin_limit;
  add_reserve(a, body);
  if (!a.size.empty()) body["size"] = bytes_of(a.size);
  if (!a.file.empty()) body["file"] = std::filesystem::absolute(a.file).string();
  if (!a.device.empty()) body["device"] = std::filesystem::absolute(a.device).string();
  if (!a.raid.empty()) body["raid"] = a.raid;
  if (a.memory) body["memory"] = true;
  if (!a.target.empty()) body["target"] = a.target;
  if (a.lun >= 0) body["lun"] = a.lun;
  if (a.preallocate) body["preallocate"] = true;
  if (a.thin) body["thin"] = true;
  if (a.write_through) body["write_cache"] = false;
  if (!a.cache.empty()) body["cache"] = a.cache;
  if (a.block_size == 4096) body["physical_block_size"] = 4096;
  add_rates(a, body);
  add_presentation(a, body);
  json access = json::array();
  for (const std::string& initiator : a.initiators) access.push_back({{"initiator", initiator}});
  if (!access.empty()) body["access"] = std::move(access);
  return body;
}

void create(const Settings& settings, const VolumeArguments& arguments) {
  if (arguments.name.empty()) throw CLI::ValidationError("NAME", "is empty; write a volume's name");
  if (arguments.size.empty() && arguments.file.empty() && arguments.device.empty()) {
    throw CLI::ValidationError("--size", "is missing; write a size such as 10GiB");
  }
  const Client client(settings.management);
  bool created = false;
  json volume = expect(client.post(kVolumes, body_of(arguments), &created));
  volume["created"] = created;
  if (settings.json) return print_json(volume);
  say("volume {}: {}, {} LUN {}{}\n", volume.at("name").get<std::string>(),
      human_size(volume.at("size")), volume.at("target").get<std::string>(),
      volume.at("lun").dump(), created ? "" : "; it exists already");
  const json access = expect(client.get(named_volume(arguments.name) + "/access"));
  if (access.at("access").empty()) {
    say("No initiator may use it yet: sandbay access add {} --initiator NAME\n", arguments.name);
  }
}

void expand(const Settings& settings, const VolumeArguments& arguments) {
  const json body{{"size", bytes_of(arguments.size)}};
  const json volume = expect(Client(settings.management).patch(named_volume(arguments.name), body));
  if (settings.json) return print_json(volume);
  say("volume {}: {}\n", arguments.name, human_size(volume.at("size")));
}

void make_clone(const Settings& settings, const VolumeArguments& arguments) {
  const json body{{"name", arguments.new_name}, {"full_copy", arguments.full_copy}};
  const json volume =
      expect(Client(settings.management).post(named_volume(arguments.name) + "/clone", body));
  if (arguments.wait) wait_for_task(settings, "copy", arguments.new_name);
  if (settings.json) return print_json(volume);
  say("volume {}: {}, {} LUN {}\n", arguments.new_name, human_size(volume.at("size")),
      volume.at("target").get<std::string>(), volume.at("lun").dump());
}

void shrink(const Settings& settings, const VolumeArguments& arguments) {
  const json body{{"size", bytes_of(arguments.size)}, {"force", arguments.force}};
  const Client client(settings.management);
  const json before = expect(client.get(named_volume(arguments.name))).at("size");
  if (body.at("size") > before) {
    throw Failure(fmt::format("volume \"{}\" has {}, which is less; see sandbay volume expand",
                              arguments.name, human_size(before)));
  }
  const json volume = expect(client.patch(named_volume(arguments.name), body));
  if (settings.json) return print_json(volume);
  say("volume {}: {}\n", arguments.name, human_size(volume.at("size")));
}

void set_online(const Settings& settings, const VolumeArguments& arguments, bool online) {
  const json body{{"online", online}};
  const json volume = expect(Client(settings.management).patch(named_volume(arguments.name), body));
  if (settings.json) return print_json(volume);
  say("volume {}: {}\n", arguments.name, online ? "online" : "offline");
}

void set_read_only(const Settings& settings, const VolumeArguments& arguments) {
  const json body{{"read_only", !arguments.writes}};
  const json volume = expect(Client(settings.management).patch(named_volume(arguments.name), body));
  if (settings.json) return print_json(volume);
  say("volume {}: {}\n", arguments.name, arguments.writes ? "takes writes" : "read-only");
}

void set_limits(const Settings& settings, const VolumeArguments& arguments) {
  json body = json::object();
  if (arguments.thin_warning >= 0) body["thin_warning"] = arguments.thin_warning;
  if (arguments.thin_limit >= 0) body["thin_limit"] = arguments.thin_limit;
  add_reserve(arguments, body);
  add_rates(arguments, body);
  const Client client(settings.management);
  const std::string path = named_volume(arguments.name);
  const json volume = expect(body.empty() ? client.get(path) : client.patch(path, body));
  if (settings.json) return print_json(volume);
  const std::string limits = limits_of(volume);
  say("volume {}: {}\n", arguments.name, limits.empty() ? "no limits" : limits);
}

void rename(const Settings& settings, const VolumeArguments& arguments) {
  const json body{{"name", arguments.new_name}};
  const json volume = expect(Client(settings.management).patch(named_volume(arguments.name), body));
  if (settings.json) return print_json(volume);
  say("volume {}: now called {}\n", arguments.name, volume.at("name").get<std::string>());
}

void change_cache(const Settings& settings, const VolumeArguments& arguments) {
  const json body{{"cache", arguments.cache}};
  const json volume = expect(Client(settings.management).patch(named_volume(arguments.name), body));
  if (settings.json) return print_json(volume);
  say("volume {}: its cache is {}\n", arguments.name, volume.at("cache").get<std::string>());
}

void remove_volume(const Settings& settings, const VolumeArguments& arguments) {
  const std::string query = arguments.force ? "?force=true" : "";
  expect(Client(settings.management).remove(named_volume(arguments.name) + query));
  print_done(settings, fmt::format("volume {}: deleted", arguments.name));
}

void add_limit_options(CLI::App& verb, VolumeArguments& a) {
  verb.add_option("--thin-warning", a.thin_warning,
                  "Thin, on a pool: percentage of its size at which an event and a unit attention "
                  "are raised; 0: never")
      ->check(CLI::Range(0, 100))
      ->type_name("PERCENT");
  verb.add_option("--thin-limit", a.thin_limit,
                  "Thin, on a pool: percentage of its size that it may use")
      ->check(CLI::Range(1, 100))
      ->type_name("PERCENT");
  verb.add_option("--snapshot-reserve", a.snapshot_reserve,
                  "On a pool: space for its snapshots: 20% of its size, 10GiB, none")
      ->type_name("RESERVE");
  verb.add_option("--reserve-policy", a.reserve_policy,
                  "On a pool: what happens when its snapshots use more")
      ->check(CLI::IsMember({"delete-oldest", "offline"}))
      ->type_name("POLICY");
  verb.add_option("--iops", a.operations_limit,
                  "On a pool: operations a second for hosts; 0: unlimited")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  verb.add_option("--rate", a.bytes_limit,
                  "On a pool: bytes a second for hosts, such as 40MB/s; 0B/s: unlimited")
      ->type_name("RATE");
}

void add_presentation_options(CLI::App& verb, VolumeArguments& a) {
  verb.add_flag("--removable", a.removable, "Present it as a removable medium");
  verb.add_option("--rotation", a.rotation,
                  "Rotation rate to report: 1025 to 65534 revolutions a minute, 1 for no rotation, "
                  "0 for that of the device below")
      ->check(CLI::Range(0, 65534))
      ->type_name("RPM");
  verb.add_option("--eui64", a.eui64, "Its EUI-64 designator: 16 hexadecimal digits")
      ->type_name("DIGITS");
  verb.add_option("--unmap-limit", a.unmap_limit, "The most that one UNMAP may unmap")
      ->type_name("SIZE");
  verb.add_option("--write-same-limit", a.write_same_limit,
                  "The most that one WRITE SAME may write")
      ->type_name("SIZE");
}

void add_create_options(CLI::App& verb, VolumeArguments& a) {
  verb.add_option("NAME", a.name, "Letters, digits, dots, dashes and underscores")->required();
  verb.add_option("--size", a.size, "Such as 512MiB, 100GiB or 1TB")->type_name("SIZE");
  auto* file = verb.add_option("--file", a.file,
                               "Serve this image file instead of one in the "
                               "state directory; made if it is absent and --size is given");
  file->type_name("PATH");
  auto* device = verb.add_option("--device", a.device, "Serve this block device");
  device->type_name("PATH")->excludes(file);
  auto* memory =
      verb.add_flag("--memory", a.memory, "Keep it in memory; its content ends with the daemon");
  memory->excludes(file)->excludes(device);
  verb.add_option("--raid", a.raid, "Put it on this RAID set")
      ->type_name("SET")
      ->excludes(file)
      ->excludes(device)
      ->excludes(memory);
  verb.add_option("--pool", a.pool, "Put it on this pool; on the one pool if there is one")
      ->type_name("POOL")
      ->excludes(file)
      ->excludes(device)
      ->excludes(memory);
  verb.add_option("--on", a.on, "On a pool: the set to use")->type_name("SET");
  verb.add_option("--raid-level", a.raid_level, "On a pool: preferred level of its sets")
      ->type_name("LEVEL");
  add_limit_options(verb, a);
  verb.add_option("--block-size", a.block_size, "Logical block size; 512, or the pool's, otherwise")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return text == "512" || text == "4096"
                       ? std::string()
                       : fmt::format("invalid block size \"{}\"; write 512 or 4096", text);
          },
          "BYTES"));
  auto* thin =
      verb.add_flag("--thin", a.thin,
                    "Report to initiators that UNMAP frees space (the default unless --preallocate "
                    "is given). On a pool: allocate pages as they are written");
  verb.add_flag("--preallocate", a.preallocate, "Take the file's whole space at once")
      ->excludes(thin);
  verb.add_flag("--read-only", a.read_only, "Refuse writes");
  verb.add_flag("--write-through", a.write_through,
                "Start with the write cache off: every write is flushed");
  verb.add_option("--cache", a.cache, "What the controller's cache does with it, on a RAID set")
      ->check(CLI::IsMember({"write-back", "write-through", "none"}))
      ->type_name("MODE");
  add_presentation_options(verb, a);
  verb.add_option("--target", a.target,
                  "Put it on this target as one more LUN; it gets a target of its own otherwise")
      ->type_name("IQN");
  verb.add_option("--lun", a.lun, "Its LUN there; the lowest free one otherwise")
      ->check(CLI::Range(0, 16383));
  verb.add_option("--initiator", a.initiators,
                  "Let this initiator use it (a name, * and ? are wildcards); may be given several "
                  "times, and only for a target of its own")
      ->type_name("PATTERN");
}

// Most are of volumes on pools alone.
void add_pool_verbs(CLI::App& noun, const Settings& settings,
                    const std::shared_ptr<VolumeArguments>& a) {
  CLI::App* verb =
      noun.add_subcommand("clone", "Make a thin volume that begins as one on a pool is now");
  verb->add_option("NAME", a->name)->required();
  verb->add_option("NEW", a->new_name)->required();
  CLI::Option* const copy = verb->add_flag("--full-copy", a->full_copy,
                                           "Copy everything in the background; see task list");
  verb->add_flag("--wait", a->wait, "Show the copy's progress, and end when it has ended")
      ->needs(copy);
  verb->callback([&settings, a] { make_clone(settings, *a); });

  verb = noun.add_subcommand("shrink", "Make a volume on a pool smaller; its end is lost");
  verb->add_option("NAME", a->name)->required();
  verb->add_option("--size", a->size, "The new size")->required()->type_name("SIZE");
  verb->add_flag("--force", a->force, "Yes, lose the data behind the new end");
  verb->callback([&settings, a] { shrink(settings, *a); });

  verb = noun.add_subcommand("online", "Let a volume serve again");
  verb->add_option("NAME", a->name)->required();
  verb->callback([&settings, a] { set_online(settings, *a, true); });

  verb = noun.add_subcommand("offline", "Let a volume answer NOT READY; its initiators stay");
  verb->add_option("NAME", a->name)->required();
  verb->callback([&settings, a] { set_online(settings, *a, false); });

  verb = noun.add_subcommand("read-only", "Refuse writes to a volume");
  verb->add_option("NAME", a->name)->required();
  verb->add_flag("--off", a->writes, "Take writes again");
  verb->callback([&settings, a] { set_read_only(settings, *a); });

  verb = noun.add_subcommand("limits", "Show or change what a volume on a pool may take, and do");
  verb->add_option("NAME", a->name)->required();
  add_limit_options(*verb, *a);
  verb->callback([&settings, a] { set_limits(settings, *a); });
}

}  // namespace

void add_volume_commands(CLI::App& app, Settings& settings) {
  const auto a = std::make_shared<VolumeArguments>();
  CLI::App* noun = app.add_subcommand("volume", "Volumes: list, show, create, change, delete");
  noun->require_subcommand(1);
  noun->add_subcommand("list", "List all volumes")->callback([&settings] {
    list_volumes(settings);
  });

  CLI::App* verb = noun->add_subcommand("show", "Show one volume");
  verb->add_option("NAME", a->name)->required();
  verb->callback([&settings, a] { show_volume(settings, *a); });

  verb = noun->add_subcommand(
      "create",
      "Create a volume. Changes nothing if a volume with that name, size and kind exists");
  add_create_options(*verb, *a);
  verb->callback([&settings, a] { create(settings, *a); });

  verb = noun->add_subcommand("expand", "Make a volume larger while it is in use");
  verb->add_option("NAME", a->name)->required();
  verb->add_option("--size", a->size, "The new size")->required()->type_name("SIZE");
  verb->callback([&settings, a] { expand(settings, *a); });

  add_pool_verbs(*noun, settings, a);

  verb = noun->add_subcommand("rename", "Rename a volume; its target keeps its name");
  verb->add_option("NAME", a->name)->required();
  verb->add_option("NEW", a->new_name)->required();
  verb->callback([&settings, a] { rename(settings, *a); });

  verb = noun->add_subcommand("cache", "Change what the controller's cache does with a volume");
  verb->add_option("NAME", a->name)->required();
  verb->add_option("MODE", a->cache, "write-back, write-through or none")
      ->required()
      ->check(CLI::IsMember({"write-back", "write-through", "none"}));
  verb->callback([&settings, a] { change_cache(settings, *a); });

  verb = noun->add_subcommand(
      "delete", "Delete a volume, and its data if they are in the state directory or memory");
  verb->add_option("NAME", a->name)->required();
  verb->add_flag("--force", a->force,
                 "Also while sessions use it, which are ended, and with all its snapshots");
  verb->callback([&settings, a] { remove_volume(settings, *a); });
}

}  // namespace sandbay::cli
