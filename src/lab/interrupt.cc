// The handler of SIGINT.
#include "lab/interrupt.h"

#include <csignal>

namespace sandbay::lab {
namespace {

std::atomic<bool> stop_asked{false};

void ask_to_stop(int /*signal*/) { stop_asked.store(true, std::memory_order_relaxed); }

}  // namespace

const std::atomic<bool>& stop_at_interrupt() {
  stop_asked.store(false, std::memory_order_relaxed);
  struct sigaction action{};
  action.sa_handler = ask_to_stop;
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  return stop_asked;
}

}  // namespace sandbay::lab
