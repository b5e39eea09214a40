// FlashModel: a solid-state drive, simply. A read is cut into pages of 4 KiB, each read by the unit
// that the page belongs to, then sent; the controller begins so many commands a second at most.
// Writes go to a buffer and are programmed from there at the sequential or, where they do not
// continue the one before, the sustained random rate; with the buffer full they wait.
//
// First come, first served: an end is known as soon as a command has arrived. Not modelled:
// collection of garbage as such (it is in the sustained rates) and reads that wait for programming.
#pragma once

#include <cstdint>
#include <vector>

#include "model/drive_model.h"

namespace sandbay::model {

class FlashModel final : public DriveModel {
 public:
  explicit FlashModel(const FlashProfile& profile);  // profile_error() found nothing.

  std::uint64_t sector_count() const noexcept override { return profile_.sector_count; }
  bool rotational() const noexcept override { return false; }
  void arrive(DriveCommand& command) override;
  void advance(TimePoint /*now*/) override {}
  TimePoint next_event() const noexcept override { return next_end(); }
  void withdraw(DriveCommand& command) override { forget_end(command); }

 private:
  Nanoseconds read(const DriveCommand& command);
  Nanoseconds write(const DriveCommand& command);

  FlashProfile profile_;
  Nanoseconds command_time_;       // What a read takes of the controller,
  Nanoseconds unit_time_;          // a page of its unit,
  Nanoseconds page_send_time_;     // of the way out,
  Nanoseconds page_program_time_;  // and a random write of a page of the medium.
  Nanoseconds buffer_time_;        // How far programming may lag behind.

  std::vector<Nanoseconds> unit_free_;
  Nanoseconds controller_free_ = 0;
  Nanoseconds out_free_ = 0;
  Nanoseconds in_free_ = 0;
  Nanoseconds programmed_ = 0;  // When everything in the buffer is on the medium.
  std::uint64_t write_end_ = 0;
};

}  // namespace sandbay::model
