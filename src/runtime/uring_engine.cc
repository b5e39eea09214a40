// An Operation's address is the user data of its entry, as a pointer to its Operation.
#include "runtime/uring_engine.h"

#include <poll.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <string>

namespace sandbay::detail {
namespace {

// User data that is not an Operation.
constexpr std::uint64_t kIgnore = 0;
constexpr std::uint64_t kWake = 1;

StartRefusal explain(int error) {
  using enum StartRefusal::Kind;
  switch (-error) {
    case ENOSYS:
    case EPERM:
    case EACCES:
      return {kKernel,
              "io_uring is not permitted here (" + std::string(std::strerror(-error)) +
                  "): switch it on (sysctl kernel.io_uring_disabled=0) or let the container use it "
                  "(a seccomp profile that allows io_uring_setup, io_uring_enter and "
                  "io_uring_register)"};
    case EINVAL:
      return {kKernel, "this kernel's io_uring is too old: Linux 6.1 or newer is needed"};
    case ENOMEM:
      return {kNotNow,
              "no memory for an io_uring: raise the locked-memory limit (ulimit -l) or lower "
              "--reactors"};
    case EMFILE:
    case ENFILE:
      return {kNotNow,
              "no file descriptor for an io_uring: raise the limit on open files (ulimit -n)"};
    default:
      return {kNotNow, "cannot make an io_uring: " + std::string(std::strerror(-error))};
  }
}

}  // namespace

std::expected<std::unique_ptr<UringEngine>, StartRefusal> UringEngine::make() {
  auto engine = std::make_unique<UringEngine>();
  io_uring_params parameters{};
  parameters.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                     IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP |
                     IORING_SETUP_TASKRUN_FLAG;
  parameters.cq_entries = kCompletionEntries;
  const int result = io_uring_queue_init_params(kSubmissionEntries, &engine->ring_, &parameters);
  if (result < 0) return std::unexpected(explain(result));
  engine->open_ = true;
  io_uring_ring_dontfork(&engine->ring_);
  return engine;
}

UringEngine::~UringEngine() {
  if (open_) io_uring_queue_exit(&ring_);
}

void UringEngine::enter_thread(int wake) {
  wake_ = wake;
  // Debian 12's liburing declares io_uring_enable_rings() but does not export it.
  const int enabled = io_uring_register(static_cast<unsigned>(ring_.ring_fd),
                                        IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  assert(enabled == 0);
  unsigned kernel_threads[2] = {kMostKernelThreads, 0};  // Files and devices; sockets as they are.
  io_uring_register(static_cast<unsigned>(ring_.ring_fd), IORING_REGISTER_IOWQ_MAX_WORKERS,
                    kernel_threads, 2);  // A kernel that refuses keeps its own limit.
  io_uring_register_ring_fd(&ring_);     // Saves a look-up a turn; works without it too.
  watch_wake();
}

void UringEngine::watch_wake() {
  io_uring_sqe* const entry = free_entry();
  io_uring_prep_poll_multishot(entry, wake_, POLLIN);
  io_uring_sqe_set_data64(entry, kWake);
}

io_uring_sqe* UringEngine::free_entry() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  while (entry == nullptr) {
    io_uring_submit(&ring_);
    entry = io_uring_get_sqe(&ring_);
  }
  return entry;
}

io_uring_sqe* UringEngine::prepare(Operation& operation) {
  io_uring_sqe* const entry = free_entry();
  io_uring_sqe_set_data(entry, &operation);
  return entry;
}

void UringEngine::cancel_any(Operation& operation) {
  io_uring_sqe* const entry = free_entry();
  io_uring_prep_cancel(entry, &operation, 0);
  io_uring_sqe_set_data64(entry, kIgnore);
}

void UringEngine::receive(SocketOperation& operation, Socket& socket,
                          std::span<const IoSlice> target) {
  operation.socket = &socket;
  io_uring_sqe* const entry = prepare(operation);
  if (target.size() == 1) {
    io_uring_prep_recv(entry, socket.descriptor, target[0].data, target[0].byte_count, 0);
  } else {
    msghdr& message = operation.message;
    message.msg_iov = const_cast<iovec*>(reinterpret_cast<const iovec*>(target.data()));
    message.msg_iovlen = target.size();
    io_uring_prep_recvmsg(entry, socket.descriptor, &message, 0);
  }
  if (!socket.readable) entry->ioprio = IORING_RECVSEND_POLL_FIRST;
}

void UringEngine::send(SocketOperation& operation, Socket& socket,
                       std::span<const IoSlice> source) {
  io_uring_sqe* const entry = prepare(operation);
  if (source.size() == 1) {
    io_uring_prep_send(entry, socket.descriptor, source[0].data, source[0].byte_count,
                       MSG_NOSIGNAL | MSG_WAITALL);
  } else {
    msghdr& message = operation.message;
    message.msg_iov = const_cast<iovec*>(reinterpret_cast<const iovec*>(source.data()));
    message.msg_iovlen = source.size();
    io_uring_prep_sendmsg(entry, socket.descriptor, &message, MSG_NOSIGNAL | MSG_WAITALL);
  }
}

void UringEngine::accept(SocketOperation& operation, Socket& socket) {
  io_uring_prep_accept(prepare(operation), socket.descriptor, nullptr, nullptr, SOCK_CLOEXEC);
}

void UringEngine::connect(SocketOperation& operation, Socket& socket, const sockaddr* address,
                          socklen_t byte_count) {
  io_uring_prep_connect(prepare(operation), socket.descriptor, address, byte_count);
}

void UringEngine::wait_readable(SocketOperation& operation, Socket& socket) {
  io_uring_prep_poll_add(prepare(operation), socket.descriptor, POLLIN);
}

void UringEngine::start(FileOperation& operation) {
  using enum FileOperation::Kind;
  io_uring_sqe* const entry = prepare(operation);
  switch (operation.kind) {
    case kRead:
      io_uring_prep_readv(entry, operation.descriptor, operation.slices, operation.slice_count,
                          operation.offset);
      break;
    case kWrite:
      io_uring_prep_writev(entry, operation.descriptor, operation.slices, operation.slice_count,
                           operation.offset);
      break;
    case kSync:
      io_uring_prep_fsync(entry, operation.descriptor, IORING_FSYNC_DATASYNC);
      return;
    case kAllocate:
      io_uring_prep_fallocate(entry, operation.descriptor, operation.mode,
                              static_cast<off_t>(operation.offset),
                              static_cast<off_t>(operation.byte_count));
      return;
  }
  if (operation.may_block) io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
}

void UringEngine::submit() { io_uring_submit(&ring_); }

void UringEngine::look() { io_uring_submit_and_get_events(&ring_); }

bool UringEngine::has_work() {
  return io_uring_cq_ready(&ring_) != 0 ||
         (io_uring_smp_load_acquire(ring_.sq.kflags) & IORING_SQ_TASKRUN) != 0;
}

void UringEngine::wait(Duration longest) {
  if (longest == Duration::max()) {
    io_uring_submit_and_wait(&ring_, 1);
    return;
  }
  __kernel_timespec timeout{};
  timeout.tv_sec = longest.count() / 1'000'000'000;
  timeout.tv_nsec = longest.count() % 1'000'000'000;
  io_uring_cqe* completion = nullptr;
  io_uring_submit_and_wait_timeout(&ring_, &completion, 1, &timeout, nullptr);
}

void UringEngine::reap(ReadyQueue& ready) {
  io_uring_cqe* completion = nullptr;
  unsigned head = 0;
  unsigned count = 0;
  bool wake_ended = false;
  io_uring_for_each_cqe(&ring_, head, completion) {
    ++count;
    if (completion->user_data == kIgnore) continue;
    if (completion->user_data == kWake) {
      if ((completion->flags & IORING_CQE_F_MORE) == 0) wake_ended = true;
      continue;
    }
    if (completion->user_data == LIBURING_UDATA_TIMEOUT) continue;
    auto& operation = *static_cast<Operation*>(io_uring_cqe_get_data(completion));
    operation.result = completion->res;
    if (operation.socket != nullptr) {
      operation.socket->readable = (completion->flags & IORING_CQE_F_SOCK_NONEMPTY) != 0;
    }
    ready.push(operation.handle);
  }
  io_uring_cq_advance(&ring_, count);
  if (wake_ended) watch_wake();
}

}  // namespace sandbay::detail
