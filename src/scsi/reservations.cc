// The rules, SPC-4 5.12.4 to 5.12.11. Each service action is one function.
#include "scsi/reservations.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace sandbay::scsi {

namespace {

constexpr std::array kTypes = {ReservationType::kWriteExclusive,
                               ReservationType::kExclusiveAccess,
                               ReservationType::kWriteExclusiveRegistrantsOnly,
                               ReservationType::kExclusiveAccessRegistrantsOnly,
                               ReservationType::kWriteExclusiveAllRegistrants,
                               ReservationType::kExclusiveAccessAllRegistrants};

bool lets_registrants(ReservationType type) {
  return type == ReservationType::kWriteExclusiveRegistrantsOnly ||
         type == ReservationType::kExclusiveAccessRegistrantsOnly || is_all_registrants(type);
}

bool lets_read(ReservationType type) {
  return type == ReservationType::kWriteExclusive ||
         type == ReservationType::kWriteExclusiveRegistrantsOnly ||
         type == ReservationType::kWriteExclusiveAllRegistrants;
}

std::string_view node_of(std::string_view initiator_port) {
  return initiator_port.substr(0, initiator_port.rfind(",i,"));
}

using Answer = std::expected<ReserveChange, ReserveRefusal>;
using Kind = ReserveRefusal::Kind;

Answer refused(Kind kind, std::uint16_t byte = 0) {
  return std::unexpected(ReserveRefusal{.kind = kind, .byte = byte});
}

// One PERSISTENT RESERVE OUT.
class Judgement {
 public:
  Judgement(const PersistentReservations& now, const ReserveRequest& request,
            const NexusPorts& caller, std::span<const std::uint16_t> target_ports)
      : now_(now), request_(request), caller_(caller), target_ports_(target_ports) {
    change_.next = now;
  }

  Answer answer() {
    const auto own = now_.keys.find(caller_);
    const bool registered = own != now_.keys.end();
    switch (request_.action) {
      case ReserveAction::kRegister:
        if (request_.key != (registered ? own->second : 0)) return refused(Kind::kConflict);
        return enrol(registered);
      case ReserveAction::kRegisterAndIgnoreExistingKey:
        return enrol(registered);
      case ReserveAction::kReplaceLostReservation:
        return replace();
      default:
        break;
    }
    if (!registered || own->second != request_.key) return refused(Kind::kConflict);
    switch (request_.action) {
      case ReserveAction::kReserve:
        return reserve();
      case ReserveAction::kRelease:
        return release();
      case ReserveAction::kClear:
        return clear();
      case ReserveAction::kRegisterAndMove:
        return move();
      default:
        return preempt();
    }
  }

 private:
  void tell(UnitAttention condition) {  // Every registered nexus but the caller's.
    for (const auto& [nexus, key] : change_.next.keys) {
      if (nexus != caller_) change_.attentions.emplace_back(nexus, condition);
    }
  }
  void end_reservation() {
    const ReservationType type = std::exchange(change_.next.type, ReservationType::kNone);
    change_.next.holder.reset();
    if (lets_registrants(type)) tell(UnitAttention::kReservationsReleased);
  }

  bool has_room() const {
    const auto& keys = change_.next.keys;
    if (keys.size() > kMostRegistrations) return false;
    std::size_t of_node = 0;  // In order of names, so those of a node stand together.
    std::string_view node;
    for (const auto& [nexus, key] : keys) {
      of_node = node_of(nexus.initiator_port) == node ? of_node + 1 : 1;
      node = node_of(nexus.initiator_port);
      if (of_node > kMostRegistrationsOfNode) return false;
    }
    return true;
  }

  void unregister(const NexusPorts& nexus) {
    PersistentReservations& next = change_.next;
    const bool held = next.reserved() && next.holds(nexus);
    next.keys.erase(nexus);
    if (held && (!is_all_registrants(next.type) || next.keys.empty())) end_reservation();
  }

  NexusPorts on(std::uint16_t port) const {
    return {.initiator_port = caller_.initiator_port, .target_port = port};
  }
  // With ALL_TG_PT as if the request came through each; where REGISTER has another key than is
  // registered there, it changes nothing.
  std::vector<std::uint16_t> ports() const {
    std::vector<std::uint16_t> chosen{caller_.target_port};
    if (!request_.all_target_ports) return chosen;
    for (const std::uint16_t port : target_ports_) {
      const auto there = now_.keys.find(on(port));
      const bool has_key = request_.action == ReserveAction::kRegisterAndIgnoreExistingKey ||
                           request_.key == (there == now_.keys.end() ? 0 : there->second);
      if (port != caller_.target_port && has_key) chosen.push_back(port);
    }
    std::ranges::sort(chosen);
    return chosen;
  }

  // REGISTER and REGISTER AND IGNORE EXISTING KEY, 5.12.7.
  Answer enrol(bool registered) {
    constexpr std::uint16_t kFlags = 20;
    const bool takes_list = request_.action == ReserveAction::kRegister && !registered;
    if (request_.specifies_initiators && !takes_list) return refused(Kind::kList, kFlags);
    if (request_.action_key == 0) {
      if (!registered) return change_;
      for (const std::uint16_t port : ports()) unregister(on(port));
    } else {
      for (const std::uint16_t port : ports()) {
        change_.next.keys[on(port)] = request_.action_key;
        for (const std::string& initiator : request_.initiators) {  // Unless it is registered.
          change_.next.keys.try_emplace({.initiator_port = initiator, .target_port = port},
                                        request_.action_key);
        }
      }
      if (!has_room()) return refused(Kind::kNoRegistration);
    }
    change_.next.through_power_loss = request_.through_power_loss;
    ++change_.next.generation;
    return change_;
  }

  bool names_no_reservation() const {
    return request_.scope != 0 || !is_reservation_type(request_.type);
  }
  void establish() {
    PersistentReservations& next = change_.next;
    next.type = static_cast<ReservationType>(request_.type);
    next.holder.reset();
    if (!is_all_registrants(next.type)) next.holder = caller_;
  }

  Answer reserve() {
    if (names_no_reservation()) return refused(Kind::kCdb, 2);
    const auto type = static_cast<ReservationType>(request_.type);
    if (!now_.reserved()) {
      establish();
    } else if (!now_.holds(caller_) || now_.type != type) {
      return refused(Kind::kConflict);
    }
    return change_;
  }

  // 5.13.11.3.
  Answer replace() {
    if (!now_.lost) return refused(Kind::kRelease);
    if (names_no_reservation()) return refused(Kind::kCdb, 2);
    if (request_.key != 0) return refused(Kind::kList, 0);
    if (request_.action_key == 0) return refused(Kind::kList, 8);
    change_.next = {.keys = {{caller_, request_.action_key}},
                    .through_power_loss = request_.through_power_loss};
    establish();
    return change_;
  }

  Answer release() {
    if (!now_.reserved() || !now_.holds(caller_)) return change_;
    const bool same = request_.scope == 0 && request_.type == static_cast<std::uint8_t>(now_.type);
    if (!same) return refused(Kind::kRelease);
    end_reservation();
    return change_;
  }

  Answer clear() {
    tell(UnitAttention::kReservationsPreempted);
    change_.next.keys.clear();
    change_.next.type = ReservationType::kNone;
    change_.next.holder.reset();
    ++change_.next.generation;
    return change_;
  }

  // 5.12.11.4. Without a holder that the key names, registrations alone are removed.
  Answer preempt() {
    const bool all = is_all_registrants(now_.type);
    const std::uint64_t victim = request_.action_key;
    if (victim == 0 && !all) return refused(Kind::kList, 8);
    const bool takes_over =
        all ? victim == 0 : now_.holder.has_value() && now_.keys.at(*now_.holder) == victim;
    if (takes_over && names_no_reservation()) return refused(Kind::kCdb, 2);
    bool matched = false;
    for (const auto& [nexus, key] : now_.keys) {
      if (victim != 0 && key != victim) continue;
      matched = true;
      const bool own = nexus == caller_;
      if (own && (takes_over || all)) continue;
      change_.next.keys.erase(nexus);
      if (own) continue;
      change_.attentions.emplace_back(nexus, UnitAttention::kRegistrationsPreempted);
      if (request_.action == ReserveAction::kPreemptAndAbort) change_.aborted.push_back(nexus);
    }
    if (!matched) return refused(Kind::kConflict);
    if (takes_over) {
      establish();
      if (change_.next.type != now_.type) tell(UnitAttention::kReservationsReleased);
    }
    ++change_.next.generation;
    return change_;
  }

  // REGISTER AND MOVE, 5.12.8.
  Answer move() {
    if (!now_.reserved()) return refused(Kind::kCdb, 1);
    if (is_all_registrants(now_.type) || !now_.holds(caller_)) return refused(Kind::kConflict);
    if (request_.action_key == 0) return refused(Kind::kList, 8);
    if (std::ranges::find(target_ports_, request_.target_port) == target_ports_.end()) {
      return refused(Kind::kList, 18);
    }
    const NexusPorts to{.initiator_port = request_.initiators.at(0),
                        .target_port = request_.target_port};
    if (to.initiator_port == caller_.initiator_port) return refused(Kind::kList, 24);
    change_.next.keys[to] = request_.action_key;
    change_.next.holder = to;
    if (request_.unregister) change_.next.keys.erase(caller_);
    if (!has_room()) return refused(Kind::kNoRegistration);
    change_.next.through_power_loss = request_.through_power_loss;
    ++change_.next.generation;
    return change_;
  }

  const PersistentReservations& now_;
  const ReserveRequest& request_;
  const NexusPorts& caller_;
  std::span<const std::uint16_t> target_ports_;
  ReserveChange change_;
};

}  // namespace

bool is_reservation_type(std::uint8_t value) noexcept {
  return std::ranges::find(kTypes, static_cast<ReservationType>(value)) != kTypes.end();
}

bool is_all_registrants(ReservationType type) noexcept {
  return type == ReservationType::kWriteExclusiveAllRegistrants ||
         type == ReservationType::kExclusiveAccessAllRegistrants;
}

std::string_view describe(ReservationType type) {
  switch (type) {
    case ReservationType::kNone:
      return "none";
    case ReservationType::kWriteExclusive:
      return "write exclusive";
    case ReservationType::kExclusiveAccess:
      return "exclusive access";
    case ReservationType::kWriteExclusiveRegistrantsOnly:
      return "write exclusive, registrants only";
    case ReservationType::kExclusiveAccessRegistrantsOnly:
      return "exclusive access, registrants only";
    case ReservationType::kWriteExclusiveAllRegistrants:
      return "write exclusive, all registrants";
    case ReservationType::kExclusiveAccessAllRegistrants:
      return "exclusive access, all registrants";
  }
  return "none";
}

bool PersistentReservations::holds(const NexusPorts& nexus) const {
  return is_all_registrants(type) ? keys.contains(nexus) : holder == nexus;
}

ReservedRights rights_of(const PersistentReservations& reservations, const NexusPorts& nexus) {
  if (!reservations.reserved() || reservations.holds(nexus)) return {};
  if (lets_registrants(reservations.type) && reservations.keys.contains(nexus)) return {};
  return {.reads = lets_read(reservations.type), .changes = false};
}

std::expected<ReserveChange, ReserveRefusal> change_reservations(
    const PersistentReservations& now, const ReserveRequest& request, const NexusPorts& caller,
    std::span<const std::uint16_t> target_ports) {
  return Judgement(now, request, caller, target_ports).answer();
}

PersistentReservations lost_reservations() { return {.through_power_loss = true, .lost = true}; }

ReserveChange clear_reservations(const PersistentReservations& now) {
  ReserveChange change;
  for (const auto& [nexus, key] : now.keys) {
    change.attentions.emplace_back(nexus, UnitAttention::kReservationsPreempted);
  }
  change.next.generation = now.generation + 1;
  return change;
}

}  // namespace sandbay::scsi
