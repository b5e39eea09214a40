// BoundedServer: the HTTP library's server with a bound on everything that a client may take: the
// threads, the connections that wait for one, what comes before a body, and time. The library
// bounds each receive alone, so that a client which sends a byte now and then would hold a thread
// for ever, and header lines not at all. Range fields do not reach it: answers have no parts. A
// head that a proxy may read in another way than the library is refused.
//
// Limits of time: how long a connection may be idle between requests, how long it may be silent
// within one, and how long a whole request, and again its whole answer, may take, which is
// more for a long one whose client takes it fast. While others wait
// for a thread, a request's head has less time: before it is there nobody has shown a token. A
// connection that is served gives its thread up after an answer when others wait for one. With TLS
// its handshake is bounded like a request, and is done on the thread that serves the connection.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

namespace sandbay::mgmt {

class BoundedPool;
class TlsContext;

struct ClientLimits {
  std::chrono::milliseconds silence{2000};  // Also between requests.
  std::chrono::milliseconds request{10'000};
  std::chrono::milliseconds answer{10'000};
  // For a handshake, and for a request's head, while others wait for a thread.
  std::chrono::milliseconds crowded{1000};
};

class BoundedServer final : public httplib::Server {
 public:
  // Without `tls` it speaks plain text.
  BoundedServer(unsigned threads, std::size_t waiting_connections, ClientLimits limits,
                std::shared_ptr<const TlsContext> tls = nullptr);
  ~BoundedServer() override;

  bool is_valid() const override { return stop_event_ >= 0; }
  // Waits for no client: what is being received is given up, and so is an answer that its client
  // does not take. Requests that are being handled end first. From any thread but the server's.
  void stop_at_once();
  // The head of the request that this thread serves.
  struct Head {
    bool whole = false;        // It was read to its end.
    std::string_view refusal;  // Why it was refused; empty if only the library knows.
  };
  static const Head& head() noexcept;
  // Of connections that come from now on. From any thread; not null, and there was one before.
  void renew_tls(std::shared_ptr<const TlsContext> tls) { tls_ = std::move(tls); }

 private:
  bool process_and_close_socket(socket_t socket) override;

  ClientLimits limits_;
  std::atomic<std::shared_ptr<const TlsContext>> tls_;
  int stop_event_;               // Readable from the time when it stops.
  BoundedPool* pool_ = nullptr;  // The library's, there as long as a connection is served.
};

}  // namespace sandbay::mgmt
