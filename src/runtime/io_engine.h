// IoEngine: how a reactor asks the kernel. A request is started during a turn and carried out at
// its end; when the kernel has answered, the coroutine that awaits it becomes ready. Two ways:
// uring_engine.h (io_uring) and epoll_engine.h (readiness for sockets, threads for files).
//
// Everything here belongs to one reactor's thread. A request and what it names stay where they are
// until it has ended: they stand in the frame of the coroutine that awaits it, which cannot go away
// before. Included by the runtime's own files only.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/clock.h"
#include "runtime/io.h"
#include "runtime/message.h"
#include "runtime/start_refusal.h"

namespace sandbay::detail {

static_assert(sizeof(IoSlice) == sizeof(iovec) &&
              offsetof(IoSlice, data) == offsetof(iovec, iov_base) &&
              offsetof(IoSlice, byte_count) == offsetof(iovec, iov_len));

inline constexpr std::size_t kMostSlices = 1024;  // IOV_MAX

struct Socket;

// One request to the kernel.
struct Operation {
  std::coroutine_handle<> handle;
  int result = 0;            // As a system call's; a negated errno on failure.
  Socket* socket = nullptr;  // A receive: its answer tells about readiness.

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiting) noexcept { handle = waiting; }
  int await_resume() const noexcept { return result; }
};

struct SocketOperation : Operation {
  enum class Kind : std::uint8_t { kReceive, kSend, kAccept, kConnect, kReadable };

  Kind kind = Kind::kReceive;
  msghdr message{};      // The slices to receive or send; the address to connect to.
  std::size_t done = 0;  // Bytes sent.
};

// A descriptor that can be waited for, and what an engine knows about it.
struct Socket {
  int descriptor = -1;
  // Whether an attempt may find bytes: false saves one that would find nothing.
  bool readable = true;
  bool writable = true;
  bool tried_always = false;  // No event may tell of all that comes.
  bool watched = false;
  SocketOperation* reading = nullptr;  // Waits for readiness.
  SocketOperation* writing = nullptr;
};

// A request to a file. A thread may carry it out, and is then the sender of the message.
struct FileOperation : Operation, Message {
  enum class Kind : std::uint8_t { kRead, kWrite, kSync, kAllocate };

  Kind kind = Kind::kRead;
  bool may_block = false;  // The filesystem does not honour that a request must not.
  int descriptor = -1;
  int mode = 0;  // kAllocate: as fallocate(2) has it.
  unsigned slice_count = 0;
  const iovec* slices = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t byte_count = 0;   // kAllocate.
  bool* tries_at_once = nullptr;  // Not null: an attempt that does not wait may succeed.
};

// A ring buffer of coroutines to resume; grows, never shrinks.
class ReadyQueue {
 public:
  ReadyQueue() : slots_(1024) {}
  bool empty() const noexcept { return first_ == last_; }
  std::size_t size() const noexcept { return last_ - first_; }
  void push(std::coroutine_handle<> handle);
  std::coroutine_handle<> pop() noexcept { return slots_[first_++ & (slots_.size() - 1)]; }

 private:
  std::vector<std::coroutine_handle<>> slots_;  // A power of two.
  std::size_t first_ = 0;
  std::size_t last_ = 0;
};

class IoEngine {
 public:
  IoEngine() = default;
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;
  virtual ~IoEngine() = default;  // Nothing is in flight but what never ends.

  // On the reactor's thread, before its first turn. A write to the event file `wake` ends wait().
  virtual void enter_thread(int wake) = 0;

  // Each fills in `operation`, which the caller then awaits. At most one receive, accept or wait
  // for readability and one send or connect are in flight on a socket.
  virtual void receive(SocketOperation& operation, Socket& socket,
                       std::span<const IoSlice> target) = 0;
  // Sends everything unless there is an error, or what it could before one.
  virtual void send(SocketOperation& operation, Socket& socket,
                    std::span<const IoSlice> source) = 0;
  virtual void accept(SocketOperation& operation, Socket& socket) = 0;
  virtual void connect(SocketOperation& operation, Socket& socket, const sockaddr* address,
                       socklen_t byte_count) = 0;
  virtual void wait_readable(SocketOperation& operation, Socket& socket) = 0;
  virtual void start(FileOperation& operation) = 0;
  // Asks for an early end; the operation still completes, with -ECANCELED or as it would have.
  virtual void cancel(SocketOperation& operation) = 0;
  virtual void cancel(FileOperation& operation) = 0;
  // Nothing is in flight on the socket: it is closed or moves to another reactor.
  virtual void forget(Socket& socket) noexcept = 0;

  // How many requests to files that block may be in flight before others have to wait.
  virtual unsigned most_blocking() const noexcept = 0;
  // Also requests to files that do not block keep a thread each: as many have room again.
  virtual bool files_take_threads() const noexcept { return false; }

  // At the end of a turn, as part of it: the engine's own share of what was started.
  virtual void attempt() {}
  // Carries out what was started, without waiting.
  virtual void submit() = 0;
  // After submit(): whether there is something for look(). Cheap enough to ask in a loop.
  virtual bool has_work() = 0;
  // submit(), and notes what has ended.
  virtual void look() = 0;
  // look(), and if nothing has ended waits for it: at most for `longest`.
  virtual void wait(Duration longest) = 0;
  // At the start of a turn: moves what has ended to `ready`.
  virtual void reap(ReadyQueue& ready) = 0;
  // From any thread, when the reactor has ended: what still hangs is not waited for long.
  virtual void stop() noexcept {}
};

}  // namespace sandbay::detail
