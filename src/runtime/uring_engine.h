// UringEngine: one io_uring (SINGLE_ISSUER | DEFER_TASKRUN) for everything. liburing.h is included
// here and nowhere else. Included by the runtime's own files only.
#pragma once

#include <liburing.h>

#include <expected>
#include <memory>

#include "runtime/io_engine.h"

namespace sandbay::detail {

class UringEngine final : public IoEngine {
 public:
  // The refusal is of kind kKernel where the kernel or a container does not permit io_uring.
  static std::expected<std::unique_ptr<UringEngine>, StartRefusal> make();
  UringEngine() = default;
  ~UringEngine() override;

  void enter_thread(int wake) override;
  void receive(SocketOperation& operation, Socket& socket,
               std::span<const IoSlice> target) override;
  void send(SocketOperation& operation, Socket& socket, std::span<const IoSlice> source) override;
  void accept(SocketOperation& operation, Socket& socket) override;
  void connect(SocketOperation& operation, Socket& socket, const sockaddr* address,
               socklen_t byte_count) override;
  void wait_readable(SocketOperation& operation, Socket& socket) override;
  void start(FileOperation& operation) override;
  void cancel(SocketOperation& operation) override { cancel_any(operation); }
  void cancel(FileOperation& operation) override { cancel_any(operation); }
  void forget(Socket&) noexcept override {}
  // Transfers count too, though Linux 6.18 runs those that are sent to threads at once on further
  // threads.
  unsigned most_blocking() const noexcept override { return kMostKernelThreads; }
  void submit() override;
  bool has_work() override;
  void look() override;
  void wait(Duration longest) override;
  void reap(ReadyQueue& ready) override;

 private:
  static constexpr unsigned kSubmissionEntries = 1024;
  static constexpr unsigned kCompletionEntries = 16384;
  // Threads of the kernel for requests that block there. Its own limit is four a processor: as many
  // requests to a filesystem that hangs would stop the syncs of all other files of this ring.
  static constexpr unsigned kMostKernelThreads = 256;

  io_uring_sqe* free_entry();
  // A free entry for `operation`, to be filled in by functions that leave user data alone.
  io_uring_sqe* prepare(Operation& operation);
  void cancel_any(Operation& operation);
  void watch_wake();

  io_uring ring_{};
  bool open_ = false;
  int wake_ = -1;
};

}  // namespace sandbay::detail
