// Busy-until times of the controller, the units, the way out and the programming.
#include "model/flash_model.h"

#include <algorithm>
#include <cassert>

namespace sandbay::model {

namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kPageSectors = kPageBytes / kSectorBytes;
constexpr std::uint64_t kSecond = 1'000'000'000;

Nanoseconds per_command(std::uint64_t per_second) {
  return static_cast<Nanoseconds>(kSecond / per_second);
}

}  // namespace

FlashModel::FlashModel(const FlashProfile& profile)
    : profile_(profile),
      command_time_(per_command(profile.random_reads_per_second)),
      page_send_time_(
          transfer_time(kPageBytes, std::min(profile.read_rate, profile.interface_rate))),
      page_program_time_(per_command(profile.random_writes_per_second)),
      buffer_time_(transfer_time(profile.buffer_bytes, profile.write_rate)),
      unit_free_(profile.units) {
  unit_time_ =
      std::max<Nanoseconds>(profile_.read_latency.count() - command_time_ - page_send_time_, 1);
}

void FlashModel::arrive(DriveCommand& command) {
  note_arrival(command);
  const Nanoseconds arrival = in_nanoseconds(command.arrival);
  switch (command.operation) {
    case Operation::kRead:
      end_at(command, read(command));
      return;
    case Operation::kWrite:
      end_at(command, write(command));
      return;
    case Operation::kFlush:
      end_at(command, profile_.power_protected
                          ? arrival
                          : std::max(arrival, programmed_) + profile_.write_latency.count());
      return;
    case Operation::kUnmap:
    case Operation::kWriteZeroes:  // Of the map of pages only.
      end_at(command, arrival + profile_.write_latency.count());
      return;
    case Operation::kAdvise:
      end_at(command, arrival);
      return;
  }
}

Nanoseconds FlashModel::read(const DriveCommand& command) {
  const Nanoseconds arrival = in_nanoseconds(command.arrival);
  const Nanoseconds begin = std::max(arrival, controller_free_);
  controller_free_ = begin + command_time_;
  if (command.sector_count == 0) return controller_free_;
  Nanoseconds end = 0;
  Nanoseconds work = 0;
  const std::uint64_t first = command.sector / kPageSectors;
  const std::uint64_t last = (command.sector + command.sector_count - 1) / kPageSectors;
  for (std::uint64_t page = first; page <= last; ++page) {
    Nanoseconds& unit = unit_free_[page % unit_free_.size()];
    unit = std::max(unit, controller_free_) + unit_time_;
    work += unit_time_;
    // The way out has room for so much; it does not keep the order of pages.
    out_free_ = std::max(out_free_, controller_free_) + page_send_time_;
    end = std::max({end, unit + page_send_time_, out_free_});
  }
  counters_.transferring += Duration(work) / static_cast<Nanoseconds>(unit_free_.size());
  return end;
}

Nanoseconds FlashModel::write(const DriveCommand& command) {
  const Nanoseconds arrival = in_nanoseconds(command.arrival);
  in_free_ =
      std::max(in_free_, arrival) + transfer_time(command.byte_count(), profile_.interface_rate);
  const bool continues = command.sector == write_end_;
  write_end_ = command.sector + command.sector_count;
  const auto pages =
      static_cast<Nanoseconds>((command.sector_count + kPageSectors - 1) / kPageSectors);
  Nanoseconds cost = transfer_time(command.byte_count(), profile_.write_rate);
  if (!continues) cost = std::max(cost, pages * page_program_time_);
  programmed_ = std::max(programmed_, arrival) + cost;
  counters_.transferring += Duration(cost);
  const Nanoseconds accepted = std::max(in_free_, programmed_ - buffer_time_);
  if (command.force_unit_access && !profile_.power_protected) {
    return std::max(accepted, programmed_) + profile_.write_latency.count();
  }
  return accepted + profile_.write_latency.count();
}

}  // namespace sandbay::model
