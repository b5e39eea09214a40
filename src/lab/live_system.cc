// Puts a target in front of an array, and takes both apart.
#include "lab/live_system.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sandbay::lab {
namespace {

// Nearly all timers of reactors are less late.
constexpr Duration kUsualLag = std::chrono::milliseconds(1);
constexpr std::uint32_t kLoopback = 0x7F000001;

bool waits_of_itself(const VolumeGroup& group) {
  return std::ranges::any_of(group.access.lines,
                             [](const AccessLine& line) { return line.delay > Duration{}; });
}

}  // namespace

LiveSystem::LiveSystem(const ArrayProfile& profile, unsigned members, std::uint64_t seed,
                       double time_scale)
    : home_(Executor::current()), array_(home_, profile, members, seed, time_scale) {}

LiveSystem::~LiveSystem() { assert(target_ == nullptr); }

Task<std::string> LiveSystem::start(std::vector<VolumeGroup> groups) {
  std::string wrong = co_await array_.start(groups);
  target_ = std::make_unique<LabTarget>();
  if (wrong.empty()) wrong = co_await add_units(&groups);
  const model::ExchangeParameters& session = array_.profile().exchange;
  iscsi::TargetOptions options;
  options.keys = session_keys(session, session.target_segment);
  for (const VolumeGroup& group : groups) {
    options.queue_depth = std::max(options.queue_depth, group.requests());
  }
  if (wrong.empty()) {
    wrong = co_await target_->listen(Endpoint::ipv4(kLoopback, 0), std::move(options), {});
  }
  co_return wrong;
}

Task<std::string> LiveSystem::add_units(const std::vector<VolumeGroup>* groups) {
  // What is as little of the models' time, however far that is stretched.
  const Duration lag = array_.clock().real(kUsualLag);
  for (VirtualVolume& volume : array_.volumes()) {
    const bool pauses = waits_of_itself((*groups)[volume.group]);
    volumes_.push_back(std::make_unique<LiveVolume>(array_, volume, pauses ? Duration{} : lag));
    std::string wrong = co_await target_->add_unit(volumes_.back().get());
    if (!wrong.empty()) co_return wrong;
  }
  co_return std::string();
}

Task<void> LiveSystem::stop() {
  if (target_ != nullptr) co_await target_->stop();
  target_.reset();
  volumes_.clear();
  co_await array_.stop();
}

void LiveSystem::measure(TimePoint from, TimePoint until) {
  const model::ModelClock& clock = array_.clock();
  for (const auto& volume : volumes_) volume->measure(clock.modelled(from), clock.modelled(until));
}

LayerTimes LiveSystem::layers() const {
  LayerTimes sum;
  for (const auto& volume : volumes_) sum.add(volume->layers());
  return sum;
}

}  // namespace sandbay::lab
