// RemoteUnit: one logical unit of a target elsewhere, as a block device. Reads, writes, flushes,
// UNMAP, WRITE SAME and GET LBA STATUS (SBC-3) over the session of a RemoteTarget.
//
// What always holds:
// - A write that was in doubt when a connection broke is sent again only when the target has ended
//   it (initiator_recovery.cc); where that cannot be had in time it ends with kNotReady, and
//   nothing is sent on another session before the target has ended what the old one left
//   (section 6.3.5).
// - Payloads are the request's own buffers from end to end.
// - A flush that ends well covers every write of its volume that ended before it, also when the
//   target has been started anew in between: what its volatile cache may have lost then fails the
//   next flush of each volume that it concerns, and what else is under way for that volume; once.
//   The same holds when the target answers a flush with an error: it does not know our volumes, and
//   says once what it has lost. A flush of no volume (0) has all writes of the unit to look after,
//   and settles no volume's.
//
// Home: its target's. While the session or the unit is away every request ends with kNotReady.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "block/block_device.h"
#include "iscsi/initiator.h"
#include "runtime/uuid.h"

namespace sandbay::iscsi {

class RemoteTarget;
class RemoteLink;

// What a logical unit says of itself.
struct RemoteUnitFacts {
  std::uint32_t lun_number = 0;
  std::array<std::uint8_t, 16> naa{};  // VPD 83h, NAA 6.
  std::string serial;                  // VPD 80h.
  std::string product;                 // Standard INQUIRY data, without trailing spaces.
  std::string revision;
  Geometry geometry;  // READ CAPACITY (16), VPD 86h, B0h, B1h and B2h.
  std::uint64_t most_transfer_blocks = 0;
  std::uint64_t most_unmap_blocks = 0;
  std::uint64_t most_write_same_blocks = 0;
};

class RemoteUnit final : public BlockDevice {
 public:
  RemoteUnit(RemoteTarget& target, RemoteUnitFacts facts);
  ~RemoteUnit() override;

  Executor& home() const noexcept override;
  const Geometry& geometry() const noexcept override { return facts_.geometry; }
  Health health() const noexcept override { return ready_ ? Health::kGood : Health::kMissing; }
  std::string description() const override;
  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

  const RemoteUnitFacts& facts() const noexcept { return facts_; }
  // Why it does not serve; empty if it does.
  const std::string& reason() const noexcept { return reason_; }

  // For RemoteTarget. ----------------------------------------------------------------------------
  void set_ready(std::string reason) {
    ready_ = reason.empty();
    reason_ = std::move(reason);
  }
  // Of the same unit, asked again: its caches may be others now, and it may have grown.
  void learn(const RemoteUnitFacts& facts);

 private:
  struct Exchange;

  Task<Completion> transfer(Request request);
  Task<Completion> transfer_in_pieces(Request request);
  Task<Completion> flush(Request request);
  Task<Completion> clear(Request request);
  Task<Completion> advise(Request request);
  Task<Error> clear_piece(Request* request, Extent piece);
  // Has the unit execute it, as often as it takes for an answer. Awaited at once.
  Task<void> perform(Exchange* exchange, const Request* request);
  bool is_volatile() const noexcept {
    return facts_.geometry.volatile_cache && !facts_.geometry.non_volatile_cache;
  }
  // Changes of one volume that have ended, how many of them a flush has covered, in which run of
  // the target the oldest was made that none has (kDoubtful: a flush of others has failed since),
  // and how many flushes had to say that some are lost.
  static constexpr std::uint64_t kDoubtful = ~std::uint64_t{0};  // No run has this number.
  struct Unflushed {
    std::uint64_t changes = 0;
    std::uint64_t flushed = 0;
    std::uint64_t run_of_oldest = 0;
    std::uint64_t losses = 0;
  };
  using AllUnflushed = std::map<std::uint64_t, Unflushed>;  // By volume; 0: of all.

  void note_change(std::uint64_t volume, bool forced);
  // A flush of this volume has ended well that began with `before`. False: something is lost.
  bool settle_changes(std::uint64_t volume, const AllUnflushed& before, std::uint64_t run_before);
  // The target has answered a flush of this volume, which hears of it, with an error.
  void doubt_changes(std::uint64_t volume, const AllUnflushed& before);

  RemoteTarget& target_;
  RemoteUnitFacts facts_;
  bool ready_ = true;
  std::string reason_;
  AllUnflushed unflushed_;
};

// What the end of a command means for a block device.
Completion completion_of(const ScsiResult& result);

}  // namespace sandbay::iscsi
