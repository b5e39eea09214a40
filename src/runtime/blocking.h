// Work that can block, or takes a processor for long, away from reactors: calls that have no
// asynchronous form (stat, open, seeking for holes) and long computations.
//
// The reactors of a group share a pool of threads. A call may hang for as long as its storage does,
// and then holds one thread. Calls with the same key run one after the other, in the order in which
// they were made, so that one path that hangs holds one thread however often it is asked for.
// Calls for paths in one folder have a share of the threads, since its other paths may hang too.
// A simulated world has no threads: there the work is done at once.
#pragma once

#include <functional>
#include <string>

#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/task.h"

namespace sandbay {

// Without a limit.
inline constexpr Duration kForever = Duration::max();

// Runs `work` on a thread and waits for it on `home`, which is the current executor. `key` is
// usually the path that the work asks for; an empty one keeps no order. kTimedOut if it has not
// ended after `patience`: then it goes on by itself, so `work` owns all that it touches (unless
// patience is kForever). An exception of the work is an error: kNoMemory for want of memory,
// kHardware for any other.
[[nodiscard]] Task<Error> run_blocking(Executor& home, std::string key, std::function<void()> work,
                                       Duration patience = kForever);

// The same without anybody who waits for it.
void start_blocking(Executor& home, std::string key, std::function<void()> work);

}  // namespace sandbay
