// Encoding and decoding; every length is checked against the bytes that came.
#include "scsi/reservation_lists.h"

#include <algorithm>
#include <array>

#include "runtime/byte_order.h"
#include "runtime/utf8.h"

namespace sandbay::scsi {

namespace {

constexpr std::size_t kListBytes = kShortestReserveList;
constexpr std::size_t kIdHead = 4;
constexpr std::size_t kShortestId = 20;  // ADDITIONAL LENGTH.
constexpr std::size_t kLongestId = 244;
constexpr std::string_view kSeparator = ",i,0x";
constexpr std::size_t kIsidDigits = 12;
constexpr std::size_t kLongestName = 223;
constexpr unsigned kIscsi = 0x05;     // PROTOCOL IDENTIFIER.
constexpr unsigned kWithIsid = 0x40;  // TPID FORMAT 01b.

std::vector<std::byte> with_generation(const PersistentReservations& reservations) {
  std::vector<std::byte> data(8);
  put_big_endian(std::span(data), 0, reservations.generation);
  return data;
}

// ADDITIONAL LENGTH, also where less than that is sent.
void end_list(std::vector<std::byte>& data) {
  put_big_endian(std::span(data), 4, static_cast<std::uint32_t>(data.size() - 8));
}

std::unexpected<ListError> wrong(std::size_t byte) {
  return std::unexpected(ListError{.byte = static_cast<std::uint16_t>(byte)});
}
std::unexpected<ListError> wrong_length() {
  return std::unexpected(ListError{.wrong_length = true});
}

bool is_set(std::byte value, unsigned mask) {
  return (std::to_integer<unsigned>(value) & mask) != 0;
}

std::expected<ReserveRequest, ListError> decode_move(std::span<const std::byte> list) {
  if (list.size() < kListBytes) return wrong_length();
  ReserveRequest request{.action = ReserveAction::kRegisterAndMove,
                         .key = big_endian<std::uint64_t>(list, 0),
                         .action_key = big_endian<std::uint64_t>(list, 8),
                         .through_power_loss = is_set(list[17], 0x01),
                         .unregister = is_set(list[17], 0x02),
                         .target_port = big_endian<std::uint16_t>(list, 18)};
  if (big_endian<std::uint32_t>(list, 20) != list.size() - kListBytes) return wrong_length();
  const auto id = decode_transport_id(list.subspan(kListBytes));
  if (!id || !is_initiator_port(id->initiator)) return wrong(kListBytes);
  if (id->byte_count != list.size() - kListBytes) return wrong_length();
  request.initiators.push_back(id->initiator);
  return request;
}

}  // namespace

bool is_node_name(std::string_view text) {
  const bool is_printable = std::ranges::all_of(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte > 0x20 && byte != 0x7F;
  });
  return !text.empty() && text.size() <= kLongestName && is_printable && is_utf8(text);
}

bool is_initiator_port(std::string_view text) {
  const std::size_t at = text.rfind(kSeparator);
  if (at == 0 || at == std::string_view::npos) return false;
  const std::string_view isid = text.substr(at + kSeparator.size());
  return isid.size() == kIsidDigits && std::ranges::all_of(isid, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool is_initiator(std::string_view text) {
  return is_node_name(is_initiator_port(text) ? text.substr(0, text.rfind(kSeparator)) : text);
}

std::vector<std::byte> encode_transport_id(std::string_view initiator) {
  const std::size_t padded = (initiator.size() + 4) / 4 * 4;  // With at least one NUL.
  const std::size_t length = std::max(padded, kShortestId);
  std::vector<std::byte> id(kIdHead + length);
  id[0] = static_cast<std::byte>(kIscsi | (is_initiator_port(initiator) ? kWithIsid : 0U));
  put_big_endian(std::span(id), 2, static_cast<std::uint16_t>(length));
  std::ranges::copy(std::as_bytes(std::span(initiator)), id.begin() + kIdHead);
  return id;
}

std::optional<TransportId> decode_transport_id(std::span<const std::byte> bytes) {
  if (bytes.size() < kIdHead) return std::nullopt;
  const auto format = std::to_integer<unsigned>(bytes[0]);
  if (format != kIscsi && format != (kIscsi | kWithIsid)) return std::nullopt;
  const std::size_t length = big_endian<std::uint16_t>(bytes, 2);
  if (length < kShortestId || length > kLongestId || length % 4 != 0) return std::nullopt;
  if (bytes.size() < kIdHead + length) return std::nullopt;
  std::string text;
  for (const std::byte each : bytes.subspan(kIdHead, length)) {
    if (each == std::byte{0}) break;
    text.push_back(lower_case(std::to_integer<char>(each)));
  }
  if (text.empty() || text.size() == length) return std::nullopt;  // No NUL.
  if (!is_initiator(text) || is_initiator_port(text) != (format != kIscsi)) return std::nullopt;
  return TransportId{.initiator = std::move(text), .byte_count = kIdHead + length};
}

std::expected<ReserveRequest, ListError> decode_reserve_list(ReserveAction action,
                                                             std::span<const std::byte> list) {
  if (action == ReserveAction::kRegisterAndMove) return decode_move(list);
  if (list.size() < kListBytes) return wrong_length();
  ReserveRequest request{.action = action,
                         .key = big_endian<std::uint64_t>(list, 0),
                         .action_key = big_endian<std::uint64_t>(list, 8)};
  const bool registers =
      action == ReserveAction::kRegister || action == ReserveAction::kRegisterAndIgnoreExistingKey;
  if (registers) {  // Others ignore these.
    request.specifies_initiators = is_set(list[20], 0x08);
    request.all_target_ports = is_set(list[20], 0x04);
    request.through_power_loss = is_set(list[20], 0x01);
  } else if (action == ReserveAction::kReplaceLostReservation) {
    if (is_set(list[20], 0x0C)) return wrong(20);
    request.through_power_loss = is_set(list[20], 0x01);
  }
  if (!request.specifies_initiators) {
    if (list.size() != kListBytes) return wrong_length();
    return request;
  }
  if (list.size() < kListBytes + 4) return wrong_length();
  if (big_endian<std::uint32_t>(list, kListBytes) != list.size() - kListBytes - 4) {
    return wrong_length();
  }
  for (std::size_t at = kListBytes + 4; at < list.size();) {
    const auto id = decode_transport_id(list.subspan(at));
    if (!id) return wrong(at);
    request.initiators.push_back(id->initiator);
    at += id->byte_count;
  }
  return request;
}

std::vector<std::byte> registered_keys(const PersistentReservations& reservations) {
  std::vector<std::byte> data = with_generation(reservations);
  data.resize(8 + 8 * reservations.keys.size());
  std::size_t at = 8;
  for (const auto& [nexus, key] : reservations.keys) {
    put_big_endian(std::span(data), at, key);
    at += 8;
  }
  end_list(data);
  return data;
}

std::vector<std::byte> reservation_descriptor(const PersistentReservations& reservations) {
  std::vector<std::byte> data = with_generation(reservations);
  if (reservations.reserved()) {
    data.resize(24);
    // All registrants have no key of the reservation.
    const std::uint64_t key =
        reservations.holder ? reservations.keys.at(*reservations.holder) : std::uint64_t{0};
    put_big_endian(std::span(data), 8, key);
    data[21] = static_cast<std::byte>(reservations.type);  // Scope 0: the unit.
  }
  end_list(data);
  return data;
}

std::vector<std::byte> full_status(const PersistentReservations& reservations) {
  std::vector<std::byte> data = with_generation(reservations);
  for (const auto& [nexus, key] : reservations.keys) {
    std::array<std::byte, 24> head{};
    const std::span<std::byte> bytes(head);
    put_big_endian(bytes, 0, key);
    if (reservations.reserved() && reservations.holds(nexus)) {
      head[12] = std::byte{0x01};  // R_HOLDER
      head[13] = static_cast<std::byte>(reservations.type);
    }
    put_big_endian(bytes, 18, nexus.target_port);
    const std::vector<std::byte> id = encode_transport_id(nexus.initiator_port);
    put_big_endian(bytes, 20, static_cast<std::uint32_t>(id.size()));
    data.insert(data.end(), head.begin(), head.end());
    data.insert(data.end(), id.begin(), id.end());
  }
  end_list(data);
  return data;
}

std::vector<std::byte> reserve_capabilities(const PersistentReservations& reservations,
                                            bool keeps_through_power_loss) {
  std::vector<std::byte> data(8);
  data[1] = std::byte{8};
  unsigned capabilities = 0x1C;                         // CRH, SIP_C, ATP_C
  if (keeps_through_power_loss) capabilities |= 0x81U;  // RLR_C, PTPL_C
  data[2] = static_cast<std::byte>(capabilities);
  unsigned state = 0x90;                                // TMV, ALLOW COMMANDS 001b
  if (reservations.through_power_loss) state |= 0x01U;  // PTPL_A
  data[3] = static_cast<std::byte>(state);
  data[4] = std::byte{0xEA};  // WR_EX_AR, EX_AC_RO, WR_EX_RO, EX_AC, WR_EX
  data[5] = std::byte{0x01};  // EX_AC_AR
  return data;
}

}  // namespace sandbay::scsi
