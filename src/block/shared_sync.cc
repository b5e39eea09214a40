// SharedSync: at most one round runs and at most one is to come.
//
// Whoever finds no round running runs the one that it joined; the others wait for its end. When all
// who joined a round have been cancelled, its sync is cancelled too, and a round that has not begun
// is forgotten, so that nobody joins a cancelled one.
#include "block/shared_sync.h"

#include <cassert>

namespace sandbay {

// One caller's share in a round, until its call ends.
struct SharedSync::Participant : Cancellation::Hook {
  Participant(Cancellation* from, SharedSync& owner, std::shared_ptr<Round> joined)
      : Hook(from, [](Cancellation::Hook& hook) { static_cast<Participant&>(hook).leave_round(); }),
        sync(owner),
        round(std::move(joined)) {
    ++round->interested;
  }

  void leave_round() {
    left = true;
    assert(round->interested > 0);
    if (--round->interested == 0) {
      // Nobody may join a round that is cancelled.
      if (sync.next_ == round) sync.next_.reset();
      round->cancellation.cancel();
    }
    sync.changed_.notify_all();
  }

  SharedSync& sync;
  std::shared_ptr<Round> round;
  bool left = false;
};

Task<Error> SharedSync::sync(Cancellation* cancellation) {
  if (cancellation != nullptr && cancellation->cancelled()) co_return Error::kCancelled;
  if (next_ == nullptr) next_ = std::make_shared<Round>();
  Participant self(cancellation, *this, next_);

  while (running_ != nullptr && !self.round->ended && !self.left) {
    co_await changed_.wait();
  }
  if (self.round->ended) co_return self.round->error;
  if (self.left) co_return Error::kCancelled;

  // Nothing runs and this round has not begun: this caller runs it for all who joined.
  assert(running_ == nullptr && next_ == self.round);
  running_ = std::move(next_);
  ++sync_count_;
  const Error error = co_await file_.sync(&self.round->cancellation);
  assert(running_ == self.round);
  self.round->ended = true;
  self.round->error = error;
  running_.reset();
  changed_.notify_all();
  co_return error;
}

}  // namespace sandbay
