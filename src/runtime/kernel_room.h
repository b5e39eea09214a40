// Room for requests in the kernel. A request to a filesystem that blocks keeps a thread of the
// kernel for as long as it hangs. So the number there has limits for a file, for a filesystem and
// for all of them: each has a room, and a file's room is inside its filesystem's.
//
// A room belongs to one reactor and is touched only there. Those who wait enter in turn.
#pragma once

#include <memory>
#include <utility>

#include "runtime/sync.h"
#include "runtime/task.h"

namespace sandbay {

class Cancellation;

namespace detail {

class KernelRoom {
 public:
  // At most `limit` requests at a time. A request that enters also enters `outer`, unless it is
  // null.
  KernelRoom(unsigned limit, std::shared_ptr<KernelRoom> outer)
      : left_(limit), outer_(std::move(outer)) {}

  // Waits until this room and those around it take another request. False if `cancellation`, which
  // may be null, fires first; then it has entered none of them.
  Task<bool> enter(Cancellation* cancellation);
  // The request has ended. Lets the next one in.
  void leave() { leave_until(nullptr); }

 private:
  Task<bool> enter_here(Cancellation* cancellation);
  void leave_until(const KernelRoom* end);

  unsigned left_;  // 0 while anyone waits: room is handed on.
  WaitQueue waiting_;
  std::shared_ptr<KernelRoom> outer_;
};

}  // namespace detail
}  // namespace sandbay
