// A pool of threads with a bounded queue, a stream with deadlines, and the loop that serves one
// connection's requests. Each wait is for the socket and for the end of the server together.
#include "mgmt/bounded_server.h"

#include <malloc.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "group/log.h"
#include "mgmt/tls.h"

namespace sandbay::mgmt {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kRequestsPerConnection = 1000;
constexpr auto kLingerSilence = std::chrono::milliseconds(200);
// An answer may take longer where it is long, and its client takes 4 MB/s of it.
constexpr std::int64_t kNanosecondsPerByte = 250;
// How soon it is seen that others wait.
constexpr auto kLookAround = std::chrono::milliseconds(250);
constexpr std::size_t kMostDropped = std::size_t{4} << 20;
// What a body of more has taken is given back to the system at once, by whichever thread it was
// served; the allocator would keep it for each of them.
constexpr std::uint64_t kLargeBody = std::uint64_t{64} << 10;
// Of a request line and its header lines together. The library bounds neither how many there are
// nor, before it has one whole, how long one is.
constexpr std::size_t kLongestHead = std::size_t{32} << 10;
constexpr unsigned kMostHeadLines = 128;
constexpr std::string_view kTooLarge =
    "the request's head is too large; at most 128 lines and 32 KiB are taken";

// `name` is in lower case.
bool is_field(std::string_view line, std::string_view name) {
  return line.size() >= name.size() &&
         std::ranges::equal(line.substr(0, name.size()), name, [](char given, char expected) {
           return (given >= 'A' && given <= 'Z' ? given - 'A' + 'a' : given) == expected;
         });
}

// Nothing here has parts to give, and the library gives each part that a Range field names, as
// often as it does, from an answer of its own.
bool is_range_field(std::string_view line) { return is_field(line, "range:"); }

constexpr std::string_view kLengthField = "content-length";
constexpr std::string_view kCodingField = "transfer-encoding";

bool is_length_field(std::string_view line) {
  return is_field(line, kLengthField) && line.find(':') == kLengthField.size();
}

// The library ignores an empty field, and a proxy may take it for a coding.
bool has_empty_coding(std::string_view line) {
  if (!is_field(line, kCodingField) || line.find(':') != kCodingField.size()) return false;
  line.remove_prefix(kCodingField.size() + 1);
  return line.find_first_not_of(" \t\r\n") == line.npos;
}

// Digits alone (RFC 9112, section 6.3). A proxy and the library may read anything else in different
// ways, and then the body of one request hides another. The library ignores an empty field.
bool has_clear_length(std::string_view line) {
  line.remove_prefix(kLengthField.size() + 1);
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  line = line.substr(0, line.find_last_not_of(" \t\r\n") + 1);
  return !line.empty() && std::ranges::all_of(line, [](char c) { return c >= '0' && c <= '9'; });
}

// The characters of a field's name (RFC 9110, section 5.6.2).
bool is_token_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("!#$%&'*+-.^_`|~").contains(c);
}

// Why a line of a head is refused, or an empty text: a name and a colon, one line for each field
// (RFC 9112, section 5), and CR LF at its end. The library passes over a line that it does not
// understand, and a proxy may understand it.
std::string_view malformed(std::string_view line, bool is_field_line) {
  if (!line.ends_with("\r\n")) {
    return "a line of the request's head ends in LF alone; end each with CR LF";
  }
  line.remove_suffix(2);
  if (line.contains('\r') || line.contains('\0')) {
    return "a line of the request's head holds CR or NUL; leave it out";
  }
  if (!is_field_line || line.empty()) return {};
  if (line.starts_with(' ') || line.starts_with('\t')) {
    return "a header field is folded; send each on one line";
  }
  const std::size_t colon = line.find(':');
  if (colon == 0 || colon == line.npos ||
      !std::ranges::all_of(line.substr(0, colon), is_token_character)) {
    return "a header field has no proper name; send NAME: VALUE without a blank before the colon";
  }
  return {};
}

thread_local BoundedServer::Head served_head;

class ClientStream final : public httplib::Stream {
 public:
  // `crowded` tells whether other clients wait for a thread.
  ClientStream(int socket, int stop_event, ClientLimits limits, const TlsContext* tls,
               std::function<bool()> crowded)
      : socket_(socket), stop_event_(stop_event), limits_(limits), crowded_(std::move(crowded)) {
    if (tls != nullptr) tls_.emplace(*tls, socket);
  }

  // False if the connection cannot be secured in time, where it is to be.
  bool secure() {
    if (!tls_) return true;
    begin_unproven();
    deadline_ = Clock::now() + limits_.request;
    return finish([this] { return tls_->handshake(); });
  }
  void end() {
    if (tls_) tls_->say_goodbye();
  }

  // What the client still sends is dropped for a while: a connection that is closed with something
  // unread is reset, and the answer may be lost on its way.
  void linger() {
    ::shutdown(socket_, SHUT_WR);
    begin_unproven();
    const auto end = Clock::now() + limits_.silence;
    for (std::size_t dropped = 0; dropped < kMostDropped;) {
      deadline_ = std::min(end, Clock::now() + kLingerSilence);  // Who is silent has sent all.
      if (!wait(POLLIN)) return;
      const ssize_t count = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (count <= 0) return;
      dropped += static_cast<std::size_t>(count);
    }
  }

  // False if none comes, or none is to be served any more.
  bool wait_for_request() {
    answering_ = false;
    served_head = {};
    head_bytes_ = 0;
    head_lines_ = 0;
    length_fields_ = 0;
    body_bytes_ = 0;
    line_.clear();
    line_begin_ = 0;
    begin_unproven();
    deadline_ = Clock::now() + limits_.silence;
    const bool there = has_received() ? !stopping() : wait(POLLIN);
    deadline_ = Clock::now() + limits_.request;
    return there;
  }
  // The library has read the last line of the request's head, and nothing behind it.
  void head_is_read() {
    unproven_ = false;
    served_head.whole = true;
  }
  std::uint64_t body_bytes() const { return body_bytes_; }

  ssize_t read(char* to, std::size_t size) override {
    if (unproven_) return read_head(to, size);
    if (!fill()) return -1;
    const std::size_t count = std::min(size, end_ - begin_);
    std::copy_n(buffer_.data() + begin_, count, to);
    begin_ += count;
    body_bytes_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* from, std::size_t size) override {
    if (!answering_) deadline_ = Clock::now() + limits_.answer;
    answering_ = true;
    const ssize_t count = send(from, size);
    if (count > 0) deadline_ += std::chrono::nanoseconds(count) * kNanosecondsPerByte;
    return count;
  }

  bool is_readable() const override { return has_received() || wait(POLLIN); }
  bool is_writable() const override { return wait(POLLOUT); }
  socket_t socket() const override { return socket_; }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    describe_end(::getpeername, ip, port);
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    describe_end(::getsockname, ip, port);
  }

 private:
  bool has_received() const { return begin_ < end_ || (tls_ && tls_->has_buffered()); }

  // False if nothing more comes.
  bool fill() {
    if (begin_ < end_) return true;
    const ssize_t count = receive();
    if (count <= 0) return false;
    begin_ = 0;
    end_ = static_cast<std::size_t>(count);
    return true;
  }

  // The head is handed over line by line, so that a line can be left out.
  ssize_t read_head(char* to, std::size_t size) {
    while (line_begin_ == line_.size()) {
      if (!read_line()) return -1;
      if (head_lines_ > 1 && is_range_field(line_)) line_begin_ = line_.size();
    }
    const std::size_t count = std::min(size, line_.size() - line_begin_);
    std::copy_n(line_.data() + line_begin_, count, to);
    line_begin_ += count;
    return static_cast<ssize_t>(count);
  }

  // False if the head ends too early or is refused. A request line goes to the library in any case,
  // which answers nothing before it has one.
  bool read_line() {
    line_.clear();
    line_begin_ = 0;
    if (!served_head.refusal.empty()) return false;
    if (++head_lines_ > kMostHeadLines) return refuse(kTooLarge);
    while (!line_.ends_with('\n')) {
      if (head_bytes_ == kLongestHead) return refuse(kTooLarge);
      if (!fill()) return false;
      line_ += buffer_[begin_++];
      ++head_bytes_;
    }
    served_head.refusal = malformed(line_, head_lines_ > 1);
    if (head_lines_ == 1) return true;
    if (!served_head.refusal.empty()) return false;
    if (has_empty_coding(line_)) return refuse("Transfer-Encoding is empty; leave it out");
    if (!is_length_field(line_)) return true;
    if (++length_fields_ == 1 && has_clear_length(line_)) return true;
    return refuse("Content-Length is not one number; send it once, of digits alone");
  }
  static bool refuse(std::string_view why) {
    served_head.refusal = why;
    return false;
  }

  ssize_t send(const char* from, std::size_t size) {
    if (tls_) {
      std::size_t count = 0;
      const bool sent = finish([&] { return tls_->send(from, size, &count); });
      return sent ? static_cast<ssize_t>(count) : -1;
    }
    for (;;) {
      const ssize_t count = ::send(socket_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return count;
      if (!wait(POLLOUT)) return -1;
    }
  }

  ssize_t receive() {
    if (tls_) {
      std::size_t count = 0;
      const bool done =
          finish([&] { return tls_->receive(buffer_.data(), buffer_.size(), &count); });
      return done ? static_cast<ssize_t>(count) : -1;
    }
    if (!wait(POLLIN)) return -1;
    return ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  }

  // Takes a step of TLS as often as it wants the socket.
  template <class Take>
  bool finish(Take take) {
    for (;;) {
      const TlsConnection::Step step = take();
      if (step == TlsConnection::Step::kDone) return true;
      if (step == TlsConnection::Step::kFailed) return false;
      if (!wait(step == TlsConnection::Step::kWantsRead ? POLLIN : POLLOUT)) return false;
    }
  }

  // Who has not sent a whole head may be anybody, and gives way when others wait.
  void begin_unproven() {
    unproven_ = true;
    unproven_since_ = Clock::now();
  }

  // False when the time is over, or the server stops.
  bool wait(short events) const {
    const auto until = std::min(deadline_, Clock::now() + limits_.silence);
    for (;;) {
      auto end = until;
      if (unproven_ && crowded_()) end = std::min(end, unproven_since_ + limits_.crowded);
      auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      if (left.count() <= 0) return false;
      if (unproven_) left = std::min(left, kLookAround);
      std::array<pollfd, 2> ends{pollfd{.fd = socket_, .events = events, .revents = 0},
                                 pollfd{.fd = stop_event_, .events = POLLIN, .revents = 0}};
      const int count = ::poll(ends.data(), ends.size(), static_cast<int>(left.count()));
      if (count == 0 || (count < 0 && errno == EINTR)) continue;
      return count > 0 && ends[1].revents == 0;
    }
  }

  bool stopping() const {
    pollfd end{.fd = stop_event_, .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 0) != 0;
  }

  template <class Call>
  void describe_end(Call* call, std::string& ip, int& port) const {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (call(socket_, generic, &size) != 0) return;
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> service{};
    if (::getnameinfo(generic, size, host.data(), host.size(), service.data(), service.size(),
                      NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
      return;
    }
    ip = host.data();
    port = std::atoi(service.data());
  }

  int socket_;
  int stop_event_;
  ClientLimits limits_;
  std::function<bool()> crowded_;
  std::optional<TlsConnection> tls_;
  Clock::time_point deadline_;
  bool answering_ = false;
  std::array<char, 4096> buffer_;
  std::size_t begin_ = 0;  // What was received and not read yet.
  std::size_t end_ = 0;
  bool unproven_ = true;
  Clock::time_point unproven_since_;
  std::size_t head_bytes_ = 0;  // Of this request.
  unsigned head_lines_ = 0;
  unsigned length_fields_ = 0;
  std::uint64_t body_bytes_ = 0;
  std::string line_;  // Of the head, and how much of it was handed over.
  std::size_t line_begin_ = 0;
};

// Without these fields there is none (RFC 9112, section 6.3); the library would wait for one.
bool has_body(const httplib::Request& request) {
  return request.has_header("Transfer-Encoding") ||
         (request.has_header("Content-Length") &&
          request.get_header_value("Content-Length") != "0");
}

}  // namespace

// A fixed number of threads and a bounded queue: when it is full, accepting waits, and clients
// wait in the kernel's backlog.
class BoundedPool final : public httplib::TaskQueue {
 public:
  BoundedPool(unsigned threads, std::size_t capacity) : capacity_(capacity) {
    try {
      for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& error) {
      group::log_error("management: only {} of {} threads could be started: {}", threads_.size(),
                       threads, error.code().message());
    }
  }

  void enqueue(std::function<void()> job) override {
    if (threads_.empty()) return job();  // The listener serves one connection after the other.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.size() < capacity_; });
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }

  void shutdown() override {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  bool somebody_waits() {
    const std::scoped_lock lock(mutex_);
    return !jobs_.empty();
  }

 private:
  void serve() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !jobs_.empty() || stopping_; });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      changed_.notify_all();
      job();
    }
  }

  std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

BoundedServer::BoundedServer(unsigned threads, std::size_t waiting_connections, ClientLimits limits,
                             std::shared_ptr<const TlsContext> tls)
    : limits_(limits), tls_(std::move(tls)), stop_event_(::eventfd(0, EFD_CLOEXEC)) {
  new_task_queue = [this, threads, waiting_connections] {
    pool_ = new BoundedPool(threads, waiting_connections);  // The library deletes it.
    return pool_;
  };
  // What answers say about the connection.
  set_keep_alive_max_count(kRequestsPerConnection);
  set_keep_alive_timeout(std::chrono::ceil<std::chrono::seconds>(limits.silence).count());
}

BoundedServer::~BoundedServer() {
  if (stop_event_ >= 0) ::close(stop_event_);
}

const BoundedServer::Head& BoundedServer::head() noexcept { return served_head; }

void BoundedServer::stop_at_once() {
  ::eventfd_write(stop_event_, 1);
  stop();
}

bool BoundedServer::process_and_close_socket(socket_t socket) {
  const std::shared_ptr<const TlsContext> tls = tls_;
  ClientStream stream(socket, stop_event_, limits_, tls.get(),
                      [this] { return pool_->somebody_waits(); });
  const bool secured = stream.secure();
  bool answered_unread = false;
  for (std::size_t left = kRequestsPerConnection; secured && left > 0 && stream.wait_for_request();
       --left) {
    const bool last = left == 1 || pool_->somebody_waits();
    bool closed = false;
    // A request that is not one, or whose body may have been refused unread, leaves bytes behind
    // that are no next request: it is the connection's last.
    bool whole = false;
    const auto prepare = [&](httplib::Request& request) {
      stream.head_is_read();
      whole = !has_body(request);
      if (whole && !request.has_header("Content-Length")) request.set_header("Content-Length", "0");
      if (whole) return;
      request.headers.erase("Connection");
      request.set_header("Connection", "close");
    };
    bool served = false;
    try {
      served = process_request(stream, last, closed, prepare);
    } catch (const std::exception& error) {  // Of what the library does outside of handlers.
      group::log_error("management: a connection is given up: {}", error.what());
    }
    // Of what was read alone: it stops every thread's allocator, so nobody has it for a promise.
    if (stream.body_bytes() > kLargeBody) (void)::malloc_trim(0);
    answered_unread = served && !whole;
    if (!served || closed || last || !whole) break;
  }
  if (secured) stream.end();
  if (answered_unread) stream.linger();
  ::shutdown(socket, SHUT_RDWR);
  ::close(socket);
  return true;
}

}  // namespace sandbay::mgmt
