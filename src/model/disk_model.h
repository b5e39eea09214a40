// DiskModel: a rotating disk. One mechanism does one command at a time: it seeks, waits for the
// sector, transfers; what the cache holds goes over the interface meanwhile.
//
// A command is ready when its overhead is over. When the mechanism is free, it takes of the first
// queue_depth ready commands the one that its heads reach first (Jacobson and Wilkes, "Disk
// scheduling algorithms based on rotational position", HPL-CSP-91-7), unless the oldest is older
// than the age bound. A media transfer overlaps with that over the interface, but for the last
// piece of 4 KiB.
//
// With the write cache on, a write ends when it is in the cache, and is written in the same order
// as all others; one that finds no room waits; a flush waits for everything that was accepted
// before. Not modelled: reading a whole track from where the heads happen to land, defects, and the
// coalescing of cached writes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "model/background_load.h"
#include "model/drive_model.h"
#include "model/look_ahead.h"
#include "model/seek_curve.h"

namespace sandbay::model {

// What all drives of a profile share.
struct DiskMechanism {
  explicit DiskMechanism(const DiskProfile& disk);  // profile_error() found nothing.

  DiskProfile profile;
  DiskLayout layout;
  SeekCurve read_seek;
  SeekCurve write_seek;
};

struct DiskOptions {
  std::uint64_t seed = 1;  // Of the rotation's phase and the background load.
  BackgroundOptions background;
};

class DiskModel final : public DriveModel {
 public:
  DiskModel(std::shared_ptr<const DiskMechanism> mechanism, DiskOptions options);

  std::uint64_t sector_count() const noexcept override { return layout_.sector_count(); }
  bool rotational() const noexcept override { return true; }
  void arrive(DriveCommand& command) override;
  void advance(TimePoint now) override;
  TimePoint next_event() const noexcept override;
  void withdraw(DriveCommand& command) override;
  DriveCommand* take_ended(TimePoint now) override;

 private:
  // A ready command and what the choice needs of it.
  struct Candidate {
    DriveCommand* command = nullptr;
    Nanoseconds sweep = 0;
    std::uint32_t cylinder = 0;
    std::uint32_t angle = 0;
    std::uint32_t head = 0;
    bool write = false;
  };
  struct Positioning {
    Nanoseconds seek = 0;
    Nanoseconds wait = 0;
    Nanoseconds sum() const noexcept { return seek + wait; }
  };

  // Events, in the order in which they go at one time.
  void end_destage();
  void take_background();
  void become_ready(DriveCommand& command);
  void decide();

  void accept_write(DriveCommand& command);
  void wait_for_mechanism(DriveCommand& command);
  void end_flushes();
  std::size_t choose();
  Positioning position(const Candidate& candidate, std::uint32_t angle_now) const noexcept;
  bool serve_from_cache(DriveCommand& command);
  void serve(const Candidate& chosen);
  void finish(DriveCommand& command, const DiskLayout::Place& last, Nanoseconds media_begin,
              Nanoseconds media_end);
  bool waits_for_current_segment() const noexcept;
  bool serve_waiting_from_cache();
  std::optional<std::size_t> find_passing();
  std::optional<std::size_t> find_too_old() const noexcept;
  Nanoseconds send(std::uint64_t byte_count);  // Over the interface, from now on.
  bool in_write_cache(const DriveCommand& command) const;
  void leave_for(Nanoseconds time);  // Ends the look-ahead.

  Nanoseconds next_decision() const noexcept;
  DriveCommand* own_command();
  void recycle(DriveCommand& command);
  bool may_skip_mechanism(const DriveCommand& command) const;
  void remove_incoming(std::size_t index);

  std::shared_ptr<const DiskMechanism> mechanism_;
  const DiskProfile& profile_;
  const DiskLayout& layout_;
  std::uint32_t revolution_;
  Nanoseconds phase_;
  Nanoseconds piece_time_;  // Of the last piece over the interface.

  Nanoseconds now_ = 0;   // Of the last event.
  Nanoseconds free_ = 0;  // When the mechanism is free.
  Nanoseconds interface_free_ = 0;
  Nanoseconds answered_ = 0;  // The last command on the medium.
  std::uint32_t cylinder_ = 0;
  std::uint32_t head_ = 0;
  LookAhead look_ahead_;
  BackgroundLoad background_;
  std::size_t background_outstanding_ = 0;

  std::vector<DriveCommand*> incoming_;  // By the time at which they are ready, the first one last.
  std::size_t skipping_ = 0;             // Of these, such as may do without the mechanism.
  std::vector<Candidate> waiting_;       // In the order in which they became ready.
  DriveCommand* serving_ = nullptr;      // The host's, on the medium and not yet taken.

  std::uint64_t dirty_bytes_ = 0;
  std::vector<DriveCommand*> dirty_;  // In the cache, in order of acceptance.
  DriveCommand* destaging_ = nullptr;
  std::deque<DriveCommand*> for_room_;
  std::vector<DriveCommand*> flushing_;

  std::vector<std::unique_ptr<DriveCommand>> own_;
  std::vector<DriveCommand*> own_free_;
};

}  // namespace sandbay::model
