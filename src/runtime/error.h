// Error: every way in which an operation can fail without anybody having made a mistake in the
// code. Errors are values; bugs are assertions. No exception crosses a coroutine.
//
// One enumeration serves files, sockets and block devices, so that a layer passes an error on
// without translating it; SCSI sense and iSCSI reasons are chosen once, at the top.
#pragma once

#include <cstdint>
#include <expected>
#include <string_view>

namespace sandbay {

enum class Error : std::uint8_t {
  kNone,
  kCancelled,    // The operation's Cancellation fired before it took effect, or while it ran.
  kTimedOut,     // A deadline passed.
  kClosed,       // The object (stream, pool, gate) is closed; a peer closed in an orderly way.
  kReset,        // The peer or the network broke the connection.
  kRefused,      // Nobody listens there.
  kUnreachable,  // No route, no such host.
  kAddressInUse,
  kNoMemory,     // A limit on memory or descriptors was reached.
  kNoSpace,      // The medium below is full.
  kReadOnly,     // The medium does not accept writes.
  kPermission,   // The operating system denied access.
  kNotFound,     // No such file, key or object.
  kExists,       // It exists already.
  kInvalid,      // The arguments cannot be served (alignment, size, format).
  kOutOfRange,   // An address beyond the end.
  kUnsupported,  // The device or the kernel does not know the operation.
  kNotReady,     // The device is there but cannot serve now.
  kMediumError,  // Blocks that cannot be read; Completion::first_bad_lba says which is the first.
  kHardware,     // Any other failure of the device (EIO).
  kMiscompare,   // Compared data differ.
  kDataCorrupt,  // A checksum did not match.
};

template <class T, class E = Error>
using Result = std::expected<T, E>;

// A short lower-case English phrase for messages, e.g. "no space left".
std::string_view describe(Error error);

// Translates errno (positive) or a negated errno.
Error error_from_errno(int value);

}  // namespace sandbay
