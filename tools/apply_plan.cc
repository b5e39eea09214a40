// What comes is made from the bottom up, what goes from the top down, and going comes last: so room
// is never missing for the lack of an order, and a failure in between has destroyed nothing; but a
// schedule that changes goes just before it comes anew.
//
// Access records are the targets': those of all volumes that share one count together.
#include "tools/apply_plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "group/configuration.h"
#include "group/units.h"
#include "tools/client.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

std::string text_at(const json& object, const char* key) {
  return object.at(key).get<std::string>();
}

const json* find(const std::vector<json>& list, const std::string& name) {
  const auto found =
      std::ranges::find_if(list, [&](const json& one) { return text_at(one, "name") == name; });
  return found == list.end() ? nullptr : &*found;
}

std::string words_for(const VolumeKey& key, const json& value) {
  if (key.type == VolumeKey::Type::kSize) return group::format_size(value.get<std::uint64_t>());
  if (key.type == VolumeKey::Type::kRate) return group::format_rate(value.get<std::uint64_t>());
  if (value.is_string()) return value.get<std::string>();
  return value.dump();
}

// What a volume that is there has where the document has `key`.
json present_value(const VolumeKey& key, const json& volume) {
  if (key.name == "memory") return text_at(volume, "backing") == "memory";
  if (key.name == "file" || key.name == "device") {
    return text_at(volume, "backing") == key.name ? volume.at("path") : json("");
  }
  if (key.name == "naa") return volume.at("naa");
  return volume.at(std::string(key.name));
}

bool same_text(const std::string& one, const std::string& other) {
  return std::ranges::equal(one, other, [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  });
}

bool same_value(const VolumeKey& key, const json& wanted, const json& present) {
  if (key.name == "naa" || key.name == "eui64") {
    const auto bare = [](const std::string& text) {
      return text.starts_with("naa.") || text.starts_with("eui.") ? text.substr(4) : text;
    };
    return same_text(bare(wanted.get<std::string>()), bare(present.get<std::string>()));
  }
  return wanted == present;
}

// Secrets are not shown, so a record with the same user counts as the same.
bool same_access(const json& wanted, const json& there) {
  return text_at(wanted, "initiator") == text_at(there, "initiator") &&
         wanted.value("address", "") == text_at(there, "address") &&
         wanted.value("chap_user", "") == text_at(there, "chap_user");
}

// As the daemon will show it.
json planned_access(const json& wanted) {
  return {{"initiator", wanted.at("initiator")},
          {"address", wanted.value("address", "")},
          {"chap_user", wanted.value("chap_user", "")},
          {"declared", true}};  // Nothing to be pruned.
}

class Planner {
 public:
  Planner(const ApplyDocument& wanted, const PresentGroup& present)
      : wanted_(wanted), present_(present) {}

  std::vector<ApplyStep> plan(bool prune) {
    if (prune && wanted_.pools.empty() && wanted_.volumes.empty()) {
      throw Failure(
          "--prune would delete every volume and pool: the file names none; name there what is to "
          "stay, or delete them one by one");
    }
    for (const json& pool : wanted_.pools) plan_pool(pool);
    for (const WantedVolume& volume : wanted_.volumes) plan_volume(volume);
    if (prune) {
      for (const WantedVolume& volume : wanted_.volumes) prune_schedules(volume);
      for (const WantedVolume& volume : wanted_.volumes) prune_access(volume);
      prune_volumes();
      for (const json& pool : wanted_.pools) prune_members(pool);
      prune_pools();
    }
    return std::move(steps_);
  }

 private:
  void plan_pool(const json& pool);
  void plan_members(const json& pool, const json& there);
  void plan_volume(const WantedVolume& volume);
  void refuse_taken_target(const WantedVolume& volume) const;
  void make_volume(const WantedVolume& volume);
  void change_volume(const WantedVolume& volume, const json& there);
  void plan_access(const WantedVolume& volume);
  void plan_schedules(const WantedVolume& volume);
  void prune_schedules(const WantedVolume& volume);
  void prune_access(const WantedVolume& volume);
  void prune_members(const json& pool);
  void prune_volumes();
  void prune_pools();

  // Of a target as far as it is planned.
  std::vector<json>& access_of(const std::string& target) {
    const auto found = present_.access.find(target);
    return access_.try_emplace(target, found == present_.access.end() ? none_ : found->second)
        .first->second;
  }
  const std::vector<json>& schedules_of(const std::string& volume) const {
    const auto found = present_.schedules.find(volume);
    return found == present_.schedules.end() ? none_ : found->second;
  }

  const ApplyDocument& wanted_;
  const PresentGroup& present_;
  const std::vector<json> none_;
  std::map<std::string, std::vector<json>> access_;  // By target, with what is planned.
  std::set<std::string> planned_targets_;
  std::set<std::string> pruned_targets_;
  std::vector<ApplyStep> steps_;
};

void Planner::plan_pool(const json& pool) {
  const std::string name = text_at(pool, "name");
  const json* const there = find(present_.pools, name);
  if (there == nullptr) {
    steps_.push_back({'+', fmt::format("pool {}", name), "POST", kPools, pool});
    return;
  }
  if (pool.contains("page") && pool.at("page") != there->at("page")) {
    throw Failure(
        fmt::format("pool \"{}\": page is {}, and cannot become {}; write what it is, or "
                    "give the new pool another name",
                    name, there->at("page").dump(), pool.at("page").dump()));
  }
  if (pool.contains("members")) plan_members(pool, *there);
}

std::set<std::string> members_of(const json& pool) {
  return pool.at("members").get<std::set<std::string>>();
}

// Those that the document does not name leave only where it is pruned.
void Planner::plan_members(const json& pool, const json& there) {
  const std::string name = text_at(pool, "name");
  const std::set<std::string> has = members_of(there);
  const auto leaving = there.value("leaving", std::set<std::string>{});
  for (const std::string& member : members_of(pool)) {
    if (has.contains(member) && !leaving.contains(member)) continue;
    steps_.push_back({'+', fmt::format("pool {}: member {}", name, member), "POST",
                      member_path(member) + "/pool", json{{"pool", name}}});
  }
}

void Planner::prune_members(const json& pool) {
  const std::string name = text_at(pool, "name");
  const json* const there = find(present_.pools, name);
  if (there == nullptr || !pool.contains("members")) return;
  const std::set<std::string> wanted = members_of(pool);
  const auto leaving = there->value("leaving", std::set<std::string>{});
  for (const std::string& member : members_of(*there)) {
    if (wanted.contains(member) || leaving.contains(member)) continue;
    steps_.push_back({'-', fmt::format("pool {}: member {}, once it is empty", name, member),
                      "DELETE", member_path(member) + "/pool", nullptr});
  }
}

void Planner::plan_volume(const WantedVolume& volume) {
  const json* const there = find(present_.volumes, volume.name);
  if (there == nullptr) {
    make_volume(volume);
  } else {
    change_volume(volume, *there);
    plan_access(volume);
  }
  plan_schedules(volume);
}

// A volume that was renamed keeps its target, where one of its old name cannot be made.
void Planner::refuse_taken_target(const WantedVolume& volume) const {
  if (volume.keys.contains("target")) return;
  const std::string target = target_of(volume, present_.volumes);
  if (!present_.targets.contains(target) && !planned_targets_.contains(target)) return;
  const auto has = std::ranges::find_if(
      present_.volumes, [&](const json& one) { return text_at(one, "target") == target; });
  const std::string whose =
      has == present_.volumes.end()
          ? "is another's already; write a target of its own"
          : fmt::format(
                "is that of volume \"{0}\"; write \"{0}\" if it was renamed, or a target "
                "of its own",
                text_at(*has, "name"));
  throw Failure(fmt::format("volume \"{}\": its target {} {}", volume.name, target, whose));
}

// With its access records, so that it is never there without them; a target that is there has its
// own already.
void Planner::make_volume(const WantedVolume& volume) {
  refuse_taken_target(volume);
  json body{{"name", volume.name}};
  json later = json::object();
  std::string words;
  std::string later_words;
  for (const VolumeKey& key : volume_keys()) {
    const auto given = volume.keys.find(key.name);
    if (given == volume.keys.end()) continue;
    (key.when_made ? body : later)[std::string(key.name)] = *given;
    std::string& text = key.when_made ? words : later_words;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key.name, words_for(key, *given));
  }
  const std::string target = target_of(volume, present_.volumes);
  const bool fresh = !present_.targets.contains(target) && planned_targets_.insert(target).second;
  if (fresh) {
    for (const json& access : volume.access) {
      body["access"].push_back(access);
      words += fmt::format(", access {}", text_at(access, "initiator"));
      access_of(target).push_back(planned_access(access));
    }
  }
  steps_.push_back(
      {'+', fmt::format("volume {}: {}", volume.name, words), "POST", kVolumes, std::move(body)});
  if (!later.empty()) {
    steps_.push_back({'~', fmt::format("volume {}: {}", volume.name, later_words), "PATCH",
                      volume_path(volume.name), std::move(later)});
  }
  if (!fresh) plan_access(volume);
}

// A request for each thing that the daemon does at once, so that none is half done.
std::string_view part_of(const VolumeKey& key) {
  if (key.name == "size" || key.name == "cache") return key.name;
  return key.name == "online" || key.name == "read_only" ? "access" : "limits";
}

void Planner::change_volume(const WantedVolume& volume, const json& there) {
  struct Part {
    json body = json::object();
    std::string words;
  };
  std::map<std::string_view, Part> parts;
  for (const VolumeKey& key : volume_keys()) {
    const auto given = volume.keys.find(key.name);
    if (given == volume.keys.end()) continue;
    const json has = present_value(key, there);
    if (same_value(key, *given, has)) continue;
    const std::string change =
        fmt::format("{} {} -> {}", key.name, words_for(key, has), words_for(key, *given));
    if (!key.changeable) {
      throw Failure(
          fmt::format("volume \"{}\": {} cannot change; write what it is, or give the "
                      "new volume another name",
                      volume.name, change));
    }
    if (key.name == "size" && *given < has) {
      throw Failure(
          fmt::format("volume \"{}\": {} would lose data, which apply does not do; see "
                      "sandbay volume shrink",
                      volume.name, change));
    }
    Part& part = parts[part_of(key)];
    part.body[std::string(key.name)] = *given;
    part.words += (part.words.empty() ? "" : ", ") + change;
  }
  for (auto& [name, part] : parts) {
    steps_.push_back({'~', fmt::format("volume {}: {}", volume.name, part.words), "PATCH",
                      volume_path(volume.name), std::move(part.body)});
  }
}

std::string words_for_access(const json& access) {
  std::string words = text_at(access, "initiator");
  if (const std::string address = access.value("address", ""); !address.empty()) {
    words += " from " + address;
  }
  if (const std::string user = access.value("chap_user", ""); !user.empty()) {
    words += fmt::format(" with CHAP as {}", user);
  }
  return words;
}

void Planner::plan_access(const WantedVolume& volume) {
  std::vector<json>& there = access_of(target_of(volume, present_.volumes));
  for (const json& access : volume.access) {
    const auto same = [&](const json& one) { return same_access(access, one); };
    if (std::ranges::any_of(there, same)) continue;
    there.push_back(planned_access(access));
    steps_.push_back({'+',
                      fmt::format("volume {}: access {}", volume.name, words_for_access(access)),
                      "POST", volume_path(volume.name) + "/access", access});
  }
}

void Planner::plan_schedules(const WantedVolume& volume) {
  const std::string path = volume_path(volume.name) + "/schedules";
  for (const json& schedule : volume.schedules) {
    const std::string name = text_at(schedule, "name");
    const std::string every = text_at(schedule, "every");
    const json* const there = find(schedules_of(volume.name), name);
    if (there != nullptr) {
      const auto wanted = group::parse_duration(every);
      const double seconds = wanted ? std::chrono::duration<double>(*wanted).count() : 0;
      if (there->at("every").get<double>() == seconds && there->at("keep") == schedule.at("keep")) {
        continue;
      }
      // The snapshots that it has taken are kept, and counted by the new one of that name.
      steps_.push_back({'~', fmt::format("volume {}: schedule {} is made anew", volume.name, name),
                        "DELETE", path + "/" + Client::escape(name), nullptr});
    }
    steps_.push_back({'+',
                      fmt::format("volume {}: schedule {} every {}, {} kept", volume.name, name,
                                  every, schedule.at("keep").dump()),
                      "POST", path, schedule});
  }
}

void Planner::prune_schedules(const WantedVolume& volume) {
  for (const json& there : schedules_of(volume.name)) {
    const std::string name = text_at(there, "name");
    if (find(volume.schedules, name) != nullptr) continue;
    steps_.push_back(
        {'-', fmt::format("volume {}: schedule {}", volume.name, name), "DELETE",
         fmt::format("{}/schedules/{}", volume_path(volume.name), Client::escape(name)), nullptr});
  }
}

// What no volume of its target wants. Once for each target.
void Planner::prune_access(const WantedVolume& volume) {
  const std::string target = target_of(volume, present_.volumes);
  const auto has = present_.access.find(target);
  if (has == present_.access.end() || !pruned_targets_.insert(target).second) return;
  for (const json& there : has->second) {
    const auto wanted = [&](const WantedVolume& other) {
      return target_of(other, present_.volumes) == target &&
             std::ranges::any_of(other.access,
                                 [&](const json& access) { return same_access(access, there); });
    };
    if (there.at("declared").get<bool>() || std::ranges::any_of(wanted_.volumes, wanted)) continue;
    // The volume is there by now, and one of the target's.
    steps_.push_back(
        {'-', fmt::format("volume {}: access {}", volume.name, words_for_access(there)), "DELETE",
         fmt::format("{}/access/{}", volume_path(volume.name),
                     Client::escape(text_at(there, "id"))),
         nullptr});
  }
}

void Planner::prune_volumes() {
  for (const json& there : present_.volumes) {
    const std::string name = text_at(there, "name");
    const bool wanted =
        std::ranges::find(wanted_.volumes, name, &WantedVolume::name) != wanted_.volumes.end();
    if (wanted || there.at("declared").get<bool>()) continue;
    const std::string size = group::format_size(there.at("size").get<std::uint64_t>());
    const std::string backing = text_at(there, "backing");
    const bool stays = backing == "file" || backing == "device";
    steps_.push_back(
        {'-',
         stays ? fmt::format("volume {}: {}; {} stays", name, size, text_at(there, "path"))
               : fmt::format("volume {} and its data: {}", name, size),
         "DELETE", volume_path(name), nullptr});
  }
}

void Planner::prune_pools() {
  for (const json& there : present_.pools) {
    const std::string name = text_at(there, "name");
    if (find(wanted_.pools, name) != nullptr || there.at("declared").get<bool>()) continue;
    steps_.push_back({'-', fmt::format("pool {}", name), "DELETE", pool_path(name), nullptr});
  }
}

}  // namespace

std::string target_of(const WantedVolume& volume, const std::vector<json>& present) {
  if (const auto given = volume.keys.find("target"); given != volume.keys.end()) {
    return given->get<std::string>();
  }
  const json* const there = find(present, volume.name);
  return there != nullptr ? text_at(*there, "target") : group::default_target_name(volume.name);
}

std::vector<ApplyStep> plan_apply(const ApplyDocument& wanted, const PresentGroup& present,
                                  bool prune) {
  return Planner(wanted, present).plan(prune);
}

std::string stopped_words(const std::vector<ApplyStep>& steps, std::size_t done,
                          const std::string& why) {
  const ApplyStep& step = steps.at(done);
  std::string words = fmt::format("{} {}: {}", step.sign, step.text, why);
  const bool volume_goes = step.method == "DELETE" && step.path.starts_with(kVolumes) &&
                           step.path.rfind('/') == std::string_view(kVolumes).size();
  if (volume_goes) words += " (apply forces nothing; sandbay volume delete can)";
  if (steps.size() > 1) {
    words += fmt::format("; {} of {} changes were made before that", done, steps.size());
  }
  return words;
}

}  // namespace sandbay::cli
