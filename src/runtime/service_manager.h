// ServiceManager: reports to systemd, or another manager that set NOTIFY_SOCKET (sd_notify(3)),
// that the daemon is ready, that it stops, or that it needs longer. Without NOTIFY_SOCKET nothing
// is sent.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/clock.h"

namespace sandbay {

class ServiceManager {
 public:
  // Takes NOTIFY_SOCKET out of the environment. Before any thread is started.
  static ServiceManager from_environment();

  ServiceManager() = default;
  explicit ServiceManager(std::string socket_path);
  ServiceManager(ServiceManager&& other) noexcept;
  ServiceManager& operator=(ServiceManager&&) = delete;
  ~ServiceManager();

  // The daemon runs as a service: who started it waits for it and starts it again.
  bool present() const noexcept { return socket_ >= 0; }
  // Sends lines such as "READY=1". Never blocks; false if its queue is full.
  bool tell(std::string_view lines) const noexcept;
  // Asks for this much time from now on, to start or to stop.
  bool extend(Duration time) const noexcept;

 private:
  std::string path_;
  int socket_ = -1;
};

}  // namespace sandbay
