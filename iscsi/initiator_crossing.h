// call_on(): runs something small on another executor, when it is rare enough to be allocated.
// Arrives in order with the messages that were sent before and after it.
#pragma once

#include <utility>

#include "runtime/executor.h"
#include "runtime/frame_pool.h"
#include "runtime/message.h"

namespace sandbay::iscsi {

template <class Call>
struct InitiatorCrossing : Message, FramePooled {
  explicit InitiatorCrossing(Call wanted) : call(std::move(wanted)) {}
  Call call;
};

template <class Call>
void call_on(Executor& executor, Call call) {
  auto* message = new InitiatorCrossing<Call>(std::move(call));
  message->run = [](Message& arrived) {
    auto* self = static_cast<InitiatorCrossing<Call>*>(&arrived);
    self->call();
    delete self;
  };
  executor.send(*message);
}

}  // namespace sandbay::iscsi
