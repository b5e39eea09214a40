// Costs on the way down and up.
#include "model/modelled_path.h"

#include <cassert>
#include <utility>

namespace sandbay::model {

namespace {

std::uint64_t payload_bytes(const Request& request) { return request.data.byte_count(); }

}  // namespace

Task<Completion> Outermost::submit(Request request) {
  if (request.modelled_arrival == TimePoint{}) {
    request.modelled_arrival = clock_.modelled(home().now());
  }
  Completion completion = co_await below().submit(std::move(request));
  co_await clock_.wait_until(completion.modelled_end, home());
  co_return completion;
}

Task<Completion> ModelledPort::submit(Request request) {
  const bool write = request.operation == Operation::kWrite;
  const std::uint64_t bytes = payload_bytes(request);
  const TimePoint arrival = clock_.moment(request.modelled_arrival, home());
  request.modelled_arrival = port_.receive(arrival, write ? bytes : 0, pdu_bytes_);
  Completion completion = co_await below().submit(std::move(request));
  const TimePoint done = clock_.moment(completion.modelled_end, home());
  completion.modelled_end = port_.send(done, write ? 0 : bytes, pdu_bytes_);
  co_return completion;
}

Task<Completion> ModelledController::submit(Request request) {
  const bool write = request.operation == Operation::kWrite;
  const std::uint64_t bytes = payload_bytes(request);
  const TimePoint arrival = clock_.moment(request.modelled_arrival, home());
  request.modelled_arrival = controller_.accept(write, bytes, arrival);
  Completion completion = co_await below().submit(std::move(request));
  const TimePoint done = clock_.moment(completion.modelled_end, home());
  completion.modelled_end = controller_.answer(write, bytes, done);
  co_return completion;
}

}  // namespace sandbay::model
