// A filesystem (FUSE) whose server opens files and then falls silent, as that of a dead host does:
// it leaves reads, syncs and allocations without an answer until the test calls answer().
//
// The server is a thread of this process, so the test must not touch the files by calls of its own.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace sandbay::testing {

class SilentFilesystem {
 public:
  // Null if this process may not mount FUSE; a warning says why.
  static std::unique_ptr<SilentFilesystem> mount();
  ~SilentFilesystem();  // Answers, and unmounts. Its files are closed.
  SilentFilesystem(const SilentFilesystem&) = delete;
  SilentFilesystem& operator=(const SilentFilesystem&) = delete;

  // Any number of files exist, of 1 MiB each.
  std::string file(unsigned number) const { return folder_ + "/" + std::to_string(number); }
  // Requests without an answer.
  std::size_t unanswered() const;
  // From now on the server answers; first what it has left unanswered.
  void answer();

 private:
  struct Request {
    std::uint32_t opcode = 0;
    std::uint64_t unique = 0;
    std::uint64_t node = 0;
    std::vector<std::byte> body;
  };

  SilentFilesystem(std::string folder, int device);
  void serve();
  void take(Request request);
  void reply(const Request& request);
  void send(const Request& request, int error, std::span<const iovec> body);
  void send_node(const Request& request, std::uint64_t node);

  std::string folder_;
  int device_;
  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  bool silent_ = true;
  std::vector<Request> unanswered_;
  std::thread server_;
};

}  // namespace sandbay::testing
