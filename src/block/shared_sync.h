// SharedSync: lets flushes of one file that wait for one another share one sync.
//
// A sync covers a flush only if it began after the flush was asked for. So a flush that arrives
// while one sync runs does not join it but the next one, together with all that arrive meanwhile:
// at most one sync runs and at most one is to come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/cancellation.h"
#include "runtime/io.h"
#include "runtime/sync.h"

namespace sandbay {

class SharedSync {
 public:
  explicit SharedSync(File& file) : file_(file) {}

  // Ends with the result of a sync that began after the call. With `cancellation` (may be null)
  // it ends early with kCancelled, except for the caller that runs the sync for the others; the
  // sync itself is cancelled when nobody wants it any more.
  Task<Error> sync(Cancellation* cancellation);

  std::uint64_t sync_count() const noexcept { return sync_count_; }  // Syncs begun so far.

 private:
  struct Round {
    Cancellation cancellation;
    std::size_t interested = 0;  // Participants that were not cancelled.
    bool ended = false;
    Error error = Error::kNone;
  };
  struct Participant;

  File& file_;
  std::shared_ptr<Round> running_;
  std::shared_ptr<Round> next_;
  Condition changed_;
  std::uint64_t sync_count_ = 0;
};

}  // namespace sandbay
