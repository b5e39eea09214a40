// Misbehaviour: what an initiator connection does wrong on request, so that tests can see how a
// target takes it. Plain data: a list of deviations, each with the PDU at which it happens.
//
// PDUs are counted per connection from 1, from the first one of the full feature phase, over
// everything that is sent (commands, Data-Outs, NOP-Outs …), reconnections included.
#pragma once

#include <cstdint>

#include "runtime/clock.h"

namespace sandbay::iscsi {

struct Misbehaviour {
  enum class Kind : std::uint8_t {
    kCorruptHeaderDigest,  // Only with header digests.
    kCorruptDataDigest,    // Only PDUs with data, with data digests.
    kWrongDataSn,          // Data-Out: DataSN plus `value` (1 if 0).
    kWrongBufferOffset,    // Data-Out: offset plus `value` (4 if 0).
    kWrongTransferTag,     // Data-Out: the tag's complement.
    kDuplicate,            // Sent twice.
    kSkipCmdSn,            // Dropped: its CmdSN never arrives.
    kWithholdDataOut,      // Data-Out: never sent.
    kBadOpcode,            // A reserved opcode instead of its own.
    kGarbage,              // `value` (48 if 0) bytes of noise before it.
    kTruncate,             // Half of its header, then the connection ends.
    kDrop,                 // The connection is reset instead of sending it.
    kDelay,                // This and everything behind it waits for `delay`.
    kHoldBack,             // Sent only after the next `value` (1 if 0) PDUs of this connection.
    kStopReading,          // From here on nothing is received any more.
  };
  Kind kind = Kind::kDrop;
  std::uint64_t at_pdu = 1;  // The first PDU concerned…
  std::uint64_t count = 1;   // … and how many matching ones from there on.
  std::uint32_t value = 0;
  Duration delay{};
};

}  // namespace sandbay::iscsi
