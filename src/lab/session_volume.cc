// The array's part of a request's way.
#include "lab/session_volume.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sandbay::lab {

Task<Completion> SessionVolume::submit(Request request) {
  const bool write = request.operation == Operation::kWrite;
  if (!write && request.operation != Operation::kRead) {
    Completion completion = co_await volume_.device->submit(std::move(request));
    co_return completion;
  }
  Executor& executor = home();
  model::Controller& controller = *volume_.controller;
  const std::uint64_t bytes = request.data.byte_count();
  Done done{.extent = request.extent, .write = write, .served = {.carried = executor.now()}};
  done.served.accepted = controller.accept(write, bytes, done.served.carried);
  co_await executor.sleep_until(done.served.accepted);

  // The array has no use for content.
  BufferList payload = std::exchange(request.data, array_.payloads().try_allocate(bytes));
  assert(!request.data.empty());
  Completion completion = co_await volume_.device->submit(std::move(request));
  completion.data = std::move(payload);
  done.served.done = executor.now();
  done.served.answered = controller.answer(write, bytes, done.served.done);
  co_await executor.sleep_until(done.served.answered);
  done_.push_back(done);
  co_return completion;
}

std::optional<ServedRequest> SessionVolume::take(const Access& access) {
  const Extent whole{.first = access.offset / kAccessSectorBytes,
                     .block_count = access.bytes / kAccessSectorBytes};
  std::optional<ServedRequest> all;
  for (Lba at = whole.first; at < whole.end();) {
    const auto piece = std::ranges::find_if(done_, [&](const Done& each) {
      return each.extent.first == at && each.extent.end() <= whole.end() &&
             each.write != access.read;
    });
    if (piece == done_.end()) return std::nullopt;
    const ServedRequest& served = piece->served;
    if (!all) {
      all = served;
    } else {
      all->done = std::max(all->done, served.done);
      all->answered = std::max(all->answered, served.answered);
    }
    at = piece->extent.end();
    done_.erase(piece);
  }
  return all;
}

}  // namespace sandbay::lab
