// The records: each is written before the status of the command that changed it.
#include "group/reservation_book.h"

#include <fmt/core.h>

#include <utility>

#include "group/log.h"
#include "group/record_json.h"
#include "runtime/executor.h"
#include "scsi/reservation_lists.h"

namespace sandbay::group {

using nlohmann::json;
using scsi::NexusPorts;
using scsi::PersistentReservations;

std::string reservation_key(const Uuid& uuid) {
  return std::string(kReservationPrefix) + format_uuid(uuid);
}

std::string encode(const PersistentReservations& reservations) {
  json registrations = json::array();
  for (const auto& [nexus, key] : reservations.keys) {
    json registration{
        {"initiator", nexus.initiator_port}, {"port", nexus.target_port}, {"key", key}};
    if (reservations.holder == nexus) registration["holder"] = true;
    registrations.push_back(std::move(registration));
  }
  return to_text({{"format", kRecordFormat},
                  {"type", static_cast<unsigned>(reservations.type)},
                  {"registrations", std::move(registrations)}});
}

std::expected<ReservationRecord, std::string> decode_reservations(std::string_view key,
                                                                  std::string_view value) {
  return decode<ReservationRecord>(value, [key](const json& object) {
    ReservationRecord result{.unit = uuid_from(std::string(key.substr(kReservationPrefix.size()))),
                             .reservations = {.through_power_loss = true}};
    PersistentReservations& record = result.reservations;
    const auto type = number_from<std::uint8_t>(object.at("type"));
    if (type != 0 && !scsi::is_reservation_type(type)) {
      throw std::out_of_range(fmt::format("{} is not a type of reservations", type));
    }
    record.type = static_cast<scsi::ReservationType>(type);
    for (const json& each : object.at("registrations")) {
      const NexusPorts nexus{.initiator_port = each.at("initiator").get<std::string>(),
                             .target_port = number_from<std::uint16_t>(each.at("port"))};
      if (!scsi::is_initiator(nexus.initiator_port)) {
        throw std::out_of_range("it names something that is not an initiator port");
      }
      record.keys[nexus] = number_from<std::uint64_t>(each.at("key"), 1);
      if (each.value("holder", false)) record.holder = nexus;
    }
    const bool has_holder = record.reserved() && !is_all_registrants(record.type);
    if (has_holder != record.holder.has_value() || record.keys.empty()) {
      throw std::out_of_range("its holder is missing or too much");
    }
    return result;
  });
}

Task<std::expected<void, std::string>> ReservationBook::load(std::set<Uuid> units) {
  const auto all = co_await metadata::list_all(store_, std::string(kReservationPrefix));
  if (!all) {
    co_return std::unexpected(
        fmt::format("metadata {}: cannot be read: {}", kReservationPrefix, describe(all.error())));
  }
  metadata::Batch orphans;
  for (const auto& [key, value] : *all) {
    auto record = decode_reservations(key, value);
    if (!record) co_return std::unexpected(fmt::format("metadata {} {}", key, record.error()));
    if (units.contains(record->unit)) {
      const std::lock_guard lock(mutex_);
      kept_[record->unit] = std::move(record->reservations);
    } else {
      orphans.erase(key);
    }
  }
  // Where it cannot be written, the next start tries again.
  if (!orphans.empty()) (void)co_await store_.commit(std::move(orphans));
  co_return std::expected<void, std::string>{};
}

PersistentReservations ReservationBook::of(const Uuid& uuid) const {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(uuid);
  return found == kept_.end() ? PersistentReservations{} : found->second;
}

void ReservationBook::erase(const Uuid& uuid, metadata::Batch& batch) const {
  const std::lock_guard lock(mutex_);
  if (kept_.contains(uuid)) batch.erase(reservation_key(uuid));
}

void ReservationBook::forget(const Uuid& uuid) {
  const std::lock_guard lock(mutex_);
  kept_.erase(uuid);
}

Task<Error> ReservationBook::keep(Uuid uuid, PersistentReservations reservations) {
  metadata::Batch batch;
  if (reservations.keys.empty()) {
    batch.erase(reservation_key(uuid));
  } else {
    batch.put(reservation_key(uuid), encode(reservations));
  }
  Error error = Error::kReadOnly;
  if (!refuses_) error = co_await store_.commit(std::move(batch));
  const bool failed_before = std::exchange(failing_, error != Error::kNone);
  if (error != Error::kNone && !failed_before) {
    log_warning(
        "persistent reservations cannot be kept, and hosts' PERSISTENT RESERVE OUT fails: {}",
        refuses_ ? "an import waits for the daemon's next start" : describe(error));
  }
  if (error != Error::kNone) co_return error;
  const std::lock_guard lock(mutex_);
  if (reservations.keys.empty()) {
    kept_.erase(uuid);
  } else {
    kept_[uuid] = std::move(reservations);
  }
  co_return Error::kNone;
}

class ReservationBook::Part final : public scsi::ReservationStore {
 public:
  Part(ReservationBook& book, const Uuid& uuid) : book_(book), uuid_(uuid) {}
  Task<Error> keep(PersistentReservations reservations) override {
    co_return co_await invoke_on(book_.store_.home(), book_.keep(uuid_, std::move(reservations)));
  }

 private:
  ReservationBook& book_;
  Uuid uuid_;
};

std::unique_ptr<scsi::ReservationStore> ReservationBook::part(const Uuid& uuid) {
  return std::make_unique<Part>(*this, uuid);
}

}  // namespace sandbay::group
