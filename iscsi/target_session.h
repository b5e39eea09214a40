// Session: one iSCSI session (RFC 7143 section 4.4) with its connections: command ordering by
// CmdSN across them, the command window, the task table, task management, NOP, text and logout.
//
// Home: an executor of its own, chosen where its logical units are; every function is called
// there unless it says otherwise. Connections with other homes hand PDUs over as messages. Kept
// alive by shared pointers of the server and of the coroutines that serve its connections.
//
// A command's place in the order is decided on arrival; its task exists from then on, so that its
// data find it, and goes to the device server when every CmdSN before it has been received.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "iscsi/interference.h"
#include "iscsi/negotiation.h"
#include "iscsi/pdu.h"
#include "iscsi/target_connection.h"
#include "iscsi/target_server.h"
#include "iscsi/target_states.h"
#include "iscsi/target_task.h"
#include "iscsi/transfer_budget.h"
#include "iscsi/transfer_pace.h"
#include "runtime/executor.h"
#include "runtime/sync.h"
#include "scsi/target_device.h"

namespace sandbay::iscsi {

// A connection as its session sees it.
struct ConnectionLink {
  Connection* connection = nullptr;
  Executor* home = nullptr;  // The connection's.
  std::uint16_t cid = 0;
  std::uint32_t portal = 0;  // Where it came to, by its index.
  ConnectionParameters parameters;
  std::string initiator_address;
  std::string target_address;
  bool ended = false;             // Nothing is sent on it or taken from it any more.
  bool dropped = false;           // By us, for what it did.
  bool asked = false;             // To log out, by ask_to_leave().
  bool leaving = false;           // Logging out: nothing is taken from it any more.
  bool heard = false;             // A PDU has come; until then nothing is known about …
  std::uint32_t exp_stat_sn = 0;  // … what the initiator has received.
  std::uint32_t tasks = 0;
  std::size_t sent_unseen = 0;  // Bytes sent across since the connection's room was last asked for.
  std::uint64_t told_bytes = 0;  // Of its traffic, by new_traffic().
  unsigned pins = 0;             // Coroutines of the session that use the connection.
  TransferBudget::Part reads;
  TransferBudget::Part writes;
  TransferLine transfers;  // Where the target has a pace.
  // Reads while memory is scarce: bytes of them that are not queued yet, who waits for a turn,
  // and whether nothing was queued when the connection was last asked; see take_share().
  std::size_t share_taken = 0;
  std::deque<ScsiTask*> share_waiters;
  bool all_sent = false;
  bool asking = false;
  // Text in progress.
  bool text_busy = false;  // A request is being answered; section 11.10 allows no other meanwhile.
  TextAssembler text_in;
  TextSplitter text_out;
  std::uint32_t text_task_tag = kReservedTag;
  std::uint32_t text_transfer_tag = kReservedTag;
};

struct JoinedConnection {
  ConnectionLink* link = nullptr;
  StatusNumbers numbers;
};

// What a session asks of the server it belongs to. Called on any executor.
class SessionHost {
 public:
  // SendTargets' answer for this session's initiator (RFC 7143 section 4.3 and appendix C).
  virtual Task<std::string> send_targets(std::string which, std::string initiator_name,
                                         Endpoint local, Endpoint peer,
                                         std::string session_target) = 0;
  // TARGET COLD RESET: ends every session of the target.
  virtual void end_sessions_of(std::string target_name) = 0;

 protected:
  ~SessionHost() = default;
};

struct SessionOptions {
  std::uint16_t tsih = 0;
  Isid isid;
  std::string initiator_name;
  std::string initiator_alias;
  std::string chap_user;         // Empty: the login was without CHAP.
  std::string target_name;       // Empty: discovery.
  std::string named_target;      // As the login names it; empty: unnamed discovery.
  std::string portal;            // Where the login came to,
  std::string peer;              // and from.
  std::string owner;             // As the target's fence has it; see target_fence.h.
  TargetFence* fence = nullptr;  // Null: it has none.
  Executor* fence_home = nullptr;
  TransferPace pace;                       // When data of writes are asked for.
  Interferences* interferences = nullptr;  // Null: nobody interferes.
  scsi::TargetDevice* device = nullptr;    // Null: discovery.
  std::uint16_t portal_group_tag = 1;
  SessionParameters parameters;
  KeyPreferences preferences;
  std::uint32_t first_cmd_sn = 0;
  std::uint32_t first_transfer_tag = 1;
  std::uint32_t queue_depth = 128;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(SessionHost& host, Executor& home, SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Executor& home() const noexcept { return home_; }
  const SessionOptions& options() const noexcept { return options_; }
  bool is_discovery() const noexcept { return options_.device == nullptr; }

  // Before its first connection; on its home.
  static Task<void> start(std::shared_ptr<Session> session);
  // Closes the connection with this CID, if there is one, and says whether there is room for one.
  // If there is, the session waits for it: join() or expected_did_not_come() follows.
  Task<bool> make_place_for(std::uint16_t cid);
  Task<void> expected_did_not_come();
  // Adds a connection that has logged in. The link is null if the session is ending, or full.
  Task<JoinedConnection> join(Connection& connection, std::uint32_t portal, std::uint16_t cid,
                              NegotiatedParameters parameters);
  // The connection's reader has ended: its tasks are aborted, and afterwards the session does not
  // know it any more. Bounded. The link is gone when this ends.
  // `given_up`: that was our doing, and the session's other connections are told.
  Task<void> remove_connection(ConnectionLink* link, bool given_up);
  // Closes the connection with this CID, if there is one, and waits until it is gone.
  Task<void> close_connection(std::uint16_t cid);
  // It has had connections and has none: at ErrorRecoveryLevel 0 it ends with the last one.
  Task<bool> is_abandoned();
  // Asks the initiator to log out, one connection or all (section 11.9.1), and waits until it has,
  // at most `time`. False: there is no such connection.
  Task<bool> ask_to_log_out(std::optional<std::uint16_t> cid, Duration time);
  // Announces that a connection will be dropped, and drops it. False: there is none.
  Task<bool> drop_connection(std::uint16_t cid);
  // The same for each that came to this portal and was asked to leave; how many these were.
  Task<std::uint32_t> drop_portal(std::uint32_t portal);
  // Asks the initiator to log out what came to this portal, and waits for that; how many were
  // asked.
  Task<std::uint32_t> ask_to_leave(std::uint32_t portal, Duration time);
  // Asks for a text negotiation on every connection.
  Task<void> request_negotiation(Duration within);
  // Ends the session: no command of it runs or will run any more when this ends. Bounded.
  // `announce`: initiators are told by an asynchronous message first.
  Task<void> end(bool announce);
  bool ending() const noexcept { return ending_; }
  std::size_t connection_count() const noexcept { return links_.size(); }
  SessionInfo info() const;  // Without what connections know themselves.
  struct ConnectionTrafficInfo {
    std::string state;
    ConnectionTraffic traffic;
  };
  Task<ConnectionTrafficInfo> traffic_of(std::uint16_t cid);
  struct PortalTraffic {
    std::uint32_t portal = 0;
    std::uint64_t bytes = 0;
  };
  // What each connection has moved since this was last asked.
  Task<std::vector<PortalTraffic>> new_traffic();
  Task<ServerCounters> live_counters();
  std::uint64_t task_management_count() const noexcept { return task_management_count_; }
  std::uint64_t command_count() const noexcept { return command_count_; }
  std::uint64_t reject_count() const noexcept { return reject_count_; }

  // One PDU from a connection, checked by nobody yet.
  void receive(ConnectionLink& link, IncomingPdu& pdu);
  // Sends a NOP-In that wants an answer. Called on the connection's home.
  void request_ping(ConnectionLink& link);

  // Memory of the device's for data that come on this connection, for whoever can take it without
  // crossing; empty otherwise. Only on the session's home.
  BufferList device_buffers_for(const ConnectionLink& link, const IncomingPdu& pdu,
                                std::size_t byte_count) const;

  // For tasks. ---------------------------------------------------------------------------------
  StatusNumbers numbers(const ConnectionLink& link) noexcept {
    if (!link.ended) told_max_cmd_sn_ = max_cmd_sn_;
    return {.stat_sn = 0, .exp_cmd_sn = exp_cmd_sn_, .max_cmd_sn = max_cmd_sn_};
  }
  const SessionParameters& parameters() const noexcept { return options_.parameters; }
  void send(ConnectionLink& link, const Bhs& bhs, BufferList data, StatSnUse use);
  void send_bytes(ConnectionLink& link, const Bhs& bhs, std::span<const std::byte> data,
                  StatSnUse use);
  bool try_promise(ConnectionLink& link, std::size_t byte_count);
  Task<bool> promise(ConnectionLink& link, std::size_t byte_count);
  void unpromise(ConnectionLink& link, std::size_t byte_count);
  // What was redeemed by data that nothing had been promised to.
  void promise_again(ConnectionLink& link, std::size_t byte_count);
  void give_write_share(ConnectionLink& link, std::size_t byte_count);
  bool has_room(ConnectionLink& link) const;
  Task<void> room(ConnectionLink& link);
  void unpin(ConnectionLink& link);
  // Whether a command's answer can still be given there.
  bool answers(const ConnectionLink& link) const noexcept {
    return !link.ended && !link.leaving && !closing_;
  }
  std::uint32_t next_transfer_tag();
  // The data of an R2T have come, or are not waited for any more.
  void transfer_ended(ConnectionLink& link) {
    if (options_.pace.waits()) link.transfers.end();
  }
  // The memory of large reads, and of solicited writes.
  TransferBudget& read_budget() noexcept { return read_budget_; }
  TransferBudget& write_budget() noexcept { return write_budget_; }
  // The share of reads while memory is scarce, for each connection by itself: little, and only
  // while nothing waits to be sent there. So a peer that does not read gets no more, and one that
  // does, or has just come, goes on. Without a share the task is woken when there may be one again,
  // first come first served.
  bool take_share(ScsiTask& task, std::size_t byte_count);
  void give_share(ConnectionLink& link, std::size_t byte_count);
  void forget_waiter(ScsiTask& task);
  void task_finished(ScsiTask& task);
  void tell_window();
  // By a rule. The one keeps the command window as it is for a time; the other sends an event and
  // does what it announces.
  [[gnu::cold]] void close_window(Duration time);
  bool announces() const noexcept { return announcing_; }
  [[gnu::cold]] void announce(ConnectionLink& link, AsyncEventCode event, Duration time);
  bool is_interfered_with() const noexcept {
    return interference_ != nullptr && !interference_->quiet();
  }
  // With is_interfered_with().
  SessionInterference& interference() noexcept { return *interference_; }

 private:
  // What has been received out of order, by CmdSN.
  struct Slot {
    enum class Kind : std::uint8_t { kEmpty, kTask, kPdu, kConsumed };
    Kind kind = Kind::kEmpty;
    ConnectionLink* link = nullptr;
    ScsiTask* task = nullptr;
    std::unique_ptr<IncomingPdu> pdu;
    std::size_t bytes = 0;  // Held or promised for it.
  };
  // Commands with a lower CmdSN that arrive later are dropped: a task management function has
  // already disposed of them (section 4.2.3.4).
  struct Fence {
    std::uint32_t cmd_sn = 0;
    bool every_lun = false;
    std::uint64_t lun = 0;
  };
  // What an initiator has to log out in after it was told that its session ends.
  static constexpr Duration kAnnouncementTime = std::chrono::milliseconds(100);
  // An ABORT TASK that comes this soon after its task's end was sent without knowledge of it.
  static constexpr Duration kCrossingTime = std::chrono::seconds(1);
  static constexpr unsigned kMostImmediate = 64;
  static constexpr std::size_t kMostFences = 64;
  static constexpr std::size_t kMostBackground = 256;

  static Task<ConnectionTrafficInfo> ask_connection(Connection* connection);
  Task<void> wait_until_all_sent(ConnectionLink* link);
  void send_ping(ConnectionLink& link);
  // What a PDU that nobody takes was promised.
  void forget(ConnectionLink& link, IncomingPdu& pdu);
  bool check(ConnectionLink& link, IncomingPdu& pdu);
  void receive_request(ConnectionLink& link, IncomingPdu& pdu);
  std::optional<RejectReason> objection_to(const ConnectionLink& link,
                                           const IncomingPdu& pdu) const;
  std::optional<RejectReason> objection_to_text(const ConnectionLink& link,
                                                const IncomingPdu& pdu) const;
  void receive_command(ConnectionLink& link, IncomingPdu& pdu);
  void receive_data_out(ConnectionLink& link, IncomingPdu& pdu);
  ScsiTask* make_task(ConnectionLink& link, IncomingPdu& pdu);
  void advance();
  void deliver_task(ScsiTask& task);
  bool is_fenced(const ScsiTask& task) const;
  void process(ConnectionLink& link, IncomingPdu& pdu);
  void process_nop_out(ConnectionLink& link, IncomingPdu& pdu);
  void process_logout(ConnectionLink& link, const IncomingPdu& pdu);
  Task<void> log_out(ConnectionLink* link, LogoutRequest request);
  void process_text(ConnectionLink& link, IncomingPdu& pdu);
  Task<void> negotiate_text(ConnectionLink* link, TextRequest request, Bhs header,
                            std::string text);
  void answer_text(ConnectionLink& link, const TextRequest& request);
  Task<std::optional<std::string>> text_reply(ConnectionLink& link, std::string text);
  void process_task_management(ConnectionLink& link, const IncomingPdu& pdu);
  Task<void> manage_tasks(ConnectionLink* link, TaskManagementRequest request);
  void abandon_lingering_before(const TaskManagementRequest& request);
  void answer_management(ConnectionLink& link, const TaskManagementRequest& request,
                         TaskManagementResult result);
  Task<void> wait_by_rule(ConnectionLink* link, Duration time);
  Task<TaskManagementResult> carry_out(TaskManagementRequest request);
  Task<TaskManagementResult> result_for_gone(TaskManagementRequest request);
  std::optional<TaskManagementResult> dispose_of_undelivered(const TaskManagementRequest& request);
  static bool is_same_unit(std::uint64_t one, std::uint64_t other);
  bool is_successor(const ScsiTask& task, const TaskManagementRequest& request) const;
  bool put_up_fence(const Fence& fence);
  void consume(std::uint32_t cmd_sn);
  void reject(ConnectionLink& link, RejectReason reason, const IncomingPdu& pdu);
  void break_off(ConnectionLink& link, bool behind_queue = false);
  void refresh_window();
  // Asynchronous messages and acknowledgements; target_session_messages.cc.
  static Task<std::uint32_t> ask_stat_sn(Connection* connection);
  static Task<bool> ask_answered(Connection* connection, std::uint32_t initiator_task_tag);
  Task<bool> has_just_answered(std::uint32_t initiator_task_tag);
  void note_acknowledged(ConnectionLink& link, std::uint32_t exp_stat_sn);
  Task<void> wait_for_acknowledgements(const ConnectionLink* issuing);
  void send_event(ConnectionLink& link, AsyncEventCode event, std::uint16_t parameter1,
                  std::uint16_t parameter3, std::uint16_t parameter2 = 0);
  Task<void> carry_out_event(std::uint16_t cid, AsyncEventCode event, Duration time);
  Task<void> open_window();
  void tell_drop(std::uint16_t cid);
  ConnectionLink* find_link(std::uint16_t cid) const;
  void drop(ConnectionLink& link);
  void drop_behind_answer(ConnectionLink& link);
  Slot empty(Slot& slot);
  Slot& slot_of(std::uint32_t cmd_sn) { return slots_[cmd_sn & (slots_.size() - 1)]; }
  ScsiTask* find_task(std::uint32_t initiator_task_tag) const;
  void insert_task(ScsiTask& task);
  void drop_undelivered(const ConnectionLink* link);
  void abandon_lingering(const std::function<bool(ScsiTask&)>& concerned);
  Task<void> abort_tasks_of(const ConnectionLink* link);
  Task<void> abort_task(Gate* aborting, std::uint64_t lun, std::uint64_t tag);
  using Concerned = std::function<bool(const ConnectionLink& link)>;
  static Concerned of_cid(std::optional<std::uint16_t> cid);
  Task<void> wait_for_logouts(Concerned concerned, TimePoint deadline);

  SessionHost& host_;
  Executor& home_;
  SessionOptions options_;
  SessionStates states_;
  std::unique_ptr<SessionInterference> interference_;  // Null: nobody.
  std::unique_ptr<scsi::Nexus> nexus_;
  std::vector<std::unique_ptr<ConnectionLink>> links_;
  std::uint32_t expected_ = 0;  // Connections that have been let in and have not joined yet.
  bool ending_ = false;         // end() has begun: nobody joins any more.
  bool closing_ = false;        // Nothing is taken or answered any more.
  bool ended_ = false;
  Condition changed_;  // A link or a task went.
  Gate background_;    // Coroutines of the session.

  std::uint32_t exp_cmd_sn_;
  std::uint32_t max_cmd_sn_;
  std::uint32_t told_max_cmd_sn_;  // The last that the initiator was told.
  std::vector<Slot> slots_;        // A power of two, at least the window.
  std::size_t waiting_count_ = 0;  // Slots that are not empty.
  std::vector<Fence> fences_;
  std::vector<ScsiTask*> buckets_;  // By ITT; a power of two.
  std::uint32_t task_count_ = 0;
  std::uint32_t immediate_count_ = 0;
  std::uint32_t next_transfer_tag_;
  std::size_t early_bytes_ = 0;  // Held or promised for what waits for its turn.
  std::size_t early_limit_;
  unsigned slowed_ = 0;         // Functions that a rule answers late.
  bool announcing_ = false;     // An event by a rule is being carried out.
  bool window_closed_ = false;  // By a rule, until then:
  TimePoint window_opens_{};
  unsigned fence_waiters_ = 0;  // Who waits for acknowledgements of statuses.
  TransferBudget read_budget_;
  TransferBudget write_budget_;
  std::uint64_t command_count_ = 0;
  std::uint64_t task_management_count_ = 0;
  std::uint64_t reject_count_ = 0;
};

}  // namespace sandbay::iscsi
