// LoginBrake: when the target checks a CHAP response, so that secrets cannot be guessed at the
// speed of the network (RFC 7143 section 9.2.1 leaves that to the target).
//
// A wrong response starts a pause of its address. The next response from there waits until the
// pause is over, on whichever connection it comes; responses of one address are checked one at a
// time, first come first served. So a peer that hangs up, or that opens many connections, gains
// nothing.
//
// New addresses cost an attacker little, in IPv6 nothing. Each new address with a wrong response
// therefore adds to a delay of its network (a /24, or a /64 of IPv6). The delay is not a turn:
// responses of several addresses wait side by side, so one host does not keep the others out. An
// address that has lately proved a secret, or had a session that did, skips the delay; what it
// guesses wrong delays its network all the same.
//
// Tables and waiters are bounded. The target refuses a response unchecked if it finds no room.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <optional>

#include "iscsi/login_room.h"
#include "runtime/clock.h"
#include "runtime/io.h"
#include "runtime/sync.h"

namespace sandbay::iscsi {

class LoginBrake {
 public:
  static constexpr std::size_t kMostRemembered = 1024;  // In each table.
  // Waiting responses: their delays fit in the time of a login.
  static constexpr std::size_t kMostOfAddress = 4;
  // Addresses with waiting responses; half as many for addresses that have failed lately. The rest
  // of the 128 logins in progress is for other networks.
  static constexpr std::size_t kMostOfNetwork = 112;
  static constexpr Duration kFirstPause = std::chrono::milliseconds(50);
  static constexpr Duration kLongestPause = std::chrono::seconds(1);
  static constexpr Duration kFirstDelay = std::chrono::milliseconds(10);
  static constexpr Duration kLongestDelay = std::chrono::seconds(3);
  static constexpr Duration kForgetAfter = std::chrono::minutes(1);
  static constexpr Duration kProvenFor = std::chrono::hours(1);

  // The place of one response, from its arrival until it has been checked. The brake outlives it.
  class Turn {
   public:
    Turn(LoginBrake& brake, const Endpoint& peer, TimePoint now);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn();

    bool refused() const noexcept { return refused_; }
    // When the response may be checked: kNever while others of its address are before it. Ask again
    // after each changed().
    TimePoint due(TimePoint now);
    // How the check ended.
    void failed(TimePoint now);
    void proved(TimePoint now);

   private:
    friend class LoginBrake;
    LoginBrake& brake_;
    PeerAddress address_;
    PeerAddress network_;
    bool refused_ = false;
    bool first_ = true;               // Among those of its address.
    std::optional<TimePoint> since_;  // Since when it has been the first.
  };

  // A connection has ended whose user had proved a secret: its host may come back soon.
  void note_proof(const Endpoint& peer, TimePoint now) { proven_.touch(address_of(peer)) = now; }
  // Notified when a response has left its place.
  Condition& changed() noexcept { return changed_; }
  std::size_t remembered() const noexcept;  // In all tables.

 private:
  struct Pause {
    Duration length{};
    TimePoint last;
  };

  // By address, at most kMostRemembered: the one that was touched the longest ago makes room.
  template <typename Value>
  class Table {
   public:
    const Value* find(const PeerAddress& key) const;
    Value& touch(const PeerAddress& key);
    std::size_t size() const noexcept { return rows_.size(); }

   private:
    struct Row {
      PeerAddress key;
      Value value;
    };
    std::list<Row> rows_;
    std::map<PeerAddress, typename std::list<Row>::iterator> places_;
  };

  static Pause recent(const Table<Pause>& table, const PeerAddress& key, TimePoint now);
  bool is_proven(const PeerAddress& address, TimePoint now) const;
  bool has_room(const Turn& turn, TimePoint now) const;

  Table<Pause> addresses_;
  Table<Pause> networks_;
  Table<TimePoint> proven_;
  std::list<Turn*> turns_;  // In the order of their arrival.
  Condition changed_;
};

}  // namespace sandbay::iscsi
