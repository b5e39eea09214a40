// An intrusive list of commands through their own links: a command is in at most one.
#pragma once

#include <cassert>
#include <cstdint>

#include "scsi/command.h"

namespace sandbay::scsi {

class CommandList {
 public:
  CommandList() = default;
  CommandList(const CommandList&) = delete;
  CommandList& operator=(const CommandList&) = delete;
  ~CommandList() { assert(first_ == nullptr); }

  bool empty() const noexcept { return first_ == nullptr; }
  Command* first() const noexcept { return first_; }
  std::uint32_t count() const noexcept { return count_; }

  void push_back(Command& command) noexcept {
    assert(command.next_in_set == nullptr && command.previous_in_set == nullptr);
    command.previous_in_set = last_;
    (last_ == nullptr ? first_ : last_->next_in_set) = &command;
    last_ = &command;
    ++count_;
  }
  void remove(Command& command) noexcept {
    assert(count_ > 0);
    Command* const next = command.next_in_set;
    Command* const previous = command.previous_in_set;
    (previous == nullptr ? first_ : previous->next_in_set) = next;
    (next == nullptr ? last_ : next->previous_in_set) = previous;
    command.next_in_set = nullptr;
    command.previous_in_set = nullptr;
    --count_;
  }

 private:
  Command* first_ = nullptr;
  Command* last_ = nullptr;
  std::uint32_t count_ = 0;
};

}  // namespace sandbay::scsi
