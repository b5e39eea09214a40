// The record of what happened.
#include "fault/firing.h"

#include <utility>

#include <fmt/core.h>

namespace sandbay::fault {

std::string describe(const Firing& firing) {
  std::string text =
      fmt::format("{}: fault {} fired: {}", firing.target, firing.rule, fault_name(firing.fault));
  if (!firing.effect.empty()) text += ", " + firing.effect;
  if (firing.operation != 0) {
    text += fmt::format(" (operation {}", firing.operation);
    if (firing.extent.block_count != 0) {
      text += fmt::format(", blocks {}+{}", firing.extent.first, firing.extent.block_count);
    }
    text += ")";
  }
  return text;
}

void Journal::append(Firing firing) {
  firing.number = ++total_;
  if (most_entries_ == 0) return;
  if (entries_.size() == most_entries_) entries_.pop_front();
  entries_.push_back(std::move(firing));
}

}  // namespace sandbay::fault
