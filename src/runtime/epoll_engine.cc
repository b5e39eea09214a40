// Edge-triggered: after an event, and before the first attempt, a socket counts as ready until an
// attempt finds that it is not, or finds less than it asked for. So no event is lost, and an
// attempt that would find nothing is rarely made. Before the end of the stream and before urgent
// data a receive also ends early, and there may be no further event: such a socket is always tried.

#include "runtime/epoll_engine.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

namespace sandbay::detail {
namespace {

StartRefusal refusal(std::string_view what, int error, std::string_view remedy) {
  return std::string("cannot make ") + std::string(what) + " (" + std::strerror(error) +
         "): " + std::string(remedy);
}

bool would_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

std::size_t byte_count_of(const msghdr& message) {
  std::size_t byte_count = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) byte_count += message.msg_iov[i].iov_len;
  return byte_count;
}

int receive_now(SocketOperation& operation) {
  msghdr& message = operation.message;
  ssize_t result = -1;
  do {
    result = ::recvmsg(operation.socket->descriptor, &message, MSG_DONTWAIT);
  } while (result < 0 && errno == EINTR);
  return result < 0 ? -errno : static_cast<int>(result);
}

// Sends what is left from operation.done on; 0 when all is sent.
int send_now(SocketOperation& operation) {
  const msghdr& whole = operation.message;
  iovec rest[kMostSlices];
  for (;;) {
    std::size_t skipped = operation.done;
    std::size_t first = 0;
    while (first < whole.msg_iovlen && skipped >= whole.msg_iov[first].iov_len) {
      skipped -= whole.msg_iov[first].iov_len;
      ++first;
    }
    if (first == whole.msg_iovlen) return 0;
    msghdr message{};
    if (operation.done == 0) {
      message = whole;
    } else {
      std::copy(whole.msg_iov + first, whole.msg_iov + whole.msg_iovlen, rest);
      rest[0].iov_base = static_cast<std::byte*>(rest[0].iov_base) + skipped;
      rest[0].iov_len -= skipped;
      message.msg_iov = rest;
      message.msg_iovlen = whole.msg_iovlen - first;
    }
    const ssize_t sent =
        ::sendmsg(operation.socket->descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      operation.done += static_cast<std::size_t>(sent);
    } else if (errno != EINTR) {
      return -errno;
    }
  }
}

int accept_now(int descriptor) {
  int result = -1;
  do {
    result = ::accept4(descriptor, nullptr, nullptr, SOCK_CLOEXEC);
  } while (result < 0 && errno == EINTR);
  return result < 0 ? -errno : result;
}

int readable_now(int descriptor) {
  pollfd asked{.fd = descriptor, .events = POLLIN, .revents = 0};
  const int count = ::poll(&asked, 1, 0);
  return count > 0 ? asked.revents : -EAGAIN;
}

void wait_for_nothing(int descriptor) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

}  // namespace

std::expected<std::unique_ptr<EpollEngine>, StartRefusal> EpollEngine::make(Executor& home,
                                                                            unsigned most_threads) {
  auto engine = std::make_unique<EpollEngine>(home, most_threads);
  engine->epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (engine->epoll_ < 0) {
    return std::unexpected(
        refusal("an epoll instance", errno, "raise the limit on open files (ulimit -n)"));
  }
  if (!engine->threads_.start()) {
    return std::unexpected(
        StartRefusal("cannot start a thread: raise the limit on processes (ulimit -u, or "
                     "TasksMax in systemd)"));
  }
  return engine;
}

EpollEngine::~EpollEngine() {
  if (epoll_ >= 0) ::close(epoll_);
}

void EpollEngine::enter_thread(int wake) {
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.ptr = nullptr}};
  [[maybe_unused]] const int added = ::epoll_ctl(epoll_, EPOLL_CTL_ADD, wake, &event);
  assert(added == 0);
}

void EpollEngine::begin(SocketOperation& operation, Socket& socket, SocketOperation::Kind kind) {
  operation.kind = kind;
  operation.socket = &socket;
  started_.push_back(&operation);
}

void EpollEngine::receive(SocketOperation& operation, Socket& socket,
                          std::span<const IoSlice> target) {
  operation.message.msg_iov = const_cast<iovec*>(reinterpret_cast<const iovec*>(target.data()));
  operation.message.msg_iovlen = target.size();
  begin(operation, socket, SocketOperation::Kind::kReceive);
}

void EpollEngine::send(SocketOperation& operation, Socket& socket,
                       std::span<const IoSlice> source) {
  operation.message.msg_iov = const_cast<iovec*>(reinterpret_cast<const iovec*>(source.data()));
  operation.message.msg_iovlen = source.size();
  begin(operation, socket, SocketOperation::Kind::kSend);
}

void EpollEngine::accept(SocketOperation& operation, Socket& socket) {
  if (!socket.watched) wait_for_nothing(socket.descriptor);
  begin(operation, socket, SocketOperation::Kind::kAccept);
}

void EpollEngine::connect(SocketOperation& operation, Socket& socket, const sockaddr* address,
                          socklen_t byte_count) {
  wait_for_nothing(socket.descriptor);
  operation.message.msg_name = const_cast<sockaddr*>(address);
  operation.message.msg_namelen = byte_count;
  begin(operation, socket, SocketOperation::Kind::kConnect);
}

void EpollEngine::wait_readable(SocketOperation& operation, Socket& socket) {
  begin(operation, socket, SocketOperation::Kind::kReadable);
}

void EpollEngine::end(Operation& operation, int result) {
  operation.result = result;
  ended_.push_back(operation.handle);
}

void EpollEngine::keep(SocketOperation& operation) {
  using enum SocketOperation::Kind;
  Socket& socket = *operation.socket;
  const bool writes = operation.kind == kSend || operation.kind == kConnect;
  (writes ? socket.writing : socket.reading) = &operation;
  if (socket.watched) return;
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET,
                    .data = {.ptr = &socket}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, socket.descriptor, &event) == 0) {
    socket.watched = true;
    return;
  }
  (writes ? socket.writing : socket.reading) = nullptr;
  end(operation, -errno);
}

void EpollEngine::attempt(SocketOperation& operation) {
  using enum SocketOperation::Kind;
  Socket& socket = *operation.socket;
  const bool sends = operation.kind == kSend;
  bool& ready = sends ? socket.writable : socket.readable;
  int result = -EAGAIN;
  if (ready || (!sends && socket.tried_always)) {
    switch (operation.kind) {
      case kReceive:
        result = receive_now(operation);
        break;
      case kSend:
        result = send_now(operation);
        if (result == 0) result = static_cast<int>(operation.done);
        break;
      case kAccept:
        result = accept_now(socket.descriptor);
        break;
      case kReadable:
        result = readable_now(socket.descriptor);
        break;
      case kConnect:
        attempt_connect(operation);
        return;
    }
  }
  if (result < 0 && would_wait(-result)) {
    ready = false;
    keep(operation);
    return;
  }
  // Fewer bytes than were asked for: there are no more.
  if (operation.kind == kReceive && result > 0 &&
      static_cast<std::size_t>(result) < byte_count_of(operation.message)) {
    ready = false;
  }
  end(operation, result);
}

// The first attempt asks; the socket becomes writable when there is an answer.
void EpollEngine::attempt_connect(SocketOperation& operation) {
  const int descriptor = operation.socket->descriptor;
  const bool asked = std::exchange(operation.done, 1) != 0;
  int error = 0;
  if (asked) {
    socklen_t byte_count = sizeof error;
    if (::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &byte_count) != 0) error = errno;
  } else if (::connect(descriptor, static_cast<const sockaddr*>(operation.message.msg_name),
                       operation.message.msg_namelen) != 0) {
    error = errno;
  }
  if (error == EINPROGRESS || error == EINTR) {
    keep(operation);
  } else {
    end(operation, -error);
  }
}

void EpollEngine::start(FileOperation& operation) {
  operation.run = [](Message& message) {
    Executor::current().post(static_cast<FileOperation&>(message).handle);
  };
  files_.push_back(&operation);
}

bool EpollEngine::try_at_once(FileOperation& operation, std::size_t& room) {
  bool* const tries = operation.tries_at_once;
  if (tries == nullptr || !*tries) return false;
  std::size_t byte_count = 0;
  for (unsigned i = 0; i < operation.slice_count; ++i) byte_count += operation.slices[i].iov_len;
  if (byte_count > room) return false;
  const int result = carry_out(operation, RWF_NOWAIT);
  if (result == -EOPNOTSUPP || result == -ENOSYS || result == -EINVAL) *tries = false;
  if (result < 0) return false;  // A thread finds out.
  room -= byte_count;
  end(operation, result);
  return true;
}

void EpollEngine::try_files() {
  std::size_t room = kMostAtOnce;
  FileOperation* first = nullptr;
  FileOperation* last = nullptr;
  unsigned count = 0;
  for (FileOperation* const operation : files_) {
    if (try_at_once(*operation, room)) continue;
    if (last != nullptr) last->next = operation;
    if (first == nullptr) first = operation;
    last = operation;
    ++count;
  }
  files_.clear();
  if (count > 0) threads_.submit(*first, *last, count);
}

void EpollEngine::cancel(SocketOperation& operation) {
  using enum SocketOperation::Kind;
  Socket& socket = *operation.socket;
  SocketOperation*& kept =
      operation.kind == kSend || operation.kind == kConnect ? socket.writing : socket.reading;
  if (kept == &operation) {
    kept = nullptr;
    end(operation, -ECANCELED);
  } else if (const auto found = std::ranges::find(started_, &operation); found != started_.end()) {
    started_.erase(found);
    end(operation, -ECANCELED);
  }
}

void EpollEngine::cancel(FileOperation& operation) {
  const auto found = std::ranges::find(files_, &operation);
  if (found != files_.end()) {
    files_.erase(found);
  } else if (!threads_.take_back(operation)) {
    return;
  }
  end(operation, -ECANCELED);
}

void EpollEngine::forget(Socket& socket) noexcept {
  assert(socket.reading == nullptr && socket.writing == nullptr);
  if (socket.watched) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, socket.descriptor, nullptr);
  const int descriptor = socket.descriptor;
  socket = Socket{};
  socket.descriptor = descriptor;
}

void EpollEngine::submit() {
  std::swap(started_, attempted_);
  for (SocketOperation* const operation : attempted_) attempt(*operation);
  attempted_.clear();
  if (!files_.empty()) try_files();
}

bool EpollEngine::has_work() {
  if (ended_.empty() && event_count_ == 0) wait_for_events(Duration{0});
  return !ended_.empty() || event_count_ > 0;
}

void EpollEngine::look() {
  submit();
  if (event_count_ == 0) wait_for_events(Duration{0});
}

void EpollEngine::wait(Duration longest) {
  submit();
  if (event_count_ == 0) wait_for_events(ended_.empty() ? longest : Duration{0});
}

void EpollEngine::wait_for_events(Duration longest) {
  constexpr int kMost = static_cast<int>(kMostEvents);
  assert(event_count_ == 0);
  const bool limited = longest != Duration{0} && longest != Duration::max();
  int count = 0;
  if (limited && waits_precisely_) {
    const timespec timeout{.tv_sec = longest.count() / 1'000'000'000,
                           .tv_nsec = longest.count() % 1'000'000'000};
    count = ::epoll_pwait2(epoll_, events_.data(), kMost, &timeout, nullptr);
    waits_precisely_ = count >= 0 || errno == EINTR;
  }
  if (!limited || !waits_precisely_) {
    constexpr Duration kLongest = std::chrono::minutes(1);
    const auto milliseconds =
        std::chrono::ceil<std::chrono::milliseconds>(std::min(longest, kLongest)).count();
    count = ::epoll_wait(epoll_, events_.data(), kMost, static_cast<int>(milliseconds));
  }
  event_count_ = static_cast<std::size_t>(std::max(count, 0));
}

void EpollEngine::take_event(const epoll_event& event) {
  if (event.data.ptr == nullptr) return;  // Woken up.
  Socket& socket = *static_cast<Socket*>(event.data.ptr);
  const bool over = (event.events & (EPOLLHUP | EPOLLERR)) != 0;
  if (over || (event.events & (EPOLLRDHUP | EPOLLPRI)) != 0) socket.tried_always = true;
  if (over || (event.events & (EPOLLIN | EPOLLRDHUP)) != 0) {
    socket.readable = true;
    if (auto* const operation = std::exchange(socket.reading, nullptr)) attempt(*operation);
  }
  if (over || (event.events & EPOLLOUT) != 0) {
    socket.writable = true;
    if (auto* const operation = std::exchange(socket.writing, nullptr)) {
      if (operation->kind == SocketOperation::Kind::kConnect) {
        attempt_connect(*operation);
      } else {
        attempt(*operation);
      }
    }
  }
}

void EpollEngine::reap(ReadyQueue& ready) {
  for (std::size_t i = 0; i < event_count_; ++i) take_event(events_[i]);
  event_count_ = 0;
  for (const auto handle : ended_) ready.push(handle);
  ended_.clear();
}

}  // namespace sandbay::detail
