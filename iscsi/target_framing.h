// PduFramer: cuts the byte stream of one connection into PDUs (RFC 7143 section 11.2).
//
// Bytes are received into a staging buffer, many PDUs at a time. A payload that lies in it whole is
// copied out once; one that does not is completed by receiving straight into its own buffers, with
// the staging buffer behind it for what follows. Where there is no memory for a payload it is
// read and dropped, and the PDU says so: a connection never stops reading for want of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "iscsi/pdu.h"
#include "runtime/buffer.h"

namespace sandbay::iscsi {

struct IncomingPdu {
  Bhs bhs{};
  std::vector<std::byte> ahs;  // Empty for nearly every PDU.
  BufferList data;
  bool data_dropped = false;   // There was no memory for it.
  std::uint32_t promised = 0;  // Bytes, to the unsolicited data that it announces.
  std::uint32_t share = 0;     // Of the connection's, that it took since memory is short.
  bool data_digest_error = false;

  Opcode opcode() const { return opcode_of(bhs); }
};

// Where payload memory comes from: the connection, which knows what has been promised.
class PayloadSource {
 public:
  // Buffers of exactly byte_count bytes, or an empty list: then the payload is dropped.
  virtual BufferList payload_for(const IncomingPdu& pdu, std::size_t byte_count) = 0;

 protected:
  ~PayloadSource() = default;
};

class PduFramer {
 public:
  enum class Step : std::uint8_t {
    kPdu,                // One is complete.
    kMore,               // Receive first.
    kHeaderDigestError,  // The stream cannot be followed any further …
    kDataTooLong,        // … nor here: longer than we declared to take.
    kNoMemory,
  };

  PduFramer(BufferPool& pool, PayloadSource& payloads) : pool_(&pool), payloads_(payloads) {}

  void set_limit(std::uint32_t maximum_data_segment_length) {
    limit_ = maximum_data_segment_length;
  }
  void set_digests(bool header, bool data) {
    header_digest_ = header;
    data_digest_ = data;
  }
  // Takes the staging memory of another executor's pool from here on; between two PDUs.
  bool move_to(BufferPool& pool);

  // The next PDU in what has been received. `pdu` is overwritten.
  Step next(IncomingPdu& pdu);
  // Where to receive; empty if there is no memory. Valid until the next call of anything here.
  std::span<const IoSlice> targets();
  void received(std::size_t byte_count);
  // Part of a PDU has arrived and the rest has not.
  bool in_the_middle() const noexcept { return state_ != State::kHeader || begin_ != end_; }

 private:
  enum class State : std::uint8_t { kHeader, kPayload, kDiscard, kTrailer };

  static constexpr std::size_t kFirstStagingBytes = std::size_t{16} << 10;
  static constexpr std::size_t kMostStagingBytes = std::size_t{256} << 10;

  static constexpr std::size_t kLargePayloadBytes = std::size_t{16} << 10;
  static constexpr std::size_t kPeekBytes = 512;

  std::size_t available() const noexcept { return end_ - begin_; }
  std::span<const std::byte> staged(std::size_t byte_count) const {
    return {staging_.data() + begin_, byte_count};
  }
  Step parse_header(IncomingPdu& pdu);
  bool take_payload(IncomingPdu& pdu);
  Step take_trailer(IncomingPdu& pdu);
  void make_room();

  BufferPool* pool_;
  PayloadSource& payloads_;
  std::uint32_t limit_ = 8192;
  bool header_digest_ = false;
  bool data_digest_ = false;

  Buffer staging_;
  std::size_t begin_ = 0;  // Of what is staged and not parsed.
  std::size_t end_ = 0;
  std::size_t staging_bytes_ = kFirstStagingBytes;
  bool filled_ = false;  // The last receive left no room: a larger staging buffer pays.

  bool large_payloads_ = false;  // The last PDU had one.

  State state_ = State::kHeader;
  BufferList payload_;            // Of the PDU in progress.
  std::size_t payload_done_ = 0;  // Bytes of it that are there.
  std::size_t payload_bytes_ = 0;
  std::vector<IoSlice> targets_;
};

}  // namespace sandbay::iscsi
