// EpollEngine: for where io_uring is not permitted. Sockets are tried, and waited for with
// edge-triggered epoll; files are asked by threads (file_threads.h), but for reads and writes that
// the page cache can answer at once. Included by the runtime's own files only.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <expected>
#include <memory>
#include <vector>

#include "runtime/file_threads.h"
#include "runtime/io_engine.h"

namespace sandbay::detail {

class EpollEngine final : public IoEngine {
 public:
  // `most_threads` at a time for files.
  static std::expected<std::unique_ptr<EpollEngine>, StartRefusal> make(Executor& home,
                                                                        unsigned most_threads);
  EpollEngine(Executor& home, unsigned most_threads) : threads_(home, most_threads) {}
  ~EpollEngine() override;

  void enter_thread(int wake) override;
  void receive(SocketOperation& operation, Socket& socket,
               std::span<const IoSlice> target) override;
  void send(SocketOperation& operation, Socket& socket, std::span<const IoSlice> source) override;
  void accept(SocketOperation& operation, Socket& socket) override;
  void connect(SocketOperation& operation, Socket& socket, const sockaddr* address,
               socklen_t byte_count) override;
  void wait_readable(SocketOperation& operation, Socket& socket) override;
  void start(FileOperation& operation) override;
  void cancel(SocketOperation& operation) override;
  void cancel(FileOperation& operation) override;
  void forget(Socket& socket) noexcept override;
  // The other half is for files that do not block, which take threads too.
  unsigned most_blocking() const noexcept override { return threads_.most() / 2; }
  bool files_take_threads() const noexcept override { return true; }
  void attempt() override { submit(); }
  void stop() noexcept override { threads_.stop(); }
  void submit() override;
  bool has_work() override;
  void look() override;
  void wait(Duration longest) override;
  void reap(ReadyQueue& ready) override;

 private:
  static constexpr std::size_t kMostEvents = 32;  // A turn; the kernel keeps the rest.
  // Reads and writes copy this many bytes in a turn; more goes to the threads.
  static constexpr std::size_t kMostAtOnce = std::size_t{1} << 20;

  void begin(SocketOperation& operation, Socket& socket, SocketOperation::Kind kind);
  // Completes it, or keeps it until the socket is ready.
  void attempt(SocketOperation& operation);
  void attempt_connect(SocketOperation& operation);
  void keep(SocketOperation& operation);
  void end(Operation& operation, int result);
  void try_files();
  bool try_at_once(FileOperation& operation, std::size_t& room);
  void wait_for_events(Duration longest);
  void take_event(const epoll_event& event);

  int epoll_ = -1;
  bool waits_precisely_ = true;  // Until the kernel refuses epoll_pwait2(2).
  std::vector<SocketOperation*> started_;
  std::vector<SocketOperation*> attempted_;
  std::vector<FileOperation*> files_;
  std::vector<std::coroutine_handle<>> ended_;
  std::array<epoll_event, kMostEvents> events_;
  std::size_t event_count_ = 0;  // Not yet taken.
  FileThreads threads_;
};

}  // namespace sandbay::detail
