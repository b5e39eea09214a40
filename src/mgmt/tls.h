// TLS for the management listener: a certificate with its key, and one secured connection.
//
// TLS 1.2 at least. A connection never blocks: each call says whether it waits for the socket to
// become readable or writable, so that the bounds on time are the caller's.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <expected>
#include <filesystem>
#include <memory>
#include <string>

struct ssl_ctx_st;
struct ssl_st;

namespace sandbay::mgmt {

class TlsContext {
 public:
  // The certificate, perhaps with those that vouch for it, and its key, both in PEM format. The
  // error is one line that names the file.
  static std::expected<std::unique_ptr<TlsContext>, std::string> load(
      const std::filesystem::path& certificate, const std::filesystem::path& key);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  ssl_ctx_st* context() const noexcept { return context_; }

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

class TlsConnection {
 public:
  enum class Step { kDone, kWantsRead, kWantsWrite, kFailed };

  // The context outlives it; the socket, which becomes non-blocking, is the caller's.
  TlsConnection(const TlsContext& context, int socket);
  ~TlsConnection();
  TlsConnection(const TlsConnection&) = delete;
  TlsConnection& operator=(const TlsConnection&) = delete;

  Step handshake();
  // `*count` with kDone; none at the end of what the client sends.
  Step receive(char* to, std::size_t size, std::size_t* count);
  Step send(const char* from, std::size_t size, std::size_t* count);
  // What was decrypted already and not received.
  bool has_buffered() const;
  void say_goodbye();

 private:
  Step step_of(int result) const;
  ssl_st* ssl_;
};

}  // namespace sandbay::mgmt
