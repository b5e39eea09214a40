// The rows of the command table and the index by operation code.
//
// Usage bytes follow SPC-4 6.35.3 and the CDB figures of SPC-4, SBC-3 and, for RESERVE and
// RELEASE, SPC-2. The CONTROL byte is zero throughout: NACA is refused (no ACA here).
#include "scsi/command_table.h"

#include <cstring>

#include "scsi/logical_unit.h"

namespace sandbay::scsi {

// The only place outside LogicalUnit that names its handlers.
struct CommandHandlers {
  using Unit = LogicalUnit;
  using Flag = CommandFlags;
  static constexpr auto kRead = CommandKind::kRead;
  static constexpr auto kWrite = CommandKind::kWrite;
  static constexpr auto kVerify = CommandKind::kVerify;
  static constexpr auto kFlush = CommandKind::kFlush;
  static constexpr auto kUnmap = CommandKind::kUnmap;
  static constexpr auto kOther = CommandKind::kOther;
  // Served whatever the state of the unit is.
  static constexpr std::uint16_t kAlways = Flag::kServesDespiteAttention |
                                           Flag::kServesDespiteReservation |
                                           Flag::kServesDespiteNotReady;
  static constexpr std::uint16_t kAction = Flag::kHasServiceAction;
  static constexpr std::uint16_t kStopped = Flag::kServesDespiteNotReady;
  static constexpr std::uint16_t kFree = Flag::kServesDespiteReservation;

  // Flag and usage bytes that come again and again.
  static constexpr std::uint8_t kDpoFua = 0x1A;  // With FUA_NV, obsolete since SBC-3, as FUA.
  static constexpr std::uint8_t kDpo = 0x10;
  static constexpr std::uint8_t kDpoBytchk = 0x16;
  static constexpr std::uint8_t kGroup = 0x1F;  // GROUP NUMBER: accepted, and without effect.
  static constexpr std::uint8_t FF = 0xFF;

  // clang-format off
  static constexpr std::array kRows{
    CommandRow{0x00, 0, 6, kOther, 0, "TEST UNIT READY", {}, &Unit::test_unit_ready},
    CommandRow{0x03, 0, 6, kOther, kAlways, "REQUEST SENSE", {0x01, 0, 0, FF}, &Unit::request_sense},
    CommandRow{0x08, 0, 6, kRead, 0, "READ(6)", {0x1F, FF, FF, FF}, &Unit::read},
    CommandRow{0x0A, 0, 6, kWrite, Flag::kWrites, "WRITE(6)", {0x1F, FF, FF, FF}, &Unit::write},
    CommandRow{0x12, 0, 6, kOther, kAlways, "INQUIRY", {0x01, FF, FF, FF}, &Unit::inquiry},
    CommandRow{0x15, 0, 6, kOther, kStopped, "MODE SELECT(6)", {0x11, 0, 0, FF}, &Unit::mode_select},
    CommandRow{0x16, 0, 6, kOther, kStopped, "RESERVE(6)", {}, &Unit::reserve},
    CommandRow{0x17, 0, 6, kOther, kStopped | kFree, "RELEASE(6)", {}, &Unit::release},
    CommandRow{0x1A, 0, 6, kOther, kStopped, "MODE SENSE(6)", {0x08, FF, FF, FF}, &Unit::mode_sense},
    CommandRow{0x1B, 0, 6, kOther, kStopped, "START STOP UNIT", {0x01, 0, 0x0F, 0xF7}, &Unit::start_stop_unit, 60},
    CommandRow{0x1E, 0, 6, kOther, kStopped, "PREVENT ALLOW MEDIUM REMOVAL", {0, 0, 0, 0x01}, &Unit::prevent_allow},
    CommandRow{0x25, 0, 10, kOther, 0, "READ CAPACITY(10)", {0, FF, FF, FF, FF, 0, 0, 0x01}, &Unit::read_capacity_10},
    CommandRow{0x28, 0, 10, kRead, 0, "READ(10)", {kDpoFua, FF, FF, FF, FF, kGroup, FF, FF}, &Unit::read},
    CommandRow{0x2A, 0, 10, kWrite, Flag::kWrites, "WRITE(10)", {kDpoFua, FF, FF, FF, FF, kGroup, FF, FF}, &Unit::write},
    CommandRow{0x2E, 0, 10, kWrite, Flag::kWrites, "WRITE AND VERIFY(10)", {kDpoBytchk, FF, FF, FF, FF, kGroup, FF, FF}, &Unit::write_and_verify},
    CommandRow{0x2F, 0, 10, kVerify, 0, "VERIFY(10)", {kDpoBytchk, FF, FF, FF, FF, kGroup, FF, FF}, &Unit::verify},
    CommandRow{0x34, 0, 10, kOther, 0, "PRE-FETCH(10)", {0x02, FF, FF, FF, FF, kGroup, FF, FF}, &Unit::prefetch},
    CommandRow{0x35, 0, 10, kFlush, 0, "SYNCHRONIZE CACHE(10)", {0x06, FF, FF, FF, FF, kGroup, FF, FF}, &Unit::synchronize_cache, 60},
    CommandRow{0x41, 0, 10, kWrite, Flag::kWrites | Flag::kUnmapBit, "WRITE SAME(10)", {0x08, FF, FF, FF, FF, kGroup, FF, FF}, &Unit::write_same, 60},
    CommandRow{0x42, 0, 10, kUnmap, Flag::kWrites | Flag::kThinOnly, "UNMAP", {0, 0, 0, 0, 0, kGroup, FF, FF}, &Unit::unmap, 60},
    CommandRow{0x55, 0, 10, kOther, kStopped, "MODE SELECT(10)", {0x11, 0, 0, 0, 0, 0, FF, FF}, &Unit::mode_select},
    CommandRow{0x56, 0, 10, kOther, kStopped, "RESERVE(10)", {}, &Unit::reserve},
    CommandRow{0x57, 0, 10, kOther, kStopped | kFree, "RELEASE(10)", {}, &Unit::release},
    CommandRow{0x5A, 0, 10, kOther, kStopped, "MODE SENSE(10)", {0x18, FF, FF, 0, 0, 0, FF, FF}, &Unit::mode_sense},
    CommandRow{0x88, 0, 16, kRead, 0, "READ(16)", {kDpoFua, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, kGroup}, &Unit::read},
    CommandRow{0x8A, 0, 16, kWrite, Flag::kWrites, "WRITE(16)", {kDpoFua, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, kGroup}, &Unit::write},
    CommandRow{0x8E, 0, 16, kWrite, Flag::kWrites, "WRITE AND VERIFY(16)", {kDpoBytchk, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, kGroup}, &Unit::write_and_verify},
    CommandRow{0x8F, 0, 16, kVerify, 0, "VERIFY(16)", {kDpoBytchk, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, kGroup}, &Unit::verify},
    CommandRow{0x90, 0, 16, kOther, 0, "PRE-FETCH(16)", {0x02, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, kGroup}, &Unit::prefetch},
    CommandRow{0x91, 0, 16, kFlush, 0, "SYNCHRONIZE CACHE(16)", {0x06, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, kGroup}, &Unit::synchronize_cache, 60},
    CommandRow{0x93, 0, 16, kWrite, Flag::kWrites | Flag::kUnmapBit, "WRITE SAME(16)", {0x09, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, kGroup}, &Unit::write_same, 60},
    CommandRow{0x9E, 0x10, 16, kOther, kAction, "READ CAPACITY(16)", {0x1F, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0x01}, &Unit::read_capacity_16},
    CommandRow{0x9E, 0x12, 16, kOther, kAction, "GET LBA STATUS", {0x1F, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF}, &Unit::get_lba_status},
    CommandRow{0xA0, 0, 12, kOther, kAlways, "REPORT LUNS", {0, FF, 0, 0, 0, FF, FF, FF, FF}, &Unit::report_luns},
    CommandRow{0xA3, 0x0C, 12, kOther, kAction | kStopped, "REPORT SUPPORTED OPERATION CODES", {0x1F, 0x87, FF, FF, FF, FF, FF, FF, FF}, &Unit::report_supported_opcodes},
    CommandRow{0xA3, 0x0D, 12, kOther, kAction | kStopped, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", {0x1F, 0x80, 0, 0, 0, FF, FF, FF, FF}, &Unit::report_supported_tmfs},
    CommandRow{0xA8, 0, 12, kRead, 0, "READ(12)", {kDpoFua, FF, FF, FF, FF, FF, FF, FF, FF, kGroup}, &Unit::read},
    CommandRow{0xAA, 0, 12, kWrite, Flag::kWrites, "WRITE(12)", {kDpoFua, FF, FF, FF, FF, FF, FF, FF, FF, kGroup}, &Unit::write},
    CommandRow{0xAE, 0, 12, kWrite, Flag::kWrites, "WRITE AND VERIFY(12)", {kDpoBytchk, FF, FF, FF, FF, FF, FF, FF, FF, kGroup}, &Unit::write_and_verify},
    CommandRow{0xAF, 0, 12, kVerify, 0, "VERIFY(12)", {kDpoBytchk, FF, FF, FF, FF, FF, FF, FF, FF, kGroup}, &Unit::verify},
  };
  // clang-format on

  static_assert(kRows.size() < kNoRow);
};

namespace {

// By operation code: the first of its rows, which stand together. Row numbers fit a byte.
constexpr auto kFirstRow = [] {
  std::array<std::uint8_t, 256> first{};
  first.fill(kNoRow);
  for (std::size_t i = CommandHandlers::kRows.size(); i-- > 0;) {
    first[CommandHandlers::kRows[i].opcode] = static_cast<std::uint8_t>(i);
  }
  return first;
}();

}  // namespace

std::span<const CommandRow> command_table() { return CommandHandlers::kRows; }

const CommandRow* find_command(std::span<const std::byte, 16> cdb) {
  const auto opcode = std::to_integer<std::uint8_t>(cdb[0]);
  std::size_t index = kFirstRow[opcode];
  if (index == kNoRow) return nullptr;
  const auto& rows = CommandHandlers::kRows;
  if (!rows[index].is(CommandFlags::kHasServiceAction)) return &rows[index];
  const auto action = std::to_integer<std::uint8_t>(cdb[1]) & 0x1FU;
  for (; index < rows.size() && rows[index].opcode == opcode; ++index) {
    if (rows[index].service_action == action) return &rows[index];
  }
  return nullptr;
}

std::optional<CdbFault> find_cdb_fault(const CommandRow& row, std::span<const std::byte, 16> cdb,
                                       bool unmap_supported) {
  for (std::size_t i = 1; i < row.cdb_bytes; ++i) {
    unsigned allowed = row.usage[i - 1];
    if (i == 1 && row.is(CommandFlags::kUnmapBit) && !unmap_supported) allowed &= ~0x08U;
    const unsigned wrong = std::to_integer<unsigned>(cdb[i]) & ~allowed & 0xFFU;
    if (wrong != 0) {
      return CdbFault{.byte = static_cast<std::uint16_t>(i),
                      .bit = static_cast<std::uint8_t>(std::bit_width(wrong) - 1)};
    }
  }
  return std::nullopt;
}

}  // namespace sandbay::scsi
