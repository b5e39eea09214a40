// Server: HTTP for the management of a group. An adaptor only: threads of its own take requests
// and ask the group's service through a Backend; see route.h for what there is.
//
// Everything is bounded: threads, connections that wait for one, bodies, header sizes, and the time
// a client may take. Where there are tokens every request needs one. Without tokens, on loopback,
// only the daemon's own user and root are served, whom the kernel names (local_user.h). No web page
// in their browsers shall reach the daemon by a name of its own (DNS rebinding), so the Host header
// must be an IP address or localhost. No page shall write with a plain form, so bodies must be
// declared as JSON.
#pragma once

#include <chrono>
#include <expected>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "group/service.h"
#include "mgmt/tls.h"
#include "runtime/executor.h"
#include "runtime/io.h"
#include "runtime/task.h"

namespace sandbay::mgmt {

struct ServerOptions {
  Endpoint listen;
  std::vector<group::ManagementToken> tokens = {};
  std::shared_ptr<const TlsContext> tls = nullptr;  // Null: plain text.
  // Folders and devices that volumes may be made on; see group::allowed_volume_paths().
  std::vector<std::filesystem::path> volume_paths = {};
  unsigned threads = 64;  // More than clients that dawdle can be expected to take.
  std::size_t waiting_connections = 256;
  std::size_t largest_body_bytes = std::size_t{1} << 20;
  std::chrono::milliseconds client_silence{2000};    // Between requests, and within one.
  std::chrono::milliseconds client_request{10'000};  // To send a whole request.
  std::chrono::milliseconds client_answer{10'000};   // To take a whole answer.
};

class Server {
 public:
  virtual ~Server() = default;  // After stop().

  // Called on `home`, the service's executor. Listens when it returns. The error is one line.
  static std::expected<std::unique_ptr<Server>, std::string> start(group::Service& service,
                                                                   Executor& home,
                                                                   ServerOptions options);

  virtual const Endpoint& endpoint() const noexcept = 0;  // With the port in use.

  // What counts from the next request, and the next connection, on; those that are there go on.
  // With TLS where there was TLS, and without where there was none. From any thread.
  virtual void renew(std::vector<group::ManagementToken> tokens,
                     std::shared_ptr<const TlsContext> tls) = 0;

  // On `home`: takes no new requests and waits for those that are being handled, for no client.
  virtual Task<void> stop() = 0;
};

// An IP address, "[::1]" or "localhost", perhaps with a port.
bool is_literal_host(std::string_view host);
// "application/json", perhaps with parameters.
bool is_json_type(std::string_view content_type);

}  // namespace sandbay::mgmt
