// PERSISTENT RESERVE IN and OUT (SPC-4 6.15 and 6.16), and RESERVE and RELEASE (SPC-2 clause 7) as
// SPC-4 5.12.3 has them beside persistent reservations (CRH).
#include <algorithm>
#include <utility>

#include "runtime/byte_order.h"
#include "scsi/command_table.h"
#include "scsi/logical_unit.h"
#include "scsi/reservation_lists.h"
#include "scsi/unit_store.h"
#include "scsi/waking.h"

namespace sandbay::scsi {

namespace {

unsigned service_action(const Command& command) {
  return std::to_integer<unsigned>(command.cdb[1]) & 0x1FU;
}

}  // namespace

// Persistent reservations change one after the other, for each change waits for its store.
class LogicalUnit::Changing {
 public:
  explicit Changing(LogicalUnit& unit) : state_(unit.persistent_) {}
  Changing(const Changing&) = delete;
  Changing& operator=(const Changing&) = delete;
  ~Changing() {
    if (!has_begun_) return;
    state_.changing = false;
    state_.changed.notify_all();
  }
  // False: it was cancelled before.
  Task<bool> begin(Cancellation* cancellation) {
    const Waking waking(cancellation, state_.changed);
    while (state_.changing) {
      if (cancellation != nullptr && cancellation->cancelled()) co_return false;
      co_await state_.changed.wait();
    }
    state_.changing = has_begun_ = true;
    co_return true;
  }

 private:
  Persistent& state_;
  bool has_begun_ = false;
};

Outcome LogicalUnit::conflict() noexcept {
  ++counters_.reservation_conflicts;
  return Outcome{.status = Status::kReservationConflict};
}

// Whether persistent reservations decide about RESERVE and RELEASE, and how.
std::optional<Outcome> LogicalUnit::answer_by_registrations(const Command& command) {
  // A change that is under way may bring the first registration.
  if (persistent_.changing) return Outcome{.status = Status::kBusy};
  if (persistent_.now.keys.empty()) return std::nullopt;
  if (persistent_.now.reserved() && state_of(command).rights.changes) return Outcome{};
  return conflict();
}

// It belongs to the nexus; its holder may reserve again.
Job LogicalUnit::reserve(Command& command) {
  if (const auto answer = answer_by_registrations(command)) co_return *answer;
  // A rule may have delayed it since it was checked.
  if (reservation_ && *reservation_ != command.nexus_id) co_return conflict();
  reservation_ = command.nexus_id;
  co_return Outcome{};
}

// Releasing what one does not hold changes nothing, and is no error.
Job LogicalUnit::release(Command& command) {
  if (const auto answer = answer_by_registrations(command)) co_return *answer;
  if (reservation_ == command.nexus_id) reservation_.reset();
  co_return Outcome{};
}

Job LogicalUnit::persistent_reserve_in(Command& command) {
  if (reservation_) co_return conflict();
  const PersistentReservations& now = persistent_.now;
  std::vector<std::byte> data;
  switch (service_action(command)) {
    case 0:
      data = registered_keys(now);
      break;
    case 1:
      data = reservation_descriptor(now);
      break;
    case 2:
      data = reserve_capabilities(now, persistent_.store != nullptr);
      break;
    default:
      data = full_status(now);
      break;
  }
  const auto allocation_length = big_endian<std::uint16_t>(command.cdb, 7);
  co_return co_await return_parameters(command, data, allocation_length);
}

Job LogicalUnit::persistent_reserve_out(Command& command) {
  if (reservation_) co_return conflict();
  const std::size_t length = big_endian<std::uint32_t>(command.cdb, 5);
  if (length < kShortestReserveList || length > kLongestReserveList) {
    co_return illegal(Additional::kParameterListLengthError);
  }
  std::vector<std::byte> list(length);
  const auto received = co_await receive_parameters(command, list, length);
  if (!received) co_return received.error();
  Outcome outcome = co_await obey_list(command, std::move(list));
  outcome.data_out_bytes = length;
  co_return outcome;
}

Task<Outcome> LogicalUnit::obey_list(Command& command, std::vector<std::byte> list) {
  auto request = decode_reserve_list(static_cast<ReserveAction>(service_action(command)), list);
  if (!request) co_return refuse(request.error());
  const auto scope_and_type = std::to_integer<unsigned>(command.cdb[2]);
  request->scope = static_cast<std::uint8_t>(scope_and_type >> 4U);
  request->type = static_cast<std::uint8_t>(scope_and_type & 0x0FU);
  co_return co_await reserve_persistently(command, std::move(*request));
}

Outcome LogicalUnit::refuse(const ReserveRefusal& refusal) {
  switch (refusal.kind) {
    case ReserveRefusal::Kind::kConflict:
      return conflict();
    case ReserveRefusal::Kind::kCdb:
      return invalid_cdb(refusal.byte);
    case ReserveRefusal::Kind::kList:
      return invalid_parameter(refusal.byte);
    case ReserveRefusal::Kind::kRelease:
      return illegal(Additional::kInvalidReleaseOfPersistentReservation);
    case ReserveRefusal::Kind::kNoRegistration:
      return illegal(Additional::kInsufficientRegistrationResources);
  }
  return conflict();
}

// A node stands for its ports that the unit knows.
bool LogicalUnit::name_ports(std::vector<std::string>& initiators) const {
  std::vector<std::string> ports;
  for (const std::string& initiator : initiators) {
    const std::size_t before = ports.size();
    const bool is_port = is_initiator_port(initiator);
    if (is_port) ports.push_back(initiator);
    for (const auto& [id, nexus] : nexuses_) {
      const std::string& port = nexus.ports.initiator_port;
      if (!is_port && port.starts_with(initiator + ",i,")) ports.push_back(port);
    }
    if (ports.size() == before) return false;
  }
  initiators = std::move(ports);
  return true;
}

Task<Outcome> LogicalUnit::reserve_persistently(Command& command, ReserveRequest request) {
  if (request.through_power_loss && persistent_.store == nullptr) {
    co_return invalid_parameter(request.action == ReserveAction::kRegisterAndMove ? 17 : 20);
  }
  Changing changing(*this);
  const bool begun = co_await changing.begin(&command.cancellation);
  if (!begun || command.aborted) co_return Outcome{};
  if (reservation_) co_return conflict();
  if (persistent_.now.lost && request.action != ReserveAction::kReplaceLostReservation) {
    co_return refuse(SenseKey::kDataProtect, Additional::kPersistentReservationInformationLost);
  }
  if (!name_ports(request.initiators)) co_return invalid_parameter(28);
  auto change =
      change_reservations(persistent_.now, request, state_of(command).ports, options_.target_ports);
  if (!change) co_return refuse(change.error());
  const Error error = co_await install(std::move(*change), command.nexus_id);
  if (error == Error::kNone) co_return Outcome{};
  co_return refuse(SenseKey::kHardwareError, Additional::kInternalTargetFailure);
}

// Durable first: a status must not be lost with the power.
Task<Error> LogicalUnit::install(ReserveChange change, std::uint64_t caller) {
  const bool keeps =
      change.next.through_power_loss && (!change.next.keys.empty() || change.next.lost);
  if ((keeps || persistent_.kept) && change.next != persistent_.now) {
    const Error error = co_await persistent_.store->keep_reservations(
        keeps ? change.next : PersistentReservations{});
    if (error != Error::kNone) co_return error;
    persistent_.kept = keeps;
  }
  persistent_.now = std::move(change.next);
  std::vector<std::uint64_t> preempted;
  for (auto& [id, nexus] : nexuses_) {
    nexus.rights = rights_of(persistent_.now, nexus.ports);
    for (const auto& [ports, condition] : change.attentions) {
      if (ports == nexus.ports && id != caller) nexus.attentions.establish(condition);
    }
    if (std::ranges::find(change.aborted, nexus.ports) != change.aborted.end() && id != caller) {
      preempted.push_back(id);
    }
  }
  if (!preempted.empty()) co_await abort_preempted(std::move(preempted), caller);
  co_return Error::kNone;
}

std::string LogicalUnit::reserved_by() const {
  const auto holder = reservation_ ? nexuses_.find(*reservation_) : nexuses_.end();
  return holder == nexuses_.end() ? std::string() : holder->second.ports.initiator_port;
}

Task<Error> LogicalUnit::clear_reservations() { return end_reservations(false); }

Task<Error> LogicalUnit::lose_reservations() { return end_reservations(true); }

Task<Error> LogicalUnit::end_reservations(bool lose) {
  if (!operations_.enter()) co_return Error::kClosed;
  const GateHold gate(operations_);
  Changing changing(*this);
  (void)co_await changing.begin(nullptr);
  if (lose && !persistent_.kept) co_return Error::kInvalid;
  ReserveChange change = scsi::clear_reservations(persistent_.now);
  // Hosts hear of the loss with their next commands.
  if (lose) change = {.next = lost_reservations(), .attentions = {}, .aborted = {}};
  const Error error = co_await install(std::move(change), 0);
  if (error != Error::kNone || lose || !reservation_) co_return error;
  const auto holder = nexuses_.find(*reservation_);
  reservation_.reset();
  if (holder != nexuses_.end()) {
    holder->second.attentions.establish(UnitAttention::kReservationsPreempted);
  }
  co_return error;
}

}  // namespace sandbay::scsi
