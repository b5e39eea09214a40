// InitiatorConnection: one connection of an initiator's session in the full feature phase: its
// stream, its framing, and the tasks allegiant to it (RFC 7143 section 4.2.5.1).
//
// It lives on an executor of its own, perhaps not the session's. A task reaches it by hand_over()
// and leaves it by InitiatorConnectionEvents::task_ended(), once, answered or lost, when nothing
// here names its memory any more: no send in flight, no receive that fills its buffers. Everything
// between, data transfers included, happens here without the session.
//
// Incoming PDUs are parsed where the receive put them; the data of large Data-Ins is received
// straight into the command's buffers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "iscsi/initiator.h"
#include "iscsi/initiator_outgoing.h"
#include "iscsi/pdu.h"
#include "iscsi/shown.h"
#include "runtime/buffer.h"
#include "runtime/executor.h"
#include "runtime/io.h"
#include "runtime/sync.h"

namespace sandbay::iscsi {

// What the full feature phase needs to know of the negotiation.
struct InitiatorTransferLimits {
  bool header_digest = false;
  bool data_digest = false;
  std::uint32_t receive_segment_bytes = 8192;  // MaxRecvDataSegmentLength: ours and the target's.
  std::uint32_t send_segment_bytes = 8192;
  std::uint32_t burst_bytes = 262144;
  std::uint32_t first_burst_bytes = 65536;
  bool initial_r2t = true;
  bool immediate_data = true;
  bool data_pdu_in_order = true;
  bool data_sequence_in_order = true;
};

// A request other than a SCSI command. CmdSN and ExpStatSN are filled in when it is sent.
struct InitiatorControlTask : InitiatorTask {
  InitiatorControlTask() { kind = Kind::kControl; }
  Bhs header{};
  std::vector<std::byte> data;
  Bhs answer{};
  std::vector<std::byte> answer_data;
  void (*done)(InitiatorControlTask& task) = nullptr;
  void* owner = nullptr;
};

// Answers to NOP-Outs with a tag of this form are nobody's: they fill a place in the CmdSN order.
inline constexpr std::uint32_t kPlugTag = 0xFFFFFFF0U;

// What a connection tells its session. All of it runs on the session's home.
class InitiatorConnectionEvents {
 public:
  virtual void task_ended(InitiatorTask& task) = 0;
  virtual void window_moved(std::uint32_t exp_cmd_sn, std::uint32_t max_cmd_sn) = 0;
  virtual void async_message(InitiatorConnection& connection, AsyncNotice notice) = 0;
  // The target refused a PDU of which this is the header.
  virtual void rejected(InitiatorConnection& connection, RejectReason reason, Bhs refused) = 0;
  // Nothing of this connection is in flight any more and it holds no task; what is handed over
  // from here on comes back as lost at once. Never called from within a call to it.
  virtual void connection_ended(InitiatorConnection& connection) = 0;

 protected:
  ~InitiatorConnectionEvents() = default;
};

struct InitiatorConnectionCounters {
  Shown<std::uint64_t> header_digest_errors;
  Shown<std::uint64_t> data_digest_errors;
  Shown<std::uint64_t> protocol_errors;
  Shown<std::uint64_t> rejects;
  Shown<std::uint64_t> nop_ins;
  Shown<const char*> why_ended = "";  // For people.
};

class InitiatorConnection final : private InitiatorOutgoing::Owner {
 public:
  struct Place {
    InitiatorConnectionEvents& events;
    Executor& session_home;
    Executor& executor;
    // The session's next CmdSN, written by its home alone.
    const std::atomic<std::uint32_t>& next_cmd_sn;
    std::uint16_t cid = 0;
    std::uint32_t path = 0;       // The session's number for it.
    std::uint32_t slot_mask = 0;  // A task's slot is its tag's low bits.
    std::size_t receive_buffer_bytes = 0;
  };
  explicit InitiatorConnection(const Place& place);
  ~InitiatorConnection();  // After connection_ended(), or never opened.
  InitiatorConnection(const InitiatorConnection&) = delete;
  InitiatorConnection& operator=(const InitiatorConnection&) = delete;

  Executor& executor() const noexcept { return place_.executor; }
  std::uint16_t cid() const noexcept { return place_.cid; }
  std::uint32_t path() const noexcept { return place_.path; }

  struct Opening {
    std::unique_ptr<Stream> stream;
    InitiatorTransferLimits limits;
    std::uint32_t exp_stat_sn = 0;
    std::vector<std::byte> rest;  // Received behind the last login response.
    std::vector<Misbehaviour> misbehaviour;
    std::uint64_t pdus_before = 0;
    Interferences* interferences = nullptr;
    ConnectionFacts facts;  // For them.
  };

  // On its executor ----------------------------------------------------------------------------
  // kNoMemory: the buffer pool has no receive buffer left; it then never was open.
  Error open(Opening opening);
  // Ends it as the network would (reset), or in order; connection_ended() follows.
  void shut_down(bool reset, const char* why);
  // Takes tasks out whose outcome was decided elsewhere: they end as `aborting`. All SCSI commands
  // of the logical unit (or of any) that were numbered before `before_cmd_sn`, or one tag.
  void drop_commands(std::optional<std::uint64_t> lun, std::uint32_t before_cmd_sn);
  void drop_tag(std::uint32_t itt);
  // Fills the place of a CmdSN that may never have arrived with a NOP-Out.
  void plug(std::uint32_t cmd_sn);

  // On the session's home ----------------------------------------------------------------------
  void hand_over(InitiatorTask& task);

  // The session's own book-keeping, on its home.
  std::uint32_t tasks_here = 0;  // Handed over and not yet ended.
  bool gone = false;             // connection_ended() was called.

  // On any executor, for display: may be a moment old.
  const InitiatorConnectionCounters& counters() const noexcept { return counters_; }
  std::uint64_t pdus_sent() const noexcept { return outgoing_.pdus_sent(); }
  std::uint32_t exp_stat_sn() const noexcept { return exp_stat_sn_; }
  const InitiatorTransferLimits& limits() const noexcept { return limits_; }

 private:
  enum class Framing : std::uint8_t {
    kHeader,
    kData,
    kHeld,  // The PDU is complete, and a rule has it wait.
  };

  // initiator_connection.cc
  Task<void> receive_loop();
  void start(InitiatorTask& task);
  void end_task(InitiatorTask& task);
  void deliver(InitiatorTask& task);
  void fail(const char* why);
  void finish_if_idle();
  InitiatorTask* find(std::uint32_t itt) const;
  void sent(InitiatorTask& task) override;
  void outgoing_failed(const char* why) override { fail(why); }
  void outgoing_idle() override { finish_if_idle(); }

  // initiator_framing.cc
  void parse();
  bool take_header();
  bool take_data();
  // initiator_interference.cc
  [[gnu::cold]] bool judge_pdu();
  Task<void> wait_by_rule();
  void carry_out(PduInterference::Fate fate);
  void forget_pdu();
  void alter_data();
  void choose_sink();
  bool data_digest_fits(std::span<const std::byte> padding, std::span<const std::byte> digest);
  std::size_t receive_slices(std::array<IoSlice, 8>& slices);
  void received(std::size_t byte_count);
  std::size_t buffered() const noexcept { return end_ - begin_; }
  std::span<const std::byte> buffered_bytes() const noexcept {
    return {buffer_.data() + begin_, buffered()};
  }

  // initiator_requests.cc
  void send_command(InitiatorCommand& command);
  void send_control(InitiatorControlTask& task);
  void send_data_out(InitiatorCommand& command, std::uint32_t transfer_tag, std::uint32_t offset,
                     std::uint32_t byte_count);

  // initiator_responses.cc
  void handle_pdu();
  void handle_data_in();
  static bool note_place(InitiatorCommand& command, std::uint32_t offset, std::uint32_t byte_count);
  void handle_scsi_response();
  void handle_ready_to_transfer();
  void handle_control_response(Opcode expected_request);
  void handle_nop_in();
  void handle_async_message();
  void handle_reject();
  bool take_status(const StatusNumbers& numbers);
  void note_window(const StatusNumbers& numbers);
  void violate(const char* what);

  Place place_;
  InitiatorOutgoing outgoing_;
  std::unique_ptr<Stream> stream_;
  InitiatorTransferLimits limits_;
  std::vector<InitiatorTask*> tasks_;              // By slot.
  std::unique_ptr<PduInterference> interference_;  // Null: nobody.
  TimePoint held_until_{};
  PduInterference::Fate held_fate_ = PduInterference::Fate::kPass;
  Condition held_;
  Shown<std::uint32_t> exp_stat_sn_;
  std::uint32_t told_exp_cmd_sn_ = 0;
  std::uint32_t told_max_cmd_sn_ = 0;
  bool failing_ = false;
  bool receiving_ = false;
  bool logged_out_ = false;
  bool ended_ = false;

  // Received and not yet consumed: buffer_[begin_, end_).
  Buffer buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool large_pdus_ = false;  // The last data went straight into a command's buffers.

  // The PDU in hand.
  Framing framing_ = Framing::kHeader;
  Bhs bhs_{};
  std::uint32_t data_bytes_ = 0;
  std::uint32_t data_done_ = 0;
  InitiatorCommand* sink_ = nullptr;  // Whose buffers take the data; otherwise data_ does.
  std::uint32_t sink_offset_ = 0;
  std::vector<std::byte> data_;

  struct EndedMessage : Message {
    InitiatorConnection* connection = nullptr;
  };
  EndedMessage ended_message_;
  InitiatorConnectionCounters counters_;
};

}  // namespace sandbay::iscsi
