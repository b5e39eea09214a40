// The phrases for errors, and what errno means.

#include "runtime/error.h"

#include <cerrno>

namespace sandbay {

std::string_view describe(Error error) {
  switch (error) {
    case Error::kNone:
      return "no error";
    case Error::kCancelled:
      return "cancelled";
    case Error::kTimedOut:
      return "timed out";
    case Error::kClosed:
      return "closed";
    case Error::kReset:
      return "connection reset";
    case Error::kRefused:
      return "connection refused";
    case Error::kUnreachable:
      return "unreachable";
    case Error::kAddressInUse:
      return "address in use";
    case Error::kNoMemory:
      return "out of memory or descriptors";
    case Error::kNoSpace:
      return "no space left";
    case Error::kReadOnly:
      return "read-only";
    case Error::kPermission:
      return "permission denied";
    case Error::kNotFound:
      return "not found";
    case Error::kExists:
      return "exists already";
    case Error::kInvalid:
      return "invalid argument";
    case Error::kOutOfRange:
      return "beyond the end";
    case Error::kUnsupported:
      return "not supported";
    case Error::kNotReady:
      return "not ready";
    case Error::kMediumError:
      return "unreadable blocks";
    case Error::kHardware:
      return "input/output error";
    case Error::kMiscompare:
      return "data differ";
    case Error::kDataCorrupt:
      return "data corrupt";
  }
  return "unknown error";
}

Error error_from_errno(int value) {
  switch (value < 0 ? -value : value) {
    case 0:
      return Error::kNone;
    case ECANCELED:
    case EINTR:
      return Error::kCancelled;
    case ETIMEDOUT:
    case ETIME:
      return Error::kTimedOut;
    case EPIPE:
    case ESHUTDOWN:
    case EBADF:
      return Error::kClosed;
    case ECONNRESET:
    case ECONNABORTED:
      return Error::kReset;
    case ECONNREFUSED:
      return Error::kRefused;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EADDRNOTAVAIL:
      return Error::kUnreachable;
    case EADDRINUSE:
      return Error::kAddressInUse;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
      return Error::kNoMemory;
    case ENOSPC:
    case EDQUOT:
      return Error::kNoSpace;
    case EROFS:
      return Error::kReadOnly;
    case EACCES:
    case EPERM:
      return Error::kPermission;
    case ENOENT:
    case ENOTDIR:
    case ENXIO:
    case ENODEV:
      return Error::kNotFound;
    case EEXIST:
      return Error::kExists;
    case EISDIR:
    case EINVAL:
      return Error::kInvalid;
    case EFBIG:
    case ERANGE:
      return Error::kOutOfRange;
    case EOPNOTSUPP:
    case ENOSYS:
    case ENOTTY:
      return Error::kUnsupported;
    case EAGAIN:
    case EBUSY:
      return Error::kNotReady;
    case EILSEQ:
    case EBADMSG:
      return Error::kDataCorrupt;
    default:
      return Error::kHardware;
  }
}

}  // namespace sandbay
