// Puts a target in front of an array, and takes both apart.
#include "lab/live_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>

namespace sandbay::lab {
namespace {

constexpr std::uint32_t kLeastQueueDepth = 128;
constexpr std::uint32_t kLoopback = 0x7F000001;

bool waits_of_itself(const VolumeGroup& group) {
  return std::ranges::any_of(group.access.lines,
                             [](const AccessLine& line) { return line.delay > Duration{}; });
}

}  // namespace

std::map<std::string, std::string> session_keys(const model::ExchangeParameters& parameters,
                                                std::uint64_t segment) {
  const auto yes = [](bool value) { return std::string(value ? "Yes" : "No"); };
  return {{"InitialR2T", yes(parameters.initial_r2t)},
          {"ImmediateData", yes(parameters.immediate_data)},
          {"FirstBurstLength", std::to_string(parameters.first_burst)},
          {"MaxBurstLength", std::to_string(parameters.max_burst)},
          {"MaxOutstandingR2T", std::to_string(parameters.outstanding_r2ts)},
          {"MaxRecvDataSegmentLength", std::to_string(segment)}};
}

LiveSystem::LiveSystem(const ArrayProfile& profile, unsigned members, std::uint64_t seed,
                       double time_scale)
    : home_(Executor::current()),
      array_(home_, profile, members, seed,
             {.time_scale = time_scale, .lag = model::ModelClock::kUsualLag}) {}

LiveSystem::~LiveSystem() { assert(server_ == nullptr && units_.empty()); }

Task<std::string> LiveSystem::start(std::vector<VolumeGroup> groups) {
  std::string wrong = co_await array_.start(groups);
  router_ = std::make_unique<scsi::TaskRouter>(home_.peers());
  if (wrong.empty()) wrong = co_await add_units(&groups);
  std::uint32_t queue_depth = kLeastQueueDepth;
  for (const VolumeGroup& group : groups) queue_depth = std::max(queue_depth, group.requests());
  if (wrong.empty()) wrong = co_await listen(queue_depth);
  co_return wrong;
}

Task<std::string> LiveSystem::add_units(const std::vector<VolumeGroup>* groups) {
  // What is as little of the models' time, however far that is stretched.
  const auto lag = std::chrono::duration_cast<Duration>(model::ModelClock::kUsualLag *
                                                        array_.clock().time_scale());
  for (VirtualVolume& volume : array_.volumes()) {
    const auto number = static_cast<std::uint32_t>(units_.size());
    const bool pauses = waits_of_itself((*groups)[volume.group]);
    Unit unit;
    unit.device = std::make_unique<LiveVolume>(array_, volume, pauses ? Duration{} : lag);
    scsi::LogicalUnitOptions options{.product = "LAB", .thin = false};
    for (std::size_t i = 0; i < sizeof number; ++i) {
      options.uuid[i] = static_cast<std::uint8_t>(number >> 8 * i);
    }
    unit.unit = std::make_unique<scsi::LogicalUnit>(*unit.device, options);
    units_.push_back(std::move(unit));
    const Error error = co_await router_->add(number, units_.back().unit.get());
    if (error != Error::kNone) {
      co_return fmt::format("logical unit {}: {}", number, describe(error));
    }
  }
  co_return std::string();
}

Task<std::string> LiveSystem::listen(std::uint32_t queue_depth) {
  const model::ExchangeParameters& session = array_.profile().exchange;
  server_ = iscsi::TargetServer::create({});
  std::string message;
  const Error made =
      co_await server_->add_target({.name = kLiveTarget,
                                    .device = router_.get(),
                                    .access = {iscsi::AccessRecord{}},
                                    .keys = session_keys(session, session.target_segment),
                                    .queue_depth = queue_depth},
                                   &message);
  if (made != Error::kNone) co_return message;
  const auto portal = server_->add_portal({.listen = Endpoint::ipv4(kLoopback, 0)});
  if (!portal) co_return fmt::format("no port on 127.0.0.1: {}", describe(portal.error()));
  endpoint_ = *portal;
  co_return std::string();
}

Task<void> LiveSystem::stop() {
  if (server_ != nullptr) co_await server_->shutdown();
  server_.reset();
  for (std::size_t i = 0; i < units_.size(); ++i) {
    co_await router_->remove(static_cast<std::uint32_t>(i));
    const bool closed = co_await units_[i].unit->close(kNever);
    assert(closed);
    (void)closed;
  }
  if (router_ != nullptr) co_await router_->close();
  router_.reset();
  units_.clear();
  co_await array_.stop();
}

void LiveSystem::measure(TimePoint from, TimePoint until) {
  const model::ModelClock& clock = array_.clock();
  for (const Unit& unit : units_) unit.device->measure(clock.modelled(from), clock.modelled(until));
}

LayerTimes LiveSystem::layers() const {
  LayerTimes sum;
  for (const Unit& unit : units_) sum.add(unit.device->layers());
  return sum;
}

}  // namespace sandbay::lab
