// A SCSI command between session and device server: its data both ways and its end. RFC 7143
// sections 4.2.5, 11.3, 11.4 and 11.7. How a write's data arrive is in target_task_data_out.cc.

#include "iscsi/target_task.h"

#include <algorithm>

#include "iscsi/target_session.h"
#include "scsi/target_device.h"

namespace sandbay::iscsi {
namespace {

// Sections 11.7 and 11.8 set no time. A write that waits for data that were asked for, or
// announced, fails after so long without any: the memory that it holds is others', too. Longer than
// initiators let a command take.
constexpr Duration kSequencePatience = std::chrono::minutes(2);

// Tells a task that waits for data that it is being aborted: by message where the device server
// lives elsewhere. The message overtakes neither completion nor release, so the task is there.
class CancelHook final : public Cancellation::Hook {
 public:
  CancelHook(Cancellation& cancellation, Executor& home, Message& waking)
      : Hook(&cancellation,
             [](Hook& hook) {
               auto& self = static_cast<CancelHook&>(hook);
               if (Executor::current_or_null() == &self.home_) {
                 self.waking_.run(self.waking_);
               } else {
                 self.home_.send(self.waking_);
               }
             }),
        home_(home),
        waking_(waking) {}

 private:
  Executor& home_;
  Message& waking_;
};

scsi::TaskAttribute attribute_of(AttributeCode code) {
  switch (code) {
    case AttributeCode::kOrdered:
      return scsi::TaskAttribute::kOrdered;
    case AttributeCode::kHeadOfQueue:
      return scsi::TaskAttribute::kHeadOfQueue;
    case AttributeCode::kAca:
      return scsi::TaskAttribute::kAca;
    default:
      return scsi::TaskAttribute::kSimple;
  }
}

}  // namespace

ScsiTask::ScsiTask(Session& session, ConnectionLink& link, const ScsiCommand& pdu)
    : session_(&session), link_(&link), home_(&session.home()), pdu_(pdu) {
  lun = pdu.lun;
  tag = pdu.initiator_task_tag;
  // An immediate command carries the number of the next one and stands before it.
  order = pdu.immediate ? pdu.cmd_sn - 1 : pdu.cmd_sn;
  attribute = attribute_of(pdu.attribute);
  priority = pdu.priority;
  cdb = pdu.cdb;
  if (pdu.write) data_out_length = pdu.expected_data_transfer_length;
  if (pdu.read) {
    data_in_length = pdu.write ? pdu.bidirectional_read_length : pdu.expected_data_transfer_length;
  }
  completing_.task = this;
  completing_.run = [](Message& message) {
    ScsiTask& self = *static_cast<Home&>(message).task;
    self.finish(std::move(self.outcome_));
  };
  releasing_.task = this;
  releasing_.run = [](Message& message) {
    ScsiTask& self = *static_cast<Home&>(message).task;
    self.released_ = true;
    self.delete_if_done();
  };
  waking_.task = this;
  waking_.run = [](Message& message) {
    ScsiTask& self = *static_cast<Home&>(message).task;
    self.cancelled_ = true;
    self.arrival_.notify_all();
  };
  read_claim_.owner = write_claim_.owner = this;
  read_claim_.granted = [](TransferBudget::Claim& claim) {
    ScsiTask& self = *static_cast<ScsiTask*>(claim.owner);
    self.credit_ += claim.byte_count;
    self.arrival_.notify_all();
  };
  write_claim_.granted = [](TransferBudget::Claim& claim) {
    ScsiTask& self = *static_cast<ScsiTask*>(claim.owner);
    self.write_held_ += claim.byte_count;
    self.claimed_ = static_cast<std::uint32_t>(claim.byte_count);
    self.solicit();
  };
  const SessionParameters& parameters = session.parameters();
  unsolicited_open_ = pdu.write && !pdu.final;
  const std::uint32_t first_burst = parameters.first_burst_length;
  unsolicited_limit_ = pdu.write ? std::min(first_burst, data_out_length) : 0;
}

// Data-Out for the device server -------------------------------------------------------------

Task<Result<BufferList>> ScsiTask::receive_data_out(std::size_t byte_count) {
  // The common case: everything came with the command, and nobody has to wait or cross.
  if (completed || aborted || cancellation.cancelled()) {
    co_return std::unexpected(Error::kCancelled);
  }
  const bool here = Executor::current_or_null() == home_;
  if (here && ready_.byte_count() >= byte_count && refusal_ == Refusal::kNone) {
    co_return take_ready(byte_count);
  }
  const CancelHook hook(cancellation, *home_, waking_);
  Result<BufferList> data = co_await invoke_on(*home_, receive_here(byte_count, !here));
  if (completed || aborted) co_return std::unexpected(Error::kCancelled);
  co_return std::move(data);
}

Task<Result<BufferList>> ScsiTask::receive_here(std::size_t byte_count, bool crossing) {
  if (!finished_) return_lent();
  std::uint32_t came = data_came_;
  TimePoint deadline = home_->now() + kSequencePatience;
  for (;;) {
    const bool dead = finished_ || lingering_ || cancelled_ || refusal_ != Refusal::kNone;
    if (dead) co_return std::unexpected(Error::kCancelled);
    if (ready_.byte_count() + gathered_bytes_ >= byte_count) break;
    if (!expects_data()) session_->write_budget().make_urgent(link_->writes, write_claim_);
    const bool expecting = expects_data();
    const bool woken = co_await arrival_.wait_until(expecting ? deadline : kNever);
    if (!expecting || came != data_came_) {
      came = data_came_;
      deadline = home_->now() + kSequencePatience;
    } else if (!woken) {
      fail(scsi::Additional::kNotEnoughUnsolicitedData);
    }
  }
  if (ready_.byte_count() < byte_count) end_gathering();
  BufferList data = take_ready(byte_count);
  if (!crossing || data.unique()) co_return std::move(data);
  // The cut went through a buffer whose other part stays here: counts are not for two executors.
  BufferList copy = home_->buffers().try_allocate(byte_count);
  if (copy.empty()) {
    refusal_ = Refusal::kTaskSetFull;
    co_return std::unexpected(Error::kCancelled);
  }
  std::size_t copied = 0;
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    copy.copy_from(data[i].bytes(), copied);
    copied += data[i].byte_count();
  }
  co_return std::move(copy);
}

BufferList ScsiTask::take_ready(std::size_t byte_count) {
  return_lent();
  lent_ = std::min(byte_count, write_held_);
  consumed_ += static_cast<std::uint32_t>(byte_count);
  BufferList data = ready_.take_front(byte_count);
  if (asks_for_more()) solicit();
  return data;
}

// Data-In ------------------------------------------------------------------------------------

Task<Error> ScsiTask::prepare_data_in(std::size_t byte_count, bool scarce) {
  if (completed || aborted || cancellation.cancelled()) co_return Error::kCancelled;
  const CancelHook hook(cancellation, *home_, waking_);
  const Error error = co_await invoke_on(*home_, prepare_here(byte_count, scarce));
  co_return completed || aborted ? Error::kCancelled : error;
}

Task<Error> ScsiTask::prepare_here(std::size_t byte_count, bool scarce) {
  if (share_ > 0) {
    // There will be more: what is kept back goes, and ends a sequence, lest it hold up the others.
    flush_data_in(true, nullptr);
    return_share();
  }
  while (!finished_ && !cancelled_) {
    if (!scarce && credit_ >= byte_count) co_return Error::kNone;
    if (scarce && session_->take_share(*this, byte_count)) {
      share_ += byte_count;
      co_return Error::kNone;
    }
    if (!scarce && !read_claim_.waiting &&
        session_->read_budget().take(link_->reads, read_claim_, byte_count)) {
      credit_ += byte_count;
      co_return Error::kNone;
    }
    co_await arrival_.wait();
  }
  if (session_ != nullptr) {
    session_->forget_waiter(*this);
    session_->read_budget().withdraw(link_->reads, read_claim_);
  }
  co_return Error::kCancelled;
}

void ScsiTask::return_credit(std::size_t byte_count) {
  byte_count = std::min(byte_count, credit_);
  credit_ -= byte_count;
  session_->read_budget().give(link_->reads, read_claim_, byte_count);
}

// The device server asks for more, or has ended: it is done with what it had.
void ScsiTask::return_lent() {
  const std::size_t byte_count = std::exchange(lent_, 0);
  write_held_ -= byte_count;
  session_->write_budget().give(link_->writes, write_claim_, byte_count);
}

void ScsiTask::return_share() {
  if (share_ > 0) session_->give_share(*link_, std::exchange(share_, 0));
}

Task<Error> ScsiTask::send_data_in(BufferList data) {
  if (completed || aborted) co_return Error::kCancelled;
  if (Executor::current_or_null() == home_) {
    if (finished_) co_return Error::kCancelled;
    if (link_->home != home_ && !data.unique()) {  // It crosses to its connection.
      BufferList own = co_await unshared(std::move(data));
      if (finished_) co_return Error::kCancelled;
      data = std::move(own);
    }
    const std::size_t byte_count = data.byte_count();
    keep_back(std::move(data));
    if (session_->has_room(*link_)) {
      return_credit(byte_count);
      co_return Error::kNone;
    }
  } else {
    BufferList own = co_await unshared(std::move(data));
    if (completed || aborted) co_return Error::kCancelled;
    co_return co_await invoke_on(*home_, send_here(std::move(own)));
  }
  co_return co_await wait_for_room();
}

// What may go to another executor: bytes that a cache below still uses are copied here first,
// because counts are not for two executors.
Task<BufferList> ScsiTask::unshared(BufferList data) {
  if (data.unique()) co_return std::move(data);
  BufferList copy = co_await Executor::current().buffers().allocate(data.byte_count());
  std::size_t copied = 0;
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    copy.copy_from(data[i].bytes(), copied);
    copied += data[i].byte_count();
  }
  co_return std::move(copy);
}

Task<Error> ScsiTask::send_here(BufferList data) {
  if (finished_) co_return Error::kCancelled;
  keep_back(std::move(data));
  co_return co_await wait_for_room();
}

// A peer that does not read stops its own commands, and no others.
Task<Error> ScsiTask::wait_for_room() {
  Session& session = *session_;
  ConnectionLink& link = *link_;
  const std::shared_ptr<Session> keep = session.shared_from_this();
  ++link.pins;
  ++pins_;
  co_await session.room(link);
  session.unpin(link);
  --pins_;
  const bool dead = finished_;
  if (!dead) return_credit(credit_);
  delete_if_done();
  co_return dead ? Error::kCancelled : Error::kNone;
}

// Sends what was kept back before and keeps this back, so that the last piece carries the status.
void ScsiTask::keep_back(BufferList data) {
  const std::size_t room = data_in_length - sent_in_ - pending_in_.byte_count();
  if (data.byte_count() > room) data = data.take_front(room);
  if (data.empty()) return;
  if (!pending_in_.empty()) flush_data_in(false, nullptr);
  pending_in_ = std::move(data);
}

// Section 11.7: PDUs of at most what the initiator takes, F at the end of each sequence of at most
// MaxBurstLength. With `outcome`, the last one carries the status.
void ScsiTask::flush_data_in(bool last, const scsi::Outcome* outcome) {
  const std::uint32_t most = link_->parameters.initiator_max_recv_data_segment_length;
  const std::uint32_t burst = session_->parameters().max_burst_length;
  while (!pending_in_.empty()) {
    const std::size_t piece_bytes =
        std::min<std::size_t>({pending_in_.byte_count(), most, burst - burst_in_});
    BufferList piece = pending_in_.take_front(piece_bytes);
    const auto byte_count = static_cast<std::uint32_t>(piece_bytes);
    burst_in_ += byte_count;
    const bool final_piece = last && pending_in_.empty();
    DataIn pdu{.final = final_piece || burst_in_ == burst,
               .data_segment_length = byte_count,
               .lun = pdu_.lun,
               .initiator_task_tag = pdu_.initiator_task_tag,
               .numbers = session_->numbers(*link_),
               .data_sn = next_data_in_sn_++,
               .buffer_offset = sent_in_};
    if (pdu.final) burst_in_ = 0;
    if (final_piece && outcome != nullptr) {
      const ResidualCount residual = residual_of(*outcome, sent_in_ + byte_count);
      pdu.has_status = true;
      pdu.residual = residual.flag;
      pdu.residual_count = residual.byte_count;
      pdu.status = static_cast<std::uint8_t>(outcome->status);
    }
    sent_in_ += byte_count;
    Bhs bhs;
    write_data_in(pdu, bhs);
    session_->send(*link_, bhs, std::move(piece),
                   pdu.has_status ? StatSnUse::kConsume : StatSnUse::kNone);
  }
}

// The end ------------------------------------------------------------------------------------

void ScsiTask::deliver(scsi::TargetDevice& device) {
  assert(!delivered_ && !finished_);
  delivered_ = true;
  if (refusal_ != Refusal::kNone) {
    finish({});
    delete_if_done();
    return;
  }
  released_ = false;
  if (pdu_.write && !unsolicited_open_ && asks_for_more()) solicit();
  device.execute(*this);
}

void ScsiTask::discard() {
  assert(!delivered_);
  finish({.silent = true});
  delete_if_done();
}

void ScsiTask::complete(scsi::Outcome outcome) {
  if (Executor::current_or_null() == home_) {
    finish(std::move(outcome));
    return;
  }
  outcome_ = std::move(outcome);
  home_->send(completing_);
}

void ScsiTask::release() {
  if (Executor::current_or_null() == home_) {
    released_ = true;
    delete_if_done();
    return;
  }
  home_->send(releasing_);
}

void ScsiTask::delete_if_done() {
  if (finished_ && released_ && pins_ == 0) delete this;
}

void ScsiTask::finish(scsi::Outcome outcome) {
  assert(!finished_ && !lingering_);
  Duration delay{};
  if (session_->is_interfered_with()) [[unlikely]]
    delay = bend_by_rule(outcome);
  const bool waits = expects_data() || delay > Duration::zero();
  if (!outcome.silent && waits && session_->answers(*link_)) {
    linger(std::move(outcome), home_->now() + delay);
    return;
  }
  conclude(std::move(outcome));
}

Duration ScsiTask::bend_by_rule(scsi::Outcome& outcome) {
  if (outcome.silent || !delivered_ || !session_->answers(*link_)) return {};
  const std::uint64_t called_for = pdu_.write ? outcome.data_out_bytes : outcome.data_in_bytes;
  const SessionInterference::Response rule = session_->interference().judge_response(
      *this, {.moved_data = called_for > 0, .announces = session_->announces()});
  if (rule.lose) outcome = {.silent = true};
  if (rule.residual != Residual::kNone) bend_residual(outcome, rule.residual, rule.residual_bytes);
  if (rule.window_closes > Duration::zero()) session_->close_window(rule.window_closes);
  if (rule.event) session_->announce(*link_, *rule.event, rule.event_time);
  return rule.delay;
}

// As if the command had called for fewer bytes than the initiator expects, or for more.
void ScsiTask::bend_residual(scsi::Outcome& outcome, Residual residual, std::uint32_t byte_count) {
  std::uint64_t& called_for = pdu_.write ? outcome.data_out_bytes : outcome.data_in_bytes;
  if (residual == Residual::kOverflow) {
    called_for = std::uint64_t{pdu_.expected_data_transfer_length} + byte_count;
    return;
  }
  called_for = std::min<std::uint64_t>(called_for, pdu_.expected_data_transfer_length);
  called_for -= std::min<std::uint64_t>(called_for, byte_count);
  if (pdu_.write || pending_in_.empty()) return;
  // A sequence that has begun needs a last PDU.
  const std::size_t most = pending_in_.byte_count() - (burst_in_ > 0 ? 1 : 0);
  const std::size_t cut = std::min<std::size_t>(most, byte_count);
  pending_in_ = pending_in_.take_front(pending_in_.byte_count() - cut);
}

void ScsiTask::conclude(scsi::Outcome outcome) {
  assert(!finished_);
  Session& session = *session_;
  // Off the table first, so that the answer opens the window for the next command.
  session_->task_finished(*this);
  if (refusal_ == Refusal::kTaskSetFull && !outcome.silent) {
    outcome = {.status = scsi::Status::kTaskSetFull, .data_out_bytes = outcome.data_out_bytes};
  } else if (refusal_ == Refusal::kAborted && !outcome.silent) {
    outcome.status = scsi::Status::kCheckCondition;
    outcome.sense = scsi::SenseData::encode(
        {.key = scsi::SenseKey::kAbortedCommand, .additional = failure_}, descriptor_sense);
  }
  if (!outcome.silent && !link_->ended) respond(outcome);
  pending_in_.clear();
  let_go_of_memory();
  finished_ = true;
  session_ = nullptr;
  link_ = nullptr;
  arrival_.notify_all();
  session.tell_window();
}

// Its share of what the connection's commands may have.
void ScsiTask::let_go_of_memory() {
  end_transfers();
  session_->read_budget().withdraw(link_->reads, read_claim_);
  return_credit(credit_);
  return_share();
  lent_ = write_held_;
  return_lent();
  session_->forget_waiter(*this);
}

// Gives back what was promised to data that will not be taken any more.
void ScsiTask::end_transfers() {
  drop_data();
  std::size_t promised = std::exchange(unsolicited_promised_, 0);
  for (std::size_t i = 0; i < transfer_count_; ++i) {
    promised += transfers_[i].byte_count - transfers_[i].received;
    session_->transfer_ended(*link_);
  }
  transfer_count_ = 0;
  session_->unpromise(*link_, promised);
  session_->give_write_share(*link_, std::exchange(write_share_, 0));
}

void ScsiTask::respond(const scsi::Outcome& outcome) {
  const bool collapse = outcome.status == scsi::Status::kGood && outcome.sense.empty() &&
                        !pending_in_.empty() && !(pdu_.read && pdu_.write);
  flush_data_in(true, collapse ? &outcome : nullptr);
  if (collapse) return;
  const ResidualCount residual = residual_of(outcome, sent_in_);
  const auto sense = outcome.sense.bytes();
  std::array<std::byte, 2 + 252> data;
  std::size_t data_bytes = 0;
  if (!sense.empty()) {
    put_big_endian<std::uint16_t>(data, 0, static_cast<std::uint16_t>(sense.size()));
    std::ranges::copy(sense, data.begin() + 2);
    data_bytes = 2 + sense.size();
  }
  ScsiResponse response{.status = static_cast<std::uint8_t>(outcome.status),
                        .residual = residual.flag,
                        .data_segment_length = static_cast<std::uint32_t>(data_bytes),
                        .initiator_task_tag = pdu_.initiator_task_tag,
                        .numbers = session_->numbers(*link_),
                        .exp_data_sn = next_data_in_sn_,
                        .residual_count = residual.byte_count};
  if (pdu_.read && pdu_.write && sent_in_ < data_in_length) {
    response.bidirectional_read_residual = Residual::kUnderflow;
    response.bidirectional_read_residual_count = data_in_length - sent_in_;
  }
  Bhs bhs;
  write_scsi_response(response, bhs);
  session_->send_bytes(*link_, bhs, std::span<const std::byte>(data).first(data_bytes),
                       StatSnUse::kConsume);
}

// Section 11.4.5: what the command called for against what the initiator was prepared for.
ScsiTask::ResidualCount ScsiTask::residual_of(const scsi::Outcome& outcome,
                                              std::uint32_t sent_in) const {
  const std::uint32_t expected = pdu_.expected_data_transfer_length;
  std::uint64_t called_for = pdu_.write ? outcome.data_out_bytes : outcome.data_in_bytes;
  if (pdu_.read && !pdu_.write) {
    called_for = called_for > expected ? called_for : sent_in;
  } else if (!pdu_.read && !pdu_.write) {
    called_for = std::max(outcome.data_out_bytes, outcome.data_in_bytes);
  }
  if (called_for > expected) {
    const std::uint64_t over = std::min<std::uint64_t>(called_for - expected, 0xffffffffU);
    return {.flag = Residual::kOverflow, .byte_count = static_cast<std::uint32_t>(over)};
  }
  if (called_for < expected) {
    return {.flag = Residual::kUnderflow,
            .byte_count = expected - static_cast<std::uint32_t>(called_for)};
  }
  return {};
}

}  // namespace sandbay::iscsi
