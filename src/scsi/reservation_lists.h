// The parameter data of PERSISTENT RESERVE IN and OUT (SPC-4 6.15 and 6.16) and the TransportIDs of
// iSCSI initiators in them (SPC-4 7.6.4.6): pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scsi/reservations.h"
#include "scsi/sense.h"

namespace sandbay::scsi {

// A list without TransportIDs, and the longest that a unit accepts: dozens of them.
inline constexpr std::size_t kShortestReserveList = 24;
inline constexpr std::size_t kLongestReserveList = std::size_t{16} << 10;

// As iSCSI compares names.
constexpr char lower_case(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
// A name that may log in (RFC 7143 section 4.2.7.1): printable UTF-8 of at most 223 bytes.
bool is_node_name(std::string_view text);
bool is_initiator_port(std::string_view text);
bool is_initiator(std::string_view text);  // A port, or a node's name.

// An initiator port, such as "iqn.1994-05.org:host,i,0x00023d000001", or without ",i," and ISID a
// node: each of its ports.
std::vector<std::byte> encode_transport_id(std::string_view initiator);
struct TransportId {
  std::string initiator;
  std::size_t byte_count = 0;
};
// The one at the beginning; nothing if it is malformed or another transport's.
std::optional<TransportId> decode_transport_id(std::span<const std::byte> bytes);

// All but scope and type, which the CDB has.
std::expected<ReserveRequest, ListError> decode_reserve_list(ReserveAction action,
                                                             std::span<const std::byte> list);

// READ KEYS, READ RESERVATION, READ FULL STATUS, and REPORT CAPABILITIES of a unit that can keep
// reservations over a restart, or not.
std::vector<std::byte> registered_keys(const PersistentReservations& reservations);
std::vector<std::byte> reservation_descriptor(const PersistentReservations& reservations);
std::vector<std::byte> full_status(const PersistentReservations& reservations);
std::vector<std::byte> reserve_capabilities(const PersistentReservations& reservations,
                                            bool keeps_through_power_loss);

}  // namespace sandbay::scsi
