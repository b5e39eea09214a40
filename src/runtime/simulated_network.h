// The network of a simulated world: listeners, and connections made of two one-way wires that
// deliver bytes in order: after a drawn delay, or when a Wire says.
//
// A connection's bytes stand in the receiver's inbound ring from the moment they are sent; those
// that have arrived can be read. The ring's limit holds the sender back. While the network is
// partitioned, whatever is due to arrive is held and goes on when it heals.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/executor.h"
#include "runtime/random.h"
#include "runtime/simulation.h"

namespace sandbay::sim {

class Scheduler;
class Network;
class SimulatedListener;

// Bytes in order, in a ring that grows as far as it must.
class ByteRing {
 public:
  std::size_t size() const noexcept { return size_; }
  void append(std::span<const std::byte> bytes);
  void take(std::span<std::byte> target);  // At most size() bytes.
  void truncate(std::size_t byte_count) { size_ = byte_count; }

 private:
  void grow(std::size_t capacity);
  std::vector<std::byte> storage_;  // A power of two.
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

// Both ends of a connection, kept by the streams that refer to it.
class Connection {
 public:
  Connection(Network& network, Executor& client_home, Endpoint client, Executor& server_home,
             Endpoint server, Wires wires);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  struct Waiter {
    Executor* executor = nullptr;
    std::coroutine_handle<> handle;
  };
  struct Arrival {
    enum class Kind : std::uint8_t { kBytes, kEnd, kReset };
    Kind kind = Kind::kBytes;
    TimePoint time;
    std::size_t byte_count = 0;
  };
  struct End {
    Connection* connection = nullptr;
    Executor* home = nullptr;
    Endpoint local;
    bool closed = false;       // By shutdown() here.
    bool peer_closed = false;  // The other side's end has arrived.
    bool broken = false;       // Reset, by either side.
    ByteRing inbound;
    std::size_t arrived = 0;  // The part of inbound that can be read.
    std::deque<Arrival> arrivals;
    Timer arrival;
    Wire* wire = nullptr;    // Towards this end; none: that of the network's options.
    TimePoint wire_free;     // When that can take more.
    TimePoint last_arrival;  // Nothing overtakes.
    Waiter receiver;
    Waiter sender;
  };

  End& end(unsigned side) noexcept { return ends_[side]; }
  End& other(unsigned side) noexcept { return ends_[1 - side]; }

  // Takes as much as fits and puts it on the wire; the number of bytes taken.
  std::size_t send(unsigned side, std::span<const IoSlice> source, std::size_t skip);
  std::size_t receive(unsigned side, std::span<const IoSlice> target);
  void shutdown(unsigned side);
  void reset(unsigned side);
  void break_now();  // Both ends at once.

 private:
  TimePoint carried_at(End& to, std::size_t byte_count);
  void put_on_wire(End& to, Arrival arrival);
  void put_bytes_on_wire(End& to, std::size_t byte_count);
  void arrive(End& at);
  void stop_inbound(End& at);
  void wake(Waiter& waiter);
  void no_longer_established();

  Network& network_;
  bool established_ = true;
  End ends_[2];
};

class Network {
 public:
  Network(Scheduler& scheduler, Random random, LinkOptions options);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  Result<std::unique_ptr<Listener>> listen(Executor& home, Endpoint endpoint);
  Task<Result<std::unique_ptr<Stream>>> connect(Executor& home, Endpoint endpoint);

  void set_wires(const Endpoint& server, Wires wires);
  void reset_streams(std::uint16_t port);
  std::size_t stream_count() const noexcept { return established_.size(); }
  void reset_stream(std::size_t index);
  void set_partitioned(bool partitioned);

 private:
  friend class Connection;
  friend class SimulatedListener;
  friend class SimulatedStream;
  class Travel;

  Duration draw_delay();
  std::uint16_t free_port(const Endpoint& address);
  SimulatedListener* find(const Endpoint& endpoint) const;
  Wires wires_to(const Endpoint& server) const;
  bool conflicts(const Endpoint& endpoint) const;
  // True if nothing may arrive now; the timer then fires again after the partition.
  bool hold(Timer& timer);
  void forget(Timer& timer);

  Scheduler& scheduler_;
  Random random_;
  LinkOptions options_;
  bool partitioned_ = false;
  std::uint16_t next_port_;
  std::vector<SimulatedListener*> listeners_;
  std::vector<std::pair<Endpoint, Wires>> wires_;
  std::vector<Connection*> established_;  // In order of establishment.
  std::vector<Timer*> held_;
};

}  // namespace sandbay::sim
