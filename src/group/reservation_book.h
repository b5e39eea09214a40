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
// The error is half a sentence.
std::expected<scsi::PersistentReservations, std::string> decode_reservations(std::string_view text);

class ReservationBook {
 public:
  explicit ReservationBook(metadata::Store& store) : store_(store) {}

  // The error is one line.
  Task<std::expected<void, std::string>> load();
  // The unit's, as they are kept now.
  scsi::PersistentReservations of(const Uuid& uuid) const;
  // The unit is deleted: with the batch, and when that is committed.
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
};

}  // namespace sandbay::group
