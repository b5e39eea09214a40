// Costs on the way down and up.
#include "model/modelled_controller.h"

#include <utility>

namespace sandbay::model {

Task<Completion> ModelledController::timed(bool write, Request request) {
  const std::uint64_t bytes = request.data.byte_count();
  const TimePoint arrival = clock_.modelled(home().now());
  const TimePoint accepted = controller_->accept(write, bytes, arrival);
  Completion completion = co_await below().submit(std::move(request));
  const TimePoint done = accepted + (clock_.modelled(home().now()) - arrival);
  co_await clock_.wait_until(controller_->answer(write, bytes, done), home());
  co_return completion;
}

}  // namespace sandbay::model
