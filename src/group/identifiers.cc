// Compared as hosts see them: texts without the spaces at their end, by which INQUIRY fills them.
#include "group/identifiers.h"

#include <fmt/core.h>

#include <string_view>
#include <utility>

#include "group/volume.h"
#include "runtime/uuid.h"

namespace sandbay::group {

namespace {

std::string_view shown(std::string_view text) {
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

std::string key_of_designator(const NaaIdentifier& designator) {
  return "naa " + format_naa(designator).substr(4);
}

std::string words_of_clash(std::string_view what, std::string_view value, std::string_view owner) {
  return fmt::format(
      "{} {} is that of {} too, and hosts would take both for one disk; give each its own", what,
      value, owner);
}

}  // namespace

std::vector<Identifiers::Identifier> Identifiers::identifiers_of(
    const VolumeSpecification& s) const {
  std::vector<Identifier> all;
  if (s.naa) {
    all.push_back(
        {.key = key_of_designator(*s.naa), .what = "naa", .value = format_naa(*s.naa).substr(4)});
  }
  if (s.eui64) {
    const std::string digits = format_hex(*s.eui64);
    all.push_back({.key = "eui64 " + digits, .what = "eui64", .value = digits});
  }
  if (s.serial.empty()) return all;
  const std::string_view vendor = s.vendor.empty() ? identity_.vendor : s.vendor;
  const std::string_view product = s.product.empty() ? identity_.product : s.product;
  // Each has its length before it, so that none can run into the next.
  std::string key = "serial";
  for (const std::string_view text : {shown(vendor), shown(product), shown(s.serial)}) {
    key += fmt::format(" {} {}", text.size(), text);
  }
  all.push_back(
      {.key = std::move(key), .what = "serial", .value = fmt::format("\"{}\"", s.serial)});
  return all;
}

std::optional<std::string> Identifiers::claim(const VolumeSpecification& specification,
                                              std::string_view kind) {
  const std::string owner = fmt::format("{} \"{}\"", kind, specification.name);
  std::optional<std::string> taken;
  for (Identifier& one : identifiers_of(specification)) {
    const auto [found, added] = owners_.try_emplace(std::move(one.key), owner);
    if (!added && !taken) taken = words_of_clash(one.what, one.value, found->second);
  }
  return taken;
}

VolumeSpecification Identifiers::settled(const VolumeRecord& record) {
  VolumeSpecification s = record.specification;
  s.naa = naa_of(record);
  if (s.serial.empty()) s.serial = serial_of(record.uuid);
  return s;
}

std::optional<std::string> Identifiers::claim(const VolumeRecord& record, std::string_view kind) {
  return claim(settled(record), kind);
}

void Identifiers::take(const VolumeRecord& record) {
  release(record.uuid);
  std::vector<std::string>& own = identifiers_[record.uuid];
  for (Identifier& one : identifiers_of(settled(record))) {
    takers_[one.key].push_back(record.uuid);
    own.push_back(std::move(one.key));
  }
}

void Identifiers::release(const Uuid& uuid) {
  const auto found = identifiers_.find(uuid);
  if (found == identifiers_.end()) return;
  for (const std::string& key : found->second) {
    const auto takers = takers_.find(key);
    std::erase(takers->second, uuid);
    if (takers->second.empty()) takers_.erase(takers);
  }
  identifiers_.erase(found);
}

bool Identifiers::has(const NaaIdentifier& designator) const {
  return takers_.contains(key_of_designator(designator));
}

std::optional<std::string> Identifiers::clash(
    const VolumeSpecification& specification,
    const std::function<std::string(const Uuid& uuid)>& words_of) const {
  for (const Identifier& one : identifiers_of(specification)) {
    const auto takers = takers_.find(one.key);
    if (takers == takers_.end()) continue;
    return words_of_clash(one.what, one.value, words_of(takers->second.front()));
  }
  return std::nullopt;
}

}  // namespace sandbay::group
