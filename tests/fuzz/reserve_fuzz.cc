// Fuzzes parameter lists of PERSISTENT RESERVE OUT: whatever they are, there is a request or the
// byte that is wrong, and whatever a unit does for a request leaves reservations that hold
// together.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "scsi/reservation_lists.h"

namespace sandbay::scsi {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void require_whole(const PersistentReservations& reservations) {
  const bool has_holder = reservations.reserved() && !is_all_registrants(reservations.type);
  require(reservations.holder.has_value() == has_holder);
  require(!reservations.reserved() || !reservations.keys.empty());
  if (reservations.holder) require(reservations.keys.contains(*reservations.holder));
  require(reservations.keys.size() <= kMostRegistrations);
  for (const auto& [nexus, key] : reservations.keys) {
    require(key != 0);
    const auto id = encode_transport_id(nexus.initiator_port);
    const auto again = decode_transport_id(id);
    require(again && again->initiator == nexus.initiator_port && again->byte_count == id.size());
  }
  (void)full_status(reservations);
  (void)reservation_descriptor(reservations);
}

// Commands one after the other: two bytes of the CDB, one of the sender, one with the
// length of its list, and the list.
void run(std::span<const std::byte> bytes) {
  constexpr std::array kPorts{std::uint16_t{1}, std::uint16_t{2}};
  const std::array<NexusPorts, 4> callers{{{"iqn.2026-11.org.example:a,i,0x00023d000001", 1},
                                           {"iqn.2026-11.org.example:a,i,0x00023d000001", 2},
                                           {"iqn.2026-11.org.example:b,i,0x00023d000001", 1},
                                           {"iqn.2026-11.org.example:b,i,0x00023d000002", 2}}};
  PersistentReservations now;
  while (bytes.size() >= 4) {
    const auto action = std::to_integer<std::uint8_t>(bytes[0]) % 8;
    const auto scope_and_type = std::to_integer<unsigned>(bytes[1]);
    const NexusPorts& caller = callers.at(std::to_integer<std::size_t>(bytes[2]) % 4);
    const std::size_t length = std::to_integer<std::size_t>(bytes[3]);
    bytes = bytes.subspan(4);
    const auto list = bytes.first(std::min(length, bytes.size()));
    bytes = bytes.subspan(list.size());
    auto request = decode_reserve_list(static_cast<ReserveAction>(action), list);
    if (!request) {
      require(request.error().wrong_length || request.error().byte <= list.size());
      continue;
    }
    request->scope = static_cast<std::uint8_t>(scope_and_type >> 4U);
    request->type = static_cast<std::uint8_t>(scope_and_type & 0x0FU);
    // A unit names the ports of nodes before.
    std::erase_if(request->initiators,
                  [](const std::string& each) { return !is_initiator_port(each); });
    if (request->action == ReserveAction::kRegisterAndMove) require(!request->initiators.empty());
    auto change = change_reservations(now, *request, caller, kPorts);
    if (!change) continue;
    require_whole(change->next);
    now = std::move(change->next);
  }
}

}  // namespace
}  // namespace sandbay::scsi

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sandbay::scsi::run(std::as_bytes(std::span(data, size)));
  return 0;
}
