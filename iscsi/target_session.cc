// A session's order, tasks and connections. RFC 7143 sections 4.2.2, 4.4, 7.1 and 8.3.

#include "iscsi/target_session.h"

#include <algorithm>
#include <bit>

#include <fmt/core.h>

#include "runtime/frame_pool.h"

namespace sandbay::iscsi {
namespace {

// Limits of what may come before its turn, which is a sixteenth of the pool.
constexpr std::size_t kLeastEarly = std::size_t{1} << 20;
constexpr std::size_t kMostEarly = std::size_t{32} << 20;
constexpr std::size_t kBytesBetweenRoomChecks = std::size_t{1} << 20;
// The same of a connection while memory is scarce.
constexpr std::size_t kScarceShare = std::size_t{64} << 10;

// What crosses to a connection that lives elsewhere.
struct CrossingSend final : Message, FramePooled {
  Connection* connection = nullptr;
  Bhs bhs;
  BufferList data;
  std::vector<std::byte> bytes;
  StatSnUse use = StatSnUse::kNone;
};

struct CrossingPromise final : Message, FramePooled {
  Connection* connection = nullptr;
  std::size_t byte_count = 0;
  void (Connection::*change)(std::size_t byte_count) = nullptr;

  static void send(ConnectionLink& link, std::size_t byte_count,
                   void (Connection::*change)(std::size_t byte_count)) {
    auto* const crossing = new CrossingPromise;
    crossing->connection = link.connection;
    crossing->byte_count = byte_count;
    crossing->change = change;
    crossing->run = [](Message& message) {
      const std::unique_ptr<CrossingPromise> arrived(static_cast<CrossingPromise*>(&message));
      (arrived->connection->*arrived->change)(arrived->byte_count);
    };
    link.home->send(*crossing);
  }
};

struct CrossingShutdown final : Message, FramePooled {
  Connection* connection = nullptr;
  void (Connection::*end)() noexcept = nullptr;
};

}  // namespace

Session::Session(SessionHost& host, Executor& home, SessionOptions options)
    : host_(host),
      home_(home),
      options_(std::move(options)),
      exp_cmd_sn_(options_.first_cmd_sn),
      max_cmd_sn_(options_.first_cmd_sn + options_.queue_depth - 1),
      told_max_cmd_sn_(max_cmd_sn_),
      slots_(std::bit_ceil<std::size_t>(options_.queue_depth)),
      buckets_(std::bit_ceil<std::size_t>(options_.queue_depth) * 2),
      next_transfer_tag_(options_.first_transfer_tag),
      early_limit_(std::clamp(home.buffers().limit_bytes() / 16, kLeastEarly, kMostEarly)),
      read_budget_(home.buffers()),
      write_budget_(home.buffers()) {
  assert(options_.queue_depth > 0);
}

Session::~Session() {
  assert(links_.empty() && task_count_ == 0);
  assert(nexus_ == nullptr);
}

Task<void> Session::start(std::shared_ptr<Session> session) {
  const SessionOptions& options = session->options_;
  session->states_.transition(SessionState::kQ2Active);  // N1
  if (options.device == nullptr) co_return;
  if (options.interferences != nullptr) {
    session->interference_ = options.interferences->of_session(options.initiator_name);
  }
  const std::string tag = fmt::format("{:04x}", options.portal_group_tag);
  session->nexus_ = options.device->attach(
      {.initiator_port = options.initiator_name + ",i,0x" + options.isid.to_string(),
       .target_port = options.target_name + ",t,0x" + tag,
       .relative_target_port = options.portal_group_tag,
       .target_port_group = options.portal_group_tag});
}

// Connections --------------------------------------------------------------------------------

Task<JoinedConnection> Session::join(Connection& connection, std::uint32_t portal,
                                     std::uint16_t cid, NegotiatedParameters parameters) {
  if (states_.state() != SessionState::kQ2Active && expected_ > 0) --expected_;
  const bool twice =
      std::ranges::any_of(links_, [cid](const auto& each) { return each->cid == cid; });
  if (twice || ending_ || links_.size() >= options_.parameters.max_connections) {
    co_return JoinedConnection{};
  }
  auto link = std::make_unique<ConnectionLink>();
  link->connection = &connection;
  link->home = &connection.home();
  link->cid = cid;
  link->portal = portal;
  link->parameters = parameters.connection;
  link->initiator_address = connection.peer().to_string();
  link->target_address = connection.local().to_string();
  if (states_.state() == SessionState::kQ2Active) {
    states_.transition(SessionState::kQ3LoggedIn);  // N2
  }
  read_budget_.add(link->reads);
  write_budget_.add(link->writes);
  link->writes.in_pool = link->home == &home_;
  links_.push_back(std::move(link));
  co_return JoinedConnection{.link = links_.back().get(), .numbers = numbers(*links_.back())};
}

Task<bool> Session::make_place_for(std::uint16_t cid) {
  // The one that is coming keeps the session alive when it replaces the last one.
  ++expected_;
  co_await close_connection(cid);
  const bool room = !ending_ && links_.size() < options_.parameters.max_connections;
  if (!room) --expected_;
  co_return room;
}

Task<void> Session::expected_did_not_come() {
  if (expected_ > 0) --expected_;
  co_return;
}

Task<bool> Session::is_abandoned() { co_return links_.empty() && expected_ == 0; }

Task<void> Session::remove_connection(ConnectionLink* link, bool given_up) {
  link->ended = true;
  changed_.notify_all();
  if ((given_up || link->dropped) && !ending_) tell_drop(link->cid);
  drop_undelivered(link);
  co_await abort_tasks_of(link);
  while (link->pins > 0) co_await changed_.wait();
  read_budget_.remove(link->reads);
  write_budget_.remove(link->writes);
  std::erase_if(links_, [link](const auto& each) { return each.get() == link; });
  changed_.notify_all();
}

Task<void> Session::close_connection(std::uint16_t cid) {
  ConnectionLink* const link = find_link(cid);
  if (link != nullptr) break_off(*link);
  while (find_link(cid) != nullptr) co_await changed_.wait();
}

ConnectionLink* Session::find_link(std::uint16_t cid) const {
  const auto found =
      std::ranges::find_if(links_, [cid](const auto& each) { return each->cid == cid; });
  return found == links_.end() ? nullptr : found->get();
}

// At ErrorRecoveryLevel 0 the tasks of a connection end with it (section 7.1). Null: all.
Task<void> Session::abort_tasks_of(const ConnectionLink* link) {
  if (nexus_ == nullptr) co_return;
  abandon_lingering([link](ScsiTask& task) { return link == nullptr || task.is_of(*link); });
  std::vector<std::pair<std::uint64_t, std::uint64_t>> tags;  // LUN and tag.
  for (const ScsiTask* task : buckets_) {
    for (; task != nullptr; task = task->next_in_bucket) {
      const bool concerned = link == nullptr || task->is_of(*link);
      if (concerned && task->delivered()) tags.emplace_back(task->lun, task->tag);
    }
  }
  // Side by side: each may wait for a device that does not answer.
  Gate aborting;
  for (const auto& [lun, tag] : tags) {
    if (closing_) break;  // end() detaches the nexus, which aborts everything at once.
    const bool entered = aborting.enter();
    assert(entered);
    spawn(abort_task(&aborting, lun, tag));
  }
  co_await aborting.close();
  if (link == nullptr) co_return;
  while (link->tasks > 0) co_await changed_.wait();
}

Task<void> Session::abort_task(Gate* aborting, std::uint64_t lun, std::uint64_t tag) {
  const GateHold hold(*aborting);
  const scsi::TaskManagementRequest request{
      .function = scsi::TaskManagementFunction::kAbortTask, .lun = lun, .tag = tag};
  const auto response = co_await options_.device->manage(*nexus_, request);
  static_cast<void>(response);  // Gone already is as good.
}

Task<void> Session::end(bool announced) {
  if (ending_) {
    while (!ended_) co_await changed_.wait();
    co_return;
  }
  ending_ = true;
  if (announced && !is_discovery()) {
    for (const auto& link : links_) {
      if (!answers(*link)) continue;
      send_event(*link, AsyncEventCode::kSessionDrop, 0, 0);
      break;  // Once a session.
    }
    co_await wait_for_logouts(of_cid({}), home_.now() + kAnnouncementTime);
  }
  closing_ = true;
  changed_.notify_all();  // Nobody waits on for what a rule holds up.
  for (const auto& link : links_) break_off(*link);
  drop_undelivered(nullptr);
  abandon_lingering([](ScsiTask&) { return true; });
  if (nexus_ != nullptr) {
    co_await options_.device->detach(*nexus_);
    while (task_count_ > 0) co_await changed_.wait();
  }
  co_await background_.close();
  while (!links_.empty()) co_await changed_.wait();
  nexus_.reset();  // Aborts of single commands may have been under way until here.
  if (states_.state() != SessionState::kQ1Free)
    states_.transition(SessionState::kQ1Free);  // N3, N9
  ended_ = true;
  changed_.notify_all();
}

// Ends a connection for what it did.
void Session::drop(ConnectionLink& link) {
  link.dropped = true;
  break_off(link);
}

// The same, and the peer is still told why.
void Session::drop_behind_answer(ConnectionLink& link) {
  link.dropped = true;
  break_off(link, true);
}

void Session::break_off(ConnectionLink& link, bool behind_queue) {
  if (std::exchange(link.ended, true)) return;
  changed_.notify_all();
  const auto end = behind_queue ? &Connection::shutdown_behind_queue : &Connection::shutdown;
  if (link.home == &home_) return (link.connection->*end)();
  auto* const crossing = new CrossingShutdown;
  crossing->connection = link.connection;
  crossing->end = end;
  crossing->run = [](Message& message) {
    const std::unique_ptr<CrossingShutdown> arrived(static_cast<CrossingShutdown*>(&message));
    (arrived->connection->*arrived->end)();
  };
  link.home->send(*crossing);
}

SessionInfo Session::info() const {
  SessionInfo info{.tsih = options_.tsih,
                   .isid = options_.isid.to_string(),
                   .initiator_name = options_.initiator_name,
                   .initiator_alias = options_.initiator_alias,
                   .target_name = options_.target_name,
                   .state = std::string(name_of(states_.state())),
                   .executor = home_.index(),
                   .commands = command_count_,
                   .commands_in_flight = task_count_};
  NegotiatedParameters parameters;
  parameters.session = options_.parameters;
  if (!links_.empty()) parameters.connection = links_.front()->parameters;
  info.parameters = parameters.to_map();
  for (const auto& link : links_) {
    info.connections.push_back({.cid = link->cid,
                                .initiator_address = link->initiator_address,
                                .target_address = link->target_address,
                                .portal = link->portal,
                                .executor = link->home->index(),
                                .header_digest = link->parameters.header_digest,
                                .data_digest = link->parameters.data_digest});
  }
  return info;
}

Task<Session::ConnectionTrafficInfo> Session::traffic_of(std::uint16_t cid) {
  ConnectionLink* const link = find_link(cid);
  if (link == nullptr) co_return ConnectionTrafficInfo{};
  ++link->pins;
  ConnectionTrafficInfo info = co_await invoke_on(*link->home, ask_connection(link->connection));
  unpin(*link);
  co_return info;
}

Task<Session::ConnectionTrafficInfo> Session::ask_connection(Connection* connection) {
  co_return ConnectionTrafficInfo{.state = std::string(name_of(connection->states().state())),
                                  .traffic = connection->traffic()};
}

Task<std::vector<Session::PortalTraffic>> Session::new_traffic() {
  std::vector<std::uint16_t> cids;
  for (const auto& link : links_) cids.push_back(link->cid);
  std::vector<PortalTraffic> list;
  for (const std::uint16_t cid : cids) {
    const ConnectionTrafficInfo info = co_await traffic_of(cid);
    ConnectionLink* const link = find_link(cid);
    const std::uint64_t bytes = info.traffic.bytes_in + info.traffic.bytes_out;
    if (link == nullptr || bytes < link->told_bytes) continue;
    list.push_back(
        {.portal = link->portal, .bytes = bytes - std::exchange(link->told_bytes, bytes)});
  }
  co_return list;
}

Task<ServerCounters> Session::live_counters() {
  ServerCounters counters;
  counters.commands = command_count_;
  counters.rejects = reject_count_;
  counters.task_management = task_management_count_;
  std::vector<std::uint16_t> cids;
  for (const auto& link : links_) cids.push_back(link->cid);
  for (const std::uint16_t cid : cids) {
    const ConnectionTrafficInfo info = co_await traffic_of(cid);
    counters.add(info.traffic);
  }
  co_return counters;
}

// Sending ------------------------------------------------------------------------------------

void Session::send(ConnectionLink& link, const Bhs& bhs, BufferList data, StatSnUse use) {
  if (link.ended) return;
  if (link.home == &home_) {
    link.connection->send(bhs, std::move(data), use);
    return;
  }
  link.sent_unseen += kBhsBytes + data.byte_count();
  auto* const crossing = new CrossingSend;
  crossing->connection = link.connection;
  crossing->bhs = bhs;
  crossing->data = std::move(data);
  crossing->use = use;
  crossing->run = [](Message& message) {
    const std::unique_ptr<CrossingSend> arrived(static_cast<CrossingSend*>(&message));
    arrived->connection->send(arrived->bhs, std::move(arrived->data), arrived->use);
  };
  link.home->send(*crossing);
}

void Session::send_bytes(ConnectionLink& link, const Bhs& bhs, std::span<const std::byte> data,
                         StatSnUse use) {
  if (link.ended) return;
  if (link.home == &home_) {
    link.connection->send_bytes(bhs, data, use);
    return;
  }
  auto* const crossing = new CrossingSend;
  crossing->connection = link.connection;
  crossing->bhs = bhs;
  crossing->bytes.assign(data.begin(), data.end());
  crossing->use = use;
  crossing->run = [](Message& message) {
    const std::unique_ptr<CrossingSend> arrived(static_cast<CrossingSend*>(&message));
    arrived->connection->send_bytes(arrived->bhs, arrived->bytes, arrived->use);
  };
  link.home->send(*crossing);
}

bool Session::try_promise(ConnectionLink& link, std::size_t byte_count) {
  return link.home == &home_ && link.connection->try_promise(byte_count);
}

Task<bool> Session::promise(ConnectionLink& link, std::size_t byte_count) {
  co_return co_await invoke_on(*link.home, link.connection->promise(byte_count));
}

void Session::unpromise(ConnectionLink& link, std::size_t byte_count) {
  if (byte_count == 0) return;
  if (link.home == &home_) {
    link.connection->unpromise(byte_count);
    return;
  }
  CrossingPromise::send(link, byte_count, &Connection::unpromise);
}

void Session::promise_again(ConnectionLink& link, std::size_t byte_count) {
  if (byte_count == 0 || link.ended) return;
  if (link.home == &home_) {
    link.connection->promise_again(byte_count);
    return;
  }
  CrossingPromise::send(link, byte_count, &Connection::promise_again);
}

void Session::give_write_share(ConnectionLink& link, std::size_t byte_count) {
  if (byte_count == 0) return;
  if (link.home == &home_) {
    link.connection->give_write_share(byte_count);
    return;
  }
  CrossingPromise::send(link, byte_count, &Connection::give_write_share);
}

bool Session::has_room(ConnectionLink& link) const {
  if (link.ended) return true;
  if (link.home == &home_) return link.connection->has_room();
  return link.sent_unseen < kBytesBetweenRoomChecks;
}

Task<void> Session::room(ConnectionLink& link) {
  link.sent_unseen = 0;
  co_await invoke_on(*link.home, link.connection->room());
}

void Session::unpin(ConnectionLink& link) {
  assert(link.pins > 0);
  if (--link.pins == 0) changed_.notify_all();
}

bool Session::take_share(ScsiTask& task, std::size_t byte_count) {
  ConnectionLink& link = task.link();
  auto& waiters = link.share_waiters;
  const bool first = waiters.empty() || waiters.front() == &task;
  const bool fits = link.share_taken == 0 || link.share_taken + byte_count <= kScarceShare;
  const bool here = link.home == &home_;
  const bool all_sent = here ? link.connection->is_all_sent() : link.all_sent;
  if (first && fits && all_sent) {
    link.share_taken += byte_count;
    link.all_sent = false;
    if (!waiters.empty()) waiters.pop_front();
    if (!waiters.empty()) waiters.front()->wake();
    return true;
  }
  if (std::ranges::find(waiters, &task) == waiters.end()) waiters.push_back(&task);
  if (first && fits && !std::exchange(link.asking, true)) spawn(wait_until_all_sent(&link));
  return false;
}

Task<void> Session::wait_until_all_sent(ConnectionLink* link) {
  const std::shared_ptr<Session> keep = shared_from_this();
  ++link->pins;
  co_await invoke_on(*link->home, link->connection->all_sent());
  link->asking = false;
  link->all_sent = true;
  if (!link->share_waiters.empty()) link->share_waiters.front()->wake();
  unpin(*link);
}

void Session::give_share(ConnectionLink& link, std::size_t byte_count) {
  assert(byte_count <= link.share_taken);
  link.share_taken -= byte_count;
  if (!link.share_waiters.empty()) link.share_waiters.front()->wake();
}

void Session::forget_waiter(ScsiTask& task) {
  auto& waiters = task.link().share_waiters;
  if (waiters.empty() || std::erase(waiters, &task) == 0) return;
  if (!waiters.empty()) waiters.front()->wake();
}

std::uint32_t Session::next_transfer_tag() {
  const std::uint32_t tag = next_transfer_tag_++;
  if (next_transfer_tag_ == kReservedTag) next_transfer_tag_ = 1;
  return tag;
}

// Tasks --------------------------------------------------------------------------------------

ScsiTask* Session::find_task(std::uint32_t initiator_task_tag) const {
  ScsiTask* task = buckets_[initiator_task_tag & (buckets_.size() - 1)];
  while (task != nullptr && task->initiator_task_tag() != initiator_task_tag) {
    task = task->next_in_bucket;
  }
  return task;
}

void Session::insert_task(ScsiTask& task) {
  ScsiTask*& bucket = buckets_[task.initiator_task_tag() & (buckets_.size() - 1)];
  task.next_in_bucket = bucket;
  bucket = &task;
  ++task_count_;
  ++task.link().tasks;
  if (task.immediate()) ++immediate_count_;
}

void Session::task_finished(ScsiTask& task) {
  ScsiTask** place = &buckets_[task.initiator_task_tag() & (buckets_.size() - 1)];
  while (*place != &task) {
    assert(*place != nullptr);
    place = &(*place)->next_in_bucket;
  }
  *place = task.next_in_bucket;
  assert(task_count_ > 0 && task.link().tasks > 0);
  --task_count_;
  --task.link().tasks;
  if (task.immediate()) --immediate_count_;
  refresh_window();
  if (ending_ || task.link().ended || task.link().leaving) changed_.notify_all();
}

// Section 4.2.2.1: the window never shrinks from its upper end; it is closed while as many
// commands are in flight as may be.
void Session::refresh_window() {
  if (window_closed_) [[unlikely]]
    return;
  const std::uint32_t in_flight = task_count_ - immediate_count_;
  const std::uint32_t room = options_.queue_depth - std::min(options_.queue_depth, in_flight);
  const std::uint32_t candidate = exp_cmd_sn_ + room - 1;
  if (serial_less(max_cmd_sn_, candidate)) max_cmd_sn_ = candidate;
}

// Section 11.19: an initiator that has used its window up, and is owed no answer that would open
// it, is told by a NOP-In. The window opens silently when commands are aborted.
void Session::tell_window() {
  if (told_max_cmd_sn_ == max_cmd_sn_ || !serial_less(told_max_cmd_sn_, exp_cmd_sn_)) return;
  if (closing_ || is_discovery()) return;
  for (const auto& link : links_) {
    if (!answers(*link)) continue;
    Bhs bhs;
    write_nop_in({.numbers = numbers(*link)}, bhs);
    send(*link, bhs, {}, StatSnUse::kShow);
    return;
  }
}

Session::Slot Session::empty(Slot& slot) {
  assert(early_bytes_ >= slot.bytes);
  early_bytes_ -= slot.bytes;
  return std::exchange(slot, Slot{});
}

void Session::abandon_lingering(const std::function<bool(ScsiTask&)>& concerned) {
  std::vector<ScsiTask*> tasks;
  for (ScsiTask* task : buckets_) {
    for (; task != nullptr; task = task->next_in_bucket) {
      if (task->lingering() && concerned(*task)) tasks.push_back(task);
    }
  }
  for (ScsiTask* const task : tasks) task->abandon();
}

// Forgets what waits for its turn: of one connection, or everything. A CmdSN that was not
// acknowledged may come again on another connection.
void Session::drop_undelivered(const ConnectionLink* link) {
  for (Slot& slot : slots_) {
    if (slot.kind == Slot::Kind::kEmpty || (link != nullptr && slot.link != link)) continue;
    ScsiTask* const task = empty(slot).task;
    --waiting_count_;
    if (task != nullptr) task->discard();
  }
}

}  // namespace sandbay::iscsi
