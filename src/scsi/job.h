// Job: the coroutine of one command's handler, a member function of LogicalUnit that takes the
// command. It starts at once, and what it returns is the command's outcome: when its frame's
// variables are gone, the unit completes and releases the command. One pooled frame per command.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

#include "runtime/frame_pool.h"
#include "scsi/command.h"

namespace sandbay::scsi {

class LogicalUnit;

// Defined with LogicalUnit: takes the command out of the task set and completes it.
void finish_command(LogicalUnit& unit, Command& command, const Outcome& outcome) noexcept;

struct Job {
  class promise_type {
   public:
    promise_type(LogicalUnit& unit, Command& command) noexcept : unit_(unit), command_(command) {}
    template <class... More>
    promise_type(LogicalUnit& unit, Command& command, More&&...) noexcept
        : unit_(unit), command_(command) {}

    static void* operator new(std::size_t byte_count) { return allocate_frame(byte_count); }
    static void operator delete(void* memory, std::size_t byte_count) noexcept {
      free_frame(memory, byte_count);
    }

    Job get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept {
      finish_command(unit_, command_, outcome_);
      return {};
    }
    void return_value(Outcome outcome) noexcept { outcome_ = outcome; }
    [[noreturn]] void unhandled_exception() noexcept { std::terminate(); }

   private:
    LogicalUnit& unit_;
    Command& command_;
    Outcome outcome_;
  };
};

}  // namespace sandbay::scsi
