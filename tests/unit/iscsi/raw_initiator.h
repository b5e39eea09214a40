// A hand-written peer for tests of the target: it logs in with fixed text, sends any header and
// data that a test makes, and keeps what comes back. It uses the PDU structures and digests, and
// nothing of the product's initiator or negotiation.
//
// A reader of its own takes PDUs off the stream as they come, so that "nothing came" can be told;
// with pause_reading() it stops, as a peer does that reads nothing. close() ends it.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "iscsi/digest.h"
#include "iscsi/pdu.h"
#include "runtime/executor.h"
#include "runtime/sync.h"

namespace sandbay::iscsi::test {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(std::string_view text) {
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

// "a=b;c=d" as iSCSI text, for tests that are read by people.
inline std::string text_of(std::string_view pairs) {
  std::string text(pairs);
  if (!text.empty()) text += ';';
  for (char& c : text) c = c == ';' ? '\0' : c;
  return text;
}

inline Bytes pattern_of(std::size_t byte_count, unsigned seed = 1) {
  Bytes bytes(byte_count);
  for (std::size_t i = 0; i < byte_count; ++i) {
    bytes[i] = static_cast<std::byte>((i * 7 + i / 251 + seed) & 0xffU);
  }
  return bytes;
}

struct RawPdu {
  bool closed = false;  // The connection ended.
  bool silent = false;  // Nothing came in time.
  Bhs bhs{};
  Bytes data;

  bool none() const { return closed || silent; }
  // Names what came instead of an opcode, so that a failed check tells.
  int opcode() const { return none() ? -1 : static_cast<int>(opcode_of(bhs)); }
  bool is(Opcode wanted) const { return opcode() == static_cast<int>(wanted); }
  std::string text() const { return {reinterpret_cast<const char*>(data.data()), data.size()}; }
  bool has(std::string_view pair) const {
    return ('\0' + text()).find('\0' + std::string(pair) + '\0') != std::string::npos;
  }
  std::uint32_t tag() const { return initiator_task_tag(bhs); }
  StatusNumbers numbers() const { return parse_status_numbers(bhs); }
  LoginResponse login() const { return parse_login_response(bhs).value_or(LoginResponse{}); }
  ScsiResponse response() const {
    return is(Opcode::kScsiResponse)
               ? parse_scsi_response(bhs).value_or(ScsiResponse{.status = 0xfe})
               : ScsiResponse{.status = 0xff};
  }
  DataIn data_in() const { return parse_data_in(bhs).value_or(DataIn{}); }
  ReadyToTransfer r2t() const { return parse_ready_to_transfer(bhs).value_or(ReadyToTransfer{}); }
  int rejected_for() const {
    if (!is(Opcode::kReject)) return -1;
    return static_cast<int>(parse_reject(bhs).value_or(Reject{}).reason);
  }
  int managed() const {  // The result of task management.
    if (!is(Opcode::kTaskManagementResponse)) return -1;
    return static_cast<int>(
        parse_task_management_response(bhs).value_or(TaskManagementResponse{}).result);
  }
  int logged_out() const {
    if (!is(Opcode::kLogoutResponse)) return -1;
    return static_cast<int>(parse_logout_response(bhs).value_or(LogoutResponse{}).result);
  }
  AsyncMessage async() const { return parse_async_message(bhs).value_or(AsyncMessage{}); }
  int event() const { return is(Opcode::kAsyncMessage) ? static_cast<int>(async().event) : -1; }
  // Status of a SCSI Response or of the Data-In that carries it; -1: neither.
  int status() const {
    if (is(Opcode::kScsiResponse)) return response().status;
    if (is(Opcode::kDataIn) && data_in().has_status) return data_in().status;
    return -1;
  }
  // Sense key and additional sense code of fixed or descriptor sense, as 0xKKAAQQ.
  unsigned sense() const {
    if (data.size() < 16) return 0;
    const auto at = [this](std::size_t i) { return std::to_integer<unsigned>(data[2 + i]); };
    const bool descriptor = at(0) == 0x72 || at(0) == 0x73;
    return descriptor ? at(1) << 16U | at(2) << 8U | at(3)
                      : (at(2) & 15U) << 16U | at(12) << 8U | at(13);
  }
};

struct RawLogin {
  std::string initiator = "iqn.2026-11.org.sandbay:raw";
  std::string target = "iqn.2026-11.org.sandbay:target";  // Empty: discovery.
  std::string keys;                                       // More pairs: "InitialR2T=No;…".
  std::uint8_t isid = 1;
  std::uint16_t tsih = 0;
  std::uint16_t cid = 0;
  std::uint32_t cmd_sn = 100;
};

class RawInitiator {
 public:
  explicit RawInitiator(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {
    spawn(read_on());
  }
  ~RawInitiator() = default;  // After close().

  // Sequence numbers, free to be set.
  std::uint32_t cmd_sn = 100;
  std::uint32_t exp_stat_sn = 0;
  std::uint32_t next_tag = 1;
  std::uint16_t tsih = 0;
  bool header_digest_on = false;
  bool data_digest_on = false;
  bool spoil_header_digest = false;  // Of the next PDU.
  bool spoil_data_digest = false;
  unsigned wrong_digests = 0;  // Among those that came.

  Task<void> send(Bhs bhs, Bytes data = {}) {
    put_big_endian_24(bhs, 5, static_cast<std::uint32_t>(data.size()));
    Bytes bytes(bhs.begin(), bhs.end());
    if (header_digest_on) append_digest(bytes, header_digest(bhs), spoil_header_digest);
    const std::size_t segment = bytes.size();
    bytes.insert(bytes.end(), data.begin(), data.end());
    bytes.resize(bytes.size() + padding_of(static_cast<std::uint32_t>(data.size())));
    const std::uint32_t digest = crc32c(std::span(bytes).subspan(segment));
    if (data_digest_on && !data.empty()) append_digest(bytes, digest, spoil_data_digest);
    const IoSlice slice{.data = bytes.data(), .byte_count = bytes.size()};
    co_await stream_->send(std::span(&slice, 1));
  }

  // As it stands.
  Task<void> send_bytes(Bytes bytes) {
    const IoSlice slice{.data = bytes.data(), .byte_count = bytes.size()};
    co_await stream_->send(std::span(&slice, 1));
  }

  // The next PDU, or none within `wait`.
  Task<RawPdu> next(Duration wait = std::chrono::seconds(20)) {
    const TimePoint deadline = Executor::current().now() + wait;
    while (arrived_.empty() && !ended_.is_set()) {
      const bool woken = co_await changed_.wait_until(deadline);
      if (!woken) co_return RawPdu{.silent = true};
    }
    if (arrived_.empty()) co_return RawPdu{.closed = true};
    RawPdu pdu = std::move(arrived_.front());
    arrived_.pop_front();
    co_return pdu;
  }

  // The next PDU for a task, past those of others, which are kept.
  Task<RawPdu> next_of(std::uint32_t tag, Duration wait = std::chrono::seconds(20)) {
    const TimePoint deadline = Executor::current().now() + wait;
    for (;;) {
      for (auto at = arrived_.begin(); at != arrived_.end(); ++at) {
        if (at->tag() != tag) continue;
        RawPdu pdu = std::move(*at);
        arrived_.erase(at);
        co_return pdu;
      }
      if (ended_.is_set()) co_return RawPdu{.closed = true};
      const bool woken = co_await changed_.wait_until(deadline);
      if (!woken) co_return RawPdu{.silent = true};
    }
  }

  // One login request from the operational stage; what it was answered.
  Task<RawPdu> log_in(RawLogin login = {}) {
    cmd_sn = login.cmd_sn;
    std::string text = "InitiatorName=" + login.initiator;
    text += login.target.empty() ? ";SessionType=Discovery"
                                 : ";SessionType=Normal;TargetName=" + login.target;
    if (!login.keys.empty()) text += ";" + login.keys;
    LoginRequest request{.transit = true,
                         .current_stage = 1,
                         .next_stage = 3,
                         .tsih = login.tsih,
                         .initiator_task_tag = next_tag++,
                         .cid = login.cid,
                         .cmd_sn = login.cmd_sn};
    request.isid.bytes = {std::byte{0x80}, std::byte{0}, std::byte{0},
                          std::byte{0},    std::byte{0}, std::byte{login.isid}};
    Bhs bhs;
    write_login_request(request, bhs);
    co_await send(bhs, bytes_of(text_of(text)));
    RawPdu answer = co_await next(std::chrono::seconds(60));
    if (answer.is(Opcode::kLoginResponse)) tsih = answer.login().tsih;
    co_return answer;
  }

  void pause_reading() { paused_ = true; }
  void resume_reading() {
    paused_ = false;
    resumed_.notify_all();
  }
  void reset() { stream_->reset(); }
  bool ended() const { return ended_.is_set(); }
  std::size_t waiting() const { return arrived_.size(); }
  std::uint64_t bytes_in() const { return bytes_in_; }
  Task<void> close() {
    resume_reading();
    stream_->shutdown();
    co_await ended_.wait();
  }

 private:
  static void append_digest(Bytes& bytes, std::uint32_t digest, bool& spoil) {
    if (std::exchange(spoil, false)) digest ^= 1U;
    std::array<std::byte, kDigestBytes> stored{};
    store_digest(digest, stored);
    bytes.insert(bytes.end(), stored.begin(), stored.end());
  }

  Task<void> read_on() {
    for (;;) {
      RawPdu pdu;
      const bool header = co_await fill(kBhsBytes);
      if (!header) break;
      std::memcpy(pdu.bhs.data(), received_.data(), kBhsBytes);
      const std::uint32_t length = data_segment_length(pdu.bhs);
      const std::size_t whole =
          kBhsBytes + bytes_after_bhs(pdu.bhs, header_digest_on, data_digest_on);
      const bool data = co_await fill(whole);
      if (!data) break;
      const auto begin = received_.begin() + kBhsBytes + (header_digest_on ? 4 : 0);
      count_wrong_digests(pdu.bhs, length);
      pdu.data.assign(begin, begin + length);
      received_.erase(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(whole));
      note_status(pdu);
      arrived_.push_back(std::move(pdu));
      changed_.notify_all();
    }
    ended_.set();
    changed_.notify_all();
  }

  void count_wrong_digests(const Bhs& bhs, std::uint32_t length) {
    const auto wrong = [this](std::size_t at, std::uint32_t digest) {
      std::array<std::byte, kDigestBytes> stored{};
      store_digest(digest, stored);
      return !std::ranges::equal(stored, std::span(received_).subspan(at, kDigestBytes));
    };
    if (header_digest_on && wrong(kBhsBytes, header_digest(bhs))) ++wrong_digests;
    if (!data_digest_on || length == 0) return;
    const std::size_t begin = kBhsBytes + (header_digest_on ? kDigestBytes : 0);
    const std::size_t padded = length + padding_of(length);
    const auto data = std::span(received_).subspan(begin, padded);
    if (wrong(begin + padded, crc32c(data))) ++wrong_digests;
  }

  void note_status(const RawPdu& pdu) {
    const bool data_alone = pdu.is(Opcode::kDataIn) && !pdu.data_in().has_status;
    const bool unasked = pdu.is(Opcode::kNopIn) && pdu.tag() == kReservedTag;
    if (data_alone || unasked || pdu.is(Opcode::kReadyToTransfer)) return;
    exp_stat_sn = pdu.numbers().stat_sn + 1;
  }

  Task<bool> fill(std::size_t byte_count) {
    while (received_.size() < byte_count) {
      while (paused_) co_await resumed_.wait();
      const std::size_t old = received_.size();
      received_.resize(old + 65536);
      const IoSlice slice{.data = received_.data() + old, .byte_count = 65536};
      const Result<std::size_t> got = co_await stream_->receive(std::span(&slice, 1));
      received_.resize(old + got.value_or(0));
      bytes_in_ += got.value_or(0);
      if (got.value_or(0) == 0) co_return false;
    }
    co_return true;
  }

  std::unique_ptr<Stream> stream_;
  Bytes received_;
  std::uint64_t bytes_in_ = 0;
  std::deque<RawPdu> arrived_;
  Condition changed_;
  Condition resumed_;
  Event ended_;
  bool paused_ = false;
};

}  // namespace sandbay::iscsi::test
