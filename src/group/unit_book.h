// UnitBook: what units of volumes and snapshots must not forget, in the metadata:
//
//   reservation/UUID   persistent reservations that outlive the daemon (APTPL); a record that does
//                      not decode means that they are lost
//   sanitize/UUID      a sanitize operation that works or has failed
//   atomic/UUID/LBA    what blocks were before an atomic write that may not have ended; sixteen
//                      digits
//
// load() is called on the store's home, all else on any executor; a unit's part of the book is used
// on the unit's home.
#pragma once

#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "metadata/store.h"
#include "runtime/task.h"
#include "runtime/uuid.h"
#include "scsi/unit_store.h"

namespace sandbay::group {

inline constexpr std::string_view kReservationPrefix = "reservation/";
inline constexpr std::string_view kSanitizePrefix = "sanitize/";
inline constexpr std::string_view kAtomicPrefix = "atomic/";
std::string reservation_key(const Uuid& uuid);
std::string sanitize_key(const Uuid& uuid);
std::string atomic_key(const Uuid& uuid, Lba first);
// Work on blocks as they are now: exports have nothing of it, and imports leave it as it is.
bool is_work_on_blocks(std::string_view key);

std::string encode(const scsi::PersistentReservations& reservations);
std::string encode(const scsi::SanitizeOperation& operation);
std::string encode(const scsi::BlocksBefore& blocks);
// A record with its unit. The error is half a sentence.
template <class Record>
struct OfUnit {
  Uuid unit{};
  Record record;
};
template <class Record>
using Decoded = std::expected<OfUnit<Record>, std::string>;
Decoded<scsi::PersistentReservations> decode_reservations(std::string_view key,
                                                          std::string_view value);
Decoded<scsi::SanitizeOperation> decode_sanitize(std::string_view key, std::string_view value);
Decoded<scsi::BlocksBefore> decode_atomic(std::string_view key, std::string_view value);

class UnitBook {
 public:
  // On the store's home: what has become of a sanitize operation, each time that it changes.
  using Sanitized =
      std::function<void(const Uuid&, const std::optional<scsi::SanitizeOperation>& before,
                         const std::optional<scsi::SanitizeOperation>& now)>;

  UnitBook(metadata::Store& store, Sanitized sanitized)
      : store_(store), sanitized_(std::move(sanitized)) {}

  // Forgets what is kept of others than these units. The error is one line.
  Task<std::expected<void, std::string>> load(std::set<Uuid> units);
  // Whether reservations would not last, since an import takes the place of everything at the next
  // start: then no unit can keep any.
  void refuse_changes(bool refuse) noexcept { refuses_ = refuse; }
  // The unit's, as it is kept now.
  scsi::KeptOfUnit of(const Uuid& uuid) const;
  // Blocks of it are neither old nor new, or were so at the start and are not yet put back.
  bool has_torn(const Uuid& uuid) const;
  // The unit is deleted: with the batch, and when that is committed. A unit that keeps something
  // all the same leaves a record that the next start forgets.
  void erase(const Uuid& uuid, metadata::Batch& batch) const;
  // Its content is replaced with the batch: no blocks from before may be put back; and when that is
  // committed.
  static void erase_blocks(const Uuid& uuid, metadata::Batch& batch);
  void forget_blocks(const Uuid& uuid);
  void forget(const Uuid& uuid);
  // Borrows the book.
  std::unique_ptr<scsi::UnitStore> part(const Uuid& uuid);

 private:
  class Part;
  struct Kept {
    scsi::PersistentReservations reservations;
    std::optional<scsi::SanitizeOperation> sanitize;
    struct Blocks {
      scsi::BlocksBefore before;
      bool counted = false;  // Its write is under way; not of those that are torn.
      friend bool operator==(const Blocks&, const Blocks&) = default;
    };
    std::map<Lba, Blocks> blocks;
    friend bool operator==(const Kept&, const Kept&) = default;
  };
  std::expected<Uuid, std::string> take(std::string_view key, std::string_view value);
  // On the store's home.
  Task<Error> keep(Uuid uuid, metadata::Batch batch, std::function<void(Kept&)> change);
  Task<Error> keep_reservations(Uuid uuid, scsi::PersistentReservations reservations);
  Task<Error> keep_blocks(Uuid uuid, scsi::BlocksBefore before);
  Task<Error> drop_blocks(Uuid uuid, Lba first);
  void stop_counting(Kept::Blocks& blocks) noexcept;  // With the mutex.
  void tell(std::string_view why);
  Task<Error> keep_sanitize(Uuid uuid, std::optional<scsi::SanitizeOperation> operation);

  metadata::Store& store_;
  Sanitized sanitized_;
  mutable std::mutex mutex_;  // Units are made on their own executors.
  std::map<Uuid, Kept> kept_;
  bool refuses_ = false;
  std::size_t counted_bytes_ = 0;
  bool failing_ = false;  // The last change was not written; hosts hear only that it failed.
};

}  // namespace sandbay::group
