// InitiatorOutgoing: what one connection has to send. PDUs added in one turn leave in one send at
// the turn's end; headers, digests and padding are gathered in one byte string, data segments are
// sent from where they lie.
//
// A task whose memory is named by a PDU is counted in InitiatorTask::sends_in_flight until that
// send has ended, however it ends; the owner is told of each one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "iscsi/digest.h"
#include "iscsi/initiator.h"
#include "iscsi/pdu.h"
#include "iscsi/shown.h"
#include "runtime/executor.h"
#include "runtime/io.h"
#include "runtime/random.h"
#include "runtime/sync.h"

namespace sandbay::iscsi {

class InitiatorOutgoing {
 public:
  // Told on the connection's executor.
  class Owner {
   public:
    virtual void sent(InitiatorTask& task) = 0;  // sends_in_flight was lowered by one.
    virtual void outgoing_failed(const char* why) = 0;
    virtual void outgoing_idle() = 0;  // Nothing is being sent any more.

   protected:
    ~Owner() = default;
  };

  InitiatorOutgoing(Executor& executor, Owner& owner) : executor_(executor), owner_(owner) {}

  // `misbehaviour` counts PDUs from `pdus_before` on. `interference` outlives this; null: nobody.
  void open(Stream& stream, bool header_digest, bool data_digest,
            std::vector<Misbehaviour> misbehaviour, std::uint64_t pdus_before,
            PduInterference* interference);

  // The header's DataSegmentLength tells how many bytes of `data` from `offset` on follow it. They
  // belong to `task`, which keeps them where they are.
  void add(const Bhs& bhs, const BufferList& data, std::size_t offset, InitiatorTask& task);
  // The data is copied.
  void add(const Bhs& bhs, std::span<const std::byte> data = {});

  // Drops what has not been handed to the stream; nothing is sent afterwards.
  void close();
  bool busy() const noexcept { return flushing_; }
  bool reading_stopped() const noexcept { return reading_stopped_; }
  std::uint64_t pdus_sent() const noexcept { return pdus_; }  // On any executor.

 private:
  struct Piece {
    const std::byte* data = nullptr;  // Null: in the batch's own bytes, from `offset`.
    std::size_t offset = 0;
    std::size_t byte_count = 0;
  };
  struct Batch {
    std::vector<std::byte> bytes;
    std::vector<Piece> pieces;
    std::vector<InitiatorTask*> tasks;
    Duration delay{};
    std::uint16_t piece_bytes = 0;
    bool reset_behind = false;

    bool empty() const noexcept { return pieces.empty() && !reset_behind; }
    void clear();
    std::span<std::byte> grow(std::size_t byte_count);
  };

  void put_header(const Bhs& bhs);
  void put_data_end(std::uint32_t byte_count, Crc32c crc);
  void wake();
  Task<void> flush();
  Task<Error> send_batch();
  void release(Batch& batch);

  bool bends() const noexcept {
    return !misbehaviour_.empty() || (interference_ != nullptr && !interference_->quiet());
  }
  PduInterference::Verdict judge(const Bhs& bhs, std::span<std::byte> data);
  void carry_out(const PduInterference::Verdict& verdict, std::size_t data_bytes,
                 std::vector<std::byte>& pdu, bool& drop);
  bool matches(const Misbehaviour& wrong, const Bhs& bhs) const;
  void add_misbehaving(Bhs bhs, std::vector<std::byte> data);
  void apply(const Misbehaviour& wrong, std::vector<std::byte>& pdu, bool& drop);
  std::vector<std::byte> assemble(const Bhs& bhs, std::span<const std::byte> data) const;
  void put_raw(std::span<const std::byte> bytes);
  void release_held();

  Executor& executor_;
  Owner& owner_;
  Stream* stream_ = nullptr;
  bool header_digest_ = false;
  bool data_digest_ = false;
  bool flushing_ = false;
  bool closed_ = false;
  bool reading_stopped_ = false;
  Shown<std::uint64_t> pdus_;
  Batch building_;
  Batch sending_;
  std::vector<IoSlice> slices_;

  PduInterference* interference_ = nullptr;
  Condition hurry_;  // Nothing is sent any more.
  std::vector<Misbehaviour> misbehaviour_;
  struct Held {
    std::vector<std::byte> bytes;
    std::uint64_t until_pdu = 0;
  };
  std::vector<Held> held_;
};

}  // namespace sandbay::iscsi
