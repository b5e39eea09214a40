// The implementation of InitiatorSession; its parts stand in four files:
//   initiator_session.cc   submission, the CmdSN window, completions
//   initiator_control.cc   requests other than SCSI commands, and the coroutine interface
//   initiator_recovery.cc  logging in, losing connections, getting them back
//   initiator.cc           the public entry points that put these together
//
// Everything here runs on the session's home. A path is one of the session's connections as the
// options name it; the InitiatorConnection on it comes and goes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "iscsi/initiator.h"
#include "iscsi/initiator_connection.h"
#include "iscsi/initiator_login.h"
#include "iscsi/initiator_states.h"
#include "runtime/sync.h"

namespace sandbay::iscsi {

// An intrusive first-in first-out queue of tasks.
class InitiatorTaskQueue {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  InitiatorTask* first() const noexcept { return first_; }
  void push_back(InitiatorTask& task) noexcept;
  void push_front(InitiatorTask& task) noexcept;
  InitiatorTask* pop_front() noexcept;  // Null if empty.
  void remove(InitiatorTask& task) noexcept;

 private:
  InitiatorTask* first_ = nullptr;
  InitiatorTask* last_ = nullptr;
};

// A number of places, given out first come first served.
class InitiatorPlaces {
 public:
  explicit InitiatorPlaces(std::uint32_t count) noexcept : free_(count) {}
  Task<void> take() {
    if (free_ == 0) {
      co_await queue_.wait();  // A place is handed over.
    } else {
      --free_;
    }
  }
  void give() {
    if (!queue_.wake_one()) ++free_;
  }

 private:
  std::uint32_t free_;
  detail::WaitQueue queue_;
};

class InitiatorSessionImpl final : public InitiatorSession, private InitiatorConnectionEvents {
 public:
  explicit InitiatorSessionImpl(InitiatorOptions options);
  ~InitiatorSessionImpl() override;

  Task<std::expected<void, LoginFailure>> begin();

  Executor& home() const noexcept override { return home_; }
  bool up() const noexcept override { return !usable_.empty(); }
  void submit(InitiatorCommand& command) override;
  Task<Reply> execute(ScsiRequest request) override;
  Task<Result<TaskManagementResult>> abort(InitiatorCommand& command) override;
  Task<Result<TaskManagementResult>> manage(scsi::TaskManagementRequest request) override;
  Task<Result<std::vector<std::byte>>> ping(std::vector<std::byte> payload,
                                            std::size_t connection) override;
  Task<Result<std::string>> text(std::string request) override;
  Task<Result<std::vector<DiscoveredTarget>>> send_targets(std::string which) override;
  Task<Error> logout_connection(std::size_t index) override;
  Task<Error> reinstate_connection(std::size_t index) override;
  Task<void> break_connection(std::size_t index) override;
  Task<Error> reinstate_session() override;
  Task<void> close() override;

  std::uint16_t tsih() const noexcept override { return tsih_; }
  Isid isid() const noexcept override { return options_.isid; }
  std::size_t connection_count() const noexcept override { return paths_.size(); }
  std::size_t connections_up() const noexcept override { return usable_.size(); }
  std::string connection_state(std::size_t index) const override;
  std::string session_state() const override { return std::string(name_of(state_)); }
  std::map<std::string, std::string> parameters(std::size_t connection) const override;
  void set_key(std::string key, std::string value) override {
    options_.keys[std::move(key)] = std::move(value);
  }
  std::string private_answer(const std::string& key) const override {
    const auto found = parameters_.private_keys.find(key);
    return found == parameters_.private_keys.end() ? std::string() : found->second;
  }
  bool dead() const noexcept override { return dead_; }
  std::uint32_t commands_in_flight() const noexcept override { return commands_in_flight_; }
  InitiatorCounters counters() const noexcept override;

 private:
  struct Path {
    std::uint16_t cid = 0;
    std::uint32_t index = 0;
    InitiatorConnectionOptions options;
    Executor* executor = nullptr;
    Endpoint endpoint;
    std::unique_ptr<InitiatorConnection> connection;
    InitiatorConnectionState state = InitiatorConnectionState::kFree;
    bool wanted = true;
    std::uint32_t in_flight = 0;
    std::uint64_t completions = 0;
    std::uint64_t completions_at_last_tick = 0;
    bool pinging = false;
    NegotiatedParameters parameters;
    std::uint64_t pdus_before = 0;
    std::uint32_t exp_stat_sn = 0;
    TimePoint down_since{};
    std::optional<Duration> logout_time;  // The target wants its logout within that.
  };

  // InitiatorConnectionEvents
  void task_ended(InitiatorTask& task) override;
  void window_moved(std::uint32_t exp_cmd_sn, std::uint32_t max_cmd_sn) override;
  void async_message(InitiatorConnection& connection, AsyncNotice notice) override;
  void rejected(InitiatorConnection& connection, RejectReason reason, Bhs refused) override;
  void connection_ended(InitiatorConnection& connection) override;

  // initiator_session.cc
  bool can_send() const noexcept;
  Path& choose_path() noexcept;
  void give_tag(InitiatorTask& task) noexcept;
  void take_tag_back(InitiatorTask& task);
  void give_cmd_sn(InitiatorTask& task, const Path& path) noexcept;
  void dispatch(InitiatorCommand& command);
  void drain();
  void command_ended(InitiatorCommand& command);
  void finish(InitiatorCommand& command);
  void finish_later(InitiatorCommand& command, Error error);
  void set_state(Path& path, InitiatorConnectionState to);
  void path_lost(Path& path);

  // initiator_control.cc
  Task<Error> exchange(Path& path, InitiatorControlTask& task, Duration patience);
  Task<Error> exchange_in_place(Path& path, InitiatorControlTask& task, Duration patience,
                                bool keep_tag = false);
  Task<Result<std::string>> text_on(Path& path, std::string request);
  Task<Result<std::string>> negotiate_text(Path* path, InitiatorControlTask* task,
                                           std::string request);
  Task<Result<TaskManagementResult>> manage_on(Path& path, TaskManagementRequest request);
  Task<Result<TaskManagementResult>> abort_in_flight(InitiatorCommand* command);
  Task<void> drop_everywhere(std::optional<std::uint64_t> lun, std::uint32_t before_cmd_sn);
  Task<Result<LogoutResult>> log_out(Path& over, LogoutReason reason, std::uint16_t cid);
  Task<void> keep_alive();
  Task<void> ping_path(std::uint32_t index);
  void begin_logout(Path& path);
  Task<void> answer_logout_request(std::uint32_t index, Duration time);

  // initiator_recovery.cc
  Task<std::expected<InitiatorLoginResult, LoginFailure>> log_in(Path& path, bool leading);
  Task<Error> adopt(Path& path, InitiatorLoginResult result);
  void begin_session(const InitiatorLoginResult& result);
  Task<LoginFailure> log_in_path(Path& path, bool leading);
  void wake_repair();
  Task<void> repair();
  Task<bool> repair_step();
  Task<bool> clean_up(Path& path);
  Task<bool> log_in_again();
  Task<void> take_down(bool reset, const char* why);
  Task<void> shut_path(Path& path, bool reset, const char* why);
  Task<void> wait_until_gone(Path& path);
  Task<void> exclude_repair();
  void plug_holes(const Path& path);
  void settle_lost();
  void give_up(Error error);
  void fail_all(Error error);

  // Requests other than commands. They never take a command's slot, nor do commands theirs: each
  // waits for a place of its own kind. A lost host has all its commands aborted at once, so aborts
  // have half of the places; every connection's ping and a few more requests fit beside them.
  static constexpr std::uint32_t kControlSlots = 96;
  static constexpr std::uint32_t kMostAborts = 48;
  static_assert(kControlSlots >= kMostAborts + kMaximumInitiatorConnections + 8);
  static constexpr std::uint32_t kSequenceRing = 8192;  // Longest CmdSN window that we use.
  static constexpr std::uint8_t kMaximumRetries = 8;

  Executor& home_;
  InitiatorOptions options_;
  InitiatorSessionState state_ = InitiatorSessionState::kFree;
  std::uint16_t tsih_ = 0;
  NegotiatedParameters parameters_;
  std::vector<std::unique_ptr<Path>> paths_;
  std::vector<Path*> usable_;
  std::size_t next_path_ = 0;

  std::uint32_t slot_mask_ = 0;
  unsigned slot_bits_ = 0;
  std::vector<std::uint32_t> generations_;
  std::vector<std::uint32_t> free_slots_;
  InitiatorPlaces control_places_{kControlSlots};
  InitiatorPlaces abort_places_{kMostAborts};

  std::atomic<std::uint32_t> next_cmd_sn_{1};
  std::uint32_t exp_cmd_sn_ = 1;
  std::uint32_t max_cmd_sn_ = 0;
  std::vector<std::uint8_t> sequence_path_;  // Which path a CmdSN was last sent on.

  InitiatorTaskQueue waiting_;
  InitiatorTaskQueue lost_;
  std::uint32_t commands_in_flight_ = 0;
  std::uint32_t holds_ = 0;  // Nothing is dispatched while it is not zero.
  bool closing_ = false;
  bool dead_ = false;
  bool draining_ = false;
  bool repairing_ = false;
  bool relogin_wanted_ = false;
  Condition moved_;  // Something that a coroutine here may wait for has changed.
  Event closing_event_;
  Gate gate_;
  InitiatorCounters counters_;
};

// Which commands may be sent a second time: initiator_recovery.cc.
bool may_be_repeated(std::uint8_t operation_code, std::uint8_t service_action);

// Whether it can be forgotten while it may still be executed: it leaves nothing behind.
bool only_reads(const InitiatorCommand& command) noexcept;
// Whether it is sent again after its connection was lost.
bool wants_repetition(const InitiatorCommand& command) noexcept;

}  // namespace sandbay::iscsi
