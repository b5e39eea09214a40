// One question and one answer on a netlink socket; the kernel's table of connections where a
// sandbox allows no such socket.
//
// Four answers must not be believed. A socket that its owner has closed lives on without an inode,
// and the kernel then shows user 0. A connection that ended is shown as TIME-WAIT, also with user 0
// and without an inode. Where no connection matches, the kernel falls back to a listener. And all
// users of other user namespaces are shown as 65534, which can also be the user that asks.
#include "mgmt/local_user.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>
#include <sstream>

namespace sandbay::mgmt {

namespace {

constexpr uid_t kOverflowUser = 65534;  // Linux: user_namespaces(7).
constexpr timeval kPatience{.tv_sec = 1, .tv_usec = 0};

struct Question {
  nlmsghdr header{};
  inet_diag_req_v2 request{};
};

class NetlinkSocket {
 public:
  NetlinkSocket() : socket_(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)) {
    if (socket_ < 0) return;
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  }
  ~NetlinkSocket() {
    if (socket_ >= 0) ::close(socket_);
  }
  NetlinkSocket(const NetlinkSocket&) = delete;
  NetlinkSocket& operator=(const NetlinkSocket&) = delete;

  bool is_allowed() const noexcept { return socket_ >= 0; }
  // The number of bytes of the kernel's answer; 0: there is none.
  std::size_t ask(const Question& question, std::span<std::byte> answer) const {
    if (socket_ < 0) return 0;
    sockaddr_nl kernel{};
    kernel.nl_family = AF_NETLINK;
    const ssize_t sent = ::sendto(socket_, &question, sizeof question, 0,
                                  reinterpret_cast<const sockaddr*>(&kernel), sizeof kernel);
    if (sent != static_cast<ssize_t>(sizeof question)) return 0;
    sockaddr_nl from{};
    socklen_t size = sizeof from;
    const ssize_t count = ::recvfrom(socket_, answer.data(), answer.size(), 0,
                                     reinterpret_cast<sockaddr*>(&from), &size);
    return count > 0 && from.nl_pid == 0 ? static_cast<std::size_t>(count) : 0;
  }

 private:
  int socket_;
};

bool put_address(const TcpEnd& end, int family, __be32* address, __be16* port) {
  if (end.port <= 0 || end.port > std::numeric_limits<std::uint16_t>::max()) return false;
  *port = htons(static_cast<std::uint16_t>(end.port));
  return ::inet_pton(family, end.address.c_str(), address) == 1;
}

int family_of(const TcpEnd& end) {
  return end.address.find(':') == std::string::npos ? AF_INET : AF_INET6;
}

Question question_about(int family) {
  Question question;
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.request.sdiag_family = static_cast<std::uint8_t>(family);
  question.request.sdiag_protocol = IPPROTO_TCP;
  question.request.idiag_states = std::numeric_limits<std::uint32_t>::max();
  question.request.id.idiag_cookie[0] = static_cast<std::uint32_t>(INET_DIAG_NOCOOKIE);
  question.request.id.idiag_cookie[1] = static_cast<std::uint32_t>(INET_DIAG_NOCOOKIE);
  return question;
}

// Whether another process of the user that asks has the socket. The kernel shows the descriptors of
// no other user's processes, nor of one in another user namespace (ptrace(2)). Inodes are numbers
// that come round, and this process keeps its own for long, so they do not count.
bool own_process_has(std::uint64_t inode) {
  using std::filesystem::directory_iterator;
  const std::string wanted = fmt::format("socket:[{}]", inode);
  std::error_code error;
  const std::string self = std::to_string(::getpid());
  for (directory_iterator process("/proc", error), end; process != end && !error;
       process.increment(error)) {
    if (process->path().filename() == self) continue;
    if (std::isdigit(static_cast<unsigned char>(process->path().filename().native()[0])) == 0) {
      continue;
    }
    std::error_code hidden;
    for (directory_iterator each(process->path() / "fd", hidden); !hidden && each != end;
         each.increment(hidden)) {
      std::error_code closed;
      if (std::filesystem::read_symlink(each->path(), closed) == wanted) return true;
    }
  }
  return false;
}

// Nothing if the user may be another one than it seems.
std::optional<uid_t> proven(uid_t user, std::uint64_t inode) {
  const bool ambiguous = user == kOverflowUser && user == ::geteuid();
  return ambiguous && !own_process_has(inode) ? std::nullopt : std::optional(user);
}

// A socket that has an owner.
std::optional<inet_diag_msg> ask(const Question& question) {
  std::array<std::byte, 4096> answer;
  const std::size_t count = NetlinkSocket().ask(question, answer);
  nlmsghdr header;
  inet_diag_msg shown;
  if (count < NLMSG_HDRLEN + sizeof shown) return std::nullopt;
  std::memcpy(&header, answer.data(), sizeof header);
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  std::memcpy(&shown, answer.data() + NLMSG_HDRLEN, sizeof shown);
  if (shown.idiag_inode == 0) return std::nullopt;
  return shown;
}

// An end of a connection as /proc/net/tcp writes it: words as the processor reads them.
std::string text_of(const __be32* address, int family, __be16 port) {
  std::string text;
  for (int i = 0; i < (family == AF_INET6 ? 4 : 1); ++i) text += fmt::format("{:08X}", address[i]);
  return text + fmt::format(":{:04X}", ntohs(port));
}

// The row of a connection that has an owner: the fields are number, local end, remote end, state,
// queues, timer, retransmissions, user, timeout, inode (proc_pid_net(5)).
struct OwnedSocket {
  uid_t user = 0;
  std::uint64_t inode = 0;
  bool operator==(const OwnedSocket&) const = default;
};

std::optional<OwnedSocket> owner_in_table(const inet_diag_sockid& id, int family) {
  std::ifstream table(family == AF_INET6 ? "/proc/net/tcp6" : "/proc/net/tcp");
  const std::string client = text_of(id.idiag_src, family, id.idiag_sport);
  const std::string server = text_of(id.idiag_dst, family, id.idiag_dport);
  for (std::string line; std::getline(table, line);) {
    std::istringstream row(line);
    std::string number, local, remote, state, queues, timer, retransmissions, timeout;
    OwnedSocket socket;
    row >> number >> local >> remote >> state >> queues >> timer >> retransmissions >>
        socket.user >> timeout >> socket.inode;
    if (local == client && remote == server) {
      return row && socket.inode != 0 ? std::optional(socket) : std::nullopt;
    }
  }
  return std::nullopt;
}

bool same_connection(const inet_diag_sockid& asked, const inet_diag_sockid& shown) {
  return asked.idiag_sport == shown.idiag_sport && asked.idiag_dport == shown.idiag_dport &&
         std::ranges::equal(asked.idiag_src, shown.idiag_src) &&
         std::ranges::equal(asked.idiag_dst, shown.idiag_dst);
}

}  // namespace

std::optional<uid_t> user_by_table(const TcpEnd& client, const TcpEnd& server) {
  inet_diag_sockid id{};
  const int family = family_of(client);
  if (!put_address(client, family, id.idiag_src, &id.idiag_sport) ||
      !put_address(server, family, id.idiag_dst, &id.idiag_dport)) {
    return std::nullopt;
  }
  // The kernel may read a row's user before its inode or after. The second row proves that the
  // socket had its owner during the first: a socket that has lost its owner gets none again.
  const auto socket = owner_in_table(id, family);
  if (!socket || owner_in_table(id, family) != socket) return std::nullopt;
  return proven(socket->user, socket->inode);
}

std::optional<uid_t> user_of(const TcpEnd& client, const TcpEnd& server) {
  Question question = question_about(family_of(client));
  inet_diag_sockid& id = question.request.id;
  if (!put_address(client, family_of(client), id.idiag_src, &id.idiag_sport) ||
      !put_address(server, family_of(client), id.idiag_dst, &id.idiag_dport)) {
    return std::nullopt;
  }
  if (!NetlinkSocket().is_allowed()) return user_by_table(client, server);
  const auto shown = ask(question);
  if (!shown || !same_connection(id, shown->id)) return std::nullopt;
  return proven(shown->idiag_uid, shown->idiag_inode);
}

std::optional<uid_t> owner_of_listener(const TcpEnd& end) {
  Question question = question_about(family_of(end));
  inet_diag_sockid& id = question.request.id;
  if (!put_address(end, family_of(end), id.idiag_src, &id.idiag_sport)) return std::nullopt;
  const auto shown = ask(question);
  if (!shown || shown->id.idiag_sport != id.idiag_sport || shown->id.idiag_dport != 0) {
    return std::nullopt;
  }
  return proven(shown->idiag_uid, shown->idiag_inode);
}

bool is_trusted(uid_t user, uid_t daemon) { return user == 0 || user == daemon; }

}  // namespace sandbay::mgmt
