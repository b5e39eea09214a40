// Files and sockets as executors offer them.
//
// All belong to the executor that made them and are used there. At most one receive and one send
// may be in flight on a Stream at a time; a File takes any number of operations. The memory an
// operation names stays valid until its task has ended, whatever happens: cancelling or shutting
// down makes operations end early, it does not take their memory away from the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/buffer.h"
#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/task.h"

namespace sandbay {

class Cancellation;
class Executor;

struct FileOptions {
  bool writable = true;
  bool create = false;     // Make it (mode 0600) if it is not there.
  bool exclusive = false;  // With create: fail with kExists if it is there.
  bool direct = false;     // O_DIRECT where the filesystem can; File::direct() tells.
  // Nobody else who locks has it open, in this process or another, for as long as it is open here;
  // kNotReady if somebody has. Simulated files have no other process and are always free.
  bool lock = false;
};

class File {
 public:
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  virtual ~File() = default;  // No operation is in flight. Closes.

  virtual Executor& home() const noexcept = 0;
  virtual bool direct() const noexcept = 0;
  // What offsets, lengths and addresses of direct I/O must be multiples of; 1 without direct().
  virtual std::size_t alignment() const noexcept = 0;
  virtual bool is_block_device() const noexcept = 0;

  // Both move every byte or fail; a read past the end fails with kOutOfRange. The spans and what
  // they name stay valid until the task ends. `cancellation` may be null.
  virtual Task<Error> read(std::uint64_t offset, std::span<const IoSlice> target,
                           Cancellation* cancellation) = 0;
  virtual Task<Error> write(std::uint64_t offset, std::span<const IoSlice> source,
                            Cancellation* cancellation) = 0;
  // Everything written before is on stable storage when this succeeds.
  virtual Task<Error> sync(Cancellation* cancellation) = 0;
  virtual Task<Result<std::uint64_t>> size() = 0;
  virtual Task<Error> resize(std::uint64_t byte_count) = 0;
  virtual Task<Error> allocate(std::uint64_t offset, std::uint64_t byte_count) = 0;
  // Frees the range; it reads as zeros. kUnsupported where the filesystem cannot.
  virtual Task<Error> punch_hole(std::uint64_t offset, std::uint64_t byte_count) = 0;
  virtual Task<Error> write_zeroes(std::uint64_t offset, std::uint64_t byte_count) = 0;
  // The run of data or hole that starts at offset: its length in bytes and whether it is a hole.
  struct Run {
    std::uint64_t byte_count = 0;
    bool hole = false;
  };
  virtual Task<Result<Run>> run_at(std::uint64_t offset) = 0;
};

// An IP address and port. IPv4 or IPv6.
class Endpoint {
 public:
  Endpoint() = default;
  // "127.0.0.1:3260", "[::1]:3260", "0.0.0.0:3260"; port 0 lets the system choose. The port may
  // be left out if default_port is given.
  static Result<Endpoint> parse(std::string_view text, std::uint16_t default_port = 0);
  static Endpoint ipv4(std::uint32_t address, std::uint16_t port);
  static Endpoint ipv6(std::span<const std::uint8_t, 16> address, std::uint16_t port);

  bool is_ipv6() const noexcept { return ipv6_; }
  bool is_any() const noexcept;  // 0.0.0.0 or ::
  std::uint16_t port() const noexcept { return port_; }
  void set_port(std::uint16_t port) noexcept { port_ = port; }
  std::span<const std::uint8_t, 16> bytes() const noexcept { return bytes_; }  // IPv4: first four.
  std::string address() const;                                                 // "127.0.0.1", "::1"
  std::string to_string() const;  // "127.0.0.1:3260", "[::1]:3260"
  bool same_address(const Endpoint& other) const noexcept;
  bool operator==(const Endpoint&) const = default;

 private:
  std::uint8_t bytes_[16] = {};
  std::uint16_t port_ = 0;
  bool ipv6_ = false;
};

class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;  // At home, with no operation in flight. Closes.

  virtual Executor& home() const noexcept = 0;
  virtual const Endpoint& local() const noexcept = 0;
  virtual const Endpoint& peer() const noexcept = 0;

  // Fills the slices in order with what has arrived, at least one byte; 0 means that the peer
  // closed. The span stays valid until the task ends.
  virtual Task<Result<std::size_t>> receive(std::span<const IoSlice> target) = 0;
  // Whether receive() would end at once. A system call on real sockets.
  virtual bool readable() const noexcept = 0;
  // Until when a send under way is held up on this side, as by a port with a rate: the peer does
  // not delay it. A time that has passed: it is not.
  virtual TimePoint held_until() const noexcept { return {}; }
  // Sends everything, or fails. At most 1024 slices.
  virtual Task<Error> send(std::span<const IoSlice> source) = 0;
  // Ends both directions; operations in flight end soon. May be called any number of times.
  virtual void shutdown() noexcept = 0;
  // The same, but the peer sees a reset and unsent bytes are dropped.
  virtual void reset() noexcept = 0;
  // Hands an idle stream to another executor of the group; called on the old home, after which it
  // is touched only on the new one.
  virtual void move_to(Executor& home) noexcept = 0;
};

class Listener {
 public:
  Listener() = default;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  virtual ~Listener() = default;

  virtual const Endpoint& local() const noexcept = 0;  // With the port the system chose.
  // The next connection; kClosed after shutdown().
  virtual Task<Result<std::unique_ptr<Stream>>> accept() = 0;
  // Attempts to connect get no answer at all while it is deaf, as if they were lost on their way.
  virtual void set_deaf(bool deaf) noexcept = 0;
  virtual void shutdown() noexcept = 0;
};

}  // namespace sandbay
