// Connection: the transport half of one iSCSI connection: its socket, the framing of PDUs, digests,
// StatSN and the queue of what is to be sent.
//
// Home: the executor that owns the socket; it changes once, after login, while nothing is in
// flight. Everything is called there. The session may live elsewhere: PDUs then cross as messages,
// payloads as sole owners of their buffers.
//
// What is queued in one turn of the executor leaves in one send. The queue is bounded by whoever
// fills it: data waits for room(), answers are few.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "iscsi/interference.h"
#include "iscsi/negotiation.h"
#include "iscsi/pdu.h"
#include "iscsi/target_framing.h"
#include "iscsi/target_server.h"
#include "iscsi/target_states.h"
#include "runtime/buffer.h"
#include "runtime/clock.h"
#include "runtime/executor.h"
#include "runtime/io.h"
#include "runtime/sync.h"
#include "runtime/task.h"
#include "runtime/timer.h"

namespace sandbay::iscsi {

class Session;
struct ConnectionLink;

// What a PDU does with StatSN (RFC 7143 section 4.2.2.2).
enum class StatSnUse : std::uint8_t {
  kNone,  // The field is reserved.
  kShow,  // Carries the next one without using it up.
  kConsume,
};

class Connection final : public PayloadSource {
 public:
  Connection(std::unique_ptr<Stream> stream, const ServerLimits& limits);
  ~Connection();  // After close().
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Executor& home() const noexcept { return *home_; }
  ConnectionStates& states() noexcept { return states_; }
  const Endpoint& local() const noexcept { return stream_->local(); }
  const Endpoint& peer() const noexcept { return stream_->peer(); }
  const ConnectionTraffic& traffic() const noexcept { return traffic_; }

  // Login -------------------------------------------------------------------------------------

  // The next PDU. kClosed at the end of the stream, kInvalid if it cannot be followed.
  Task<Error> receive(IncomingPdu& pdu);
  void set_next_stat_sn(std::uint32_t stat_sn) noexcept { stat_sn_ = stat_sn; }
  std::uint32_t next_stat_sn() const noexcept { return stat_sn_; }
  // Whether one of the last kRememberedAnswers was this task's, and not earlier than `since`.
  bool has_answered(std::uint32_t initiator_task_tag, TimePoint since) const noexcept;
  // Moves to `home`, on which the coroutine that awaits this goes on. False: no memory there.
  Task<bool> move_to(Executor& home);
  // What holds from the next PDU on, each way: call after the last login response is queued.
  void set_parameters(const NegotiatedParameters& parameters);
  // Before serve(): asked from then on.
  void set_interference(std::unique_ptr<PduInterference> interference) {
    interference_ = std::move(interference);
  }

  // A rule has what comes next wait so long; ends early with the connection.
  Task<void> wait_by_rule(Duration time) { return wait_by_rule(home_->now() + time, reads_wait_); }

  // Full feature phase ------------------------------------------------------------------------

  // Reads until the connection ends, handing every PDU to the session.
  Task<void> serve(Session& session, ConnectionLink& link);

  // Queues a PDU: its header, which is given its StatSN, and its payload.
  void send(Bhs bhs, BufferList data, StatSnUse use);
  // The same for payloads that are few bytes of text or sense.
  void send_bytes(Bhs bhs, std::span<const std::byte> data, StatSnUse use);
  bool has_room() const noexcept { return queued_bytes_ < kQueuedBytesLimit || closing_; }
  // More waits to be sent than the answers of a window of commands, or far more than data leave.
  bool is_flooded() const noexcept {
    return !closing_ && (queued_bytes_ >= 4 * kQueuedBytesLimit || queue_.size() >= kMostQueued);
  }
  // Ends when there is room in the queue, or the connection is closing.
  Task<void> room();
  bool is_all_sent() const noexcept { return queued_bytes_ == 0 || closing_; }
  Task<void> all_sent();  // Ends when is_all_sent().
  // Waits until everything queued so far has gone, or until nothing goes any more.
  Task<void> drain();
  // The same for a Logout Response: state S6.
  Task<void> drain_for_logout();
  // The reader has ended in full feature phase: to S1, by S8 if nobody had asked for it.
  void end_states();

  // Memory promised to data that was solicited or may come unsolicited. Given back as the data
  // arrive, by unpromise(), or with the connection.
  bool try_promise(std::size_t byte_count, bool of_share = false);
  Task<bool> promise(std::size_t byte_count);  // Waits. False: closing, and nothing is promised.
  void unpromise(std::size_t byte_count);
  // What data that nobody had promised anything has redeemed stands again, if there is room.
  void promise_again(std::size_t byte_count);
  // A write that began while memory was short has ended.
  void give_write_share(std::size_t byte_count);

  // Ends both directions; the reader and the writer end soon.
  void shutdown() noexcept;
  // The same when what is queued has gone; nothing more is taken.
  void shutdown_behind_queue() noexcept;
  bool closing() const noexcept { return closing_; }
  // Why housekeeping ended it, null if it did not.
  const char* given_up() const noexcept { return given_up_; }
  // Shuts down and waits for the writer. The reader has ended. The stream then belongs to `last`,
  // where the object goes away.
  Task<void> close(Executor& last);

  // PayloadSource
  BufferList payload_for(const IncomingPdu& pdu, std::size_t byte_count) override;

 private:
  // Without a header it has a time there, until which those behind it wait.
  struct Outgoing {
    std::array<std::byte, kBhsBytes + kDigestBytes> header;  // The digest follows the header.
    std::array<std::byte, 2 * kDigestBytes> trailer;         // Padding and data digest.
    std::uint8_t header_bytes = 0;
    std::uint8_t trailer_bytes = 0;
    std::uint16_t piece_bytes = 0;  // Sent in pieces of that size; 0: with others, in one.
    BufferList data;
  };
  static constexpr unsigned kPdusPerTurn = 8;
  static constexpr unsigned kMostCrossing = 512;
  static constexpr std::size_t kQueuedBytesLimit = std::size_t{4} << 20;
  static constexpr std::size_t kMostQueued = 1024;
  static constexpr std::size_t kSmallPayloadBytes = 4096;
  // What the writes of one connection may bring unasked while memory is short: so much is left for
  // everybody who has nothing, whatever others hold.
  static constexpr std::size_t kWriteShareBytes = std::size_t{64} << 10;
  // Less than this a device may copy as well.
  static constexpr std::size_t kDevicePayloadBytes = 4096;
  // Who sends less of what it has announced, in the time that a ping may take, hoards.
  static constexpr std::int64_t kLeastRedeemed = 65536;
  static constexpr std::size_t kSlicesPerSend = 960;  // Below IOV_MAX, with a PDU's worth of room.
  static constexpr std::size_t kBytesPerSend = std::size_t{1} << 20;

  // What one takes in memory; the blocks of its data are rounded up elsewhere.
  static std::size_t cost_of(const Outgoing& outgoing) {
    return sizeof(Outgoing) + outgoing.data.byte_count();
  }
  Task<void> let_answers_go(Session& session);
  Task<void> write_loop();
  Task<Error> send_gathered();
  void finish_outgoing(Outgoing& outgoing);
  void arm_housekeeping();
  void keep_house();
  bool hand_over(Session& session, ConnectionLink& link);
  bool is_interfered_with() const noexcept {
    return interference_ != nullptr && !interference_->quiet();
  }
  [[gnu::cold]] PduInterference::Verdict interfere_with_sending(const Bhs& bhs, BufferList& data);
  void note_silence();
  [[gnu::cold]] void alter(BufferList& data);
  Task<PduInterference::Fate> interfere_with_received();
  [[gnu::cold]] bool hand_over_twice(Session& session, ConnectionLink& link);
  void forget_received();
  void break_by_rule(PduInterference::Fate fate);
  Task<void> wait_by_rule(TimePoint until, unsigned& waiting);
  [[gnu::cold]] void spoil(Outgoing& outgoing, const PduInterference::Verdict& verdict);
  Task<Error> send_small(Outgoing& outgoing);
  void queue_hold(TimePoint until);
  static TimePoint hold_of(const Outgoing& outgoing);
  static Task<void> arrive();
  void promise_unsolicited(IncomingPdu& pdu);
  bool admits_writes() const;
  bool admits(const IncomingPdu& pdu);
  std::uint32_t unasked_bytes(const IncomingPdu& pdu) const;
  BufferList write_payload(const IncomingPdu& pdu, std::size_t byte_count);
  void count_promise(std::size_t byte_count);

  std::unique_ptr<Stream> stream_;
  Executor* home_;
  const ServerLimits& limits_;
  ConnectionStates states_;
  PduFramer framer_;
  IncomingPdu incoming_;
  ConnectionTraffic traffic_;
  std::unique_ptr<PduInterference> interference_;  // Null: nobody.
  unsigned reads_wait_ = 0;                        // It makes what has come wait now,
  unsigned writes_wait_ = 0;                       // and what is to be sent.
  TimePoint silent_until_{};                       // It lets nothing through until then.
  unsigned crossed_ = 0;  // PDUs, since the session was last known to have taken all.
  std::uint32_t first_burst_length_ = 0;  // 0: no unsolicited data beyond immediate data.
  bool header_digest_ = false;
  bool data_digest_ = false;
  bool closing_ = false;
  const char* given_up_ = nullptr;

  // Sending.
  struct Answer {
    TimePoint at = TimePoint::min();
    std::uint32_t initiator_task_tag = 0;
  };
  static constexpr std::size_t kRememberedAnswers = 64;
  static constexpr const char* kBrokenByRule = "a fault rule broke it";
  std::uint32_t stat_sn_ = 0;
  std::array<Answer, kRememberedAnswers> answers_;  // The last ones, by StatSN.
  std::vector<Outgoing> queue_;
  std::vector<Outgoing> sending_;
  std::vector<IoSlice> slices_;
  std::size_t queued_bytes_ = 0;
  std::coroutine_handle<> idle_writer_;
  bool writer_ended_ = true;
  bool last_queued_ = false;  // The end follows.
  bool moving_ = false;       // The writer has to end so that it can start on another executor.
  TimePoint send_started_ = kNever;
  Condition room_;
  Condition sent_;

  std::vector<BufferPool::Wait*> promise_waits_;
  std::size_t promised_ = 0;
  std::size_t write_share_taken_ = 0;
  std::uint32_t incoming_share_ = 0;  // Of that, for the PDU that is being received.
  // While something is promised: since data last came in earnest, and how many bytes came after
  // that; below zero where they turned out to be of no use.
  TimePoint data_awaited_since_{};
  std::int64_t redeemed_ = 0;

  // Housekeeping: pings when nothing comes, ends when nobody answers or nothing can be sent.
  Timer timer_;
  TimePoint last_received_{};
  TimePoint pinged_ = kNever;
  Session* session_ = nullptr;
  ConnectionLink* link_ = nullptr;
};

}  // namespace sandbay::iscsi
