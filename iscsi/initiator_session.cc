// Submission, the CmdSN window and completions of an initiator's session: RFC 7143 section 4.2.2.1.
#include "iscsi/initiator_session.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "iscsi/initiator_crossing.h"

namespace sandbay::iscsi {

namespace {

void add(const InitiatorConnectionCounters& one, InitiatorCounters& sum) {
  sum.header_digest_errors += one.header_digest_errors;
  sum.data_digest_errors += one.data_digest_errors;
  sum.protocol_errors += one.protocol_errors;
  sum.rejects += one.rejects;
  sum.nop_ins += one.nop_ins;
}

}  // namespace

void InitiatorTaskQueue::push_back(InitiatorTask& task) noexcept {
  assert(!task.queued);
  task.queued = true;
  task.next = nullptr;
  task.previous = last_;
  (last_ != nullptr ? last_->next : first_) = &task;
  last_ = &task;
}

void InitiatorTaskQueue::push_front(InitiatorTask& task) noexcept {
  assert(!task.queued);
  task.queued = true;
  task.previous = nullptr;
  task.next = first_;
  (first_ != nullptr ? first_->previous : last_) = &task;
  first_ = &task;
}

InitiatorTask* InitiatorTaskQueue::pop_front() noexcept {
  InitiatorTask* task = first_;
  if (task != nullptr) remove(*task);
  return task;
}

void InitiatorTaskQueue::remove(InitiatorTask& task) noexcept {
  assert(task.queued);
  (task.previous != nullptr ? task.previous->next : first_) = task.next;
  (task.next != nullptr ? task.next->previous : last_) = task.previous;
  task.next = task.previous = nullptr;
  task.queued = false;
}

InitiatorSessionImpl::InitiatorSessionImpl(InitiatorOptions options)
    : home_(Executor::current()), options_(std::move(options)), sequence_path_(kSequenceRing) {
  options_.queue_depth = std::clamp(options_.queue_depth, 1U, kMaximumInitiatorQueueDepth);
  options_.connections = std::clamp(options_.connections, 1U, kMaximumInitiatorConnections);
  options_.receive_buffer_bytes =
      std::clamp<std::size_t>(options_.receive_buffer_bytes, 8192, BufferPool::kLargestBlock);
  const std::uint32_t slots = options_.queue_depth + kControlSlots;
  slot_bits_ = static_cast<unsigned>(std::bit_width(slots));
  slot_mask_ = (1U << slot_bits_) - 1;
  generations_.resize(slots);
  for (std::uint32_t slot = slots; slot-- > 0;) free_slots_.push_back(slot);

  if (options_.isid == Isid{}) {
    // Section 11.12.5: type 10b, a random number; the last two bytes are the qualifier.
    const std::uint64_t random = home_.random().next();
    options_.isid.bytes[0] = std::byte{0x80};
    for (std::size_t index = 1; index < 6; ++index) {
      options_.isid.bytes[index] = static_cast<std::byte>(random >> (8 * index));
    }
  }
  for (std::uint32_t index = 0; index < options_.connections; ++index) {
    auto path = std::make_unique<Path>();
    path->index = index;
    path->cid = static_cast<std::uint16_t>(index);
    if (index < options_.connection_options.size()) {
      path->options = options_.connection_options[index];
    }
    path->executor = path->options.executor != nullptr ? path->options.executor : &home_;
    path->endpoint = path->options.endpoint.value_or(options_.endpoint);
    paths_.push_back(std::move(path));
  }
}

InitiatorSessionImpl::~InitiatorSessionImpl() {
  assert(commands_in_flight_ == 0 && waiting_.empty() && lost_.empty());
}

bool InitiatorSessionImpl::can_send() const noexcept {
  const std::uint32_t next = next_cmd_sn_.load(std::memory_order_relaxed);
  return !usable_.empty() && holds_ == 0 && commands_in_flight_ < options_.queue_depth &&
         serial_less_equal(next, max_cmd_sn_) && next - exp_cmd_sn_ < kSequenceRing;
}

InitiatorSessionImpl::Path& InitiatorSessionImpl::choose_path() noexcept {
  assert(!usable_.empty());
  if (usable_.size() == 1) return *usable_.front();
  if (next_path_ >= usable_.size()) next_path_ = 0;
  const auto next = usable_.begin() + static_cast<std::ptrdiff_t>(next_path_);
  auto chosen = next;
  if (options_.path_policy == PathPolicy::kLeastQueueDepth) {
    // Of equals the next in turn.
    chosen = std::ranges::min_element(next, usable_.end(), {}, &Path::in_flight);
    const auto before = std::ranges::min_element(usable_.begin(), next, {}, &Path::in_flight);
    if (before != next && (*before)->in_flight < (*chosen)->in_flight) chosen = before;
  }
  next_path_ = static_cast<std::size_t>(chosen - usable_.begin()) + 1;
  return **chosen;
}

// Tags differ from use to use of a slot, so that a late PDU finds nobody. The highest generation is
// left out: the reserved tag and kPlugTag would be in it.
void InitiatorSessionImpl::give_tag(InitiatorTask& task) noexcept {
  assert(!free_slots_.empty());
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  const std::uint32_t last_generation = (0xFFFFFFFFU >> slot_bits_) - 1;
  std::uint32_t& generation = generations_[slot];
  generation = generation >= last_generation ? 0 : generation + 1;
  task.itt = generation << slot_bits_ | slot;
}

// The connection knows the tag no more, and the task's coroutine asks for no further exchange.
void InitiatorSessionImpl::take_tag_back(InitiatorTask& task) {
  free_slots_.push_back(task.itt & slot_mask_);
  task.keep_tag = false;
}

void InitiatorSessionImpl::give_cmd_sn(InitiatorTask& task, const Path& path) noexcept {
  task.cmd_sn = next_cmd_sn_.load(std::memory_order_relaxed);
  if (task.immediate) return;
  sequence_path_[task.cmd_sn % kSequenceRing] = static_cast<std::uint8_t>(path.index);
  next_cmd_sn_.store(task.cmd_sn + 1, std::memory_order_relaxed);
}

void InitiatorSessionImpl::dispatch(InitiatorCommand& command) {
  Path& path = choose_path();
  give_tag(command);
  give_cmd_sn(command, path);
  command.path = path.index;
  ++commands_in_flight_;
  ++path.in_flight;
  ++path.connection->tasks_here;
  path.connection->hand_over(command);
}

void InitiatorSessionImpl::submit(InitiatorCommand& command) {
  assert(command.done != nullptr && !command.queued);
  assert(&Executor::current() == &home_);
  command.result.error = Error::kNone;
  command.result.status = scsi::Status::kGood;
  command.result.overflow = command.result.underflow = false;
  command.result.residual = 0;
  command.result.data_in_bytes = 0;
  command.result.sense_bytes = 0;
  command.retries = 0;
  command.wants_abort = false;
  ++counters_.commands;
  if (closing_ || dead_) return finish_later(command, Error::kClosed);
  // Both directions at once would need an additional header segment that no command here uses.
  if (!command.data_in.empty() && !command.data_out.empty()) {
    return finish_later(command, Error::kUnsupported);
  }
  if (waiting_.empty() && can_send()) return dispatch(command);
  waiting_.push_back(command);
}

// dispatch() may bring a task back at once when its connection is already failing.
void InitiatorSessionImpl::drain() {
  if (draining_) return;
  draining_ = true;
  while (!waiting_.empty() && can_send()) {
    dispatch(static_cast<InitiatorCommand&>(*waiting_.pop_front()));
  }
  draining_ = false;
}

void InitiatorSessionImpl::window_moved(std::uint32_t exp_cmd_sn, std::uint32_t max_cmd_sn) {
  if (serial_less(max_cmd_sn + 1, exp_cmd_sn)) return;
  if (serial_less(max_cmd_sn_, max_cmd_sn)) max_cmd_sn_ = max_cmd_sn;
  // What was never sent cannot be expected.
  const std::uint32_t next = next_cmd_sn_.load(std::memory_order_relaxed);
  if (serial_less(exp_cmd_sn_, exp_cmd_sn) && serial_less_equal(exp_cmd_sn, next)) {
    exp_cmd_sn_ = exp_cmd_sn;
  }
  if (!waiting_.empty()) drain();
}

void InitiatorSessionImpl::task_ended(InitiatorTask& task) {
  InitiatorConnection& connection = *task.connection;
  Path& path = *paths_[connection.path()];
  assert(connection.tasks_here > 0);
  --connection.tasks_here;
  if (path.connection.get() == &connection) {
    assert(path.in_flight > 0);
    --path.in_flight;
    ++path.completions;
    if (task.lost) path_lost(path);
    const bool asked = path.state == InitiatorConnectionState::kLogoutRequested;
    if (asked && path.in_flight == 0) moved_.notify_all();
  }
  if (!task.keep_tag) take_tag_back(task);
  task.connection = nullptr;
  if (task.answered && !task.aborting) window_moved(task.seen_exp_cmd_sn, task.seen_max_cmd_sn);
  if (connection.gone && connection.tasks_here == 0) moved_.notify_all();
  if (task.kind == InitiatorTask::Kind::kControl) {
    auto& control = static_cast<InitiatorControlTask&>(task);
    control.done(control);
  } else {
    --commands_in_flight_;
    command_ended(static_cast<InitiatorCommand&>(task));
  }
  if (!waiting_.empty()) drain();
}

void InitiatorSessionImpl::command_ended(InitiatorCommand& command) {
  ScsiResult& result = command.result;
  if (command.aborting || (command.lost && command.wants_abort && only_reads(command))) {
    result.error = Error::kCancelled;
    return finish(command);
  }
  if (command.lost) {
    if (closing_ || dead_) {
      result.error = closing_ ? Error::kClosed : Error::kReset;
      return finish(command);
    }
    lost_.push_back(command);
    return wake_repair();
  }
  const std::uint64_t expected = command.data_in.byte_count();
  const std::uint64_t missing = result.underflow ? result.residual : 0;
  if (result.good() && result.data_in_bytes + missing < expected) {
    result.error = Error::kDataCorrupt;
  }
  finish(command);
}

void InitiatorSessionImpl::finish(InitiatorCommand& command) { command.done(command); }

// From within submit() or a coroutine of the session: `done` runs from the ready queue.
void InitiatorSessionImpl::finish_later(InitiatorCommand& command, Error error) {
  command.result.error = error;
  command.crossing.task = &command;
  command.crossing.run = [](Message& message) {
    auto& ended =
        static_cast<InitiatorCommand&>(*static_cast<InitiatorTask::Crossing&>(message).task);
    ended.done(ended);
  };
  home_.send(command.crossing);
}

void InitiatorSessionImpl::set_state(Path& path, InitiatorConnectionState to) {
  transition(path.state, to);
  std::erase(usable_, &path);
  if (to == InitiatorConnectionState::kLoggedIn) {
    const auto place =
        std::ranges::find_if(usable_, [&](const Path* other) { return other->index > path.index; });
    usable_.insert(place, &path);
  }
  moved_.notify_all();
  if (to == InitiatorConnectionState::kLoggedIn && path.logout_time) begin_logout(path);
}

// The connection will not answer any more; what it held comes back one by one.
void InitiatorSessionImpl::path_lost(Path& path) {
  using enum InitiatorConnectionState;
  if (path.state != kLoggedIn && path.state != kLogoutRequested) return;
  set_state(path, kCleanupWait);
  path.down_since = home_.now();
  ++counters_.connections_lost;
}

void InitiatorSessionImpl::connection_ended(InitiatorConnection& connection) {
  connection.gone = true;
  add(connection.counters(), counters_);
  Path& path = *paths_[connection.path()];
  if (path.connection.get() == &connection) {
    path.pdus_before = connection.pdus_sent();
    path.exp_stat_sn = connection.exp_stat_sn();
    path_lost(path);
    if (!closing_) wake_repair();
  }
  moved_.notify_all();
}

void InitiatorSessionImpl::rejected(InitiatorConnection& connection, RejectReason reason,
                                    Bhs refused) {
  (void)reason;
  // Section 7.3: the CmdSN of a refused command was not received; the gap has to be filled. So it
  // is when the target did not know the opcode. A NOP-Out fills gaps and leaves none.
  const Opcode opcode = opcode_of(refused);
  const bool numbered =
      opcode != Opcode::kDataOut && opcode != Opcode::kSnackRequest && opcode != Opcode::kNopOut;
  if (!numbered || is_immediate(refused) || connection.gone) return;
  const std::uint32_t cmd_sn = cmd_sn_of(refused);
  const std::uint32_t next = next_cmd_sn_.load(std::memory_order_relaxed);
  if (serial_less(cmd_sn, exp_cmd_sn_) || !serial_less(cmd_sn, next)) return;
  InitiatorConnection* where = &connection;
  if (&where->executor() == &home_) return where->plug(cmd_sn);
  call_on(where->executor(), [where, cmd_sn] { where->plug(cmd_sn); });
}

InitiatorCounters InitiatorSessionImpl::counters() const noexcept {
  InitiatorCounters sum = counters_;
  for (const auto& path : paths_) {
    if (path->connection == nullptr || path->connection->gone) continue;
    add(path->connection->counters(), sum);
  }
  return sum;
}

std::string InitiatorSessionImpl::connection_state(std::size_t index) const {
  assert(index < paths_.size());
  return std::string(name_of(paths_[index]->state));
}

std::map<std::string, std::string> InitiatorSessionImpl::parameters(std::size_t connection) const {
  assert(connection < paths_.size());
  return paths_[connection]->parameters.to_map();
}

}  // namespace sandbay::iscsi
