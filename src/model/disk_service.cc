// The mechanism of DiskModel: which command is next, and what it takes.
#include <algorithm>
#include <cassert>
#include <span>

#include "model/disk_model.h"

namespace sandbay::model {

namespace {

using Kind = DriveCommand::Kind;

}  // namespace

DiskModel::Positioning DiskModel::position(const Candidate& candidate,
                                           std::uint32_t angle_now) const noexcept {
  Positioning result;
  if (candidate.cylinder != cylinder_) {
    const std::uint32_t distance = candidate.cylinder > cylinder_ ? candidate.cylinder - cylinder_
                                                                  : cylinder_ - candidate.cylinder;
    const SeekCurve& curve = candidate.write ? mechanism_->write_seek : mechanism_->read_seek;
    result.seek = curve.time(distance);
  } else if (candidate.head != head_) {
    result.seek = profile_.head_switch.count();
  }
  // Both are under 2^31: a revolution is at most 60 ms, and no seek takes a second.
  const std::uint32_t there = (angle_now + static_cast<std::uint32_t>(result.seek)) % revolution_;
  const bool later = candidate.angle >= there;
  result.wait = later ? candidate.angle - there : revolution_ - there + candidate.angle;
  return result;
}

// The place of the oldest command, if it is too old. Nobody waits for what is in the write cache.
std::optional<std::size_t> DiskModel::find_too_old() const noexcept {
  const std::size_t count = std::min(waiting_.size(), profile_.queue_depth);
  for (std::size_t i = 0; i < count; ++i) {
    const DriveCommand& command = *waiting_[i].command;
    if (command.kind == Kind::kDestage) continue;
    if (now_ - command.ready > profile_.age_bound.count()) return i;
    return std::nullopt;
  }
  return std::nullopt;
}

std::size_t DiskModel::choose() {
  const std::size_t count = std::min(waiting_.size(), profile_.queue_depth);
  if (count == 1 || profile_.order == QueueOrder::kArrival) return 0;
  if (const auto oldest = find_too_old()) return *oldest;
  const auto angle_now = static_cast<std::uint32_t>(now_ % revolution_);
  std::size_t best = 0;
  Nanoseconds least = kNeverNanoseconds;
  for (std::size_t i = 0; i < count; ++i) {
    const Nanoseconds sum = position(waiting_[i], angle_now).sum();
    if (sum >= least) continue;
    least = sum;
    best = i;
  }
  return best;
}

// Ends the look-ahead: the heads are where it has come.
void DiskModel::leave_for(Nanoseconds time) {
  if (!look_ahead_.active()) return;
  const std::uint64_t at = look_ahead_.stop(time);
  if (time == free_) return;  // It had not begun.
  const DiskLayout::Place place = layout_.place(std::min(at, layout_.sector_count() - 1));
  cylinder_ = place.cylinder;
  head_ = place.head;
}

bool DiskModel::serve_from_cache(DriveCommand& command) {
  if (command.kind != Kind::kHost || command.force_unit_access) return false;
  const std::uint64_t end = command.sector + command.sector_count;
  if (!in_write_cache(command) &&
      look_ahead_.find(command.sector, end, now_) != LookAhead::Finding::kHeld) {
    return false;
  }
  ++counters_.cache_hits;
  end_at(command, send(command.byte_count()));
  return true;
}

bool DiskModel::waits_for_current_segment() const noexcept {
  const std::size_t count = std::min(waiting_.size(), profile_.queue_depth);
  return std::ranges::any_of(std::span(waiting_).first(count), [&](const Candidate& candidate) {
    return !candidate.write && look_ahead_.current_may_have(candidate.command->sector);
  });
}

// Commands whose sectors were read while they waited end from the cache.
bool DiskModel::serve_waiting_from_cache() {
  const std::size_t count = std::min(waiting_.size(), profile_.queue_depth);
  for (std::size_t i = 0; i < count; ++i) {
    DriveCommand& command = *waiting_[i].command;
    if (waiting_[i].write || !look_ahead_.current_may_have(command.sector)) continue;
    if (!serve_from_cache(command)) continue;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  }
  return false;
}

// The command through whose sectors the heads are on their way already.
std::optional<std::size_t> DiskModel::find_passing() {
  if (find_too_old()) return std::nullopt;
  const std::size_t count = std::min(waiting_.size(), profile_.queue_depth);
  for (std::size_t i = 0; i < count; ++i) {
    const DriveCommand& command = *waiting_[i].command;
    if (waiting_[i].write || command.kind != Kind::kHost || command.force_unit_access) continue;
    if (!look_ahead_.current_may_have(command.sector)) continue;
    const std::uint64_t end = command.sector + command.sector_count;
    if (look_ahead_.find(command.sector, end, now_) == LookAhead::Finding::kPassing) return i;
  }
  return std::nullopt;
}

void DiskModel::decide() {
  assert(!waiting_.empty() && free_ <= now_);
  std::optional<std::size_t> passing;
  if (look_ahead_.active() && waits_for_current_segment()) {
    if (serve_waiting_from_cache()) return;
    passing = find_passing();
  }
  if (!passing) leave_for(now_);
  const std::size_t index = passing ? *passing : choose();
  const Candidate chosen = waiting_[index];
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
  if (!passing) {
    serve(chosen);
    return;
  }
  DriveCommand& command = *chosen.command;
  const DiskLayout::Place last = layout_.place(command.sector + command.sector_count - 1);
  const Nanoseconds media_end = look_ahead_.passed_at(last.sweep + last.sector_time);
  static_cast<void>(look_ahead_.stop(now_));
  counters_.transferring += Duration(media_end - now_);
  finish(command, last, now_, media_end);
}

void DiskModel::serve(const Candidate& chosen) {
  DriveCommand& command = *chosen.command;
  const auto angle_now = static_cast<std::uint32_t>(now_ % revolution_);
  const Positioning positioning = position(chosen, angle_now);
  const Nanoseconds begin = now_ + positioning.sum();
  const DiskLayout::Place last = layout_.place(command.sector + command.sector_count - 1);
  const Nanoseconds media = last.sweep + last.sector_time - chosen.sweep;
  counters_.seeking += Duration(positioning.seek);
  counters_.rotating += Duration(positioning.wait);
  counters_.transferring += Duration(media);
  if (chosen.write) look_ahead_.invalidate(command.sector, command.sector + command.sector_count);
  finish(command, last, begin, begin + media);
}

// The medium gives or takes all of it from `media_begin` to `media_end`, which is to come.
void DiskModel::finish(DriveCommand& command, const DiskLayout::Place& last,
                       Nanoseconds media_begin, Nanoseconds media_end) {
  cylinder_ = last.cylinder;
  head_ = last.head;
  free_ = media_end;
  switch (command.kind) {
    case Kind::kBackground:
      --background_outstanding_;
      recycle(command);
      return;
    case Kind::kDestage:
      destaging_ = &command;
      return;
    case Kind::kHost:
      break;
  }
  Nanoseconds end = media_end;
  const Nanoseconds whole = transfer_time(command.byte_count(), profile_.interface_rate);
  if (command.operation == Operation::kRead) {
    end = std::max(media_end + std::min(whole, piece_time_), media_begin + whole);
    if (profile_.look_ahead) {
      look_ahead_.begin(command.sector, command.sector + command.sector_count, media_end,
                        last.sweep + last.sector_time);
    }
  } else if (command.operation == Operation::kWrite) {
    end = std::max(media_end, command.ready + whole);
  }
  // What the medium gives and takes is answered in order.
  answered_ = std::max(answered_, end);
  serving_ = &command;
  end_at(command, answered_);
}

}  // namespace sandbay::model
