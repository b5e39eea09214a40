// stat() for what has a path; for an address, whether a socket can be bound to it on any port.
#include "group/machine_check.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace sandbay::group {

namespace {

std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISREG(mode)) return "a file";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISCHR(mode)) return "a character device";
  return "neither a file nor a device";
}

class Check {
 public:
  explicit Check(const Configuration& configuration) : configuration_(configuration) {}

  // What is not there yet will be made, or is told by the start.
  void path(std::uint32_t line, std::string_view key, const std::filesystem::path& path,
            mode_t meant, std::string_view write) {
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0 || (status.st_mode & S_IFMT) == meant) return;
    if (meant == S_IFREG && S_ISBLK(status.st_mode)) return;  // Is served as well.
    add(line, key, fmt::format("{} is {}; {}", path.string(), kind_of(status.st_mode), write));
  }

  void address(std::uint32_t line, std::string_view key, const Endpoint& endpoint) {
    if (!endpoint.is_any() && is_nobodys(endpoint)) {
      add(line, key,
          fmt::format("no interface of this machine has the address {}; write one that "
                      "`ip address` shows, or 0.0.0.0 or [::] for all",
                      endpoint.address()));
    }
  }

  std::vector<std::string> take() { return std::move(mistakes_); }

 private:
  static bool is_nobodys(const Endpoint& endpoint) {
    sockaddr_storage address{};
    socklen_t size = sizeof(sockaddr_in);
    if (endpoint.is_ipv6()) {
      auto* const six = reinterpret_cast<sockaddr_in6*>(&address);
      six->sin6_family = AF_INET6;
      std::ranges::copy(endpoint.bytes(), six->sin6_addr.s6_addr);
      size = sizeof(sockaddr_in6);
    } else {
      auto* const four = reinterpret_cast<sockaddr_in*>(&address);
      four->sin_family = AF_INET;
      std::ranges::copy(endpoint.bytes().first(4),
                        reinterpret_cast<std::uint8_t*>(&four->sin_addr));
    }
    const int socket = ::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket < 0) return endpoint.is_ipv6() && errno == EAFNOSUPPORT;
    const bool none = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), size) != 0 &&
                      errno == EADDRNOTAVAIL;
    ::close(socket);
    return none;
  }

  void add(std::uint32_t line, std::string_view key, std::string_view wrong) {
    const std::string where = line == 0 ? "" : fmt::format(":{}", line);
    mistakes_.push_back(fmt::format("{}{}: {}: {}", configuration_.file, where, key, wrong));
  }

  const Configuration& configuration_;
  std::vector<std::string> mistakes_;
};

void check_hardware(const HardwareConfiguration& hardware, const std::filesystem::path& state,
                    Check& check) {
  for (const DriveConfiguration& drive : hardware.drives) {
    if (drive.medium == Medium::kFile) {
      check.path(drive.line, "file", state / drive.path, S_IFREG, "write the path of a file");
    }
    if (drive.medium == Medium::kDevice) {
      check.path(drive.line, "device", drive.path, S_IFBLK,
                 "write that of a block device, or file for a file");
    }
  }
  if (!hardware.nvram) return;
  const NvramConfiguration& nvram = *hardware.nvram;
  check.path(nvram.line, "file", state / nvram.path, S_IFREG, "write the path of a file");
  if (nvram.mirror_path.empty()) return;
  check.path(nvram.mirror_line, "mirror", state / nvram.mirror_path, S_IFREG,
             "write the path of a file");
}

}  // namespace

std::vector<std::string> mistakes_on_this_machine(const Configuration& configuration) {
  Check check(configuration);
  const std::filesystem::path& state = configuration.state;
  check.path(0, "group.state", state, S_IFDIR, "write the path of a directory");
  for (const PortalConfiguration& portal : configuration.portals) {
    check.address(portal.line, "listen", portal.listen);
  }
  check_hardware(configuration.hardware, state, check);
  for (const VolumeConfiguration& volume : configuration.volumes) {
    const VolumeSpecification& s = volume.specification;
    if (s.backing == Backing::kFile) {
      check.path(volume.line, "file", state / s.path, S_IFREG, "write the path of a file");
    }
    if (s.backing == Backing::kDevice) {
      check.path(volume.line, "device", s.path, S_IFBLK,
                 "write that of a block device, or file for a file");
    }
  }
  return check.take();
}

}  // namespace sandbay::group
