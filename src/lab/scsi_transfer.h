// The SCSI commands with which the generators move data, and what their results say. CDBs are those
// of SBC-3: READ (16) 88h, WRITE (16) 8Ah. Pure.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "iscsi/initiator.h"
#include "runtime/clock.h"

namespace sandbay::lab {

// A request whose result says nothing about it is sent again, so often; where the unit is busy,
// after so long.
inline constexpr std::uint32_t kMaximumTries = 64;
inline constexpr Duration kRetryDelay = std::chrono::milliseconds(5);

std::array<std::byte, 16> transfer_cdb(bool write, std::uint64_t lba, std::uint32_t blocks);

// Of a result that is not good, a few words.
std::string explain(const iscsi::ScsiResult& result);
// What says nothing about the request itself: it is to be sent again.
bool transient(const iscsi::ScsiResult& result);

}  // namespace sandbay::lab
