// The protocol is one datagram a message, documented in sd_notify(3). A name that begins with @ is
// in the abstract namespace.

#include "runtime/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace sandbay {

ServiceManager ServiceManager::from_environment() {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr) return {};
  ServiceManager manager{std::string(path)};
  ::unsetenv("NOTIFY_SOCKET");
  return manager;
}

ServiceManager::ServiceManager(std::string socket_path) : path_(std::move(socket_path)) {
  const bool named = path_.starts_with('/') || path_.starts_with('@');
  if (!named || path_.size() >= sizeof(sockaddr_un::sun_path)) return;
  socket_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

ServiceManager::ServiceManager(ServiceManager&& other) noexcept
    : path_(std::move(other.path_)), socket_(std::exchange(other.socket_, -1)) {}

ServiceManager::~ServiceManager() {
  if (socket_ >= 0) ::close(socket_);
}

bool ServiceManager::tell(std::string_view lines) const noexcept {
  if (!present()) return true;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.data(), path_.size());
  if (path_.front() == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path_.size());
  const ssize_t sent = ::sendto(socket_, lines.data(), lines.size(), MSG_NOSIGNAL,
                                reinterpret_cast<const sockaddr*>(&address), size);
  return sent == static_cast<ssize_t>(lines.size());
}

bool ServiceManager::extend(Duration time) const noexcept {
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  return tell("EXTEND_TIMEOUT_USEC=" + std::to_string(microseconds));
}

}  // namespace sandbay
