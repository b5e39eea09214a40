// The command table: everything a logical unit can do, one row per command. The checks of a
// CDB, the dispatch to its handler and REPORT SUPPORTED OPERATION CODES all read these rows, so
// a command is added by adding a row and its handler.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "block/block_device.h"
#include "scsi/counters.h"
#include "scsi/job.h"
#include "scsi/reservations.h"

namespace sandbay::scsi {

class LogicalUnit;
class Command;

// What a row says beyond its bytes. Flags add up.
struct CommandFlags {
  enum : std::uint16_t {
    kNone = 0,
    kHasServiceAction = 1 << 0,          // Byte 1, bits 4 to 0.
    kServesDespiteAttention = 1 << 1,    // Unit attentions neither stop it nor are cleared by it.
    kServesDespiteReservation = 1 << 2,  // RESERVE by another nexus does not stop it (SPC-2 5.5.1).
    kServesDespiteNotReady = 1 << 3,     // A stopped unit serves it.
    kWrites = 1 << 4,                    // Refused where the medium is write protected.
    kThinOnly = 1 << 5,                  // Not there on a fully provisioned unit.
    kUnmapBits = 1 << 6,                 // Byte 1 has UNMAP and ANCHOR, which a thin unit supports.
    // Under another's persistent reservation (SPC-4 5.12.1, SBC-3 4.15): allowed in any case;
    kOpen = 1 << 7,
    kAlters = 1 << 8,  // refused as writes are; others are refused where reads are.
    // Through a target port whose access state (SPC-4 5.15.2) is standby,
    kInStandby = 1 << 9,
    kInUnavailable = 1 << 10,  // or any.
    kSanitizes = 1 << 11,      // Served while a sanitize operation works, or after it has failed.
    kAtomicOnly = 1 << 12,     // Not there on a unit that does not offer atomic writes.
  };
};

struct CommandRow {
  std::uint8_t opcode = 0;
  std::uint8_t service_action = 0;
  std::uint8_t cdb_bytes = 0;
  CommandKind kind = CommandKind::kOther;
  std::uint16_t flags = CommandFlags::kNone;
  const char* name = "";
  // CDB USAGE DATA (SPC-4 6.35.3) from byte 1 on: the bits that the device server evaluates or
  // ignores; a bit that is set in a CDB and not here is an INVALID FIELD IN CDB.
  std::array<std::uint8_t, 15> usage{};
  Job (LogicalUnit::*handler)(Command& command) = nullptr;
  // For the command timeouts descriptor.
  std::uint32_t recommended_timeout_s = 30;

  bool is(std::uint16_t flag) const noexcept { return (flags & flag) != 0; }
};

inline constexpr std::uint8_t kNoRow = 0xFF;

std::span<const CommandRow> command_table();

// The row that serves this CDB, or null.
const CommandRow* find_command(std::span<const std::byte, 16> cdb);

bool is_operation_code(std::byte opcode);

// Whether a persistent reservation of another nexus forbids this command.
bool conflicts(const CommandRow& row, std::span<const std::byte, 16> cdb, ReservedRights rights);

// Whether it is served though persistent reservations are lost (SPC-4 5.13.5.2).
bool serves_despite_loss(const CommandRow* row, std::span<const std::byte, 16> cdb);

// The blocks that the CDB of a command with a row names; empty where it names none.
Extent blocks_named_by(const Command& command);

// The first bit that is set in the CDB and that the row does not know, for the field pointer.
struct CdbFault {
  std::uint16_t byte = 0;
  std::uint8_t bit = 0;
};
std::optional<CdbFault> find_cdb_fault(const CommandRow& row, std::span<const std::byte, 16> cdb,
                                       bool unmap_supported);

}  // namespace sandbay::scsi
