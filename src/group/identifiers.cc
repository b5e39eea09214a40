// Compared as hosts see them: texts without the spaces at their end, by which INQUIRY fills them.
#include "group/identifiers.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "group/volume.h"

namespace sandbay::group {

namespace {

std::string_view shown(std::string_view text) {
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

}  // namespace

std::optional<std::string> Identifiers::claim(const VolumeSpecification& specification,
                                              std::string_view kind) {
  const VolumeSpecification& s = specification;
  const std::string owner = fmt::format("{} \"{}\"", kind, s.name);
  std::optional<std::string> taken;
  const auto take = [&](std::string identifier, std::string_view what, std::string_view value) {
    const auto [found, added] = owners_.try_emplace(std::move(identifier), owner);
    if (added || taken) return;
    taken = fmt::format(
        "{} {} is that of {} too, and hosts would take both for one disk; give each its own", what,
        value, found->second);
  };
  if (s.naa) {
    const std::string digits = format_naa(*s.naa).substr(4);
    take("naa " + digits, "naa", digits);
    designators_.insert(*s.naa);
  }
  if (!s.serial.empty()) {
    const std::string_view vendor = s.vendor.empty() ? identity_.vendor : s.vendor;
    const std::string_view product = s.product.empty() ? identity_.product : s.product;
    // Each has its length before it, so that none can run into the next.
    std::string identifier = "serial";
    for (const std::string_view text : {shown(vendor), shown(product), shown(s.serial)}) {
      identifier += fmt::format(" {} {}", text.size(), text);
    }
    take(std::move(identifier), "serial", fmt::format("\"{}\"", s.serial));
  }
  return taken;
}

std::optional<std::string> Identifiers::claim(const VolumeRecord& record, std::string_view kind) {
  VolumeSpecification s = record.specification;
  s.naa = naa_of(record);
  if (s.serial.empty()) s.serial = serial_of(record.uuid);
  return claim(s, kind);
}

}  // namespace sandbay::group
