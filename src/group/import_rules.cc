// The rules are those of configuration_rules.cc; the decoders of the records know the rest.
#include "group/import_rules.h"

#include <fmt/core.h>

#include "group/configuration.h"
#include "group/pool_records.h"
#include "group/records.h"
#include "group/unit_book.h"

namespace sandbay::group {

namespace {

template <class Record>
std::string mistake_in(const std::expected<Record, std::string>& record) {
  return record ? std::string() : record.error();
}

std::string mistake_in_target(const std::string& value) {
  const auto target = decode_target(value);
  if (!target) return target.error();
  if (const auto error = check_target_name(target->name)) return "target: " + *error;
  for (const AddedAccess& access : target->access) {
    if (const auto error = check_access(access.record)) {
      return fmt::format("target {}: access: {}", target->name, *error);
    }
  }
  return {};
}

std::string mistake_in_snapshot(const std::string& value) {
  const auto snapshot = decode_snapshot(value);
  if (!snapshot) return snapshot.error();
  if (!snapshot->online) return {};
  const auto error = check_target_name(snapshot->target);
  return error ? fmt::format("snapshot \"{}\": target: {}", snapshot->name, *error) : std::string();
}

}  // namespace

void ImportRules::add(const metadata::Entry& entry) {
  if (!mistake_.empty()) return;
  const std::string wrong = judge(entry);
  if (!wrong.empty()) mistake_ = fmt::format("record {} {}", entry.first, wrong);
}

std::string ImportRules::judge(const metadata::Entry& entry) {
  const auto& [key, value] = entry;
  if (key == kGroupKey) return mistake_in(decode_group(value));
  if (key.starts_with(kVolumePrefix)) return judge_volume(value);
  if (key.starts_with(kTargetPrefix)) return mistake_in_target(value);
  if (key.starts_with(kPoolPrefix)) return mistake_in(decode_pool(value));
  if (key.starts_with(kSnapshotPrefix)) return mistake_in_snapshot(value);
  if (key.starts_with(kSchedulePrefix)) return mistake_in(decode_schedule(value));
  if (key.starts_with(kReservationPrefix)) return mistake_in(decode_reservations(key, value));
  return {};
}

std::string ImportRules::judge_volume(const std::string& value) {
  const auto record = decode_volume(value);
  if (!record) return record.error();
  const VolumeSpecification& s = record->specification;
  const auto number = s.lun.value_or(0);
  const std::string lun = fmt::format("LUN {} of {}", number, s.target);
  if (const auto error = check_target_name(s.target)) {
    return fmt::format("volume \"{}\": target: {}", s.name, *error);
  }
  if (number > kLargestLun) {
    return fmt::format("volume \"{}\": lun {} is out of range; write 0 to {}", s.name, number,
                       kLargestLun);
  }
  const auto [unit, unit_is_free] = units_.emplace(lun, s.name);
  if (unit_is_free) return {};
  return fmt::format("volume \"{}\": {} is volume \"{}\"; give one of them another lun or target",
                     s.name, lun, unit->second);
}

}  // namespace sandbay::group
