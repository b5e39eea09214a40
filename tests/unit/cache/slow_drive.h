// SlowDrive: a layer with the time of a simple drive. Requests are served one after another, in the
// order in which they come; one that does not begin where the last one ended waits for the arm
// first, and every byte takes its time. A flush ends when all before it have.
//
// It knows nothing of zones, queues or caches; in virtual time it makes slow what is in memory.
#pragma once

#include <algorithm>

#include "block/layer.h"

namespace sandbay::testing {

struct SlowDriveOptions {
  Duration positioning = std::chrono::milliseconds(8);
  double bytes_per_second = 60e6;
};

class SlowDrive final : public Layer {
 public:
  SlowDrive(BlockDevice& below, SlowDriveOptions options)
      : Layer(below), options_(options), geometry_(below.geometry()) {
    geometry_.rotational = true;
  }
  const Geometry& geometry() const noexcept override { return geometry_; }

  std::uint64_t requests() const noexcept { return requests_; }
  std::uint64_t bytes() const noexcept { return bytes_; }

  Task<Completion> submit(Request request) override {
    if (request.operation == Operation::kAdvise)
      co_return co_await Layer::submit(std::move(request));
    const std::uint64_t byte_count = request.data.byte_count();
    Duration cost{};
    if (byte_count > 0) {
      ++requests_;
      bytes_ += byte_count;
      if (request.extent.first != position_) cost += options_.positioning;
      position_ = request.extent.end();
      const std::chrono::duration<double> transfer(static_cast<double>(byte_count) /
                                                   options_.bytes_per_second);
      cost += std::chrono::duration_cast<Duration>(transfer);
    }
    busy_until_ = std::max(busy_until_, home().now()) + cost;
    co_await home().sleep_until(busy_until_);
    co_return co_await Layer::submit(std::move(request));
  }

 private:
  SlowDriveOptions options_;
  Geometry geometry_;
  TimePoint busy_until_{};
  Lba position_ = 0;
  std::uint64_t requests_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace sandbay::testing
