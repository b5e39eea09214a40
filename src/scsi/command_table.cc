// The rows of the command table and the index by operation code.
//
// Usage bytes follow SPC-4 6.35.3 and the CDB figures of SPC-4, SBC-3 and, for RESERVE and
// RELEASE, SPC-2. The CONTROL byte is zero throughout: NACA is refused (no ACA here).
#include "scsi/command_table.h"

#include <algorithm>
#include <cstring>

#include "scsi/logical_unit.h"

namespace sandbay::scsi {

namespace {

using Flag = CommandFlags;
using Usage = std::array<std::uint8_t, 15>;

constexpr auto kRead = CommandKind::kRead;
constexpr auto kWrite = CommandKind::kWrite;
constexpr auto kVerify = CommandKind::kVerify;
constexpr auto kFlush = CommandKind::kFlush;
constexpr auto kUnmap = CommandKind::kUnmap;
constexpr auto kOther = CommandKind::kOther;

// Served whatever the state of the unit is.
constexpr std::uint16_t kAlways = Flag::kServesDespiteAttention | Flag::kServesDespiteReservation |
                                  Flag::kServesDespiteNotReady | Flag::kOpen | Flag::kInUnavailable;
constexpr std::uint16_t kOpen = Flag::kOpen;
constexpr std::uint16_t kAlters = Flag::kAlters;
constexpr std::uint16_t kStopped = Flag::kServesDespiteNotReady;
constexpr std::uint16_t kFree =
    kStopped | Flag::kServesDespiteReservation | kOpen | Flag::kInStandby;
constexpr std::uint16_t kAction = Flag::kHasServiceAction;
constexpr std::uint16_t kReserves = kAction | kStopped | kOpen | Flag::kInStandby;
constexpr std::uint16_t kModes = kStopped | Flag::kInStandby;
constexpr std::uint16_t kOldReserves = kStopped | kOpen | Flag::kInStandby;
constexpr std::uint16_t kGroups = kAction | kStopped | Flag::kInUnavailable;
constexpr std::uint16_t kWrites = Flag::kWrites;
constexpr std::uint16_t kSame = Flag::kWrites | Flag::kUnmapBits;
constexpr std::uint16_t kThin = Flag::kWrites | Flag::kThinOnly;
constexpr std::uint16_t kErases = Flag::kHasServiceAction | Flag::kWrites | Flag::kSanitizes;
constexpr std::uint16_t kExitsFailure = Flag::kHasServiceAction | Flag::kAlters | Flag::kSanitizes;

// Byte 1 of CDBs that name blocks.
constexpr std::uint8_t kDpoFua = 0x1A;  // With FUA_NV, obsolete since SBC-3, as FUA.
constexpr std::uint8_t kCheck = 0x16;   // DPO and BYTCHK.
constexpr std::uint8_t kImmed = 0x02;
constexpr std::uint8_t kSync = 0x06;   // IMMED and SYNC_NV, obsolete and without effect.
constexpr std::uint8_t kGroup = 0x1F;  // GROUP NUMBER: accepted, and without effect.
constexpr std::uint8_t kAny = 0xFF;
constexpr std::uint32_t kADay = 24 * 60 * 60;
constexpr std::uint8_t kUnmapAndAnchor = 0x18;  // WRITE SAME.

// The common forms: flags, LBA, length and group number in CDBs of 10, 12 and 16 bytes.
constexpr Usage blocks_10(std::uint8_t flags) {
  return {flags, kAny, kAny, kAny, kAny, kGroup, kAny, kAny};
}
constexpr Usage blocks_12(std::uint8_t flags) {
  return {flags, kAny, kAny, kAny, kAny, kAny, kAny, kAny, kAny, kGroup};
}
constexpr Usage blocks_16(std::uint8_t flags, std::uint8_t last = kGroup) {
  return {flags, kAny, kAny, kAny, kAny, kAny, kAny, kAny, kAny, kAny, kAny, kAny, kAny, last};
}
constexpr Usage kCapacity10{0, kAny, kAny, kAny, kAny, 0, 0, 0x01};
constexpr Usage kUnmapUsage{0x01, 0, 0, 0, 0, kGroup, kAny, kAny};
constexpr Usage kReportOpcodes{0x1F, 0x87, kAny, kAny, kAny, kAny, kAny, kAny, kAny};
constexpr Usage kCompareAndWrite{kDpoFua, kAny, kAny, kAny, kAny, kAny, kAny,
                                 kAny,    kAny, 0,    0,    0,    kAny, kGroup};
constexpr Usage kReportGroups{kAny, 0, 0, 0, 0, kAny, kAny, kAny, kAny};
constexpr Usage kSetGroups{0x1F, 0, 0, 0, 0, kAny, kAny, kAny, kAny};
constexpr Usage kWriteAtomic{0x18, kAny, kAny, kAny, kAny, kAny, kAny,
                             kAny, kAny, 0,    0,    kAny, kAny, kGroup};
constexpr Usage kSanitize{0xBF, 0, 0, 0, 0, 0, kAny, kAny};
constexpr Usage kReserveIn{0x1F, 0, 0, 0, 0, 0, kAny, kAny};
constexpr Usage kReserveOut{0x1F, kAny, 0, 0, kAny, kAny, kAny, kAny};
constexpr Usage kReportTmfs{0x1F, 0x80, 0, 0, 0, kAny, kAny, kAny, kAny};

}  // namespace

// The only place outside LogicalUnit that names its handlers.
struct CommandHandlers {
  using Unit = LogicalUnit;
  using Row = CommandRow;

  // clang-format off
  static constexpr std::array kRows{
    Row{0x00, 0, 6, kOther, kOpen, "TEST UNIT READY", {}, &Unit::test_unit_ready},
    Row{0x03, 0, 6, kOther, kAlways, "REQUEST SENSE", {0x01, 0, 0, kAny}, &Unit::request_sense},
    Row{0x08, 0, 6, kRead, 0, "READ(6)", {0x1F, kAny, kAny, kAny}, &Unit::read},
    Row{0x0A, 0, 6, kWrite, kWrites, "WRITE(6)", {0x1F, kAny, kAny, kAny}, &Unit::write},
    Row{0x12, 0, 6, kOther, kAlways, "INQUIRY", {0x01, kAny, kAny, kAny}, &Unit::inquiry},
    Row{0x15, 0, 6, kOther, kModes | kAlters, "MODE SELECT(6)",
        {0x11, 0, 0, kAny}, &Unit::mode_select},
    Row{0x16, 0, 6, kOther, kOldReserves, "RESERVE(6)", {}, &Unit::reserve},
    Row{0x17, 0, 6, kOther, kFree, "RELEASE(6)", {}, &Unit::release},
    Row{0x1A, 0, 6, kOther, kModes, "MODE SENSE(6)", {0x08, kAny, kAny, kAny}, &Unit::mode_sense},
    Row{0x1B, 0, 6, kOther, kStopped | kAlters, "START STOP UNIT",
        {0x01, 0, 0x0F, 0xF7}, &Unit::start_stop_unit, 60},
    Row{0x1E, 0, 6, kOther, kStopped | kAlters, "PREVENT ALLOW MEDIUM REMOVAL",
        {0, 0, 0, 0x01}, &Unit::prevent_allow},
    Row{0x25, 0, 10, kOther, kOpen, "READ CAPACITY(10)", kCapacity10, &Unit::read_capacity_10},
    Row{0x28, 0, 10, kRead, 0, "READ(10)", blocks_10(kDpoFua), &Unit::read},
    Row{0x2A, 0, 10, kWrite, kWrites, "WRITE(10)", blocks_10(kDpoFua), &Unit::write},
    Row{0x2E, 0, 10, kWrite, kWrites, "WRITE AND VERIFY(10)",
        blocks_10(kCheck), &Unit::write_and_verify},
    Row{0x2F, 0, 10, kVerify, 0, "VERIFY(10)", blocks_10(kCheck), &Unit::verify},
    Row{0x34, 0, 10, kOther, 0, "PRE-FETCH(10)", blocks_10(kImmed), &Unit::prefetch},
    Row{0x35, 0, 10, kFlush, kAlters, "SYNCHRONIZE CACHE(10)",
        blocks_10(kSync), &Unit::synchronize_cache, 60},
    Row{0x37, 0, 10, kOther, 0, "READ DEFECT DATA(10)",
        {0, 0x1F, 0, 0, 0, 0, kAny, kAny}, &Unit::read_defect_data},
    Row{0x41, 0, 10, kWrite, kSame, "WRITE SAME(10)",
        blocks_10(kUnmapAndAnchor), &Unit::write_same, 60},
    Row{0x42, 0, 10, kUnmap, kThin, "UNMAP", kUnmapUsage, &Unit::unmap, 60},
    Row{0x48, 1, 10, kOther, kErases, "SANITIZE, OVERWRITE", kSanitize, &Unit::sanitize, kADay},
    Row{0x48, 2, 10, kOther, kErases | Flag::kThinOnly, "SANITIZE, BLOCK ERASE",
        kSanitize, &Unit::sanitize, kADay},
    Row{0x48, 0x1F, 10, kOther, kExitsFailure, "SANITIZE, EXIT FAILURE MODE",
        kSanitize, &Unit::sanitize},
    Row{0x55, 0, 10, kOther, kModes | kAlters, "MODE SELECT(10)",
        {0x11, 0, 0, 0, 0, 0, kAny, kAny}, &Unit::mode_select},
    Row{0x56, 0, 10, kOther, kOldReserves, "RESERVE(10)", {}, &Unit::reserve},
    Row{0x57, 0, 10, kOther, kFree, "RELEASE(10)", {}, &Unit::release},
    Row{0x5A, 0, 10, kOther, kModes, "MODE SENSE(10)",
        {0x18, kAny, kAny, 0, 0, 0, kAny, kAny}, &Unit::mode_sense},
    Row{0x5E, 0, 10, kOther, kReserves, "PERSISTENT RESERVE IN, READ KEYS",
        kReserveIn, &Unit::persistent_reserve_in},
    Row{0x5E, 1, 10, kOther, kReserves, "PERSISTENT RESERVE IN, READ RESERVATION",
        kReserveIn, &Unit::persistent_reserve_in},
    Row{0x5E, 2, 10, kOther, kReserves, "PERSISTENT RESERVE IN, REPORT CAPABILITIES",
        kReserveIn, &Unit::persistent_reserve_in},
    Row{0x5E, 3, 10, kOther, kReserves, "PERSISTENT RESERVE IN, READ FULL STATUS",
        kReserveIn, &Unit::persistent_reserve_in},
    Row{0x5F, 0, 10, kOther, kReserves, "PERSISTENT RESERVE OUT, REGISTER",
        kReserveOut, &Unit::persistent_reserve_out},
    Row{0x5F, 1, 10, kOther, kReserves, "PERSISTENT RESERVE OUT, RESERVE",
        kReserveOut, &Unit::persistent_reserve_out},
    Row{0x5F, 2, 10, kOther, kReserves, "PERSISTENT RESERVE OUT, RELEASE",
        kReserveOut, &Unit::persistent_reserve_out},
    Row{0x5F, 3, 10, kOther, kReserves, "PERSISTENT RESERVE OUT, CLEAR",
        kReserveOut, &Unit::persistent_reserve_out},
    Row{0x5F, 4, 10, kOther, kReserves, "PERSISTENT RESERVE OUT, PREEMPT",
        kReserveOut, &Unit::persistent_reserve_out},
    Row{0x5F, 5, 10, kOther, kReserves, "PERSISTENT RESERVE OUT, PREEMPT AND ABORT",
        kReserveOut, &Unit::persistent_reserve_out},
    Row{0x5F, 6, 10, kOther, kReserves,
        "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY",
        kReserveOut, &Unit::persistent_reserve_out},
    Row{0x5F, 7, 10, kOther, kReserves, "PERSISTENT RESERVE OUT, REGISTER AND MOVE",
        kReserveOut, &Unit::persistent_reserve_out},
    Row{0x5F, 8, 10, kOther, kReserves, "PERSISTENT RESERVE OUT, REPLACE LOST RESERVATION",
        kReserveOut, &Unit::persistent_reserve_out},
    Row{0x88, 0, 16, kRead, 0, "READ(16)", blocks_16(kDpoFua), &Unit::read},
    Row{0x89, 0, 16, kWrite, kWrites, "COMPARE AND WRITE", kCompareAndWrite,
        &Unit::compare_and_write},
    Row{0x8A, 0, 16, kWrite, kWrites, "WRITE(16)", blocks_16(kDpoFua), &Unit::write},
    Row{0x8B, 0, 16, kWrite, kWrites, "ORWRITE", blocks_16(kDpoFua), &Unit::or_write},
    Row{0x8E, 0, 16, kWrite, kWrites, "WRITE AND VERIFY(16)",
        blocks_16(kCheck), &Unit::write_and_verify},
    Row{0x8F, 0, 16, kVerify, 0, "VERIFY(16)", blocks_16(kCheck), &Unit::verify},
    Row{0x90, 0, 16, kOther, 0, "PRE-FETCH(16)", blocks_16(kImmed), &Unit::prefetch},
    Row{0x91, 0, 16, kFlush, kAlters, "SYNCHRONIZE CACHE(16)",
        blocks_16(kSync), &Unit::synchronize_cache, 60},
    Row{0x93, 0, 16, kWrite, kSame, "WRITE SAME(16)",
        blocks_16(kUnmapAndAnchor | 0x01), &Unit::write_same, 60},
    Row{0x9C, 0, 16, kWrite, kWrites | Flag::kAtomicOnly, "WRITE ATOMIC(16)",
        kWriteAtomic, &Unit::write_atomic},
    Row{0x9E, 0x10, 16, kOther, kAction | kOpen, "READ CAPACITY(16)",
        blocks_16(0x1F, 0x01), &Unit::read_capacity_16},
    Row{0x9E, 0x12, 16, kOther, kAction, "GET LBA STATUS",
        blocks_16(0x1F, 0), &Unit::get_lba_status},
    Row{0xA0, 0, 12, kOther, kAlways, "REPORT LUNS",
        {0, kAny, 0, 0, 0, kAny, kAny, kAny, kAny}, &Unit::report_luns},
    Row{0xA3, 0x0A, 12, kOther, kGroups | kOpen, "REPORT TARGET PORT GROUPS", kReportGroups,
        &Unit::report_target_port_groups},
    Row{0xA3, 0x0C, 12, kOther, kAction | kStopped, "REPORT SUPPORTED OPERATION CODES",
        kReportOpcodes, &Unit::report_supported_opcodes},
    Row{0xA3, 0x0D, 12, kOther, kAction | kStopped, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
        kReportTmfs, &Unit::report_supported_tmfs},
    Row{0xA4, 0x0A, 12, kOther, kGroups | kAlters, "SET TARGET PORT GROUPS", kSetGroups,
        &Unit::set_target_port_groups},
    Row{0xA8, 0, 12, kRead, 0, "READ(12)", blocks_12(kDpoFua), &Unit::read},
    Row{0xAA, 0, 12, kWrite, kWrites, "WRITE(12)", blocks_12(kDpoFua), &Unit::write},
    Row{0xAE, 0, 12, kWrite, kWrites, "WRITE AND VERIFY(12)",
        blocks_12(kCheck), &Unit::write_and_verify},
    Row{0xAF, 0, 12, kVerify, 0, "VERIFY(12)", blocks_12(kCheck), &Unit::verify},
    Row{0xB7, 0, 12, kOther, 0, "READ DEFECT DATA(12)",
        {0x1F, kAny, kAny, kAny, kAny, kAny, kAny, kAny, kAny}, &Unit::read_defect_data},
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

bool is_operation_code(std::byte opcode) {
  return kFirstRow[std::to_integer<std::uint8_t>(opcode)] != kNoRow;
}

bool conflicts(const CommandRow& row, std::span<const std::byte, 16> cdb, ReservedRights rights) {
  if (row.is(CommandFlags::kOpen)) return false;
  if (!row.is(CommandFlags::kWrites | CommandFlags::kAlters)) return !rights.reads;
  constexpr std::byte kStartStop{0x1B};
  constexpr std::byte kPreventAllow{0x1E};
  const unsigned last = std::to_integer<unsigned>(cdb[4]);
  // To start the unit without a power condition, and to allow removal, are open.
  const bool is_open = (cdb[0] == kStartStop && (last & 0xF1U) == 1) ||
                       (cdb[0] == kPreventAllow && (last & 0x01U) == 0);
  return !is_open && !rights.changes;
}

bool serves_despite_loss(const CommandRow* row, std::span<const std::byte, 16> cdb) {
  constexpr std::byte kStartStop{0x1B};
  // WRITE BUFFER, READ BUFFER and LOG SENSE, which are not there.
  constexpr std::array kUnoffered{std::byte{0x3B}, std::byte{0x3C}, std::byte{0x4D}};
  if (row == nullptr) return std::ranges::find(kUnoffered, cdb[0]) != kUnoffered.end();
  const bool starts = cdb[0] == kStartStop && (std::to_integer<unsigned>(cdb[4]) & 0xF1U) == 1;
  const bool replaces = row->opcode == 0x5F && row->service_action == 8;
  const bool reports_groups = row->opcode == 0xA3 && row->service_action == 0x0A;
  return starts || replaces || reports_groups || row->is(CommandFlags::kServesDespiteAttention);
}

std::optional<CdbFault> find_cdb_fault(const CommandRow& row, std::span<const std::byte, 16> cdb,
                                       bool unmap_supported) {
  for (std::size_t i = 1; i < row.cdb_bytes; ++i) {
    unsigned allowed = row.usage[i - 1];
    if (i == 1 && row.is(CommandFlags::kUnmapBits) && !unmap_supported) {
      allowed &= ~unsigned{kUnmapAndAnchor};
    }
    const unsigned wrong = std::to_integer<unsigned>(cdb[i]) & ~allowed & 0xFFU;
    if (wrong != 0) {
      return CdbFault{.byte = static_cast<std::uint16_t>(i),
                      .bit = static_cast<std::uint8_t>(std::bit_width(wrong) - 1)};
    }
  }
  return std::nullopt;
}

}  // namespace sandbay::scsi
