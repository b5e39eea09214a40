// MODE SENSE and MODE SELECT, 6 and 10 bytes (SPC-4 clauses 6.9 to 6.12), with the mode parameter
// headers (SPC-4 7.5.5) and block descriptors (SBC-3 6.5.2).
#include <algorithm>
#include <array>

#include "runtime/byte_order.h"
#include "scsi/command_table.h"
#include "scsi/logical_unit.h"

namespace sandbay::scsi {
namespace {

constexpr std::size_t kShortDescriptor = 8;
constexpr std::size_t kLongDescriptor = 16;
constexpr std::size_t kLongestModeList = 512;
constexpr std::size_t kLongestShortData = 256;  // Its length without itself stands in a byte.

// Whoever waits for others looks up when it is cancelled itself.
class WakeOnCancel final : public Cancellation::Hook {
 public:
  WakeOnCancel(Cancellation& cancellation, Condition& condition)
      : Hook(&cancellation,
             [](Hook& hook) { static_cast<WakeOnCancel&>(hook).condition_.notify_all(); }),
        condition_(condition) {}

 private:
  Condition& condition_;
};

bool ten_bytes(const Command& command) { return command.row->cdb_bytes == 10; }

void put_block_descriptor(const Geometry& geometry, bool long_lba, std::span<std::byte> target) {
  if (long_lba) {
    put_big_endian(target, 0, geometry.block_count);
    put_big_endian(target, 12, geometry.block_bytes);
    return;
  }
  const auto blocks = std::min<std::uint64_t>(geometry.block_count, 0xFFFF'FFFFU);
  put_big_endian(target, 0, static_cast<std::uint32_t>(blocks));
  put_big_endian_24(target, 5, geometry.block_bytes);
}

}  // namespace

// Header, block descriptor and pages; the bytes used, or `refused` is set.
std::size_t LogicalUnit::mode_data(const Command& command, std::span<std::byte> target,
                                   std::optional<Outcome>& refused) const {
  const auto flags = std::to_integer<unsigned>(command.cdb[1]);
  const auto page = static_cast<std::uint8_t>(std::to_integer<unsigned>(command.cdb[2]) & 0x3FU);
  const auto control = static_cast<PageControl>(std::to_integer<unsigned>(command.cdb[2]) >> 6U);
  const bool no_descriptor = (flags & 0x08U) != 0;                   // DBD
  const bool long_lba = ten_bytes(command) && (flags & 0x10U) != 0;  // LLBAA
  if (control == PageControl::kSaved) {
    refused = illegal(Additional::kSavingParametersNotSupported);
    return 0;
  }
  const std::size_t header = ten_bytes(command) ? 8 : 4;
  const std::size_t descriptor =
      no_descriptor ? 0 : (long_lba ? kLongDescriptor : kShortDescriptor);
  const ModeParameters& values = control == PageControl::kDefault ? default_modes_ : modes_;
  const UnitFacts facts = facts_for(command);
  const std::size_t pages = encode_mode_pages(values, facts, control == PageControl::kChangeable,
                                              page, std::to_integer<std::uint8_t>(command.cdb[3]),
                                              target.subspan(header + descriptor));
  if (pages == 0) {
    refused = invalid_cdb(encode_mode_pages(values, facts, false, page, 0, target) == 0 ? 2 : 3);
    return 0;
  }
  // Longer ones have no room in the header of the short command.
  if (!ten_bytes(command) && header + descriptor + pages > kLongestShortData) {
    refused = invalid_cdb(3);
    return 0;
  }
  if (descriptor != 0) {
    put_block_descriptor(geometry(), long_lba, target.subspan(header, descriptor));
  }
  const bool protect = write_protected() || modes_.software_write_protect;
  const std::byte device_specific{static_cast<std::uint8_t>(protect ? 0x90 : 0x10)};  // WP, DPOFUA
  const std::size_t total = header + descriptor + pages;
  if (ten_bytes(command)) {
    put_big_endian(target, 0, static_cast<std::uint16_t>(total - 2));
    target[3] = device_specific;
    target[4] = long_lba && descriptor != 0 ? std::byte{0x01} : std::byte{0x00};
    put_big_endian(target, 6, static_cast<std::uint16_t>(descriptor));
  } else {
    target[0] = static_cast<std::byte>(total - 1);
    target[2] = device_specific;
    target[3] = static_cast<std::byte>(descriptor);
  }
  return total;
}

Job LogicalUnit::mode_sense(Command& command) {
  const std::uint64_t allocation_length = ten_bytes(command)
                                              ? big_endian<std::uint16_t>(command.cdb, 7)
                                              : std::to_integer<std::uint64_t>(command.cdb[4]);
  std::array<std::byte, kLargestModeData> data{};
  std::optional<Outcome> refused;
  const std::size_t used = mode_data(command, data, refused);
  if (refused) co_return *refused;
  co_return co_await return_parameters(command, std::span(data).first(used), allocation_length);
}

std::expected<ModeParameters, Outcome> LogicalUnit::decode_mode_list(
    const Command& command, std::span<const std::byte> list) const {
  const bool ten = ten_bytes(command);
  const std::size_t header = ten ? 8 : 4;
  if (list.size() < header) return std::unexpected(illegal(Additional::kParameterListLengthError));
  const std::size_t medium_type = ten ? 2 : 1;
  if (list[medium_type] != std::byte{0}) {
    return std::unexpected(invalid_parameter(static_cast<std::uint16_t>(medium_type)));
  }
  const bool long_lba = ten && (list[4] & std::byte{0x01}) != std::byte{0};
  const std::size_t descriptor =
      ten ? big_endian<std::uint16_t>(list, 6) : std::to_integer<std::size_t>(list[3]);
  const std::size_t expected = long_lba ? kLongDescriptor : kShortDescriptor;
  if (descriptor != 0 && descriptor != expected) {
    return std::unexpected(invalid_parameter(ten ? 6 : 3));
  }
  if (list.size() < header + descriptor) {
    return std::unexpected(illegal(Additional::kParameterListLengthError));
  }
  if (descriptor != 0) {
    // The format of the medium cannot be changed: only the present one is accepted, or, for the
    // number of blocks, 0 ("as it is").
    std::array<std::byte, kLongDescriptor> current{};
    put_block_descriptor(geometry(), long_lba, std::span(current).first(descriptor));
    const std::size_t count_bytes = long_lba ? 8 : 4;
    const auto given = list.subspan(header, descriptor);
    const bool same_count =
        std::ranges::equal(given.first(count_bytes), std::span(current).first(count_bytes));
    const bool no_count = std::ranges::all_of(given.first(count_bytes),
                                              [](std::byte byte) { return byte == std::byte{0}; });
    if (!same_count && !no_count) {
      return std::unexpected(invalid_parameter(static_cast<std::uint16_t>(header)));
    }
    const std::size_t length_bytes = long_lba ? 4 : 3;
    if (!std::ranges::equal(given.last(length_bytes),
                            std::span(current).first(descriptor).last(length_bytes))) {
      return std::unexpected(
          invalid_parameter(static_cast<std::uint16_t>(header + descriptor - length_bytes)));
    }
  }
  const auto decoded =
      decode_mode_pages(modes_, facts_for(command), list.subspan(header + descriptor));
  if (decoded) return *decoded;
  if (decoded.error().length) {
    return std::unexpected(illegal(Additional::kParameterListLengthError));
  }
  return std::unexpected(
      invalid_parameter(static_cast<std::uint16_t>(header + descriptor + decoded.error().byte)));
}

// SBC-3 6.5.5: what the cache holds is written before it goes out of use. From here on every change
// is stable when it ends; those that a device had before are waited for, and flushed with the rest.
Task<Error> LogicalUnit::take_write_cache_away(Command& command) {
  ++stable_demands_;
  ++end_watchers_;
  const WakeOnCancel wake(command.cancellation, command_ended_);
  while (cached_changes_ != 0 && !command.aborted) co_await command_ended_.wait();
  --end_watchers_;
  Error error = Error::kNone;
  if (!command.aborted) {
    const Completion flushed = co_await flush(command, {0, geometry().block_count});
    error = flushed.error;
  }
  --stable_demands_;
  co_return error;
}

Job LogicalUnit::mode_select(Command& command) {
  const auto flags = std::to_integer<unsigned>(command.cdb[1]);
  const std::size_t byte_count = ten_bytes(command) ? big_endian<std::uint16_t>(command.cdb, 7)
                                                    : std::to_integer<std::size_t>(command.cdb[4]);
  const bool lenient = options_.personality != nullptr && options_.personality->lenient_mode_select;
  if ((flags & 0x10U) == 0 && !lenient) co_return invalid_cdb(1, std::uint8_t{4});  // PF
  if ((flags & 0x01U) != 0 && !lenient) co_return invalid_cdb(1, std::uint8_t{0});  // SP
  if (byte_count == 0) co_return Outcome{};
  std::array<std::byte, kLongestModeList> list{};
  if (byte_count > list.size()) co_return illegal(Additional::kParameterListLengthError);
  const auto received = co_await receive_parameters(command, list, byte_count);
  if (!received) co_return received.error();
  auto decoded = decode_mode_list(command, std::span(list).first(byte_count));
  if (decoded && modes_.write_cache_enabled && !decoded->write_cache_enabled) {
    const Error error = co_await take_write_cache_away(command);
    if (error != Error::kNone) co_return device_failure(error, Operation::kFlush);
    if (command.aborted) co_return Outcome{};
    // What others have changed meanwhile stays.
    decoded = decode_mode_list(command, std::span(list).first(byte_count));
  }
  if (!decoded) {
    Outcome outcome = decoded.error();
    outcome.data_out_bytes = byte_count;
    co_return outcome;
  }
  if (*decoded != modes_) {
    modes_ = *decoded;
    establish(UnitAttention::kModeParametersChanged, command.nexus_id);
  }
  co_return Outcome{.data_out_bytes = byte_count};
}

}  // namespace sandbay::scsi
