// A family for each counter, a sample for each drive, set or rule.
#include "mgmt/metrics_hardware.h"

#include <algorithm>
#include <chrono>

namespace sandbay::mgmt {

namespace {

// What drives say of themselves.
template <class Each>
void add_conditions(const Each& each) {
  each("sandbay_drive_unreadable_blocks", "gauge", "Blocks that cannot be read.",
       [](const auto& drive) { return drive.unreadable_blocks; });
  each("sandbay_drive_recovered_errors_total", "counter", "Errors that the drive recovered from.",
       [](const auto& drive) { return drive.recovered_errors; });
  each("sandbay_drive_wear_ratio", "gauge",
       "Share of its life that is used up; more than 1 is possible.",
       [](const auto& drive) { return static_cast<double>(drive.wear_percent) / 100; });
  each("sandbay_drive_temperature_celsius", "gauge", "Temperature.",
       [](const auto& drive) { return drive.temperature_celsius; });
}

// Drives that are timed.
void add_models(Text& text, const std::vector<group::DriveInfo>& drives) {
  if (std::ranges::all_of(drives, &std::string::empty, &group::DriveInfo::profile)) return;
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help,
                        auto value) {
    text.family(name, type, help);
    for (const group::DriveInfo& drive : drives) {
      if (drive.profile.empty()) continue;
      text.sample(fmt::format("drive=\"{}\",profile=\"{}\"", escape(drive.raid.name),
                              escape(drive.profile)),
                  value(drive));
    }
  };
  each("sandbay_drive_modelled_busy_seconds_total", "counter",
       "Modelled time in which the drive was at work.", [](const auto& drive) {
         return std::chrono::duration<double>(drive.modelled_busy).count();
       });
  each("sandbay_drive_modelled_queue", "gauge", "Commands that the drive's model has.",
       [](const auto& drive) { return drive.modelled_queue; });
}

void add_drives(Text& text, const std::vector<group::DriveInfo>& drives) {
  if (drives.empty()) return;
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help,
                        auto value) {
    text.family(name, type, help);
    for (const group::DriveInfo& drive : drives) {
      text.sample(fmt::format("drive=\"{}\"", escape(drive.raid.name)), value(drive));
    }
  };
  const auto counter = [&](std::string_view name, std::string_view help,
                           std::uint64_t raid::DriveCounters::* member) {
    each(fmt::format("sandbay_drive_{}_total", name), "counter", help,
         [member](const group::DriveInfo& drive) { return drive.raid.counters.*member; });
  };
  each("sandbay_drive_size_bytes", "gauge", "Size of the drive.",
       [](const auto& drive) { return drive.raid.byte_count; });
  each("sandbay_drive_healthy", "gauge", "1 if the drive is present and in good health.",
       [](const auto& drive) {
         return drive.raid.health == Health::kGood && drive.raid.use != raid::DriveUse::kFailed &&
                        drive.raid.use != raid::DriveUse::kAbsent
                    ? 1
                    : 0;
       });
  each("sandbay_drive_stale_regions", "gauge", "Regions that the drive has still to be given.",
       [](const auto& drive) { return drive.raid.stale_regions; });
  using Counters = raid::DriveCounters;
  counter("reads", "Reads.", &Counters::reads);
  counter("writes", "Writes.", &Counters::writes);
  counter("flushes", "Flushes.", &Counters::flushes);
  counter("read_bytes", "Bytes read.", &Counters::read_bytes);
  counter("written_bytes", "Bytes written.", &Counters::written_bytes);
  counter("metadata_operations", "Operations on superblocks, maps and journal.",
          &Counters::metadata_operations);
  counter("metadata_bytes", "Bytes of superblocks, maps and journal.", &Counters::metadata_bytes);
  counter("medium_errors", "Medium errors.", &Counters::medium_errors);
  counter("other_errors", "Other errors.", &Counters::other_errors);
  counter("retries", "Operations that were tried again.", &Counters::retries);
  counter("timeouts", "Operations that did not end in time.", &Counters::timeouts);
  counter("slow_reads", "Reads worth reading around.", &Counters::slow_reads);
  counter("probes", "Reads that tested whether a slow drive has recovered.", &Counters::probes);
  add_conditions(each);
  add_models(text, drives);
}

class SetSamples {
 public:
  SetSamples(Text& text, const std::vector<group::SetInfo>& sets) : text_(text), sets_(sets) {}

  template <class Value>
  void each(std::string_view name, std::string_view type, std::string_view help, Value value) {
    text_.family(name, type, help);
    for (const group::SetInfo& set : sets_) {
      text_.sample(fmt::format("set=\"{}\"", escape(set.raid.name)), value(set));
    }
  }
  void counter(std::string_view name, std::string_view help,
               std::uint64_t raid::SetCounters::* member) {
    each(fmt::format("sandbay_raid_{}_total", name), "counter", help,
         [member](const group::SetInfo& set) { return set.raid.counters.*member; });
  }

 private:
  Text& text_;
  const std::vector<group::SetInfo>& sets_;
};

void add_states(SetSamples& sets) {
  sets.each("sandbay_raid_size_bytes", "gauge", "Size of the set.",
            [](const auto& set) { return set.raid.byte_count; });
  sets.each("sandbay_raid_free_bytes", "gauge", "What of it belongs to no volume.",
            [](const auto& set) { return set.free_bytes; });
  sets.each("sandbay_raid_running", "gauge", "1 if the set serves.",
            [](const auto& set) { return set.raid.running ? 1 : 0; });
  sets.each("sandbay_raid_healthy", "gauge", "1 if the set is in good health.",
            [](const auto& set) { return set.raid.health == Health::kGood ? 1 : 0; });
  sets.each("sandbay_raid_regions", "gauge", "Regions of the set.",
            [](const auto& set) { return set.raid.regions; });
  sets.each("sandbay_raid_unverified_regions", "gauge",
            "Regions whose redundancy has yet to be made valid.",
            [](const auto& set) { return set.raid.unverified_regions; });
  sets.each("sandbay_raid_journal_size_bytes", "gauge", "Size of the journal.",
            [](const auto& set) { return set.raid.journal_size_bytes; });
  sets.each("sandbay_raid_journal_used_bytes", "gauge", "What of the journal is in use.",
            [](const auto& set) { return set.raid.journal_used_bytes; });
  sets.each("sandbay_raid_journal_written_bytes_total", "counter", "Bytes of journal records.",
            [](const auto& set) { return set.raid.journal_written_bytes; });
  sets.each("sandbay_raid_background_done_ratio", "gauge",
            "How far rebuild, copy or verify have come, from 0 to 1; 1 if there is nothing to do.",
            [](const auto& set) {
              const raid::MaintenanceProgress& progress = set.raid.progress;
              if (progress.all_stripes == 0) return 1.0;
              return static_cast<double>(progress.done_stripes) /
                     static_cast<double>(progress.all_stripes);
            });
}

void add_sets(Text& text, const std::vector<group::SetInfo>& list) {
  if (list.empty()) return;
  SetSamples sets(text, list);
  add_states(sets);
  using Counters = raid::SetCounters;
  sets.counter("host_reads", "Reads by hosts.", &Counters::host_reads);
  sets.counter("host_writes", "Writes by hosts.", &Counters::host_writes);
  sets.counter("host_read_bytes", "Bytes read by hosts.", &Counters::host_read_bytes);
  sets.counter("host_written_bytes", "Bytes written by hosts.", &Counters::host_written_bytes);
  sets.counter("full_stripe_writes", "Stripes written without reading.",
               &Counters::full_stripe_writes);
  sets.counter("read_modify_writes", "Stripes updated by read-modify-write.",
               &Counters::read_modify_writes);
  sets.counter("reconstruct_writes", "Stripes updated by reconstruct-write.",
               &Counters::reconstruct_writes);
  sets.counter("recover_writes", "Stripes updated with a member recovered.",
               &Counters::recover_writes);
  sets.counter("merged_writes", "Pieces of writes that shared an update.",
               &Counters::merged_writes);
  sets.counter("reconstructions", "Reads answered from redundancy.", &Counters::reconstructions);
  sets.counter("reads_around", "Of these, because a drive was slow.", &Counters::reads_around);
  sets.counter("corrections", "Blocks rewritten after an error or a mismatch.",
               &Counters::corrections);
  sets.counter("lost_blocks", "Blocks that could not be recovered.", &Counters::lost_blocks);
  sets.counter("mismatches", "Stripes whose redundancy did not match.", &Counters::mismatches);
  sets.counter("corruptions", "Cells of which a drive gave something else than was written last.",
               &Counters::corruptions);
  sets.counter("false_entries", "Cells that were right, and only their entries wrong.",
               &Counters::false_entries);
  sets.counter("entries_mended", "Members of stripes with a bad copy of an entry.",
               &Counters::entries_mended);
  sets.counter("flushes", "Flushes.", &Counters::flushes);
}

void add_faults(Text& text, const group::FaultsInfo& faults) {
  if (!faults.enabled) return;
  text.family("sandbay_fault_firings_total", "counter", "Effects of fault rules.");
  text.sample("", faults.firings);
  const auto each = [&](std::string_view name, std::string_view help, auto value) {
    text.family(name, "counter", help);
    for (const fault::RuleView& rule : faults.rules) {
      text.sample(fmt::format("rule=\"{}\"", escape(rule.id)), value(rule.counters));
    }
  };
  if (faults.rules.empty()) return;
  each("sandbay_fault_rule_matched_total", "What fitted the rule.",
       [](const auto& counters) { return counters.matched; });
  each("sandbay_fault_rule_fired_total", "How often its fault began.",
       [](const auto& counters) { return counters.fired; });
  each("sandbay_fault_rule_struck_total", "Operations that its fault concerned.",
       [](const auto& counters) { return counters.struck; });
  each("sandbay_fault_rule_spared_total", "Firings given up for tolerance or a limit.",
       [](const auto& counters) { return counters.spared; });
  text.family("sandbay_fault_rule_active", "gauge", "1 while a fault of the rule lasts.");
  for (const fault::RuleView& rule : faults.rules) {
    text.sample(fmt::format("rule=\"{}\"", escape(rule.id)), rule.active ? 1 : 0);
  }
}

}  // namespace

void add_hardware(Text& text, const group::Measurements& measurements) {
  add_drives(text, measurements.drives);
  add_sets(text, measurements.sets);
  add_faults(text, measurements.faults);
  text.family("sandbay_events_total", "counter", "Events since the group was made.");
  text.sample("", measurements.events);
}

}  // namespace sandbay::mgmt
