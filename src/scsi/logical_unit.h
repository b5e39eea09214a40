// LogicalUnit: the device server and task manager of one logical unit (SAM-5 clause 4.6.19) over a
// block device. SPC-4 and SBC-3 commands, mode pages, unit attentions, task set and task
// management stand here.
//
// It lives on its device's home executor and is touched only there (options() apart, which never
// change). One unit may be reached through any number of targets and under different numbers.
// Commands in it are in one of three states: waiting in the task set (ordering), running (a handler
// works on it), or held (aborted and already completed, but a device below still has a request of
// it; its write extent is fenced until the device lets go). Held commands count against the queue
// depth, and their memory is limited to a share, however often initiators abort and try again on a
// device that hangs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "block/block_device.h"
#include "runtime/executor.h"
#include "runtime/sync.h"
#include "runtime/task.h"
#include "scsi/atomic_writes.h"
#include "scsi/command.h"
#include "scsi/command_list.h"
#include "scsi/counters.h"
#include "scsi/job.h"
#include "scsi/mode_pages.h"
#include "scsi/personality.h"
#include "scsi/port_groups.h"
#include "scsi/reservations.h"
#include "scsi/sanitize.h"
#include "scsi/sense.h"
#include "scsi/target_device.h"
#include "scsi/unit_attention.h"
#include "scsi/writers.h"

namespace sandbay::scsi {

struct AbortInProgress;
struct CommandRow;
class Interference;
class TaskRouter;
class UnitStore;
struct KeptOfUnit;

// Large transfers move in pieces of this size.
inline constexpr std::size_t kTransferPieceBytes = std::size_t{1} << 20;
// How long task management waits for handlers that it has cancelled before it completes their
// commands without them. Well within kTaskManagementBound.
inline constexpr Duration kAbortPatience = std::chrono::seconds(1);

struct LogicalUnitOptions {
  std::string vendor = "SANDBAY";       // T10 VENDOR IDENTIFICATION, at most 8 characters.
  std::string product = "VOLUME";       // At most 16.
  std::string revision = "0001";        // At most 4.
  std::string serial;                   // Unit serial number; empty: from the UUID.
  std::array<std::uint8_t, 16> uuid{};  // The volume's; all designators derive from it.
  std::optional<std::array<std::uint8_t, 16>> naa;   // An NAA 6 designator instead of ours.
  std::optional<std::array<std::uint8_t, 8>> eui64;  // An EUI-64 designator besides.
  // What a vendor's pages name besides: the unit and the array as users call them, and the array's
  // identifier.
  std::string name;
  std::string array_label;
  std::array<std::uint8_t, 16> array_id{};
  const Personality* personality = nullptr;  // Null: the standards' pages alone.
  // Logical blocks per physical block as a power of two; unset: from the device's geometry.
  std::optional<std::uint8_t> physical_block_exponent;
  bool thin = true;        // UNMAP and LBPME, where the device can unmap.
  bool read_only = false;  // Besides the device's own.
  // A removable medium: RMB is set, LOEJ ejects and loads, and PREVENT ALLOW MEDIUM REMOVAL counts.
  bool removable = false;
  std::uint16_t rotation_rate = 0;   // Revolutions per minute; 0: 1 (no rotation) or unreported.
  std::uint32_t queue_depth = 4096;  // Commands in the task set, and held; see start().
  bool write_cache_enabled = true;   // The default of WCE.
  bool task_aborted_status = false;  // The default of TAS: see ModeParameters.
  std::uint64_t maximum_transfer_bytes = std::uint64_t{32} << 20;  // VPD B0h.
  std::uint32_t maximum_unmap_blocks = 1U << 20;
  std::uint32_t maximum_unmap_descriptors = 256;
  std::uint32_t maximum_write_same_blocks = 1U << 20;
  // Relative identifiers: where it is served. Each is a target port group of the same number.
  std::vector<std::uint16_t> target_ports = {1};
};

// The nexus as a router makes it; what a unit must know of it besides its identity.
class RoutedNexus final : public Nexus {
 public:
  RoutedNexus(TaskRouter& router, std::uint64_t id, NexusIdentity identity)
      : router_(router), id_(id), identity_(std::move(identity)) {}
  const NexusIdentity& identity() const noexcept override { return identity_; }
  std::uint64_t id() const noexcept { return id_; }  // Never used again in this process.
  TaskRouter& router() const noexcept { return router_; }

 private:
  TaskRouter& router_;
  std::uint64_t id_;
  NexusIdentity identity_;
};

// What a unit keeps for one nexus.
struct NexusState {
  const TaskRouter* router = nullptr;
  NexusPorts ports;
  ReservedRights rights;                               // By the persistent reservations of now.
  AccessState access = AccessState::kActiveOptimized;  // Its port group's.
  UnitAttentions attentions;
  bool prevents_removal = false;
  Error deferred_error = Error::kNone;  // A flush behind an IMMED command's status has failed.
  std::shared_ptr<Writers::Writer> writer;
};

class LogicalUnit {
 public:
  // Borrows the device, which outlives this unit. Made on any executor before it is used.
  LogicalUnit(BlockDevice& device, LogicalUnitOptions options);
  ~LogicalUnit();  // Nothing is in flight or held.
  LogicalUnit(const LogicalUnit&) = delete;
  LogicalUnit& operator=(const LogicalUnit&) = delete;

  Executor& home() const noexcept { return home_; }
  const LogicalUnitOptions& options() const noexcept { return options_; }

  // On the home executor, as everything below. ---------------------------------------------------

  // The device's geometry has changed: CAPACITY DATA HAS CHANGED for every nexus.
  void capacity_changed();
  // Whether it was taken offline: then its device serves nothing until somebody changes that.
  void set_offline(bool offline) noexcept { offline_ = offline; }
  // CAPACITY and all else as of now.
  LogicalUnitCounters counters() const;
  // Null: nobody; it is asked until the unit has gone.
  void set_interference(Interference* interference) noexcept { interference_ = interference; }
  const ModeParameters& mode_parameters() const noexcept { return modes_; }
  // By RESERVE: the initiator port, or empty. Persistent reservations are apart.
  std::string reserved_by() const;
  const PersistentReservations& reservations() const noexcept { return persistent_.now; }
  // The operation that works or has failed, if any.
  const Sanitizer& sanitizer() const noexcept { return sanitizer_; }
  // Before it is used, on any executor: with a store, which outlives the unit, some things can be
  // kept over a restart, and these were. Work that was under way goes on.
  void restore(UnitStore& store, KeptOfUnit kept);
  // An operator sets a target port group's state; hosts get ASYMMETRIC ACCESS STATE CHANGED.
  void set_access_state(std::uint16_t port_group, AccessState state);
  // As an operator wants: every registration and reservation has ended, and hosts hear it.
  Task<Error> clear_reservations();
  // As an operator wants: what outlives the daemon of reservations is lost, if there is something.
  // kInvalid: there is nothing.
  Task<Error> lose_reservations();
  // See BlockDevice.
  BufferList write_buffers(std::size_t byte_count) { return device_.write_buffers(byte_count); }

  // Ends every command that has begun with ABORTED COMMAND, COMMANDS CLEARED BY DEVICE SERVER, so
  // that nothing that is queued now takes effect later. content_replaced() only marks and cancels
  // them, for the device has other content as of now; clear() also waits for them, at most
  // kAbortPatience, as task management does.
  void content_replaced();
  Task<void> clear();

  // Aborts whatever is in flight, silently, and waits until nothing is held any more or the
  // deadline has passed; false then. Afterwards the unit refuses every command with BUSY.
  Task<bool> close(TimePoint deadline);

  // For TaskRouter. ------------------------------------------------------------------------------

  void start(Command& command);
  // SAM-5 clause 7. Each waits for the commands concerned, at most kAbortPatience.
  Task<TaskManagementResponse> abort_task(std::uint64_t nexus_id, std::uint64_t tag);
  // `before`: see TaskManagementRequest.
  Task<void> abort_task_set(std::uint64_t nexus_id, std::optional<std::uint32_t> before);
  Task<void> clear_task_set(std::uint64_t nexus_id, std::optional<std::uint32_t> before);
  Task<void> reset(std::uint64_t nexus_id, UnitAttention cause);
  Task<void> forget_nexus(std::uint64_t nexus_id);
  Task<void> forget_router(const TaskRouter* router);
  void establish(UnitAttention condition, std::optional<std::uint64_t> except = std::nullopt);
  void clear_attention(UnitAttention condition, std::uint64_t nexus_id);

 private:
  friend void finish_command(LogicalUnit& unit, Command& command, const Outcome& outcome) noexcept;
  friend struct CommandHandlers;  // The table's view of the handlers below.

  // A run of blocks that a CDB names.
  struct Transfer {
    Extent extent;
    std::uint32_t length = 0;  // As it stands in the CDB.
    bool force_unit_access = false;
    bool disable_page_out = false;
  };
  enum class Victims : std::uint8_t { kOneTask, kNexus, kNexuses, kRouter, kEverybody };
  struct AbortScope {
    Victims victims = Victims::kEverybody;
    std::uint64_t nexus_id = 0;  // Whose commands, or who asks.
    std::uint64_t tag = 0;
    std::span<const std::uint64_t> nexuses;  // The victims, in order, where nexus_id asks.
    const TaskRouter* router = nullptr;
    std::optional<std::uint32_t> before;  // Of the nexus, only what stands before it.
    bool by_device_server = false;        // The victims complete with ABORTED COMMAND.
    const Command* except = nullptr;
  };
  class Changing;
  struct Persistent {
    PersistentReservations now;
    UnitStore* store = nullptr;  // Null: they end with the unit.
    bool kept = false;           // The store has some.
    bool changing = false;
    Condition changed;
  };
  // A command's claim on blocks that it is about to change; see atomic.cc. In the command's frame.
  class Turn {
   public:
    Turn(LogicalUnit& unit, Command& command, const Extent& extent);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn();
    Task<bool> come();  // False: the command is aborted.
    // As long as it hides them, no request of a read sees the blocks, so that none sees a part of a
    // change. False likewise.
    Task<bool> hide();
    void show();
    bool is_of(const Command& other) const noexcept { return &command_ == &other; }
    bool overlaps(const Extent& extent) const noexcept { return extent_.overlaps(extent); }
    bool hides(const Extent& extent) const noexcept { return hides_ && overlaps(extent); }

   private:
    bool has_come() const noexcept;
    LogicalUnit& unit_;
    Command& command_;
    Extent extent_;
    bool hides_ = false;
  };
  enum class PowerState : std::uint8_t { kActive, kStopped, kEjected };
  static constexpr std::size_t kMostInBackground = 8;

  // task_set.cc
  std::uint32_t in_set() const noexcept { return waiting_.count() + running_.count(); }
  bool may_run(const Command& command) const noexcept;
  void run(Command& command);
  void run_waiting();
  void leave_set(Command& command) noexcept;
  void stop_ordering(Command& command) noexcept;
  void finish(Command& command, const Outcome& outcome) noexcept;
  void answer_unadmitted(Command& command, const Outcome& outcome);
  [[gnu::cold]] bool is_turned_away(Command& command, std::uint32_t in_set);
  void count(const Command& command, const Outcome& outcome) noexcept;
  bool fenced(const Extent& extent) const noexcept;
  // Nobody may read or change these blocks now: kNoMemory, which is BUSY, behind a fence;
  // kMediumError where they are torn.
  Error blocked(const Extent& extent) const noexcept {
    if (!held_.empty() && fenced(extent)) return Error::kNoMemory;
    const bool torn = !atomic_writes_.settled() && atomic_writes_.is_torn(extent);
    return torn ? Error::kMediumError : Error::kNone;
  }
  // No blocks are fenced or torn.
  bool is_open() const noexcept { return held_.empty() && atomic_writes_.settled(); }
  std::optional<Outcome> refuse_blocked(const Extent& extent, Operation operation) const {
    const Error error = blocked(extent);
    if (error == Error::kNone) [[likely]]
      return std::nullopt;
    return device_failure(error, operation, extent.first);
  }
  bool holds_its_share() const noexcept;
  Outcome aborted_outcome(const Command& command) const noexcept;

  // task_management.cc
  Task<std::size_t> abort(AbortScope scope);
  void tell_cleared(const AbortScope& scope);
  Task<void> abort_preempted(std::vector<std::uint64_t> nexuses, std::uint64_t caller);
  static bool matches(const Command& command, const AbortScope& scope) noexcept;
  static void tell_aborts(Command& command);
  static void stop_waiting(AbortInProgress& abort) noexcept;
  std::size_t mark_and_cancel(const AbortScope& scope, AbortInProgress& abort);
  void give_up(Command& command);
  void restore_defaults();

  // dispatch.cc: the checks that precede every handler.
  std::optional<Outcome> check(Command& command);
  [[gnu::cold]] std::optional<Outcome> answer_of_others(Command& command);  // With interference_.
  Task<void> handle_late(Command& command);
  bool is_reserved_against(const Command& command, const NexusState& nexus) const noexcept;
  Outcome lose(const Command& command) const;
  std::optional<Outcome> report_attention(NexusState& nexus);
  bool offers(const CommandRow& row) const noexcept;
  std::optional<Outcome> check_ready(const CommandRow& row) const;
  std::optional<Outcome> check_work(const Command& command) const;
  std::optional<Outcome> check_access(const CommandRow& row, AccessState state) const;
  void access_changed(std::optional<std::uint64_t> caller);
  NexusState& state_of(const Command& command);

  // Outcomes.
  Outcome check_condition(const Sense& sense) const noexcept;
  Outcome refuse(SenseKey key, Additional additional) const noexcept;
  Outcome illegal(Additional additional) const noexcept {
    return refuse(SenseKey::kIllegalRequest, additional);
  }
  Outcome invalid_cdb(std::uint16_t byte, std::optional<std::uint8_t> bit = std::nullopt) const;
  Outcome invalid_parameter(std::uint16_t byte) const;
  Outcome refuse(const ListError& error) const {
    return error.wrong_length ? illegal(Additional::kParameterListLengthError)
                              : invalid_parameter(error.byte);
  }
  Additional not_ready() const noexcept;
  Outcome device_failure(Error error, Operation operation,
                         std::optional<Lba> bad_lba = std::nullopt) const;
  Outcome device_failure(const Completion& completion, Operation operation) const;
  Outcome transport_failure(Error error) const;
  // Parameter data with an allocation length; `bytes` lives until the task ends.
  Task<Outcome> return_parameters(Command& command, std::span<const std::byte> bytes,
                                  std::uint64_t allocation_length);
  // The whole parameter list in `target`; its length, or an outcome.
  Task<std::expected<std::size_t, Outcome>> receive_parameters(Command& command,
                                                               std::span<std::byte> target,
                                                               std::size_t byte_count);

  // Handlers: spc.cc
  Job test_unit_ready(Command& command);
  Job request_sense(Command& command);
  Job inquiry(Command& command);
  Job report_luns(Command& command);
  Job mode_sense(Command& command);
  Job mode_select(Command& command);
  Job prevent_allow(Command& command);
  Job report_supported_opcodes(Command& command);
  Job report_supported_tmfs(Command& command);
  // reservation_commands.cc
  Job reserve(Command& command);
  Job release(Command& command);
  Job persistent_reserve_in(Command& command);
  Job persistent_reserve_out(Command& command);
  // port_group_commands.cc
  Job report_target_port_groups(Command& command);
  Job set_target_port_groups(Command& command);
  // sbc.cc
  Job read_capacity_10(Command& command);
  Job read_capacity_16(Command& command);
  Job start_stop_unit(Command& command);
  Job synchronize_cache(Command& command);
  Job prefetch(Command& command);
  Job get_lba_status(Command& command);
  Job read_defect_data(Command& command);
  // transfer.cc
  Job read(Command& command);
  Job write(Command& command);
  // verify.cc
  Job verify(Command& command);
  Job write_and_verify(Command& command);
  // atomic.cc
  Job compare_and_write(Command& command);
  Job or_write(Command& command);
  Job write_atomic(Command& command);
  // sanitize_command.cc
  Job sanitize(Command& command);
  // provisioning.cc
  Job unmap(Command& command);
  Job write_same(Command& command);

  // Pieces of handlers.
  Outcome conflict() noexcept;
  Outcome refuse(const ReserveRefusal& refusal);
  std::optional<Outcome> answer_by_registrations(const Command& command);
  bool name_ports(std::vector<std::string>& initiators) const;
  Task<Outcome> obey_list(Command& command, std::vector<std::byte> list);
  Task<Outcome> reserve_persistently(Command& command, ReserveRequest request);
  Task<Error> install(ReserveChange change, std::uint64_t caller);
  Task<Error> end_reservations(bool lose);
  std::expected<Transfer, Outcome> decode_transfer(const Command& command, bool limit_length) const;
  std::optional<Outcome> check_range(Lba first, std::uint64_t block_count) const;
  Task<Completion> submit(Command& command, Operation operation, Extent extent, bool stable,
                          bool disable_page_out, BufferList data);
  // What of the Data-Out Buffer the command may use, or that it must not run (residuals).
  std::expected<std::uint64_t, Outcome> usable_data_out(const Command& command,
                                                        std::uint64_t needed) const;
  Outcome incomplete_data_out(std::uint64_t needed) const;
  Task<Outcome> read_pieces(Command& command, Transfer transfer, std::uint64_t wanted);
  Task<Outcome> read_failed(Command& command, Completion completion, Transfer piece,
                            std::uint64_t sent);
  Task<Outcome> write_pieces(Command& command, Transfer transfer, std::uint64_t usable);
  Task<Outcome> verify_pieces(Command& command, Transfer transfer, unsigned byte_check);
  Task<Outcome> verify_piece(Command& command, Extent extent, BufferList expected, bool repeated);
  Task<Outcome> write_and_verify_pieces(Command& command, Transfer transfer, std::uint64_t usable,
                                        bool compare);
  bool needs_turn(const Command& command, const Extent& extent) const noexcept;
  void tell_turns(const Extent& changed) noexcept;
  bool is_hidden(const Command& command, const Extent& extent) const noexcept;
  // The device has let go of a read.
  void read_ended(Command& command, const Extent& extent) noexcept {
    command.lent = 0;
    if (!turns_.empty() && is_hidden(command, extent)) [[unlikely]]
      turn_ended_.notify_all();
  }
  void drop_turns(const Command& command) noexcept;
  std::uint64_t most_compared_blocks() const noexcept;
  std::uint64_t most_atomic_blocks() const noexcept;
  Task<Completion> read_before(Command& command, Extent extent);
  Task<Outcome> compare_then_write(Command& command, Transfer transfer, BufferList expected,
                                   BufferList data);
  Task<Outcome> write_whole(Command& command, Transfer transfer, BufferList data);
  Task<Outcome> sanitize_all(Command& command, SanitizeOperation operation);
  Task<Outcome> merge_piece(Command& command, Transfer transfer, Extent extent, BufferList data);
  Task<Outcome> fill(Command& command, Extent whole, std::vector<std::byte> block);
  Task<Outcome> clear(Command& command, Extent extent, Operation operation);
  Task<Outcome> unmap_listed(Command& command, BufferList list, std::size_t descriptor_count);
  std::optional<Outcome> check_unmap_list(const BufferList& list,
                                          std::size_t descriptor_count) const;
  void flush_in_background(Extent extent);
  Task<void> run_background_flushes(Extent extent);
  Task<void> advise_in_background(Extent extent);
  // Ends early when it is cancelled.
  Task<void> advise(Cancellation* cancellation, Extent extent);
  // Fails once, too, if a flush of another host could not keep what this host wrote.
  Task<Completion> flush(Command& command, Extent extent);
  Task<Error> flush_behind_status(Extent extent);
  Writers::Flush begin_flush(const Extent& extent) const noexcept;
  void cancel_background();
  void cached_change_ended(const Command& command, Error error);
  // The device may not change blocks for it any more.
  void change_ended(Command& command) {
    const Extent changed = std::exchange(command.writing, {});
    if (!turns_.empty()) [[unlikely]]
      tell_turns(changed);
  }
  Task<Error> take_write_cache_away(Command& command);
  std::size_t mode_data(const Command& command, std::span<std::byte> target,
                        std::optional<Outcome>& refused) const;
  std::expected<ModeParameters, Outcome> decode_mode_list(const Command& command,
                                                          std::span<const std::byte> list) const;

  // inquiry.cc
  std::size_t standard_inquiry(std::span<std::byte> page) const;
  std::size_t supported_vpd_pages(std::span<std::byte> page) const;
  std::size_t vital_product_data(std::uint8_t code, const Command& command,
                                 std::span<std::byte> page) const;
  std::array<std::uint8_t, 16> naa() const;
  UnitFacts facts_for(const Command& command) const;
  std::size_t device_identification(const NexusIdentity& nexus, std::span<std::byte> page) const;
  std::size_t block_limits(std::span<std::byte> page) const;

  const Geometry& geometry() const noexcept { return device_.geometry(); }
  bool stable_writes() const noexcept {
    return !modes_.write_cache_enabled || stable_demands_ != 0;
  }
  bool thin() const noexcept { return options_.thin && geometry().unmap; }
  bool write_protected() const noexcept { return options_.read_only || geometry().read_only; }
  std::uint32_t blocks_per_physical() const noexcept;

  BlockDevice& device_;
  Executor& home_;
  const LogicalUnitOptions options_;
  std::uint64_t piece_blocks_;

  ModeParameters modes_;
  ModeParameters default_modes_;
  PowerState power_ = PowerState::kActive;
  bool offline_ = false;
  std::optional<std::uint64_t> reservation_;  // RESERVE: the nexus that holds it.
  Persistent persistent_;
  PortGroups port_groups_;

  std::unordered_map<std::uint64_t, NexusState> nexuses_;
  std::uint64_t last_nexus_ = 0;  // The one looked up last, as most commands follow their like.
  NexusState* last_nexus_state_ = nullptr;

  // The task set: what waits for its turn, oldest first, and what runs. Held: see above.
  CommandList waiting_;
  CommandList running_;
  CommandList held_;
  std::uint64_t held_bytes_ = 0;  // Memory that the device below keeps for held commands.
  std::uint32_t running_ordered_ = 0;
  std::uint32_t head_of_queue_ = 0;  // Running.
  bool starting_waiters_ = false;
  bool closed_ = false;
  Interference* interference_ = nullptr;
  std::vector<Turn*> turns_;  // The oldest first.
  Condition turn_ended_;      // Or a change of the device, while there are turns.
  AtomicWrites atomic_writes_;
  Sanitizer sanitizer_;
  Gate background_;  // What goes on behind IMMED commands:
  std::vector<Cancellation*> in_background_;
  bool flushing_ = false;
  std::optional<Extent> next_flush_;  // Behind the one that runs.
  // Changes that a device has and that need not be stable when they end, and how many MODE SELECTs
  // wait for there to be none: as long as they do, there will be no more of them.
  std::uint32_t cached_changes_ = 0;
  std::uint32_t stable_demands_ = 0;
  Writers writers_;
  Gate operations_;  // Task management under way.

  Condition command_ended_;  // Notified only while somebody waits for it.
  std::uint32_t end_watchers_ = 0;

  LogicalUnitCounters counters_;
};

}  // namespace sandbay::scsi
