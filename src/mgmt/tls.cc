// OpenSSL keeps an error queue for each thread: it is emptied before each call whose result is
// asked for, or an older error would be taken for its own.
#include "mgmt/tls.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <array>

namespace sandbay::mgmt {

namespace {

std::string reason() {
  std::array<char, 256> text{};
  const unsigned long code = ::ERR_peek_last_error();
  if (code == 0) return "no reason is known";
  const char* const words = ::ERR_reason_error_string(code);
  if (words != nullptr) return words;
  ::ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

std::string line(std::string_view key, const std::filesystem::path& file, std::string_view what) {
  return fmt::format("management.{}: {} {}", key, file.string(), what);
}

// A key that everybody on this machine can read protects nothing. A group may: that is how keys
// are shared with servers.
bool is_open_to_all(const std::filesystem::path& key) {
  struct stat found{};
  return ::stat(key.c_str(), &found) == 0 && (found.st_mode & S_IRWXO) != 0;
}

}  // namespace

std::expected<std::unique_ptr<TlsContext>, std::string> TlsContext::load(
    const std::filesystem::path& certificate, const std::filesystem::path& key) {
  ::ERR_clear_error();
  ssl_ctx_st* const context = ::SSL_CTX_new(::TLS_server_method());
  if (context == nullptr) return std::unexpected("management: TLS cannot begin: " + reason());
  std::unique_ptr<TlsContext> made(new TlsContext(context));
  ::SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  ::SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
  ::SSL_CTX_set_options(
      context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  // Nobody sits at a terminal who could be asked for one.
  ::SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return 0; });
  ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  if (::SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1) {
    return std::unexpected(
        line("certificate", certificate,
             fmt::format("is not a usable certificate: {}; name one in PEM format", reason())));
  }
  ::ERR_clear_error();
  if (is_open_to_all(key)) {
    return std::unexpected(line("key", key, "can be used by everybody; chmod 600 it"));
  }
  if (::SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      ::SSL_CTX_check_private_key(context) != 1) {
    return std::unexpected(line(
        "key", key,
        fmt::format(
            "is not the key of that certificate: {}; name it in PEM format, without a passphrase",
            reason())));
  }
  return made;
}

TlsContext::~TlsContext() { ::SSL_CTX_free(context_); }

TlsConnection::TlsConnection(const TlsContext& context, int socket)
    : ssl_(::SSL_new(context.context())) {
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
  if (ssl_ == nullptr) return;
  ::SSL_set_fd(ssl_, socket);
  ::SSL_set_accept_state(ssl_);
}

TlsConnection::~TlsConnection() { ::SSL_free(ssl_); }

TlsConnection::Step TlsConnection::step_of(int result) const {
  switch (::SSL_get_error(ssl_, result)) {
    case SSL_ERROR_NONE:
      return Step::kDone;
    case SSL_ERROR_WANT_READ:
      return Step::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return Step::kWantsWrite;
    default:
      return Step::kFailed;
  }
}

TlsConnection::Step TlsConnection::handshake() {
  if (ssl_ == nullptr) return Step::kFailed;
  ::ERR_clear_error();
  return step_of(::SSL_do_handshake(ssl_));
}

TlsConnection::Step TlsConnection::receive(char* to, std::size_t size, std::size_t* count) {
  ::ERR_clear_error();
  *count = 0;
  const int result = ::SSL_read_ex(ssl_, to, size, count);
  if (result == 1) return Step::kDone;
  if (::SSL_get_error(ssl_, result) == SSL_ERROR_ZERO_RETURN) return Step::kDone;
  return step_of(result);
}

TlsConnection::Step TlsConnection::send(const char* from, std::size_t size, std::size_t* count) {
  ::ERR_clear_error();
  *count = 0;
  return step_of(::SSL_write_ex(ssl_, from, size, count));
}

bool TlsConnection::has_buffered() const { return ::SSL_pending(ssl_) > 0; }

void TlsConnection::say_goodbye() {
  ::ERR_clear_error();
  ::SSL_shutdown(ssl_);  // What does not fit into the socket at once is not worth waiting for.
}

}  // namespace sandbay::mgmt
