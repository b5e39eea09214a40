// ScsiTask: one SCSI command of a session, from its PDU to its response: the transfer state that
// RFC 7143 sections 4.2.5 and 11.7 to 11.8 describe, and the command that the device server sees.
//
// Home: the session's. The device server may live elsewhere and then crosses in the calls of
// scsi::Command. A task leaves the session's table when it finishes; the object lives on until the
// device server has released it and nothing else holds it, and touches the session no more.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "iscsi/interference.h"
#include "iscsi/pdu.h"
#include "iscsi/target_framing.h"
#include "iscsi/transfer_budget.h"
#include "runtime/buffer.h"
#include "runtime/frame_pool.h"
#include "runtime/sync.h"
#include "scsi/command.h"

namespace sandbay::scsi {
class TargetDevice;
}

namespace sandbay::iscsi {

class Session;
struct ConnectionLink;

class ScsiTask final : public scsi::Command, public FramePooled {
 public:
  // A piece of data that was solicited and has not come whole.
  struct Transfer {
    std::uint32_t target_transfer_tag = kReservedTag;
    std::uint32_t offset = 0;
    std::uint32_t byte_count = 0;
    std::uint32_t received = 0;
    std::uint32_t next_data_sn = 0;
  };
  static constexpr std::size_t kMostTransfers = 8;
  // One R2T asks for at most so much, and so much may be asked for ahead of the device server: a
  // write of any length streams through bounded memory.
  static constexpr std::uint32_t kTransferBytes = std::uint32_t{1} << 20;
  static constexpr std::uint32_t kAheadBytes = std::uint32_t{4} << 20;

  ScsiTask(Session& session, ConnectionLink& link, const ScsiCommand& pdu);

  std::uint32_t initiator_task_tag() const noexcept { return pdu_.initiator_task_tag; }
  std::uint32_t cmd_sn() const noexcept { return pdu_.cmd_sn; }
  ConnectionLink& link() noexcept { return *link_; }
  bool immediate() const noexcept { return pdu_.immediate; }
  bool delivered() const noexcept { return delivered_; }
  // It has failed and waits for the last of its data to be answered; the device server is done
  // with it.
  bool lingering() const noexcept { return lingering_; }
  bool is_of(const ConnectionLink& link) const noexcept { return link_ == &link; }
  // What comes for it is of use.
  bool takes_data() const noexcept { return refusal_ == Refusal::kNone && !lingering_; }

  // Data that came with the command, whether there was room for it, and what has been promised to
  // the data that follow unasked.
  void take_immediate(IncomingPdu& pdu);
  // How many of its bytes were promised to it: the room for others was promised to somebody else.
  std::uint32_t take_data_out(const DataOut& pdu, BufferList data, bool dropped);
  // Its turn by CmdSN has come: to the device server.
  void deliver(scsi::TargetDevice& device);
  // Ends a task that the device server has never seen, without a response.
  void discard();
  // Bytes that it holds, or that have been promised to data nobody has to ask for.
  std::size_t data_bytes() const noexcept { return in_order_end_ + unsolicited_promised_; }
  // Before its turn: there is no room for its data, and it will end with TASK SET FULL.
  void refuse_data();
  // Ends a lingering task without a response.
  void abandon();
  // Its data cannot be used: it will end with ABORTED COMMAND and this.
  void fail(scsi::Additional reason);

  // scsi::Command
  Task<Error> prepare_data_in(std::size_t byte_count, bool scarce) override;
  Task<Error> send_data_in(BufferList data) override;
  Task<Result<BufferList>> receive_data_out(std::size_t byte_count) override;
  void complete(scsi::Outcome outcome) override;
  void release() override;

  // A share may have come: looks again.
  void wake() { arrival_.notify_all(); }

  ScsiTask* next_in_bucket = nullptr;  // The session's table.

 private:
  struct Home : Message {
    ScsiTask* task = nullptr;
  };
  struct ResidualCount {
    Residual flag = Residual::kNone;
    std::uint32_t byte_count = 0;
  };
  enum class Refusal : std::uint8_t { kNone, kTaskSetFull, kAborted };

  ~ScsiTask() = default;

  Task<Error> prepare_here(std::size_t byte_count, bool scarce);
  void return_credit(std::size_t byte_count);
  void return_lent();
  bool prepare_transfer();
  void return_share();
  static Task<BufferList> unshared(BufferList data);
  Task<Error> send_here(BufferList data);
  Task<Error> wait_for_room();
  void keep_back(BufferList data);
  Task<Result<BufferList>> receive_here(std::size_t byte_count, bool crossing);
  BufferList take_ready(std::size_t byte_count);
  void store(std::uint32_t offset, BufferList data);
  bool came_before(std::uint32_t offset, std::uint32_t byte_count) const;
  void make_ready(BufferList data);
  void end_gathering();
  void drop_data();
  void take_unsolicited(const DataOut& pdu, BufferList data, bool dropped);
  void take_solicited(const Transfer& transfer, const DataOut& pdu, BufferList data, bool dropped);
  void fail_for_room();
  Transfer* find_transfer(std::uint32_t target_transfer_tag);
  void end_unsolicited();
  void end_transfer(Transfer& transfer);
  bool expects_data() const noexcept { return unsolicited_open_ || transfer_count_ > 0; }
  void linger(scsi::Outcome outcome, TimePoint until);
  // How late a rule answers it; it may also change the outcome.
  [[gnu::cold]] Duration bend_by_rule(scsi::Outcome& outcome);
  [[gnu::cold]] void bend_residual(scsi::Outcome& outcome, Residual residual,
                                   std::uint32_t byte_count);
  void let_go_of_memory();
  Task<void> answer_after_data(TimePoint until);
  void solicit();
  Task<void> solicit_when_promised(std::uint32_t byte_count);
  Task<void> solicit_in_time();
  [[gnu::cold]] bool is_withheld_by_rule();
  Task<void> solicit_after(TimePoint until);
  bool asks_for_more() const noexcept { return solicited_end_ < data_out_length || held_back_ > 0; }
  void send_ready_to_transfer();
  Transfer next_transfer();
  void flush_data_in(bool last, const scsi::Outcome* outcome);
  void respond(const scsi::Outcome& outcome);
  void finish(scsi::Outcome outcome);
  void conclude(scsi::Outcome outcome);
  void end_transfers();
  void delete_if_done();
  ResidualCount residual_of(const scsi::Outcome& outcome, std::uint32_t sent_in) const;

  Session* session_;  // Null once finished.
  ConnectionLink* link_;
  Executor* home_;
  ScsiCommand pdu_;
  bool delivered_ = false;
  bool released_ = true;  // By the device server, which does not have it yet.
  bool finished_ = false;
  bool lingering_ = false;
  bool cancelled_ = false;  // By the device server; it waits for data no more.
  unsigned pins_ = 0;       // Coroutines of ours that hold on to it.
  Refusal refusal_ = Refusal::kNone;
  scsi::Additional failure_ = scsi::Additional::kNone;

  // Data-Out.
  BufferList ready_;  // In order, from consumed_ on.
  Buffer gathered_;   // Behind ready_: small pieces put together.
  std::size_t gathered_bytes_ = 0;
  std::map<std::uint32_t, BufferList> early_;  // Behind a gap, by offset.
  std::uint32_t consumed_ = 0;
  std::uint32_t in_order_end_ = 0;  // consumed_ + ready_ + gathered_
  std::uint32_t data_came_ = 0;     // Bytes of use; tells whether some have come.
  std::uint32_t solicited_end_ = 0;
  std::uint32_t promised_ahead_ = 0;  // Room for what no R2T has asked for yet.
  // What rules say of the next R2T, and a piece that one has made wait for what is behind it.
  SessionInterference::Transfer transfer_rule_;
  bool transfer_judged_ = false;
  std::uint32_t held_back_at_ = 0;
  std::uint32_t held_back_ = 0;  // Bytes; promised.
  // Bytes of the write budget: all that this task holds, the part that the device server works on,
  // and the piece that has no promise of memory yet.
  TransferBudget::Claim write_claim_;
  std::size_t write_held_ = 0;
  std::size_t lent_ = 0;
  std::uint32_t claimed_ = 0;
  std::uint32_t unsolicited_limit_ = 0;
  std::uint32_t unsolicited_promised_ = 0;
  std::uint32_t write_share_ = 0;  // Of its connection's.
  std::uint32_t unsolicited_data_sn_ = 0;
  bool unsolicited_open_ = false;
  bool promising_ = false;  // Room or time for the next R2T is waited for.
  std::uint32_t next_r2t_sn_ = 0;
  std::array<Transfer, kMostTransfers> transfers_;
  std::size_t transfer_count_ = 0;
  Condition arrival_;

  // Data-In.
  TransferBudget::Claim read_claim_;
  std::size_t credit_ = 0;  // Bytes of the read budget, granted and not used up.
  std::size_t share_ = 0;   // The same while memory is scarce.
  BufferList pending_in_;   // The last piece is kept back, to carry the status.
  std::uint32_t sent_in_ = 0;
  std::uint32_t burst_in_ = 0;  // Of the sequence in progress.
  std::uint32_t next_data_in_sn_ = 0;

  scsi::Outcome outcome_;  // On its way home, or waiting for the last of the data.
  Home completing_;
  Home releasing_;
  Home waking_;
};

}  // namespace sandbay::iscsi
