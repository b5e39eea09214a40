// The data of a write: what comes with it, unasked and asked for, and its order. RFC 7143 sections
// 4.2.5, 7.8, 7.9, 11.4.2, 11.4.7.2, 11.7 and 11.8.
//
// Every sequence of Data-Outs (the unsolicited one, and one for each R2T) is followed to its F bit,
// also when its data are of no use any more: only then may the command be answered.

#include <algorithm>
#include <iterator>

#include "iscsi/target_session.h"
#include "iscsi/target_task.h"

namespace sandbay::iscsi {
namespace {

// A smaller piece would waste most of the block that it lies in, and is copied to its neighbours.
constexpr std::size_t kSmallPieceBytes = 2048;
constexpr std::size_t kGatherBytes = 4096;
// Pieces behind a gap; only where DataPDUInOrder=No lets there be any.
constexpr std::size_t kMostEarlyPieces = 1024;
// A command that has failed waits so long for the next of its Data-Outs. An initiator that has
// forgotten the command will never send them.
constexpr Duration kDataOutPatience = std::chrono::seconds(10);

}  // namespace

void ScsiTask::take_immediate(IncomingPdu& pdu) {
  unsolicited_promised_ = pdu.promised;
  write_share_ = pdu.share;
  if (pdu.data_dropped) {
    refusal_ = Refusal::kTaskSetFull;
    return;
  }
  in_order_end_ = static_cast<std::uint32_t>(pdu.data.byte_count());
  ready_ = std::move(pdu.data);
  if (!unsolicited_open_) solicited_end_ = in_order_end_;
}

void ScsiTask::refuse_data() {
  assert(!delivered_);
  if (refusal_ == Refusal::kNone) refusal_ = Refusal::kTaskSetFull;
  in_order_end_ = 0;
  drop_data();
  session_->unpromise(*link_, std::exchange(unsolicited_promised_, 0));
}

std::uint32_t ScsiTask::take_data_out(const DataOut& pdu, BufferList data, bool dropped) {
  const bool unsolicited = pdu.target_transfer_tag == kReservedTag;
  Transfer* const transfer = unsolicited ? nullptr : find_transfer(pdu.target_transfer_tag);
  if (!unsolicited && transfer == nullptr) return 0;  // It has ended; nobody wants this.
  const bool useful = takes_data();
  const std::uint32_t room =
      unsolicited ? unsolicited_promised_ : transfer->byte_count - transfer->received;
  const std::uint32_t promised = std::min(pdu.data_segment_length, room);
  if (useful) data_came_ += pdu.data_segment_length;
  if (unsolicited) {
    if (!dropped) unsolicited_promised_ -= promised;
    if (useful) take_unsolicited(pdu, std::move(data), dropped);
    if (pdu.final) end_unsolicited();
  } else {
    if (useful) take_solicited(*transfer, pdu, std::move(data), dropped);
    ++transfer->next_data_sn;
    transfer->received += promised;
    if (dropped) session_->unpromise(*link_, promised);
    if (pdu.final) end_transfer(*transfer);
  }
  if (delivered_) solicit();
  arrival_.notify_all();
  return promised;
}

// What RFC 7143 calls for depends on what is wrong. A DataSN that is not the next one means that
// data was lost (section 7.9), which is a CRC error (section 7.8). Data that are not those of the
// sequence, by their number or their place, are an incorrect amount (section 11.4.7.2).
void ScsiTask::take_unsolicited(const DataOut& pdu, BufferList data, bool dropped) {
  if (!unsolicited_open_) return fail(scsi::Additional::kUnexpectedUnsolicitedData);
  if (pdu.data_sn != unsolicited_data_sn_) return fail(scsi::Additional::kDataPhaseCrcError);
  ++unsolicited_data_sn_;
  const bool in_place = pdu.buffer_offset <= unsolicited_limit_ &&
                        pdu.data_segment_length <= unsolicited_limit_ - pdu.buffer_offset;
  const bool in_order =
      !session_->parameters().data_pdu_in_order || pdu.buffer_offset == in_order_end_;
  const bool twice = came_before(pdu.buffer_offset, pdu.data_segment_length);
  if (!in_place || !in_order || twice) return fail(scsi::Additional::kNotEnoughUnsolicitedData);
  if (dropped) return fail_for_room();
  store(pdu.buffer_offset, std::move(data));
  // Whoever sends unsolicited data sends as much as may be: FirstBurstLength, or all there is.
  if (pdu.final && in_order_end_ != unsolicited_limit_) {
    fail(scsi::Additional::kNotEnoughUnsolicitedData);
  }
}

void ScsiTask::take_solicited(const Transfer& transfer, const DataOut& pdu, BufferList data,
                              bool dropped) {
  if (pdu.data_sn != transfer.next_data_sn) return fail(scsi::Additional::kDataPhaseCrcError);
  const std::uint32_t byte_count = pdu.data_segment_length;
  const std::uint32_t left = transfer.byte_count - transfer.received;
  const bool in_place = pdu.buffer_offset >= transfer.offset && byte_count <= left &&
                        pdu.buffer_offset - transfer.offset <= transfer.byte_count - byte_count;
  const bool in_order = !session_->parameters().data_pdu_in_order ||
                        pdu.buffer_offset == transfer.offset + transfer.received;
  const bool complete = !pdu.final || byte_count == left;
  const bool twice = came_before(pdu.buffer_offset, byte_count);
  if (!in_place || !in_order || !complete || twice) {
    return fail(scsi::Additional::kNotEnoughUnsolicitedData);
  }
  if (dropped) return fail_for_room();
  store(pdu.buffer_offset, std::move(data));
}

ScsiTask::Transfer* ScsiTask::find_transfer(std::uint32_t target_transfer_tag) {
  const auto transfers = std::span(transfers_).first(transfer_count_);
  const auto found =
      std::ranges::find(transfers, target_transfer_tag, &Transfer::target_transfer_tag);
  return found == transfers.end() ? nullptr : &*found;
}

void ScsiTask::end_unsolicited() {
  if (!std::exchange(unsolicited_open_, false)) return;
  solicited_end_ = in_order_end_;
  session_->unpromise(*link_, std::exchange(unsolicited_promised_, 0));
}

void ScsiTask::end_transfer(Transfer& transfer) {
  assert(transfer.received <= transfer.byte_count);
  session_->unpromise(*link_, transfer.byte_count - transfer.received);
  transfer = transfers_[--transfer_count_];
  session_->transfer_ended(*link_);
}

// Puts data where it belongs: behind what is ready, or aside until the gap has closed.
void ScsiTask::store(std::uint32_t offset, BufferList data) {
  if (data.empty()) return;
  if (offset != in_order_end_) {
    if (early_.size() >= kMostEarlyPieces) {
      refusal_ = Refusal::kTaskSetFull;
      return;
    }
    early_.emplace(offset, std::move(data));
    return;
  }
  make_ready(std::move(data));
  while (!early_.empty() && early_.begin()->first == in_order_end_) {
    BufferList next = std::move(early_.begin()->second);
    early_.erase(early_.begin());
    make_ready(std::move(next));
  }
}

// Nothing is taken twice, so that a command holds no more than its length.
bool ScsiTask::came_before(std::uint32_t offset, std::uint32_t byte_count) const {
  if (byte_count == 0) return false;
  if (offset < in_order_end_) return true;
  if (early_.empty()) return false;
  const auto after = early_.lower_bound(offset);
  if (after != early_.end() && after->first - offset < byte_count) return true;
  if (after == early_.begin()) return false;
  const auto before = std::prev(after);
  return offset - before->first < before->second.byte_count();
}

void ScsiTask::make_ready(BufferList data) {
  in_order_end_ += static_cast<std::uint32_t>(data.byte_count());
  if (data.byte_count() >= kSmallPieceBytes) {
    end_gathering();
    ready_.append(std::move(data));
    return;
  }
  std::size_t copied = 0;
  while (copied < data.byte_count()) {
    if (gathered_bytes_ == kGatherBytes) end_gathering();
    if (gathered_.empty()) gathered_ = home_->buffers().try_allocate_contiguous(kGatherBytes);
    if (gathered_.empty()) {
      refusal_ = Refusal::kTaskSetFull;
      return;
    }
    const auto room = gathered_.bytes().subspan(gathered_bytes_);
    const std::size_t piece = std::min(room.size(), data.byte_count() - copied);
    data.copy_to(room.first(piece), copied);
    gathered_bytes_ += piece;
    copied += piece;
  }
}

// What has been gathered joins what is ready.
void ScsiTask::end_gathering() {
  if (gathered_bytes_ == 0) return;
  gathered_.truncate(std::exchange(gathered_bytes_, 0));
  ready_.append(std::exchange(gathered_, Buffer()));
}

void ScsiTask::fail(scsi::Additional reason) {
  if (refusal_ == Refusal::kNone) {
    refusal_ = Refusal::kAborted;
    failure_ = reason;
  }
  arrival_.notify_all();
}

void ScsiTask::fail_for_room() {
  if (refusal_ == Refusal::kNone) refusal_ = Refusal::kTaskSetFull;
}

// Asks for data as far ahead as may be.
void ScsiTask::solicit() {
  if (finished_ || lingering_ || unsolicited_open_ || refusal_ != Refusal::kNone) return;
  const std::size_t most =
      std::min<std::size_t>(session_->parameters().max_outstanding_r2t, kMostTransfers);
  while (!promising_ && !write_claim_.waiting && transfer_count_ < most && asks_for_more() &&
         solicited_end_ - consumed_ < kAheadBytes) {
    if (session_->is_interfered_with() && !transfer_judged_ && held_back_ == 0) [[unlikely]] {
      if (is_withheld_by_rule()) return;
    }
    if (promised_ahead_ == 0 && held_back_ == 0 && !prepare_transfer()) return;
    if (session_->options().pace.waits()) {
      promising_ = true;
      ++pins_;
      spawn(solicit_in_time());
      return;
    }
    send_ready_to_transfer();
  }
}

// Room for all of the piece that the device server takes at once: if many commands held a part of
// theirs each, none might ever get the rest. First of what the connection may hold, then of what
// there is. False: the one or the other is waited for.
bool ScsiTask::prepare_transfer() {
  if (claimed_ == 0) {
    const std::uint32_t byte_count = std::min(kTransferBytes - solicited_end_ % kTransferBytes,
                                              data_out_length - solicited_end_);
    if (!session_->write_budget().take(link_->writes, write_claim_, byte_count)) return false;
    write_held_ += byte_count;
    claimed_ = byte_count;
  }
  const std::uint32_t byte_count = std::exchange(claimed_, 0);
  if (session_->try_promise(*link_, byte_count)) {
    promised_ahead_ = byte_count;
    return true;
  }
  promising_ = true;
  ++pins_;
  spawn(solicit_when_promised(byte_count));
  return false;
}

Task<void> ScsiTask::solicit_when_promised(std::uint32_t byte_count) {
  Session& session = *session_;
  ConnectionLink& link = *link_;
  ++link.pins;
  const std::shared_ptr<Session> keep = session.shared_from_this();
  const bool promised = co_await session.promise(link, byte_count);
  promising_ = false;
  const bool wanted = !finished_ && !lingering_ && !link.ended && refusal_ == Refusal::kNone;
  if (promised && !wanted) session.unpromise(link, byte_count);
  if (promised && wanted) {
    promised_ahead_ = byte_count;
    solicit();
    arrival_.notify_all();  // From now on, data are waited for with patience.
  }
  session.unpin(link);
  --pins_;
  delete_if_done();
}

// The next R2T, for which there is room, when its time has come.
Task<void> ScsiTask::solicit_in_time() {
  Session& session = *session_;
  ConnectionLink& link = *link_;
  ++link.pins;
  const std::shared_ptr<Session> keep = session.shared_from_this();
  const TransferPace& pace = session.options().pace;
  const auto wanted = [this, &link] {
    return !finished_ && !lingering_ && !link.ended && refusal_ == Refusal::kNone;
  };
  co_await link.transfers.begin(pace.at_once);
  if (wanted()) co_await home_->sleep_for(pace.turnaround_with(session.connection_count()));
  promising_ = false;
  if (wanted()) {
    send_ready_to_transfer();
    solicit();
    arrival_.notify_all();  // From now on, data are waited for with patience.
  } else {
    session.transfer_ended(link);
  }
  session.unpin(link);
  --pins_;
  delete_if_done();
}

bool ScsiTask::is_withheld_by_rule() {
  transfer_judged_ = true;
  transfer_rule_ = session_->interference().judge_transfer(*this);
  if (transfer_rule_.delay <= Duration::zero()) return false;
  // Others do not wait for memory that only a rule holds up.
  if (promised_ahead_ > 0) {
    claimed_ = std::exchange(promised_ahead_, 0);
    session_->unpromise(*link_, claimed_);
  }
  promising_ = true;
  ++pins_;
  spawn(solicit_after(home_->now() + transfer_rule_.delay));
  return true;
}

Task<void> ScsiTask::solicit_after(TimePoint until) {
  Session& session = *session_;
  ConnectionLink& link = *link_;
  ++link.pins;
  const std::shared_ptr<Session> keep = session.shared_from_this();
  const auto wanted = [this, &link] {
    return !finished_ && !lingering_ && !link.ended && refusal_ == Refusal::kNone && !cancelled_;
  };
  while (wanted() && home_->now() < until && session.is_interfered_with()) {
    (void)co_await arrival_.wait_until(std::min(until, home_->now() + kLookAtRules));
  }
  promising_ = false;
  if (wanted()) {
    solicit();
    arrival_.notify_all();  // From now on, data are waited for with patience.
  }
  session.unpin(link);
  --pins_;
  delete_if_done();
}

// As much as may be asked for at once of what there is room for.
ScsiTask::Transfer ScsiTask::next_transfer() {
  if (held_back_ > 0) {
    return {.offset = held_back_at_, .byte_count = std::exchange(held_back_, 0)};
  }
  const std::uint32_t burst = std::min(session_->parameters().max_burst_length, kTransferBytes);
  std::uint32_t byte_count = std::min(burst, promised_ahead_);
  const SessionInterference::Transfer rule = std::exchange(transfer_rule_, {});
  transfer_judged_ = false;
  if (rule.most > 0) byte_count = std::min(byte_count, rule.most);
  promised_ahead_ -= byte_count;
  Transfer transfer{.offset = solicited_end_, .byte_count = byte_count};
  solicited_end_ += byte_count;
  if (rule.disorder && byte_count > 1) {
    held_back_at_ = transfer.offset;
    held_back_ = byte_count / 2;
    transfer.offset += held_back_;
    transfer.byte_count -= held_back_;
  }
  return transfer;
}

void ScsiTask::send_ready_to_transfer() {
  Transfer& transfer = transfers_[transfer_count_];
  transfer = next_transfer();
  ++transfer_count_;
  transfer.target_transfer_tag = session_->next_transfer_tag();
  Bhs bhs;
  write_ready_to_transfer({.lun = pdu_.lun,
                           .initiator_task_tag = pdu_.initiator_task_tag,
                           .target_transfer_tag = transfer.target_transfer_tag,
                           .numbers = session_->numbers(*link_),
                           .r2t_sn = next_r2t_sn_++,
                           .buffer_offset = transfer.offset,
                           .desired_data_transfer_length = transfer.byte_count},
                          bhs);
  session_->send(*link_, bhs, {}, StatSnUse::kShow);
}

// The answer waits --------------------------------------------------------------------------

// Sections 7.8, 11.4.2 and 11.17.1: data that are still to come are waited for before the command
// is answered; they are taken and dropped.
void ScsiTask::linger(scsi::Outcome outcome, TimePoint until) {
  assert(!lingering_ && delivered_);
  lingering_ = true;
  outcome_ = std::move(outcome);
  drop_data();
  ++pins_;
  spawn(answer_after_data(until));
}

Task<void> ScsiTask::answer_after_data(TimePoint until) {
  while (!finished_ && expects_data()) {
    const bool came = co_await arrival_.wait_until(home_->now() + kDataOutPatience);
    if (!came) break;
  }
  // Others do not wait for what only a rule holds up.
  if (!finished_ && home_->now() < until) let_go_of_memory();
  while (!finished_ && home_->now() < until && session_->is_interfered_with()) {
    (void)co_await arrival_.wait_until(std::min(until, home_->now() + kLookAtRules));
  }
  --pins_;
  if (!finished_) conclude(std::move(outcome_));
  delete_if_done();
}

void ScsiTask::abandon() {
  assert(lingering_ && !finished_);
  conclude({.silent = true});
  delete_if_done();
}

// Lets go of what has come, and of the promise for what nobody has been asked for; asks for no
// more.
void ScsiTask::drop_data() {
  session_->write_budget().withdraw(link_->writes, write_claim_);
  ready_.clear();
  early_.clear();
  gathered_ = Buffer();
  gathered_bytes_ = 0;
  session_->unpromise(*link_, std::exchange(promised_ahead_, 0) + std::exchange(held_back_, 0));
}

}  // namespace sandbay::iscsi
