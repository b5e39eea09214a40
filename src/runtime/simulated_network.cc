// Connections, streams and listeners of a simulated world.
#include "runtime/simulated_network.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "runtime/simulated_executor.h"

namespace sandbay::sim {

namespace {

constexpr std::size_t kBacklog = 1024;
constexpr std::uint16_t kFirstEphemeralPort = 49152;
constexpr std::uint64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr Duration kConnectPatience = std::chrono::seconds(20);
constexpr Duration kConnectAgain = std::chrono::seconds(1);
constexpr std::size_t kWirePiece = std::size_t{64} << 10;  // Bytes, about.

}  // namespace

// ByteRing -----------------------------------------------------------------------------------

void ByteRing::grow(std::size_t capacity) {
  std::vector<std::byte> larger(std::bit_ceil(std::max<std::size_t>(capacity, 512)));
  const std::size_t count = size_;
  take({larger.data(), count});
  storage_ = std::move(larger);
  first_ = 0;
  size_ = count;
}

void ByteRing::append(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (size_ + bytes.size() > storage_.size()) grow(size_ + bytes.size());
  const std::size_t start = (first_ + size_) & (storage_.size() - 1);
  const std::size_t before_wrap = std::min(bytes.size(), storage_.size() - start);
  std::memcpy(storage_.data() + start, bytes.data(), before_wrap);
  std::memcpy(storage_.data(), bytes.data() + before_wrap, bytes.size() - before_wrap);
  size_ += bytes.size();
}

void ByteRing::take(std::span<std::byte> target) {
  assert(target.size() <= size_);
  if (target.empty()) return;
  const std::size_t before_wrap = std::min(target.size(), storage_.size() - first_);
  std::memcpy(target.data(), storage_.data() + first_, before_wrap);
  std::memcpy(target.data() + before_wrap, storage_.data(), target.size() - before_wrap);
  first_ = (first_ + target.size()) & (storage_.size() - 1);
  size_ -= target.size();
}

// Connection ---------------------------------------------------------------------------------

Connection::Connection(Network& network, Executor& client_home, Endpoint client,
                       Executor& server_home, Endpoint server, Wires wires)
    : network_(network) {
  ends_[0].home = &client_home;
  ends_[0].local = client;
  ends_[1].home = &server_home;
  ends_[1].local = server;
  ends_[0].wire = wires.to_client;
  ends_[1].wire = wires.to_server;
  for (End& each : ends_) {
    each.connection = this;
    each.arrival.owner = &each;
    each.arrival.fire = [](Timer& timer) {
      End& at = *static_cast<End*>(timer.owner);
      if (!at.connection->network_.hold(timer)) at.connection->arrive(at);
    };
  }
  network_.established_.push_back(this);
}

Connection::~Connection() {
  no_longer_established();
  for (End& each : ends_) network_.forget(each.arrival);
}

void Connection::no_longer_established() {
  if (!established_) return;
  established_ = false;
  std::erase(network_.established_, this);
}

void Connection::wake(Waiter& waiter) {
  if (!waiter.handle) return;
  network_.scheduler_.make_ready(waiter.executor->index(), std::exchange(waiter.handle, {}));
}

TimePoint Connection::carried_at(End& to, std::size_t byte_count) {
  const TimePoint now = network_.scheduler_.now();
  if (to.wire != nullptr) return to.wire->carry(now, byte_count);
  TimePoint departure = now;
  if (network_.options_.bytes_per_second > 0) {
    departure = std::max(now, to.wire_free) +
                Duration(byte_count * kNanosecondsPerSecond / network_.options_.bytes_per_second);
    to.wire_free = departure;
  }
  return departure + network_.draw_delay();
}

void Connection::put_on_wire(End& to, Arrival arrival) {
  arrival.time = std::max(to.last_arrival, carried_at(to, arrival.byte_count));
  to.last_arrival = arrival.time;
  to.arrivals.push_back(arrival);
  if (to.arrivals.size() > 1) return;
  to.arrival.deadline = arrival.time;
  network_.scheduler_.arm_hardware(to.arrival);
}

// Not all at once where others may have their turn, and what comes first is of use.
void Connection::put_bytes_on_wire(End& to, std::size_t byte_count) {
  std::size_t pieces = to.wire == nullptr ? 1 : std::max<std::size_t>(byte_count / kWirePiece, 1);
  for (; byte_count > 0; --pieces) {
    const std::size_t piece = byte_count / pieces;
    put_on_wire(to, Arrival{.time = {}, .byte_count = piece});
    byte_count -= piece;
  }
}

void Connection::arrive(End& at) {
  const TimePoint now = network_.scheduler_.now();
  while (!at.arrivals.empty() && at.arrivals.front().time <= now) {
    const Arrival arrival = at.arrivals.front();
    at.arrivals.pop_front();
    at.arrived += arrival.byte_count;
    if (arrival.kind == Arrival::Kind::kEnd) at.peer_closed = true;
    if (arrival.kind == Arrival::Kind::kReset) {
      at.broken = true;
      // What was received before can be lost with the connection or not.
      if (network_.random_.chance(0.5)) {
        at.arrived = 0;
        at.inbound.truncate(0);
      }
    }
    if (arrival.kind != Arrival::Kind::kBytes) wake(at.sender);
  }
  wake(at.receiver);
  if (at.arrivals.empty()) return;
  at.arrival.deadline = at.arrivals.front().time;
  network_.scheduler_.arm_hardware(at.arrival);
}

// Drops what is on its way to an end, and what it has not read.
void Connection::stop_inbound(End& at) {
  network_.forget(at.arrival);
  at.arrivals.clear();
  at.inbound.truncate(0);
  at.arrived = 0;
}

std::size_t Connection::send(unsigned side, std::span<const IoSlice> source, std::size_t skip) {
  End& to = other(side);
  const std::size_t total = byte_count_of(source) - skip;
  if (to.closed || to.broken) return total;  // It goes nowhere, and the sender does not know yet.
  const std::size_t limit = network_.options_.buffer_bytes;
  std::size_t room = limit - std::min(limit, to.inbound.size());
  std::size_t taken = 0;
  for (const IoSlice& slice : source) {
    if (skip >= slice.byte_count) {
      skip -= slice.byte_count;
      continue;
    }
    const std::size_t count = std::min(slice.byte_count - skip, room);
    to.inbound.append({slice.data + skip, count});
    taken += count;
    room -= count;
    skip = 0;
    if (room == 0) break;
  }
  put_bytes_on_wire(to, taken);
  return taken;
}

std::size_t Connection::receive(unsigned side, std::span<const IoSlice> target) {
  End& at = end(side);
  assert(at.arrived > 0);
  std::size_t count = std::min(byte_count_of(target), at.arrived);
  if (network_.options_.fragment) {
    // Often everything, sometimes any part, now and then hardly anything.
    const std::uint64_t draw = network_.random_.below(8);
    if (draw == 0) {
      count = network_.random_.between(1, std::min<std::size_t>(count, 64));
    } else if (draw <= 3) {
      count = network_.random_.between(1, count);
    }
  }
  std::size_t left = count;
  for (const IoSlice& slice : target) {
    const std::size_t part = std::min(slice.byte_count, left);
    at.inbound.take({slice.data, part});
    left -= part;
  }
  at.arrived -= count;
  // A sender that waits for room waits for enough of it to be worth while.
  const std::size_t limit = network_.options_.buffer_bytes;
  if (at.inbound.size() <= limit - (limit + 3) / 4) wake(other(side).sender);
  return count;
}

void Connection::shutdown(unsigned side) {
  End& here = end(side);
  End& there = other(side);
  if (here.closed || here.broken) {
    here.closed = true;
    return;
  }
  here.closed = true;
  no_longer_established();
  stop_inbound(here);
  wake(here.receiver);
  wake(here.sender);
  wake(there.sender);  // What it sends now goes nowhere.
  if (there.closed || there.broken) return;
  put_on_wire(there, Arrival{.kind = Arrival::Kind::kEnd, .time = {}});
}

void Connection::reset(unsigned side) {
  End& here = end(side);
  End& there = other(side);
  if (here.broken) return;
  here.broken = true;
  no_longer_established();
  stop_inbound(here);
  wake(here.receiver);
  wake(here.sender);
  wake(there.sender);
  if (there.closed || there.broken) return;
  network_.forget(there.arrival);
  there.arrivals.clear();
  there.inbound.truncate(there.arrived);
  put_on_wire(there, Arrival{.kind = Arrival::Kind::kReset, .time = {}});
}

void Connection::break_now() {
  no_longer_established();
  for (End& each : ends_) {
    each.broken = true;
    stop_inbound(each);
    wake(each.receiver);
    wake(each.sender);
  }
}

// Streams ------------------------------------------------------------------------------------

namespace {

struct Wait {
  Connection::Waiter& waiter;
  Executor& executor;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) const noexcept {
    assert(!waiter.handle);
    waiter = Connection::Waiter{.executor = &executor, .handle = handle};
  }
  void await_resume() const noexcept {}
};

}  // namespace

class SimulatedStream final : public Stream {
 public:
  SimulatedStream(std::shared_ptr<Connection> connection, unsigned side)
      : connection_(std::move(connection)),
        end_(connection_->end(side)),
        peer_(connection_->other(side).local),
        side_(side) {}
  ~SimulatedStream() override {
    assert(!receiving_ && !sending_);
    assert(Executor::current_or_null() == nullptr || Executor::current_or_null() == end_.home);
    connection_->shutdown(side_);
  }

  Executor& home() const noexcept override { return *end_.home; }
  const Endpoint& local() const noexcept override { return end_.local; }
  const Endpoint& peer() const noexcept override { return peer_; }
  Task<Result<std::size_t>> receive(std::span<const IoSlice> target) override;
  Task<Error> send(std::span<const IoSlice> source) override;
  bool readable() const noexcept override {
    return end_.arrived > 0 || end_.closed || end_.broken || end_.peer_closed;
  }
  bool failed() const noexcept { return end_.broken; }
  void shutdown() noexcept override { connection_->shutdown(side_); }
  void reset() noexcept override { connection_->reset(side_); }
  void move_to(Executor& home) noexcept override {
    assert(!receiving_ && !sending_);
    end_.home = &home;
  }

 private:
  void check_home() const { assert(Executor::current_or_null() == end_.home); }
  Result<std::size_t> take(std::span<const IoSlice> target);
  Error send_error() const {
    if (end_.broken) return Error::kReset;
    if (end_.closed) return Error::kClosed;
    return end_.peer_closed ? Error::kReset : Error::kNone;
  }

  std::shared_ptr<Connection> connection_;
  Connection::End& end_;
  Endpoint peer_;
  unsigned side_;
  bool receiving_ = false;
  bool sending_ = false;
};

Task<Result<std::size_t>> SimulatedStream::receive(std::span<const IoSlice> target) {
  check_home();
  assert(!receiving_);
  assert(byte_count_of(target) > 0);
  receiving_ = true;
  // Whatever is there already goes through the ready set, too.
  if (readable()) co_await end_.home->yield();
  while (!readable()) co_await Wait{.waiter = end_.receiver, .executor = *end_.home};
  receiving_ = false;
  co_return take(target);
}

Result<std::size_t> SimulatedStream::take(std::span<const IoSlice> target) {
  if (end_.closed && !end_.broken) return std::unexpected(Error::kClosed);
  if (end_.arrived > 0) return connection_->receive(side_, target);
  if (end_.broken) return std::unexpected(Error::kReset);
  return std::size_t{0};
}

Task<Error> SimulatedStream::send(std::span<const IoSlice> source) {
  check_home();
  assert(!sending_);
  sending_ = true;
  const std::size_t byte_count = byte_count_of(source);
  std::size_t sent = 0;
  Error error = send_error();
  bool waited = false;
  while (error == Error::kNone && sent < byte_count) {
    const std::size_t taken = connection_->send(side_, source, sent);
    sent += taken;
    if (sent == byte_count) break;
    co_await Wait{.waiter = end_.sender, .executor = *end_.home};
    waited = true;
    error = send_error();
  }
  if (!waited) co_await end_.home->yield();
  sending_ = false;
  co_return error;
}

class SimulatedListener final : public Listener {
 public:
  SimulatedListener(Network& network, Executor& home, Endpoint local)
      : network_(network), home_(home), local_(local) {
    network_.listeners_.push_back(this);
  }
  ~SimulatedListener() override { shutdown(); }

  const Endpoint& local() const noexcept override { return local_; }
  Task<Result<std::unique_ptr<Stream>>> accept() override;
  void set_deaf(bool deaf) noexcept override { deaf_ = deaf; }
  void shutdown() noexcept override;

  Executor& home() const noexcept { return home_; }
  bool deaf() const noexcept { return deaf_; }
  bool full() const noexcept { return backlog_.size() >= kBacklog; }
  void add(std::unique_ptr<Stream> stream) {
    backlog_.push_back(std::move(stream));
    wake_one();
  }

 private:
  void wake_one();

  Network& network_;
  Executor& home_;
  Endpoint local_;
  bool ended_ = false;
  bool deaf_ = false;
  std::deque<std::unique_ptr<Stream>> backlog_;
  std::deque<Connection::Waiter*> waiters_;
};

void SimulatedListener::wake_one() {
  if (waiters_.empty()) return;
  network_.scheduler_.make_ready(home_.index(), waiters_.front()->handle);
  waiters_.pop_front();
}

void SimulatedListener::shutdown() noexcept {
  if (std::exchange(ended_, true)) return;
  std::erase(network_.listeners_, this);
  for (const auto& stream : backlog_) stream->reset();
  backlog_.clear();
  while (!waiters_.empty()) wake_one();
}

Task<Result<std::unique_ptr<Stream>>> SimulatedListener::accept() {
  assert(Executor::current_or_null() == &home_);
  co_await home_.yield();
  while (!ended_ && backlog_.empty()) {
    Connection::Waiter waiter;
    waiters_.push_back(&waiter);
    co_await Wait{.waiter = waiter, .executor = home_};
  }
  if (ended_) co_return std::unexpected(Error::kClosed);
  std::unique_ptr<Stream> stream = std::move(backlog_.front());
  backlog_.pop_front();
  co_return stream;
}

// Network ------------------------------------------------------------------------------------

// One way between a client and a listener.
class Network::Travel {
 public:
  Travel(Network& network, Executor& executor) : network_(network), executor_(executor) {
    timer_.owner = this;
    timer_.fire = [](Timer& timer) {
      auto& self = *static_cast<Travel*>(timer.owner);
      if (self.network_.hold(timer)) return;
      self.network_.scheduler_.make_ready(self.executor_.index(), self.handle_);
    };
  }
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) {
    handle_ = handle;
    timer_.deadline = network_.scheduler_.now() + network_.draw_delay();
    network_.scheduler_.arm_hardware(timer_);
  }
  void await_resume() const noexcept {}

 private:
  Network& network_;
  Executor& executor_;
  Timer timer_;
  std::coroutine_handle<> handle_;
};

Network::Network(Scheduler& scheduler, Random random, LinkOptions options)
    : scheduler_(scheduler), random_(random), options_(options), next_port_(kFirstEphemeralPort) {
  assert(options.delay_least <= options.delay_most);
  assert(options.buffer_bytes > 0);
}

Duration Network::draw_delay() {
  return Duration(random_.between(static_cast<std::uint64_t>(options_.delay_least.count()),
                                  static_cast<std::uint64_t>(options_.delay_most.count())));
}

bool Network::hold(Timer& timer) {
  if (partitioned_) held_.push_back(&timer);
  return partitioned_;
}

void Network::forget(Timer& timer) {
  scheduler_.disarm_hardware(timer);
  std::erase(held_, &timer);
}

bool Network::conflicts(const Endpoint& endpoint) const {
  return std::ranges::any_of(listeners_, [&](const SimulatedListener* listener) {
    const Endpoint& other = listener->local();
    return other.port() == endpoint.port() && other.is_ipv6() == endpoint.is_ipv6() &&
           (other.is_any() || endpoint.is_any() || other.same_address(endpoint));
  });
}

std::uint16_t Network::free_port(const Endpoint& address) {
  Endpoint candidate = address;
  do {
    candidate.set_port(next_port_);
    next_port_ =
        next_port_ == 65535 ? kFirstEphemeralPort : static_cast<std::uint16_t>(next_port_ + 1);
  } while (conflicts(candidate));
  return candidate.port();
}

SimulatedListener* Network::find(const Endpoint& endpoint) const {
  SimulatedListener* any = nullptr;
  for (SimulatedListener* listener : listeners_) {
    const Endpoint& local = listener->local();
    if (local.port() != endpoint.port() || local.is_ipv6() != endpoint.is_ipv6()) continue;
    if (local.same_address(endpoint)) return listener;
    if (local.is_any()) any = listener;
  }
  return any;
}

Result<std::unique_ptr<Listener>> Network::listen(Executor& home, Endpoint endpoint) {
  if (endpoint.port() == 0) endpoint.set_port(free_port(endpoint));
  if (conflicts(endpoint)) return std::unexpected(Error::kAddressInUse);
  return std::make_unique<SimulatedListener>(*this, home, endpoint);
}

Task<Result<std::unique_ptr<Stream>>> Network::connect(Executor& home, Endpoint endpoint) {
  co_await Travel(*this, home);
  const TimePoint patient_until = home.now() + kConnectPatience;
  SimulatedListener* listener = find(endpoint);
  // TCP tries again.
  while (listener != nullptr && listener->deaf()) {
    if (home.now() >= patient_until) co_return std::unexpected(Error::kTimedOut);
    co_await home.sleep_for(kConnectAgain);
    listener = find(endpoint);
  }
  if (listener == nullptr || listener->full()) {
    co_await Travel(*this, home);
    co_return std::unexpected(Error::kRefused);
  }
  Endpoint client = endpoint;
  client.set_port(free_port(endpoint));
  auto connection = std::make_shared<Connection>(*this, home, client, listener->home(), endpoint,
                                                 wires_to(endpoint));
  auto stream = std::make_unique<SimulatedStream>(connection, 0U);
  listener->add(std::make_unique<SimulatedStream>(connection, 1U));
  co_await Travel(*this, home);
  if (stream->failed()) co_return std::unexpected(Error::kReset);
  co_return stream;
}

void Network::set_wires(const Endpoint& server, Wires wires) {
  std::erase_if(wires_, [&](const auto& each) { return each.first == server; });
  wires_.emplace_back(server, wires);
}

Wires Network::wires_to(const Endpoint& server) const {
  const auto found = std::ranges::find(wires_, server, &std::pair<Endpoint, Wires>::first);
  return found == wires_.end() ? Wires{} : found->second;
}

void Network::reset_streams(std::uint16_t port) {
  const std::vector<Connection*> all = established_;
  for (Connection* connection : all) {
    if (connection->end(0).local.port() == port || connection->end(1).local.port() == port) {
      connection->break_now();
    }
  }
}

void Network::reset_stream(std::size_t index) {
  assert(index < established_.size());
  established_[index]->break_now();
}

void Network::set_partitioned(bool partitioned) {
  partitioned_ = partitioned;
  if (partitioned) return;
  for (Timer* timer : std::exchange(held_, {})) {
    timer->deadline = scheduler_.now() + draw_delay();
    scheduler_.arm_hardware(*timer);
  }
}

}  // namespace sandbay::sim
