// A connection's life: reading, memory, housekeeping, the end.

#include "iscsi/target_connection.h"

#include <algorithm>
#include <cstring>

#include "iscsi/target_session.h"
#include "runtime/frame_pool.h"

namespace sandbay::iscsi {
namespace {

constexpr Duration kStallTimeWhileShort = std::chrono::seconds(5);  // Of memory.
constexpr Duration kDiscoveryIdleTime = std::chrono::seconds(30);

// A PDU on its way to a session that lives elsewhere.
struct CrossingPdu final : Message, FramePooled {
  Session* session = nullptr;
  ConnectionLink* link = nullptr;
  IncomingPdu pdu;
};

// Why the stream cannot be followed any further.
const char* reason_of(PduFramer::Step step) {
  if (step == PduFramer::Step::kHeaderDigestError) return "a header digest was wrong";
  return "a PDU was longer than agreed";
}

}  // namespace

Connection::Connection(std::unique_ptr<Stream> stream, const ServerLimits& limits)
    : stream_(std::move(stream)),
      home_(&stream_->home()),
      limits_(limits),
      framer_(home_->buffers(), *this) {
  timer_.owner = this;
  timer_.fire = [](Timer& timer) { static_cast<Connection*>(timer.owner)->keep_house(); };
}

Connection::~Connection() {
  assert(writer_ended_);
  assert(promised_ == 0);
}

// Reading ------------------------------------------------------------------------------------

Task<Error> Connection::receive(IncomingPdu& pdu) {
  for (;;) {
    const PduFramer::Step step = framer_.next(pdu);
    if (step == PduFramer::Step::kPdu) {
      ++traffic_.pdus_in;
      co_return Error::kNone;
    }
    if (step != PduFramer::Step::kMore) co_return Error::kInvalid;
    const auto targets = framer_.targets();
    if (targets.empty()) co_return Error::kNoMemory;
    const Result<std::size_t> got = co_await stream_->receive(targets);
    if (!got) co_return got.error();
    if (*got == 0) co_return Error::kClosed;
    traffic_.bytes_in += *got;
    framer_.received(*got);
  }
}

Task<bool> Connection::move_to(Executor& home) {
  if (&home == home_) co_return true;
  assert(promised_ == 0 && !timer_.armed());
  co_await drain();
  // The writer ends on its executor; it is started anew on the next one.
  moving_ = true;
  if (idle_writer_) home_->post(std::exchange(idle_writer_, {}));
  while (!writer_ended_) co_await sent_.wait();
  moving_ = false;
  stream_->move_to(home);
  co_await SwitchTo(home);
  home_ = &home;
  const bool moved = framer_.move_to(home.buffers());
  co_return moved;
}

void Connection::set_parameters(const NegotiatedParameters& parameters) {
  header_digest_ = parameters.connection.header_digest;
  data_digest_ = parameters.connection.data_digest;
  framer_.set_digests(header_digest_, data_digest_);
  framer_.set_limit(parameters.connection.target_max_recv_data_segment_length);
  first_burst_length_ = parameters.session.initial_r2t ? 0 : parameters.session.first_burst_length;
}

Task<void> Connection::serve(Session& session, ConnectionLink& link) {
  session_ = &session;
  link_ = &link;
  last_received_ = home_->now();
  arm_housekeeping();
  unsigned in_turn = 0;
  for (;;) {
    const PduFramer::Step step = framer_.next(incoming_);
    if (step == PduFramer::Step::kPdu) {
      ++traffic_.pdus_in;
      if (is_interfered_with()) [[unlikely]] {
        using Fate = PduInterference::Fate;
        const Fate fate = co_await interfere_with_received();
        if (closing_) break;
        if (fate == Fate::kPass && !hand_over(session, link)) break;
        if (fate == Fate::kTwice && !hand_over_twice(session, link)) break;
      } else if (!hand_over(session, link)) {
        break;
      }
      if (is_flooded() || crossed_ >= kMostCrossing) co_await let_answers_go(session);
      if (++in_turn < kPdusPerTurn) continue;
      // The answers so far leave while the rest is served: both sides work at the same time.
      in_turn = 0;
      co_await home_->turn_end();
      co_await home_->yield();
      continue;
    }
    in_turn = 0;
    if (step != PduFramer::Step::kMore) {
      if (step == PduFramer::Step::kHeaderDigestError) ++traffic_.header_digest_errors;
      if (!closing_) given_up_ = reason_of(step);
      break;
    }
    if (is_flooded() || crossed_ >= kMostCrossing) co_await let_answers_go(session);
    const auto targets = framer_.targets();
    if (targets.empty()) break;
    const Result<std::size_t> got = co_await stream_->receive(targets);
    if (!got || *got == 0) break;
    traffic_.bytes_in += *got;
    last_received_ = home_->now();
    framer_.received(*got);
  }
  home_->disarm(timer_);
  session_ = nullptr;
}

// Answers do not wait for room; who asks for them and does not read them is read no further. Nor
// does what crosses pile up where the session lives.
Task<void> Connection::let_answers_go(Session& session) {
  while (is_flooded()) co_await room_.wait();
  if (crossed_ < kMostCrossing) co_return;
  crossed_ = 0;
  co_await invoke_on(session.home(), arrive());
}

// How often it has come: kLose, kPass or kTwice. Closing: the connection ends.
Task<PduInterference::Fate> Connection::interfere_with_received() {
  using Fate = PduInterference::Fate;
  const bool data = data_digest_ && data_segment_length(incoming_.bhs) > 0;
  const PduInterference::Verdict verdict = interference_->judge(
      incoming_.bhs,
      {.data = !incoming_.data.empty(), .header_digest = header_digest_, .data_digest = data});
  if (verdict.delay > Duration::zero()) co_await wait_by_rule(verdict.delay);
  if (verdict.silent) note_silence();
  switch (verdict.fate) {
    case Fate::kPass:
    case Fate::kTwice:
      co_return verdict.fate;
    case Fate::kDamaged:
    case Fate::kAltered:
      // Without a digest nobody notices it.
      if (verdict.fate == Fate::kAltered || !data) {
        alter(incoming_.data);
        co_return Fate::kPass;
      }
      [[fallthrough]];
    case Fate::kDataDigest:
      incoming_.data_digest_error = true;
      co_return Fate::kPass;
    case Fate::kLose:
      break;
    case Fate::kHeaderDigest:
      ++traffic_.header_digest_errors;
      given_up_ = reason_of(PduFramer::Step::kHeaderDigestError);
      shutdown();
      break;
    default:
      break_by_rule(verdict.fate);
      break;
  }
  forget_received();
  co_return Fate::kLose;
}

// The second gets memory as any PDU does that comes.
bool Connection::hand_over_twice(Session& session, ConnectionLink& link) {
  IncomingPdu again;
  again.bhs = incoming_.bhs;
  again.ahs = incoming_.ahs;
  again.data_digest_error = incoming_.data_digest_error;
  std::vector<std::byte> data(incoming_.data.byte_count());
  incoming_.data.copy_to(data);
  if (!hand_over(session, link)) return false;
  if (!data.empty()) again.data = payload_for(again, data.size());
  again.data_dropped = again.data.empty() && data_segment_length(again.bhs) > 0;
  if (!again.data.empty()) again.data.copy_from(data);
  incoming_ = std::move(again);
  return hand_over(session, link);
}

// As if it had not come: memory that was promised to it is still promised.
void Connection::forget_received() {
  const std::size_t byte_count = incoming_.data.byte_count();
  incoming_.data.clear();
  if (incoming_.opcode() == Opcode::kDataOut && !closing_ &&
      home_->buffers().try_reserve_share(byte_count)) {
    promised_ += byte_count;  // As before it came, whoever waits for memory.
  }
  give_write_share(std::exchange(incoming_share_, 0));
}

void Connection::note_silence() {
  constexpr Duration kLongestSilence = std::chrono::minutes(10);
  silent_until_ = home_->now() + kLongestSilence;
}

void Connection::break_by_rule(PduInterference::Fate fate) {
  given_up_ = kBrokenByRule;
  if (fate == PduInterference::Fate::kReset) stream_->reset();
  shutdown();
}

// It holds up no end, and lasts no longer than there are rules.
Task<void> Connection::wait_by_rule(TimePoint until, unsigned& waiting) {
  ++waiting;
  const auto obeys = [this] { return interference_ == nullptr || !interference_->quiet(); };
  while (!closing_ && !last_queued_ && home_->now() < until && obeys()) {
    (void)co_await room_.wait_until(std::min(until, home_->now() + kLookAtRules));
  }
  --waiting;
}

// False ends the connection.
bool Connection::hand_over(Session& session, ConnectionLink& link) {
  if (closing_) return false;
  if (incoming_.data_digest_error) ++traffic_.data_digest_errors;
  pinged_ = kNever;
  promise_unsolicited(incoming_);
  incoming_.share = std::exchange(incoming_share_, 0);
  if (&session.home() == home_) {
    session.receive(link, incoming_);
    return !closing_;
  }
  auto* const crossing = new CrossingPdu;
  crossing->session = &session;
  crossing->link = &link;
  crossing->pdu = std::move(incoming_);
  crossing->run = [](Message& message) {
    const std::unique_ptr<CrossingPdu> arrived(static_cast<CrossingPdu*>(&message));
    arrived->session->receive(*arrived->link, arrived->pdu);
  };
  session.home().send(*crossing);
  ++crossed_;
  return true;
}

// Ends when the session has taken all that was sent to it before.
Task<void> Connection::arrive() { co_return; }

// A write that will send data without being asked is promised room for it, or loses what it has
// brought.
void Connection::promise_unsolicited(IncomingPdu& pdu) {
  const bool announces = pdu.opcode() == Opcode::kScsiCommand && !is_final(pdu.bhs) &&
                         first_burst_length_ > 0 && !pdu.data_dropped;
  if (!announces) return;
  const std::uint32_t most = unasked_bytes(pdu);
  const std::uint32_t brought = data_segment_length(pdu.bhs);
  if (brought >= most) return;
  const bool admitted = incoming_share_ > 0 || admits(pdu);
  if (admitted && try_promise(most - brought, incoming_share_ > 0)) {
    pdu.promised = most - brought;
    return;
  }
  pdu.data.clear();
  pdu.data_dropped = true;
}

// With the command, and behind it.
std::uint32_t Connection::unasked_bytes(const IncomingPdu& pdu) const {
  const std::uint32_t brought = data_segment_length(pdu.bhs);
  if (is_final(pdu.bhs) || first_burst_length_ == 0) return brought;
  const auto expected = big_endian<std::uint32_t>(pdu.bhs, 20);
  return std::max(brought, std::min(first_burst_length_, expected));
}

// Memory -------------------------------------------------------------------------------------

// Data that was promised room gets it. A write that begins is promised room for all the data that
// it may send without being asked; when memory is short its data is dropped instead and the session
// answers TASK SET FULL.
BufferList Connection::payload_for(const IncomingPdu& pdu, std::size_t byte_count) {
  BufferPool& pool = home_->buffers();
  switch (pdu.opcode()) {
    case Opcode::kScsiCommand:
      if (!admits(pdu)) return {};
      return write_payload(pdu, byte_count);
    case Opcode::kDataOut: {
      // What nobody was promised room for is no use to any write.
      if (byte_count > promised_) return {};
      BufferList data = write_payload(pdu, byte_count);
      if (data.empty()) return data;
      unpromise(byte_count);
      redeemed_ += static_cast<std::int64_t>(byte_count);
      if (redeemed_ >= kLeastRedeemed) {
        data_awaited_since_ = home_->now();
        redeemed_ = 0;
      }
      return data;
    }
    default:
      // Ping data and text: what is kept for others is not theirs. The last of it is for logins.
      if (byte_count > kSmallPayloadBytes && pool.under_pressure()) return {};
      if (session_ != nullptr && pool.nearly_full()) return {};
      return pool.try_allocate(byte_count);
  }
}

// Straight into the memory of the device that will keep it, where that is at hand.
BufferList Connection::write_payload(const IncomingPdu& pdu, std::size_t byte_count) {
  const bool at_home = session_ != nullptr && &session_->home() == home_;
  if (at_home && byte_count >= kDevicePayloadBytes) {
    BufferList data = session_->device_buffers_for(*link_, pdu, byte_count);
    if (!data.empty()) return data;
  }
  return home_->buffers().try_allocate(byte_count);
}

// New writes bring data up to a part of the memory only: what others need to end is left.
bool Connection::admits_writes() const {
  const BufferPool& pool = home_->buffers();
  return pool.used_bytes() + pool.reserved_bytes() <= pool.limit_bytes() / 8 * 5;
}

// Beyond that a write of a connection that has few has a share of what is kept for such.
bool Connection::admits(const IncomingPdu& pdu) {
  if (admits_writes()) return true;
  const std::uint32_t byte_count = unasked_bytes(pdu);
  if (write_share_taken_ + byte_count > kWriteShareBytes) return false;
  if (!home_->buffers().has_room_for_share(byte_count)) return false;
  write_share_taken_ += byte_count;
  incoming_share_ = byte_count;
  return true;
}

void Connection::give_write_share(std::size_t byte_count) {
  assert(byte_count <= write_share_taken_);
  write_share_taken_ -= byte_count;
}

bool Connection::try_promise(std::size_t byte_count, bool of_share) {
  BufferPool& pool = home_->buffers();
  if (closing_) return false;
  if (!(of_share ? pool.try_reserve_share(byte_count) : pool.try_reserve(byte_count))) return false;
  count_promise(byte_count);
  return true;
}

void Connection::count_promise(std::size_t byte_count) {
  if (promised_ == 0) {
    data_awaited_since_ = home_->now();
    redeemed_ = 0;
  }
  promised_ += byte_count;
}

void Connection::promise_again(std::size_t byte_count) {
  if (closing_ || !home_->buffers().try_reserve(byte_count)) return;
  promised_ += byte_count;
  redeemed_ -= static_cast<std::int64_t>(byte_count);
}

Task<bool> Connection::promise(std::size_t byte_count) {
  if (closing_) co_return false;
  BufferPool::Wait wait;
  promise_waits_.push_back(&wait);
  const bool reserved = co_await home_->buffers().reserve(byte_count, wait);
  std::erase(promise_waits_, &wait);
  if (!reserved) co_return false;
  if (closing_) {
    home_->buffers().unreserve(byte_count);
    co_return false;
  }
  count_promise(byte_count);
  co_return true;
}

void Connection::unpromise(std::size_t byte_count) {
  byte_count = std::min(byte_count, promised_);
  if (byte_count == 0) return;
  promised_ -= byte_count;
  home_->buffers().unreserve(byte_count);
}

// Housekeeping -------------------------------------------------------------------------------

void Connection::arm_housekeeping() {
  Duration interval = limits_.send_stall_timeout;
  if (limits_.nop_in_interval > Duration{0}) interval = std::min(interval, limits_.nop_in_interval);
  interval = std::min(std::min(interval, limits_.nop_in_timeout) / 2, kStallTimeWhileShort);
  // A send that hangs is looked at again as soon as it has hung for too long, not a turn later.
  const TimePoint now = home_->now();
  const Duration hung = send_started_ == kNever ? Duration{0} : now - send_started_;
  if (hung < kStallTimeWhileShort) interval = std::min(interval, kStallTimeWhileShort - hung);
  timer_.deadline = now + std::max<Duration>(interval, std::chrono::milliseconds(10));
  home_->arm(timer_);
}

void Connection::keep_house() {
  const TimePoint now = home_->now();
  // What we do not read, because so much waits to be sent or a rule says so, is not missing.
  const bool excused = is_flooded() || reads_wait_ > 0 || now < silent_until_;
  if (excused) last_received_ = data_awaited_since_ = now;
  const bool unanswered = pinged_ != kNever && writes_wait_ == 0 &&
                          now - pinged_ >= limits_.nop_in_timeout &&
                          now - last_received_ >= limits_.nop_in_timeout;
  // What a burst took is not kept for the next one, which may never come.
  if (idle_writer_ && queue_.empty() && now - last_received_ >= kStallTimeWhileShort) {
    queue_ = std::vector<Outgoing>();
    sending_ = std::vector<Outgoing>();
    slices_ = std::vector<IoSlice>();
  }
  // A peer that takes nothing is borne with for long, but not while it holds what others need.
  const Duration patience = home_->buffers().under_pressure()
                                ? std::min(kStallTimeWhileShort, limits_.send_stall_timeout)
                                : limits_.send_stall_timeout;
  const TimePoint could_take = std::max(send_started_, stream_->held_until());
  const bool stalled = send_started_ != kNever && now - could_take >= patience;
  // Half a PDU, and then silence, while others wait for memory.
  const bool withheld = framer_.in_the_middle() && home_->buffers().under_pressure() &&
                        now - last_received_ >= limits_.nop_in_timeout;
  // Memory was promised to data that do not come, or in driblets, and others wait for it or are
  // refused.
  const bool scarce = home_->buffers().waiter_count() > 0 || !admits_writes();
  const bool hoarding =
      promised_ > 0 && scarce && now - data_awaited_since_ >= limits_.nop_in_timeout;
  // Section 7.4.3: discovery is not pinged.
  const bool discovery = session_ != nullptr && session_->is_discovery();
  const bool idle = discovery && now - last_received_ >= kDiscoveryIdleTime;
  if (unanswered || stalled || withheld || hoarding || idle) {
    given_up_ = unanswered ? "pings were not answered"
                : idle     ? "a discovery session asked for nothing"
                : stalled  ? "the initiator takes nothing that is sent"
                           : "data that were announced did not come while memory was short";
    shutdown();
    return;
  }
  const bool ping = limits_.nop_in_interval > Duration{0} && pinged_ == kNever &&
                    link_ != nullptr && session_ != nullptr && !discovery &&
                    now - last_received_ >= limits_.nop_in_interval;
  if (ping) {
    pinged_ = now;
    session_->request_ping(*link_);
  }
  arm_housekeeping();
}

// The end ------------------------------------------------------------------------------------

Task<void> Connection::drain_for_logout() {
  if (states_.state() == ConnectionState::kS5LoggedIn) {
    states_.transition(ConnectionState::kS6InLogout);  // T9
  }
  co_await drain();
}

void Connection::end_states() {
  const bool expected = closing_ || states_.state() == ConnectionState::kS6InLogout;
  if (!expected) states_.transition(ConnectionState::kS8CleanupWait);  // T15
  states_.transition(ConnectionState::kS1Free);                        // T8, T13, M1
}

void Connection::shutdown() noexcept {
  if (std::exchange(closing_, true)) return;
  stream_->shutdown();
  for (BufferPool::Wait* const wait : promise_waits_) home_->buffers().cancel(*wait);
  room_.notify_all();
  if (idle_writer_) home_->post(std::exchange(idle_writer_, {}));
}

void Connection::shutdown_behind_queue() noexcept {
  last_queued_ = true;
  room_.notify_all();
  if (writer_ended_ || idle_writer_) shutdown();
}

Task<void> Connection::close(Executor& last) {
  shutdown();
  home_->disarm(timer_);
  while (!writer_ended_) co_await sent_.wait();
  unpromise(promised_);
  queue_.clear();
  stream_->move_to(last);
}

}  // namespace sandbay::iscsi
