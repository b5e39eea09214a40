// The array's part of a request's way.
#include "lab/session_volume.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sandbay::lab {

Task<Completion> SessionVolume::submit(Request request) {
  const bool write = request.operation == Operation::kWrite;
  if (!write && request.operation != Operation::kRead) {
    co_return co_await volume_.device->submit(std::move(request));
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

// Of those that begin at `at` and end within the request, the longest: a shorter one there may be
// another's.
std::size_t SessionVolume::longest_from(Lba at, Lba end, bool write) const {
  std::size_t best = done_.size();
  for (std::size_t i = 0; i < done_.size(); ++i) {
    const Done& each = done_[i];
    if (each.extent.first != at || each.extent.end() > end || each.write != write) continue;
    if (best == done_.size() || each.extent.end() > done_[best].extent.end()) best = i;
  }
  return best;
}

std::optional<ServedRequest> SessionVolume::take(const Access& access) {
  const Extent whole{.first = access.offset / kAccessSectorBytes,
                     .block_count = access.bytes / kAccessSectorBytes};
  std::optional<ServedRequest> all;
  std::vector<std::size_t> pieces;
  for (Lba at = whole.first; at < whole.end(); at = done_[pieces.back()].extent.end()) {
    pieces.push_back(longest_from(at, whole.end(), !access.read));
    if (pieces.back() == done_.size()) return std::nullopt;
    const ServedRequest& served = done_[pieces.back()].served;
    if (!all) all = served;
    all->done = std::max(all->done, served.done);
    all->answered = std::max(all->answered, served.answered);
  }
  std::ranges::sort(pieces, std::ranges::greater());
  for (const std::size_t piece : pieces) {
    done_.erase(done_.begin() + static_cast<std::ptrdiff_t>(piece));
  }
  return all;
}

}  // namespace sandbay::lab
