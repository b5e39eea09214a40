// Which user of this machine is at the other end of a loopback connection.
//
// The kernel knows who made the client's socket and answers for one connection by its two ends
// (sock_diag(7)). No privilege is needed. The call takes some ten microseconds and blocks for as
// long as the kernel takes, so it is made on a thread of management, never on a reactor.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace sandbay::mgmt {

struct TcpEnd {
  std::string address;  // In digits.
  int port = 0;
};

// The user who made the socket at `client` that is connected to `server`. Nothing if there is no
// such socket on this machine, if its owner has closed it (the kernel then shows root), or if the
// kernel does not answer. Users of other user namespaces all appear as 65534. So a process that is
// 65534 itself gets this answer only if a process of its own has the socket.
std::optional<uid_t> user_of(const TcpEnd& client, const TcpEnd& server);
// The same from /proc/net/tcp, which user_of() reads where a sandbox forbids netlink sockets. It
// takes as long as there are connections.
std::optional<uid_t> user_by_table(const TcpEnd& client, const TcpEnd& server);

// The user who listens at `end`; nothing if no socket does, or if the kernel does not answer. A
// listener on every address counts where no other has `end`'s own.
std::optional<uid_t> owner_of_listener(const TcpEnd& end);

// Whether a daemon of the user `daemon` takes orders from `user` without a token: its own user and
// root.
bool is_trusted(uid_t user, uid_t daemon);

}  // namespace sandbay::mgmt
