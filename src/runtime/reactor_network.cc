// TCP streams and listeners on a reactor.

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/reactor_internal.h"

namespace sandbay::detail {
namespace {

constexpr int kBacklog = 1024;
// If a peer answers nothing at all, TCP tries for two minutes. The login that wanted the connection
// has failed long before, and its socket is closed soon after.
constexpr Duration kConnectPatience = std::chrono::seconds(20);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t byte_count = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress to_socket_address(const Endpoint& endpoint) {
  SocketAddress address;
  if (endpoint.is_ipv6()) {
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(endpoint.port());
    std::memcpy(&six.sin6_addr, endpoint.bytes().data(), 16);
    std::memcpy(&address.storage, &six, sizeof six);
    address.byte_count = sizeof six;
  } else {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(endpoint.port());
    std::memcpy(&four.sin_addr, endpoint.bytes().data(), 4);
    std::memcpy(&address.storage, &four, sizeof four);
    address.byte_count = sizeof four;
  }
  return address;
}

Endpoint to_endpoint(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET6) {
    sockaddr_in6 six{};
    std::memcpy(&six, &address.storage, sizeof six);
    if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
      std::uint32_t four = 0;
      std::memcpy(&four, six.sin6_addr.s6_addr + 12, sizeof four);
      return Endpoint::ipv4(ntohl(four), ntohs(six.sin6_port));
    }
    return Endpoint::ipv6(std::span<const std::uint8_t, 16>(six.sin6_addr.s6_addr, 16),
                          ntohs(six.sin6_port));
  }
  sockaddr_in four{};
  std::memcpy(&four, &address.storage, sizeof four);
  return Endpoint::ipv4(ntohl(four.sin_addr.s_addr), ntohs(four.sin_port));
}

using NameCall = int(int, sockaddr*, socklen_t*) noexcept;

Endpoint name_of(int descriptor, NameCall* call) {
  SocketAddress address;
  address.byte_count = sizeof address.storage;
  if (call(descriptor, address.get(), &address.byte_count) != 0) return {};
  return to_endpoint(address);
}

void set_option(int descriptor, int level, int option, int value) {
  // An option that the system refuses costs speed, not correctness.
  static_cast<void>(::setsockopt(descriptor, level, option, &value, sizeof value));
}

// On its reactor, or when the reactors have ended.
void close_socket(Reactor& reactor, Socket& socket) {
  assert(Executor::current_or_null() == nullptr || Executor::current_or_null() == &reactor);
  reactor.engine().forget(socket);
  ::close(socket.descriptor);
}

class ReactorStream final : public Stream {
 public:
  ReactorStream(Reactor& reactor, int descriptor)
      : reactor_(&reactor),
        socket_{.descriptor = descriptor},
        local_(name_of(descriptor, ::getsockname)),
        peer_(name_of(descriptor, ::getpeername)) {
    set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  }
  ~ReactorStream() override { close_socket(*reactor_, socket_); }

  Executor& home() const noexcept override { return *reactor_; }
  const Endpoint& local() const noexcept override { return local_; }
  const Endpoint& peer() const noexcept override { return peer_; }

  Task<Result<std::size_t>> receive(std::span<const IoSlice> target) override;
  bool readable() const noexcept override {
    pollfd wanted{.fd = socket_.descriptor, .events = POLLIN, .revents = 0};
    return ended_ || ::poll(&wanted, 1, 0) > 0;
  }
  Task<Error> send(std::span<const IoSlice> source) override;
  void shutdown() noexcept override {
    ended_ = true;
    ::shutdown(socket_.descriptor, SHUT_RDWR);
  }
  void reset() noexcept override;
  void move_to(Executor& home) noexcept override {
    reactor_->engine().forget(socket_);
    reactor_ = static_cast<Reactor*>(&home);
  }

 private:
  Task<int> send_once(std::span<const IoSlice> source);
  Task<Error> send_rest(std::span<const IoSlice> source, std::size_t done);

  Reactor* reactor_;
  Socket socket_;
  bool ended_ = false;
  Endpoint local_;
  Endpoint peer_;
};

Task<Result<std::size_t>> ReactorStream::receive(std::span<const IoSlice> target) {
  assert(!target.empty());
  if (ended_) co_return std::unexpected(Error::kClosed);
  SocketOperation operation;
  reactor_->engine().receive(operation, socket_, target);
  const int result = co_await operation;
  if (result < 0) co_return std::unexpected(error_from_errno(result));
  co_return static_cast<std::size_t>(result);
}

Task<int> ReactorStream::send_once(std::span<const IoSlice> source) {
  if (ended_) co_return -EPIPE;
  SocketOperation operation;
  reactor_->engine().send(operation, socket_, source);
  co_return co_await operation;
}

Task<Error> ReactorStream::send(std::span<const IoSlice> source) {
  std::size_t byte_count = 0;
  for (const IoSlice& slice : source) byte_count += slice.byte_count;
  const int result = co_await send_once(source);
  if (result < 0) co_return error_from_errno(result);
  if (static_cast<std::size_t>(result) == byte_count) co_return Error::kNone;
  co_return co_await send_rest(source, static_cast<std::size_t>(result));
}

Task<Error> ReactorStream::send_rest(std::span<const IoSlice> source, std::size_t done) {
  std::vector<IoSlice> rest(source.begin(), source.end());
  std::size_t first = 0;
  for (;;) {
    while (first < rest.size() && done >= rest[first].byte_count) {
      done -= rest[first].byte_count;
      ++first;
    }
    if (first == rest.size()) co_return Error::kNone;
    rest[first].data += done;
    rest[first].byte_count -= done;
    const std::span<const IoSlice> remaining(rest.begin() + static_cast<std::ptrdiff_t>(first),
                                             rest.end());
    const int result = co_await send_once(remaining);
    if (result < 0) co_return error_from_errno(result);
    if (result == 0) co_return Error::kClosed;
    done = static_cast<std::size_t>(result);
  }
}

void ReactorStream::reset() noexcept {
  ended_ = true;
  // Dissolving the association sends a reset at once and wakes operations in flight.
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  const int descriptor = socket_.descriptor;
  if (::connect(descriptor, &nobody, sizeof nobody) != 0) ::shutdown(descriptor, SHUT_RDWR);
}

class ReactorListener final : public Listener {
 public:
  ReactorListener(Reactor& reactor, int descriptor)
      : reactor_(reactor),
        socket_{.descriptor = descriptor},
        local_(name_of(descriptor, ::getsockname)) {}
  ~ReactorListener() override { close_socket(reactor_, socket_); }

  const Endpoint& local() const noexcept override { return local_; }
  Task<Result<std::unique_ptr<Stream>>> accept() override;
  void set_deaf(bool deaf) noexcept override;
  void shutdown() noexcept override {
    ended_ = true;
    ::shutdown(socket_.descriptor, SHUT_RDWR);
  }

 private:
  Reactor& reactor_;
  Socket socket_;
  bool ended_ = false;
  Endpoint local_;
};

// A filter of one instruction, which drops every segment.
void ReactorListener::set_deaf(bool deaf) noexcept {
  sock_filter drop{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0};
  const sock_fprog program{.len = 1, .filter = &drop};
  ::setsockopt(socket_.descriptor, SOL_SOCKET, deaf ? SO_ATTACH_FILTER : SO_DETACH_FILTER, &program,
               sizeof program);
}

Task<Result<std::unique_ptr<Stream>>> ReactorListener::accept() {
  if (ended_) co_return std::unexpected(Error::kClosed);
  SocketOperation operation;
  reactor_.engine().accept(operation, socket_);
  const int result = co_await operation;
  if (ended_) {
    if (result >= 0) ::close(result);
    co_return std::unexpected(Error::kClosed);
  }
  if (result < 0) co_return std::unexpected(error_from_errno(result));
  co_return std::make_unique<ReactorStream>(reactor_, result);
}

}  // namespace

Result<std::unique_ptr<Listener>> Reactor::listen(const Endpoint& endpoint) {
  const SocketAddress address = to_socket_address(endpoint);
  const int descriptor =
      ::socket(endpoint.is_ipv6() ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return std::unexpected(error_from_errno(errno));
  set_option(descriptor, SOL_SOCKET, SO_REUSEADDR, 1);
  // [::] serves IPv6 only, so that 0.0.0.0 can stand beside it.
  if (endpoint.is_ipv6()) set_option(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (::bind(descriptor, address.get(), address.byte_count) != 0 ||
      ::listen(descriptor, kBacklog) != 0) {
    const Error error = error_from_errno(errno);
    ::close(descriptor);
    return std::unexpected(error);
  }
  return std::make_unique<ReactorListener>(*this, descriptor);
}

Task<Result<std::unique_ptr<Stream>>> Reactor::connect(Endpoint endpoint) {
  const SocketAddress address = to_socket_address(endpoint);
  const int descriptor =
      ::socket(endpoint.is_ipv6() ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) co_return std::unexpected(error_from_errno(errno));
  Socket socket{.descriptor = descriptor};
  SocketOperation operation;
  engine_->connect(operation, socket, address.get(), address.byte_count);
  std::pair<Reactor*, SocketOperation*> attempt{this, &operation};
  Timer patience;
  patience.deadline = now() + kConnectPatience;
  patience.owner = &attempt;
  patience.fire = [](Timer& timer) {
    const auto& late = *static_cast<std::pair<Reactor*, SocketOperation*>*>(timer.owner);
    late.first->engine().cancel(*late.second);
  };
  arm(patience);
  const int result = co_await operation;
  disarm(patience);
  engine_->forget(socket);
  if (result < 0) {
    ::close(descriptor);
    const bool late = result == -ECANCELED;
    co_return std::unexpected(late ? Error::kTimedOut : error_from_errno(result));
  }
  co_return std::make_unique<ReactorStream>(*this, descriptor);
}

}  // namespace sandbay::detail
