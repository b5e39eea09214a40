// Awaits an initiator's command: submits it, and goes on in a later turn of the executor on which
// it ended, so that whoever ended it is not called back into. For coroutines of the session's home.
#pragma once

#include <coroutine>

#include "iscsi/initiator_session.h"
#include "runtime/executor.h"

namespace sandbay::iscsi {

struct AwaitCommand {
  InitiatorSession& session;
  InitiatorCommand& command;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) {
    command.owner = handle.address();
    command.done = [](InitiatorCommand& ended) {
      Executor::current().post(std::coroutine_handle<>::from_address(ended.owner));
    };
    session.submit(command);
  }
  void await_resume() const noexcept {}
};

}  // namespace sandbay::iscsi
