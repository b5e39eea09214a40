// The commands whose end is known: a heap by end, then by order of arrival.
#include "model/drive_model.h"

#include <algorithm>
#include <cassert>

namespace sandbay::model {

bool DriveModel::later(const DriveCommand* left, const DriveCommand* right) noexcept {
  return left->end != right->end ? left->end > right->end : left->number > right->number;
}

void DriveModel::note_arrival(DriveCommand& command) {
  assert(command.stage == DriveCommand::Stage::kNone);
  command.number = next_number_++;
  command.end = kNever;
  if (command.kind != DriveCommand::Kind::kHost) return;
  ++outstanding_;
  ++counters_.commands;
}

void DriveModel::end_at(DriveCommand& command, Nanoseconds end) {
  assert(command.kind == DriveCommand::Kind::kHost);
  command.end = at_nanoseconds(end);
  command.stage = DriveCommand::Stage::kEnding;
  ending_.push_back(&command);
  std::ranges::push_heap(ending_, later);
}

void DriveModel::note_withdrawn(DriveCommand& command) noexcept {
  assert(outstanding_ > 0);
  --outstanding_;
  command.stage = DriveCommand::Stage::kNone;
}

void DriveModel::forget_end(DriveCommand& command) {
  assert(command.stage == DriveCommand::Stage::kEnding);
  std::erase(ending_, &command);
  std::ranges::make_heap(ending_, later);
  note_withdrawn(command);
}

DriveCommand* DriveModel::take_ended(TimePoint now) {
  if (ending_.empty() || ending_.front()->end > now) return nullptr;
  std::ranges::pop_heap(ending_, later);
  DriveCommand* const command = ending_.back();
  ending_.pop_back();
  note_withdrawn(*command);
  return command;
}

}  // namespace sandbay::model
