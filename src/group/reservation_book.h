// ReservationBook: which persistent reservations of volumes and snapshots outlive the daemon
// (APTPL), in the metadata as reservation/UUID.
//
// load() is called on the store's home, all else on any executor; a unit's part of the book is used
// on the unit's home.
#pragma once

#include <expected>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "metadata/store.h"
#include "runtime/task.h"
#include "runtime/uuid.h"
#include "scsi/reservation_store.h"

namespace sandbay::group {

inline constexpr std::string_view kReservationPrefix = "reservation/";
std::string reservation_key(const Uuid& uuid);

std::string encode(const scsi::PersistentReservations& reservations);
// Their unit, and they. The error is half a sentence.
struct ReservationRecord {
  Uuid unit{};
  scsi::PersistentReservations reservations;
};
std::expected<ReservationRecord, std::string> decode_reservations(std::string_view key,
                                                                  std::string_view value);

class ReservationBook {
 public:
  explicit ReservationBook(metadata::Store& store) : store_(store) {}

  // Forgets what is kept of others than these units. The error is one line.
  Task<std::expected<void, std::string>> load(std::set<Uuid> units);
  // Whether changes would not last, since an import takes the place of everything at the next
  // start: then no unit can keep any.
  void refuse_changes(bool refuse) noexcept { refuses_ = refuse; }
  // The unit's, as they are kept now.
  scsi::PersistentReservations of(const Uuid& uuid) const;
  // The unit is deleted: with the batch, and when that is committed. A unit that keeps reservations
  // all the same leaves a record that the next start forgets.
  void erase(const Uuid& uuid, metadata::Batch& batch) const;
  void forget(const Uuid& uuid);
  // Borrows the book.
  std::unique_ptr<scsi::ReservationStore> part(const Uuid& uuid);

 private:
  class Part;
  Task<Error> keep(Uuid uuid, scsi::PersistentReservations reservations);  // On the store's home.

  metadata::Store& store_;
  mutable std::mutex mutex_;  // Units are made on their own executors.
  std::map<Uuid, scsi::PersistentReservations> kept_;
  bool refuses_ = false;
  bool failing_ = false;  // The last change was not written; hosts hear only that it failed.
};

}  // namespace sandbay::group
