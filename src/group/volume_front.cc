// A flush passes an offline volume, too: what was written before may have to be made safe.
#include "group/volume_front.h"

#include <utility>

namespace sandbay::group {

namespace {

bool changes(Operation operation) noexcept {
  return operation == Operation::kWrite || operation == Operation::kUnmap ||
         operation == Operation::kWriteZeroes;
}

}  // namespace

const Geometry& VolumeFront::geometry() const noexcept {
  if (writes_) return below().geometry();
  geometry_ = below().geometry();
  geometry_.read_only = true;
  return geometry_;
}

Task<Completion> VolumeFront::submit(Request request) {
  if (!online_ && request.operation != Operation::kFlush) {
    return refuse(std::move(request), Error::kNotReady);
  }
  if (!writes_ && changes(request.operation)) return refuse(std::move(request), Error::kReadOnly);
  if (request.volume == 0) request.volume = volume_;
  return below().submit(std::move(request));
}

Task<Result<ProvisioningRun>> VolumeFront::provisioning(Lba first, Lba limit) {
  return online_ ? below().provisioning(first, limit) : unknown();
}

Task<Completion> VolumeFront::refuse(Request request, Error error) {
  co_return Completion{.error = error, .data = std::move(request.data)};
}

Task<Result<ProvisioningRun>> VolumeFront::unknown() {
  co_return std::unexpected(Error::kNotReady);
}

}  // namespace sandbay::group
