// Puts a target in front of devices, and takes it away.
#include "lab/lab_target.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "iscsi/initiator.h"

namespace sandbay::lab {

std::map<std::string, std::string> session_keys(const model::ExchangeParameters& parameters,
                                                std::uint64_t segment) {
  const auto yes = [](bool value) { return std::string(value ? "Yes" : "No"); };
  return {{"InitialR2T", yes(parameters.initial_r2t)},
          {"ImmediateData", yes(parameters.immediate_data)},
          {"FirstBurstLength", std::to_string(parameters.first_burst)},
          {"MaxBurstLength", std::to_string(parameters.max_burst)},
          {"MaxOutstandingR2T", std::to_string(parameters.outstanding_r2ts)},
          {"MaxRecvDataSegmentLength", std::to_string(segment)},
          {"HeaderDigest", "None"},
          {"DataDigest", "None"}};
}

LabTarget::LabTarget() : router_(std::make_unique<scsi::TaskRouter>(Executor::current().peers())) {}

LabTarget::~LabTarget() { assert(router_ == nullptr); }

Task<std::string> LabTarget::add_unit(BlockDevice* device) {
  const auto number = static_cast<std::uint32_t>(units_.size());
  scsi::LogicalUnitOptions options{.product = "LAB", .thin = false};
  for (std::size_t i = 0; i < sizeof number; ++i) {
    options.uuid[i] = static_cast<std::uint8_t>(number >> 8 * i);
  }
  units_.push_back(std::make_unique<scsi::LogicalUnit>(*device, options));
  const Error error = co_await router_->add(number, units_.back().get());
  if (error == Error::kNone) co_return std::string();
  co_return fmt::format("logical unit {}: {}", number, describe(error));
}

Task<std::string> LabTarget::listen(Endpoint at, iscsi::TargetOptions options,
                                    iscsi::ServerLimits limits) {
  // A session for each unit, as wide as ours are at most.
  const auto sessions = static_cast<std::uint32_t>(units_.size());
  options.maximum_sessions = std::max(options.maximum_sessions, sessions);
  limits.maximum_connections =
      std::max(limits.maximum_connections, sessions * iscsi::kMaximumInitiatorConnections);
  server_ = iscsi::TargetServer::create(limits);
  options.name = kLabTarget;
  options.device = router_.get();
  options.access = {iscsi::AccessRecord{}};
  std::string message;
  const Error made = co_await server_->add_target(std::move(options), &message);
  if (made != Error::kNone) co_return message;
  const auto portal = server_->add_portal({.listen = at});
  if (!portal) co_return fmt::format("no port on {}: {}", at.address(), describe(portal.error()));
  endpoint_ = *portal;
  co_return std::string();
}

Task<void> LabTarget::stop() {
  if (server_ != nullptr) co_await server_->shutdown();
  server_.reset();
  for (std::size_t i = 0; i < units_.size(); ++i) {
    co_await router_->remove(static_cast<std::uint32_t>(i));
    const bool closed = co_await units_[i]->close(kNever);
    assert(closed);
    (void)closed;
  }
  units_.clear();
  co_await router_->close();
  router_.reset();
}

}  // namespace sandbay::lab
