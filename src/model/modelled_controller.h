// ModelledController: a layer that takes a controller's time for reads and writes: it books
// processors, buses and the mirror when a request comes, passes it on at once, books the answer,
// and waits once, at the end. So a request takes the sum of what the controller and the layers
// below take, and what those do with it they do a little earlier.
//
// All volumes and sets of a controller share one model. On the layers' home executor. A request
// that is cancelled while it waits ends with kCancelled; what it did to the data is done.
#pragma once

#include <memory>

#include "block/layer.h"
#include "model/controller.h"
#include "model/model_clock.h"
#include "runtime/sync.h"

namespace sandbay::model {

class ModelledController final : public Layer {
 public:
  ModelledController(BlockDevice& below, ModelClock clock, std::shared_ptr<Controller> controller)
      : Layer(below), clock_(clock), controller_(std::move(controller)) {}

  // Whether no request is here, by then.
  Task<bool> wait_idle_until(TimePoint deadline);

 protected:
  Task<Completion> read(Request request) override { return timed(false, std::move(request)); }
  Task<Completion> write(Request request) override { return timed(true, std::move(request)); }

 private:
  Task<Completion> timed(bool write, Request request);

  ModelClock clock_;
  std::shared_ptr<Controller> controller_;
  std::size_t requests_ = 0;
  Condition became_idle_;
};

}  // namespace sandbay::model
