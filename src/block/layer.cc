// Layer: sorts requests by operation, so that a layer overrides only what it changes.
// Nothing here is a coroutine: the task of the device below is handed up as it is, and a stack of
// layers that change nothing costs a few calls.
#include "block/layer.h"

#include <utility>

namespace sandbay {

Task<Completion> Layer::submit(Request request) {
  switch (request.operation) {
    case Operation::kRead:
      return read(std::move(request));
    case Operation::kWrite:
      return write(std::move(request));
    case Operation::kFlush:
      return flush(std::move(request));
    case Operation::kUnmap:
      return unmap(std::move(request));
    case Operation::kWriteZeroes:
      return write_zeroes(std::move(request));
    case Operation::kAdvise:
      return advise(std::move(request));
  }
  assert(false && "unknown operation");
  __builtin_unreachable();
}

}  // namespace sandbay
