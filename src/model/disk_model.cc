// Events in the order of modelled time; choosing and serving: disk_service.cc.
#include "model/disk_model.h"

#include <algorithm>
#include <cassert>

#include "runtime/known.h"

namespace sandbay::model {

namespace {

using Kind = DriveCommand::Kind;
using Stage = DriveCommand::Stage;

constexpr std::uint64_t kPieceBytes = 4096;
constexpr std::size_t kMostDirty = 1024;  // Writes in the cache.

bool writes(const DriveCommand& command) {
  return command.operation == Operation::kWrite || command.operation == Operation::kWriteZeroes;
}

Random stream(std::uint64_t seed) { return Random(seed * 0x9E3779B97F4A7C15U + 0x6D6F64656CU); }

SeekCurve fitted(const SeekTimes& times, const DiskLayout& layout) {
  return known(SeekCurve::fit(times, layout));
}

}  // namespace

DiskMechanism::DiskMechanism(const DiskProfile& disk)
    : profile(disk),
      layout(disk),
      read_seek(fitted(disk.read_seek, layout)),
      write_seek(fitted(disk.write_seek, layout)) {}

DiskModel::DiskModel(std::shared_ptr<const DiskMechanism> mechanism, DiskOptions options)
    : mechanism_(std::move(mechanism)),
      profile_(mechanism_->profile),
      layout_(mechanism_->layout),
      revolution_(static_cast<std::uint32_t>(layout_.revolution())),
      phase_(static_cast<Nanoseconds>(stream(options.seed).below(revolution_))),
      piece_time_(transfer_time(kPieceBytes, profile_.interface_rate)),
      look_ahead_(layout_, phase_, profile_.look_ahead ? profile_.cache_segments : 0,
                  profile_.cache_bytes / profile_.cache_segments / kSectorBytes),
      background_(options.background, layout_.sector_count(), stream(options.seed + 1)) {}

// Commands of its own. ---------------------------------------------------------------------------

DriveCommand* DiskModel::own_command() {
  if (own_free_.empty()) {
    own_.push_back(std::make_unique<DriveCommand>());
    own_free_.push_back(own_.back().get());
  }
  DriveCommand* const command = own_free_.back();
  own_free_.pop_back();
  *command = DriveCommand{};
  return command;
}

void DiskModel::recycle(DriveCommand& command) { own_free_.push_back(&command); }

// Arrivals. --------------------------------------------------------------------------------------

bool DiskModel::may_skip_mechanism(const DriveCommand& command) const {
  if (command.kind != Kind::kHost) return false;
  if (command.operation == Operation::kRead) {
    return look_ahead_.may_find(command.sector) || in_write_cache(command);
  }
  return !writes(command) || profile_.write_cache;
}

void DiskModel::arrive(DriveCommand& command) {
  if (command.kind == Kind::kHost && outstanding() == 0) {
    background_.skip_to(in_nanoseconds(command.arrival) - BackgroundLoad::kLongestLookBack);
  }
  note_arrival(command);
  if (!writes(command) && command.operation != Operation::kRead) command.sector_count = 0;
  assert(command.sector_count <= layout_.sector_count());
  assert(command.sector <= layout_.sector_count() - command.sector_count ||
         command.sector_count == 0);
  const Duration overhead = writes(command) ? profile_.write_overhead : profile_.read_overhead;
  command.ready = in_nanoseconds(command.arrival) + overhead.count();
  command.stage = Stage::kIncoming;
  // Mostly it is the last to be ready, which stands first.
  auto at = incoming_.begin();
  while (at != incoming_.end() && (*at)->ready > command.ready) ++at;
  incoming_.insert(at, &command);
  command.may_skip_mechanism = may_skip_mechanism(command);
  if (command.may_skip_mechanism) ++skipping_;
}

void DiskModel::remove_incoming(std::size_t index) {
  DriveCommand& command = *incoming_[index];
  incoming_.erase(incoming_.begin() + static_cast<std::ptrdiff_t>(index));
  if (command.may_skip_mechanism) --skipping_;
}

void DiskModel::take_background() {
  const BackgroundLoad::Command drawn = background_.take();
  if (background_outstanding_ >= BackgroundLoad::kMostOutstanding) return;
  ++background_outstanding_;
  ++counters_.background;
  DriveCommand* const command = own_command();
  command->kind = Kind::kBackground;
  command->operation = drawn.read ? Operation::kRead : Operation::kWrite;
  command->force_unit_access = true;
  command->sector = drawn.sector;
  command->sector_count = drawn.sector_count;
  command->arrival = at_nanoseconds(now_);
  arrive(*command);
}

// Time. ------------------------------------------------------------------------------------------

Nanoseconds DiskModel::next_decision() const noexcept {
  return waiting_.empty() ? kNeverNanoseconds : std::max(free_, now_);
}

void DiskModel::advance(TimePoint now) {
  const Nanoseconds limit = in_nanoseconds(now);
  // Nobody waits for anything: what the drive did then is found out when it matters.
  while (outstanding() > 0) {
    const Nanoseconds destaged = destaging_ != nullptr ? free_ : kNeverNanoseconds;
    const Nanoseconds comes = background_.next();
    const Nanoseconds ready = incoming_.empty() ? kNeverNanoseconds : incoming_.back()->ready;
    const Nanoseconds decision = next_decision();
    const Nanoseconds next = std::min({destaged, comes, ready, decision});
    if (next > limit) return;
    now_ = std::max(now_, next);
    if (next == destaged) {
      end_destage();
    } else if (next == comes) {
      take_background();
    } else if (next == ready) {
      DriveCommand& command = *incoming_.back();
      remove_incoming(incoming_.size() - 1);
      become_ready(command);
    } else {
      decide();
    }
  }
}

TimePoint DiskModel::next_event() const noexcept {
  if (outstanding() == 0) return kNever;
  Nanoseconds next = in_nanoseconds(next_end());
  const Nanoseconds ready = incoming_.empty() ? kNeverNanoseconds : incoming_.back()->ready;
  if (skipping_ > 0) next = std::min(next, ready);
  // What comes after a command on the medium ends after it, so that it can be decided then.
  if (serving_ != nullptr) return at_nanoseconds(next);
  next = std::min(next, next_decision());
  if (destaging_ != nullptr) next = std::min(next, free_);
  if (!incoming_.empty()) next = std::min(next, std::max(ready, free_));
  return at_nanoseconds(next);
}

DriveCommand* DiskModel::take_ended(TimePoint now) {
  DriveCommand* const command = DriveModel::take_ended(now);
  if (command != nullptr && command == serving_) serving_ = nullptr;
  return command;
}

void DiskModel::withdraw(DriveCommand& command) {
  switch (command.stage) {
    case Stage::kNone:
      assert(false && "was not outstanding");
      return;
    case Stage::kEnding:
      if (serving_ == &command) serving_ = nullptr;
      forget_end(command);
      return;
    case Stage::kIncoming:
      remove_incoming(
          static_cast<std::size_t>(std::ranges::find(incoming_, &command) - incoming_.begin()));
      break;
    case Stage::kWaiting:
      std::erase_if(waiting_, [&](const Candidate& other) { return other.command == &command; });
      break;
    case Stage::kForRoom:
      std::erase(for_room_, &command);
      break;
    case Stage::kFlushing:
      std::erase(flushing_, &command);
      break;
  }
  note_withdrawn(command);
}

// Ready commands. --------------------------------------------------------------------------------

void DiskModel::become_ready(DriveCommand& command) {
  if (command.operation == Operation::kFlush && !dirty_.empty()) {
    command.stage = Stage::kFlushing;
    flushing_.push_back(&command);
  } else if (command.sector_count == 0) {
    end_at(command, now_);
  } else if (command.operation == Operation::kRead) {
    if (!serve_from_cache(command)) wait_for_mechanism(command);
  } else if (profile_.write_cache && command.kind == Kind::kHost && !command.force_unit_access) {
    command.stage = Stage::kForRoom;
    for_room_.push_back(&command);
    if (for_room_.size() == 1) accept_write(command);
  } else {
    wait_for_mechanism(command);
  }
}

void DiskModel::wait_for_mechanism(DriveCommand& command) {
  const DiskLayout::Place place = layout_.place(command.sector);
  command.stage = Stage::kWaiting;
  waiting_.push_back(
      {.command = &command,
       .sweep = place.sweep,
       .cylinder = place.cylinder,
       .angle = static_cast<std::uint32_t>((place.sweep + phase_) % layout_.revolution()),
       .head = place.head,
       .write = writes(command)});
}

Nanoseconds DiskModel::send(std::uint64_t byte_count) {
  interface_free_ =
      std::max(interface_free_, now_) + transfer_time(byte_count, profile_.interface_rate);
  return interface_free_;
}

// The write cache. -------------------------------------------------------------------------------

bool DiskModel::in_write_cache(const DriveCommand& command) const {
  if (dirty_.empty() || command.force_unit_access) return false;
  return std::ranges::any_of(dirty_, [&](const DriveCommand* dirty) {
    return dirty->sector <= command.sector &&
           command.sector + command.sector_count <= dirty->sector + dirty->sector_count;
  });
}

// The first that waits for room, if there is room. A write of more than the cache passes through
// it.
void DiskModel::accept_write(DriveCommand& command) {
  const bool fits = dirty_bytes_ + command.byte_count() <= profile_.cache_bytes;
  if (!dirty_.empty() && (!fits || dirty_.size() >= kMostDirty)) return;
  for_room_.pop_front();
  DriveCommand* const copy = own_command();
  copy->kind = Kind::kDestage;
  copy->operation = command.operation;
  copy->sector = command.sector;
  copy->sector_count = command.sector_count;
  copy->ready = now_;
  copy->number = command.number;
  dirty_.push_back(copy);
  dirty_bytes_ += copy->byte_count();
  wait_for_mechanism(*copy);
  // A write of zeros brings no data.
  end_at(command, command.operation == Operation::kWrite ? send(command.byte_count()) : now_);
}

void DiskModel::end_destage() {
  dirty_bytes_ -= destaging_->byte_count();
  std::erase(dirty_, destaging_);
  recycle(*destaging_);
  destaging_ = nullptr;
  while (!for_room_.empty()) {
    const std::size_t before = for_room_.size();
    accept_write(*for_room_.front());
    if (for_room_.size() == before) break;
  }
  end_flushes();
}

void DiskModel::end_flushes() {
  std::erase_if(flushing_, [&](DriveCommand* flush) {
    const bool open = std::ranges::any_of(
        dirty_, [&](const DriveCommand* dirty) { return dirty->number < flush->number; });
    if (!open) end_at(*flush, now_);
    return !open;
  });
}

}  // namespace sandbay::model
