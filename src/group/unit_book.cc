// The records: each is written before the status of the command that changed it.
#include "group/unit_book.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <utility>

#include "group/log.h"
#include "group/record_json.h"
#include "runtime/executor.h"
#include "scsi/reservation_lists.h"

namespace sandbay::group {

using nlohmann::json;
using scsi::BlocksBefore;
using scsi::NexusPorts;
using scsi::PersistentReservations;
using scsi::SanitizeOperation;

namespace {

constexpr std::size_t kUuidDigits = 36;
constexpr std::size_t kLbaDigits = 16;
constexpr std::size_t kMostCountedBytes = std::size_t{32} << 20;
constexpr char kBlocksFormat = '1';
constexpr std::size_t kLongestPattern = 4096;  // A block.
constexpr std::array kMethods{SanitizeOperation::Method::kOverwrite,
                              SanitizeOperation::Method::kBlockErase};

// Throws, for decode().
Uuid unit_in(std::string_view key, std::string_view prefix) {
  return uuid_from(std::string(key.substr(prefix.size(), kUuidDigits)));
}

std::string hex_of(std::span<const std::byte> bytes) {
  return format_hex({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

// Throws, for decode().
std::vector<std::byte> bytes_from(const json& value) {
  const auto text = value.get<std::string>();
  std::vector<std::byte> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    unsigned byte = 0;
    const char* const begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, byte, 16);
    if (error != std::errc() || end != begin + 2) throw std::out_of_range("not hexadecimal digits");
    bytes[i] = static_cast<std::byte>(byte);
  }
  if (text.size() % 2 != 0) throw std::out_of_range("half a byte of hexadecimal digits");
  return bytes;
}

}  // namespace

std::string reservation_key(const Uuid& uuid) {
  return std::string(kReservationPrefix) + format_uuid(uuid);
}

std::string sanitize_key(const Uuid& uuid) {
  return std::string(kSanitizePrefix) + format_uuid(uuid);
}

std::string atomic_key(const Uuid& uuid, Lba first) {
  return fmt::format("{}{}/{:0{}x}", kAtomicPrefix, format_uuid(uuid), first, kLbaDigits);
}

bool is_work_on_blocks(std::string_view key) {
  return key.starts_with(kSanitizePrefix) || key.starts_with(kAtomicPrefix);
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
                  {"lost", reservations.lost},
                  {"registrations", std::move(registrations)}});
}

Decoded<PersistentReservations> decode_reservations(std::string_view key, std::string_view value) {
  return decode<OfUnit<PersistentReservations>>(value, [key](const json& object) {
    OfUnit<PersistentReservations> result{.unit = unit_in(key, kReservationPrefix),
                                          .record = {.through_power_loss = true}};
    PersistentReservations& record = result.record;
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
    record.lost = object.value("lost", false);
    const bool has_holder = record.reserved() && !is_all_registrants(record.type);
    if (has_holder != record.holder.has_value() || record.keys.empty() != record.lost) {
      throw std::out_of_range("its holder is missing or too much");
    }
    return result;
  });
}

std::string encode(const SanitizeOperation& operation) {
  return to_text({{"format", kRecordFormat},
                  {"method", describe(operation.method)},
                  {"allows_exit", operation.allows_exit},
                  {"pattern", hex_of(operation.pattern)},
                  {"passes", operation.passes},
                  {"inverts", operation.inverts},
                  {"pass", operation.at.pass},
                  {"next", operation.at.next},
                  {"failed", operation.failed}});
}

Decoded<SanitizeOperation> decode_sanitize(std::string_view key, std::string_view value) {
  return decode<OfUnit<SanitizeOperation>>(value, [key](const json& object) {
    OfUnit<SanitizeOperation> result{.unit = unit_in(key, kSanitizePrefix), .record = {}};
    SanitizeOperation& record = result.record;
    const auto name = object.at("method").get<std::string>();
    const auto method = std::ranges::find(
        kMethods, name, [](SanitizeOperation::Method each) { return describe(each); });
    if (method == kMethods.end()) throw std::out_of_range("its method is unknown");
    record.method = *method;
    record.allows_exit = object.at("allows_exit").get<bool>();
    record.pattern = bytes_from(object.at("pattern"));
    record.passes = number_from<unsigned>(object.at("passes"), 1);
    record.inverts = object.at("inverts").get<bool>();
    record.at.pass = number_from<unsigned>(object.at("pass"));
    record.at.next = number_from<Lba>(object.at("next"));
    record.failed = object.at("failed").get<bool>();
    const bool overwrites = record.method == SanitizeOperation::Method::kOverwrite;
    if (record.passes > scsi::kMostOverwritePasses || record.at.pass >= record.passes) {
      throw std::out_of_range("it has too many passes");
    }
    if (record.pattern.size() > kLongestPattern || record.pattern.empty() == overwrites) {
      throw std::out_of_range("its pattern has a wrong length");
    }
    return result;
  });
}

// Too much for JSON: the number of the format, and then the blocks.
std::string encode(const BlocksBefore& blocks) {
  std::string text(1, kBlocksFormat);
  text.append(reinterpret_cast<const char*>(blocks.data.data()), blocks.data.size());
  return text;
}

Decoded<BlocksBefore> decode_atomic(std::string_view key, std::string_view value) {
  OfUnit<BlocksBefore> result;
  const auto unit = parse_uuid(key.substr(kAtomicPrefix.size(), kUuidDigits));
  const std::string_view digits =
      key.substr(std::min(key.size(), kAtomicPrefix.size() + kUuidDigits + 1));
  Lba first = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), first, 16);
  if (!unit || error != std::errc() || atomic_key(*unit, first) != key) {
    return std::unexpected("is damaged: its key names no block of a unit");
  }
  if (value.size() <= 1 || value.front() != kBlocksFormat || (value.size() - 1) % 512 != 0) {
    return std::unexpected("is damaged: it has no whole blocks");
  }
  result.unit = *unit;
  result.record.first = first;
  const auto bytes = std::as_bytes(std::span(value.substr(1)));
  result.record.data.assign(bytes.begin(), bytes.end());
  return result;
}

Task<std::expected<void, std::string>> UnitBook::load(std::set<Uuid> units) {
  metadata::Batch orphans;
  for (const std::string_view prefix : {kReservationPrefix, kSanitizePrefix, kAtomicPrefix}) {
    const auto all = co_await metadata::list_all(store_, std::string(prefix));
    if (!all) {
      co_return std::unexpected(
          fmt::format("metadata {}: cannot be read: {}", prefix, describe(all.error())));
    }
    for (const auto& [key, value] : *all) {
      const auto unit = take(key, value);
      if (!unit) co_return std::unexpected(fmt::format("metadata {} {}", key, unit.error()));
      if (!units.contains(*unit)) {
        orphans.erase(key);
        forget(*unit);
      }
    }
  }
  // Where it cannot be written, the next start tries again.
  if (!orphans.empty()) (void)co_await store_.commit(std::move(orphans));
  co_return std::expected<void, std::string>{};
}

// A record as it is read; the unit that it is of.
std::expected<Uuid, std::string> UnitBook::take(std::string_view key, std::string_view value) {
  const auto put = [&](auto decoded, auto set) -> std::expected<Uuid, std::string> {
    if (!decoded) return std::unexpected(decoded.error());
    const std::lock_guard lock(mutex_);
    set(kept_[decoded->unit], std::move(decoded->record));
    return decoded->unit;
  };
  if (key.starts_with(kSanitizePrefix)) {
    return put(decode_sanitize(key, value),
               [](Kept& kept, auto record) { kept.sanitize = std::move(record); });
  }
  if (key.starts_with(kAtomicPrefix)) {
    return put(decode_atomic(key, value), [](Kept& kept, auto record) {
      const Lba first = record.first;
      kept.blocks[first].before = std::move(record);
    });
  }
  auto reservations = decode_reservations(key, value);
  const auto unit = parse_uuid(key.substr(kReservationPrefix.size()));
  if (!reservations && unit) {
    // SPC-4 has a way out of that, for hosts.
    log_error(
        "metadata {} {}: the unit serves little until a host replaces its reservations, or an "
        "operator clears them",
        key, reservations.error());
    reservations =
        OfUnit<PersistentReservations>{.unit = *unit, .record = scsi::lost_reservations()};
  }
  return put(std::move(reservations),
             [](Kept& kept, auto record) { kept.reservations = std::move(record); });
}

scsi::KeptOfUnit UnitBook::of(const Uuid& uuid) const {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(uuid);
  if (found == kept_.end()) return {};
  const Kept& kept = found->second;
  scsi::KeptOfUnit result{
      .reservations = kept.reservations, .sanitize = kept.sanitize, .blocks = {}};
  for (const auto& [first, blocks] : kept.blocks) result.blocks.push_back(blocks.before);
  return result;
}

bool UnitBook::has_torn(const Uuid& uuid) const {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(uuid);
  return found != kept_.end() && std::ranges::any_of(found->second.blocks, [](const auto& each) {
           return !each.second.counted;
         });
}

void UnitBook::erase(const Uuid& uuid, metadata::Batch& batch) const {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(uuid);
  if (found == kept_.end()) return;
  batch.erase(reservation_key(uuid));
  if (found->second.sanitize) batch.erase(sanitize_key(uuid));
  erase_blocks(uuid, batch);
}

void UnitBook::erase_blocks(const Uuid& uuid, metadata::Batch& batch) {
  batch.erase_prefix(fmt::format("{}{}/", kAtomicPrefix, format_uuid(uuid)));
}

void UnitBook::forget(const Uuid& uuid) {
  forget_blocks(uuid);
  const std::lock_guard lock(mutex_);
  kept_.erase(uuid);
}

void UnitBook::forget_blocks(const Uuid& uuid) {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(uuid);
  if (found == kept_.end()) return;
  for (auto& [first, blocks] : found->second.blocks) stop_counting(blocks);
  found->second.blocks.clear();
}

void UnitBook::stop_counting(Kept::Blocks& blocks) noexcept {
  if (std::exchange(blocks.counted, false)) counted_bytes_ -= blocks.before.data.size();
}

// `change` is made in what the book has of the unit when the batch is durable.
Task<Error> UnitBook::keep(Uuid uuid, metadata::Batch batch, std::function<void(Kept&)> change) {
  Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone && store_.in_doubt()) error = Error::kTimedOut;
  tell(error == Error::kNone ? std::string_view() : describe(error));
  if (error != Error::kNone) co_return error;
  const std::lock_guard lock(mutex_);
  Kept& kept = kept_[uuid];
  change(kept);
  if (kept == Kept{}) kept_.erase(uuid);
  co_return Error::kNone;
}

// Once, until something is kept again.
void UnitBook::tell(std::string_view why) {
  const bool told = std::exchange(failing_, !why.empty());
  if (why.empty() || told) return;
  log_warning(
      "what hosts ask of units cannot be kept, and their PERSISTENT RESERVE OUT, SANITIZE or WRITE "
      "ATOMIC fails: {}",
      why);
}

Task<Error> UnitBook::keep_reservations(Uuid uuid, PersistentReservations reservations) {
  if (refuses_) {
    tell("an import waits for the daemon's next start");
    co_return Error::kReadOnly;
  }
  metadata::Batch batch;
  if (reservations.keys.empty() && !reservations.lost) {
    batch.erase(reservation_key(uuid));
    reservations = {};
  } else {
    batch.put(reservation_key(uuid), encode(reservations));
  }
  co_return co_await keep(uuid, std::move(batch),
                          [now = std::move(reservations)](Kept& kept) { kept.reservations = now; });
}

// The writes of all units together keep a bounded amount at a time; others come again.
Task<Error> UnitBook::keep_blocks(Uuid uuid, BlocksBefore before) {
  const std::size_t byte_count = before.data.size();
  {
    const std::lock_guard lock(mutex_);
    const bool has_room = counted_bytes_ + byte_count <= kMostCountedBytes;
    if (!has_room) co_return Error::kNoMemory;
    counted_bytes_ += byte_count;
  }
  metadata::Batch batch;
  batch.put(atomic_key(uuid, before.first), encode(before));
  const Lba first = before.first;
  // std::function copies what it has.
  const auto blocks = std::make_shared<BlocksBefore>(std::move(before));
  const Error error = co_await keep(uuid, std::move(batch), [first, blocks](Kept& kept) {
    kept.blocks[first] = {.before = std::move(*blocks), .counted = true};
  });
  if (error != Error::kNone) {
    const std::lock_guard lock(mutex_);
    counted_bytes_ -= byte_count;
  }
  co_return error;
}

Task<Error> UnitBook::drop_blocks(Uuid uuid, Lba first) {
  metadata::Batch batch;
  batch.erase(atomic_key(uuid, first));
  co_return co_await keep(uuid, std::move(batch), [this, first](Kept& kept) {
    const auto found = kept.blocks.find(first);
    if (found == kept.blocks.end()) return;
    stop_counting(found->second);
    kept.blocks.erase(found);
  });
}

Task<Error> UnitBook::keep_sanitize(Uuid uuid, std::optional<SanitizeOperation> operation) {
  metadata::Batch batch;
  if (operation) {
    batch.put(sanitize_key(uuid), encode(*operation));
  } else {
    batch.erase(sanitize_key(uuid));
  }
  std::optional<SanitizeOperation> before;
  const auto change = [&](Kept& kept) { before = std::exchange(kept.sanitize, operation); };
  const Error error = co_await keep(uuid, std::move(batch), change);
  if (error == Error::kNone && sanitized_) sanitized_(uuid, before, operation);
  co_return error;
}

class UnitBook::Part final : public scsi::UnitStore {
 public:
  Part(UnitBook& book, const Uuid& uuid) : book_(book), uuid_(uuid) {}

  Task<Error> keep_reservations(PersistentReservations reservations) override {
    co_return co_await invoke_on(book_.store_.home(),
                                 book_.keep_reservations(uuid_, std::move(reservations)));
  }
  Task<Error> keep_sanitize(std::optional<SanitizeOperation> operation) override {
    co_return co_await invoke_on(book_.store_.home(),
                                 book_.keep_sanitize(uuid_, std::move(operation)));
  }
  Task<Error> keep_blocks(BlocksBefore before) override {
    co_return co_await invoke_on(book_.store_.home(), book_.keep_blocks(uuid_, std::move(before)));
  }
  Task<Error> drop_blocks(Lba first) override {
    co_return co_await invoke_on(book_.store_.home(), book_.drop_blocks(uuid_, first));
  }
  void note_torn(Extent extent, Error error) override {
    {
      const std::lock_guard lock(book_.mutex_);
      const auto found = book_.kept_.find(uuid_);
      if (found != book_.kept_.end() && found->second.blocks.contains(extent.first)) {
        book_.stop_counting(found->second.blocks.at(extent.first));
      }
    }
    log_error(
        "unit {}: an atomic write of blocks {} to {} has failed in the middle ({}); hosts get "
        "medium errors there until the old blocks can be put back",
        format_uuid(uuid_), extent.first, extent.end() - 1, describe(error));
  }

 private:
  UnitBook& book_;
  Uuid uuid_;
};

std::unique_ptr<scsi::UnitStore> UnitBook::part(const Uuid& uuid) {
  return std::make_unique<Part>(*this, uuid);
}

}  // namespace sandbay::group
