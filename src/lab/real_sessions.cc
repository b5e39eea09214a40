// Logs in, transfers, logs out.
#include "lab/real_sessions.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "iscsi/initiator_url.h"
#include "iscsi/remote_questions.h"
#include "lab/scsi_transfer.h"
#include "runtime/known.h"

namespace sandbay::lab {
namespace {

constexpr std::uint16_t kIscsiPort = 3260;
// 10.0.0.1 and those behind it, one for each connection.
constexpr std::uint32_t kFirstAddress = 0x0A000001;
// Limits only. No window of TCP's is to be noticed.
constexpr std::size_t kSessionMemory = std::size_t{8} << 30;
constexpr std::size_t kWindowBytes = std::size_t{1} << 30;

}  // namespace

sim::WorldOptions world_with_sessions(std::uint64_t seed) {
  return {.seed = seed,
          .memory_limit_bytes = kSessionMemory,
          .link = {.delay_least = Duration{},
                   .delay_most = Duration{},
                   .buffer_bytes = kWindowBytes,
                   .fragment = false}};
}

ArrayProfile profile_with_sessions(ArrayProfile profile) {
  profile.port.pdu_header = 0;
  return profile;
}

RealSessions::RealSessions(sim::World& world, VirtualArray& array)
    : home_(array.home()), world_(world), array_(array) {}

RealSessions::~RealSessions() { assert(workers_.empty()); }

Task<std::string> RealSessions::start(std::vector<VolumeGroup> groups) {
  const ArrayProfile& profile = array_.profile();
  iscsi::TargetOptions options;
  options.keys = session_keys(profile.exchange, profile.exchange.target_segment);
  std::uint64_t largest = 0;
  // In the models' session the data also wait for the host; here the R2T does.
  options.pace = profile.pace;
  options.pace.turnaround += profile.exchange.host_turnaround;
  for (const VolumeGroup& group : groups) {
    options.queue_depth = std::max(options.queue_depth, group.requests());
    largest = std::max(largest, std::ranges::max(group.access.lines, {}, &AccessLine::bytes).bytes);
  }
  payload_ = co_await home_.buffers().allocate(largest);
  payload_.fill_zero();
  std::string wrong;
  for (VirtualVolume& volume : array_.volumes()) {
    Worker worker{.volume = &volume, .device = std::make_unique<SessionVolume>(array_, volume)};
    worker.number = static_cast<std::uint32_t>(workers_.size());
    if (wrong.empty()) wrong = co_await target_.add_unit(worker.device.get());
    workers_.push_back(std::move(worker));
  }
  // Nobody is to be asked whether he is still there.
  iscsi::ServerLimits limits{.nop_in_interval = Duration{}};
  const Endpoint any = Endpoint::ipv4(0, kIscsiPort);
  if (wrong.empty()) wrong = co_await target_.listen(any, std::move(options), limits);
  for (Worker& worker : workers_) {
    if (wrong.empty()) wrong = co_await log_in(&worker, &groups[worker.volume->group]);
  }
  co_return wrong;
}

// From an adapter to a port of the array; the address by which that is known.
Endpoint RealSessions::lay_link(VirtualConnection& connection) {
  const Endpoint address = Endpoint::ipv4(kFirstAddress + links_++, kIscsiPort);
  wires_.push_back(std::make_unique<PortWire>(*connection.adapter, *connection.port));
  sim::Wire* const to_server = wires_.back().get();
  wires_.push_back(std::make_unique<PortWire>(*connection.port, *connection.adapter));
  world_.set_wires(address, {.to_server = to_server, .to_client = wires_.back().get()});
  return address;
}

Task<std::string> RealSessions::log_in(Worker* worker, const VolumeGroup* group) {
  const model::ExchangeParameters& exchange = array_.profile().exchange;
  iscsi::InitiatorOptions login{
      .initiator_name = "iqn.2026-11.org.sandbay:lab-host",
      .target_name = kLabTarget,
      .connections = group->connections,
      .path_policy =
          group->in_turn ? iscsi::PathPolicy::kRoundRobin : iscsi::PathPolicy::kLeastQueueDepth,
      .keys = session_keys(exchange, exchange.initiator_segment),
      .queue_depth = group->requests(),
      .nop_out_interval = Duration{},
      .reconnect = false,
  };
  for (VirtualConnection& connection : worker->volume->connections) {
    login.connection_options.push_back({.endpoint = lay_link(connection)});
  }
  login.endpoint = known(login.connection_options.front().endpoint);
  auto session = co_await iscsi::InitiatorSession::login(std::move(login));
  if (!session) co_return "a session: " + session.error().message;
  worker->session = std::move(*session);
  // Afterwards the unit has nothing to tell that would keep the first request behind others.
  const auto facts = co_await iscsi::ask_facts(worker->session.get(), worker->number);
  if (facts) co_return std::string();
  co_return fmt::format("logical unit {}: {}", worker->number, describe(facts.error()));
}

Task<void> RealSessions::stop() {
  for (Worker& worker : workers_) {
    if (worker.session != nullptr) co_await worker.session->close();
    worker.session.reset();
  }
  co_await target_.stop();
  workers_.clear();
  payload_.clear();
}

Task<ServedRequest> RealSessions::serve(std::size_t index, Access access, TimePoint start) {
  Worker& worker = workers_[index];
  model::Host& host = *worker.volume->host->host;
  ServedRequest served{.start = start};
  served.issued = host.issue(start);
  co_await issue(&worker, served.issued);
  served.error = co_await transfer(&worker, access);
  served.arrived = home_.now();
  if (served.error != Error::kNone) co_return served;
  // Those of several sizes at one place may have been exchanged, if a target that was short of
  // memory cut them unlike. Then all of the time was the link's.
  const ServedRequest there =
      worker.device->take(access).value_or(ServedRequest{.carried = served.arrived,
                                                         .accepted = served.arrived,
                                                         .done = served.arrived,
                                                         .answered = served.arrived});
  served.carried = there.carried;
  served.accepted = there.accepted;
  served.done = there.done;
  served.answered = there.answered;
  served.end = host.complete(!access.read, access.bytes, served.arrived);
  co_await home_.sleep_until(served.end);
  co_return served;
}

// Those that a host lets go at one moment are not to be shuffled by the world.
Task<void> RealSessions::issue(Worker* worker, TimePoint at) {
  const std::uint64_t ticket = worker->asked++;
  co_await home_.sleep_until(at);
  while (worker->issued != ticket) co_await worker->turn->wait();
  ++worker->issued;
  worker->turn->notify_all();
}

Task<Error> RealSessions::transfer(Worker* worker, Access access) {
  iscsi::InitiatorSession::Reply reply;
  for (std::uint32_t count = 0; count < kMaximumTries; ++count) {
    iscsi::ScsiRequest request;
    request.lun = iscsi::encode_lun(worker->number);
    request.cdb = transfer_cdb(!access.read, access.offset / kAccessSectorBytes,
                               static_cast<std::uint32_t>(access.bytes / kAccessSectorBytes));
    (access.read ? request.data_in : request.data_out) = payload_.share(0, access.bytes);
    reply = co_await worker->session->execute(std::move(request));
    if (!transient(reply.result)) break;
    if (reply.result.status != scsi::Status::kCheckCondition) co_await home_.sleep_for(kRetryDelay);
  }
  if (reply.result.good()) co_return Error::kNone;
  co_return reply.result.error == Error::kNone ? Error::kHardware : reply.result.error;
}

}  // namespace sandbay::lab
