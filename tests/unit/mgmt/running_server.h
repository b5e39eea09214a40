// A group on real reactors with the HTTP server on a loopback port of the system's choice, and a
// test that runs on a thread of its own and talks to that port.
#pragma once

#include <catch2/catch.hpp>
#include <coroutine>
#include <exception>
#include <functional>
#include <string>
#include <thread>

#include "mgmt/server.h"
#include "runtime/message.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::mgmt {

// Waits for a thread from within a coroutine.
struct Foreign : Message {
  Executor* home = nullptr;
  std::function<void()> work;
  std::thread thread;
  std::coroutine_handle<> handle;

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiting) {
    handle = waiting;
    run = [](Message& message) { static_cast<Foreign&>(message).handle.resume(); };
    thread = std::thread([this] {
      work();
      home->send(*this);
    });
  }
  void await_resume() { thread.join(); }
};

using PortTest = std::function<void(int port)>;

inline Task<void> serve_http(group::Group* group, const PortTest* test, ServerOptions options) {
  Executor& home = Executor::current();
  options.listen = Endpoint::ipv4(0x7f000001, 0);
  auto server = Server::start(*group, home, options);
  REQUIRE(server.has_value());
  std::exception_ptr failure;
  Foreign foreign;
  foreign.home = &home;
  foreign.work = [&] {
    try {
      (*test)((*server)->endpoint().port());
    } catch (...) {
      failure = std::current_exception();
    }
  };
  co_await foreign;
  co_await (*server)->stop();
  CHECK(failure == nullptr);
}

inline void with_server(const std::string& sections, const PortTest& test,
                        ServerOptions options = {}) {
  const testing::ScratchDirectory scratch;
  const std::string error =
      group::run_group(scratch.file("state"), sections, 2,
                       [&](group::Group& group) { return serve_http(&group, &test, options); });
  if (!error.empty()) FAIL(error);
}

}  // namespace sandbay::mgmt
