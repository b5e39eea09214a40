// A thread begins with the signal mask of the one that makes it.
#include "runtime/detached_thread.h"

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace sandbay::detail {

std::error_code start_detached(std::function<void()> work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::error_code error;
  try {
    std::thread(std::move(work)).detach();
  } catch (const std::system_error& failure) {
    error = failure.code();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

}  // namespace sandbay::detail
