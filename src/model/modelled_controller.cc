// Costs on the way down and up.
#include "model/modelled_controller.h"

#include <utility>

namespace sandbay::model {

namespace {

// Ends a wait when its request is cancelled.
struct Wake : Cancellation::Hook {
  explicit Wake(Cancellation* cancellation)
      : Hook(cancellation,
             [](Hook& hook) {
               auto& self = static_cast<Wake&>(hook);
               self.cancelled = true;
               self.condition.notify_all();
             }),
        cancelled(cancellation != nullptr && cancellation->cancelled()) {}
  bool cancelled;
  Condition condition;
};

}  // namespace

Task<Completion> ModelledController::timed(bool write, Request request) {
  ++requests_;
  const std::uint64_t bytes = request.data.byte_count();
  const TimePoint arrival = clock_.modelled(home().now());
  const TimePoint accepted = controller_->accept(write, bytes, arrival);
  Cancellation* const cancellation = request.cancellation;
  Completion completion = co_await below().submit(std::move(request));
  const TimePoint done = accepted + (clock_.modelled(home().now()) - arrival);
  const TimePoint answer = clock_.real(controller_->answer(write, bytes, done));
  if (answer > home().now()) {
    Wake wake(cancellation);
    if (!wake.cancelled) (void)co_await wake.condition.wait_until(answer);
    if (wake.cancelled) completion.error = Error::kCancelled;
  }
  if (--requests_ == 0) became_idle_.notify_all();
  co_return completion;
}

Task<bool> ModelledController::wait_idle_until(TimePoint deadline) {
  while (requests_ > 0) {
    const bool in_time = co_await became_idle_.wait_until(deadline);
    if (!in_time) co_return requests_ == 0;
  }
  co_return true;
}

}  // namespace sandbay::model
