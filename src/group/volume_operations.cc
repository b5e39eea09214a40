// Creating, changing and deleting volumes. The order of steps is what keeps metadata, file and
// target together through a crash at any point; see group.h.
#include <fmt/core.h>

#include <algorithm>

#include "group/claims.h"
#include "group/identifiers.h"
#include "group/log.h"
#include "group/place.h"
#include "group/running_group.h"
#include "group/units.h"

namespace sandbay::group {

namespace {

std::string in_words(bool value) { return value ? "true" : "false"; }
std::string in_words(std::uint32_t value) { return fmt::format("{}", value); }
std::string in_words(const SnapshotReserve& value) { return format_reserve(value); }
std::string in_words(ReservePolicy value) { return std::string(describe(value)); }
std::string in_words(cache::Mode value) { return std::string(describe(value)); }
std::string in_words(std::uint64_t limit) {
  return limit == 0 ? std::string("its default") : format_size(limit);
}
std::string in_words(const std::optional<Eui64>& value) {
  return value ? format_eui64(*value) : std::string("absent");
}
std::string in_words(const std::string& value) { return value.empty() ? "its own" : value; }

// The first thing in which a volume is not what a request for it asks; its size is compared before.
std::optional<std::string> difference(const VolumeSpecification& old,
                                      const VolumeSpecification& asked) {
  const auto compare = [&](std::string_view key, auto member) -> std::optional<std::string> {
    if (old.*member == asked.*member) return std::nullopt;
    return fmt::format("{} {}, not {}", key, in_words(old.*member), in_words(asked.*member));
  };
  using Specification = VolumeSpecification;
  for (auto& differs : {compare("file or device", &Specification::path),
                        compare("raid", &Specification::raid),
                        compare("pool", &Specification::pool),
                        compare("on", &Specification::on),
                        compare("raid_level", &Specification::raid_level),
                        compare("thin_warning", &Specification::thin_warning),
                        compare("thin_limit", &Specification::thin_limit),
                        compare("snapshot_reserve", &Specification::snapshot_reserve),
                        compare("reserve_policy", &Specification::reserve_policy),
                        compare("block_size", &Specification::block_bytes),
                        compare("physical_block_size", &Specification::physical_block_bytes),
                        compare("read_only", &Specification::read_only),
                        compare("thin", &Specification::thin),
                        compare("preallocate", &Specification::preallocate),
                        compare("write_cache", &Specification::write_cache),
                        compare("cache", &Specification::cache),
                        compare("removable", &Specification::removable),
                        compare("rotation", &Specification::rotation),
                        compare("unmap_limit", &Specification::unmap_limit_bytes),
                        compare("write_same_limit", &Specification::write_same_limit_bytes),
                        compare("eui64", &Specification::eui64),
                        compare("serial", &Specification::serial),
                        compare("vendor", &Specification::vendor),
                        compare("product", &Specification::product),
                        compare("revision", &Specification::revision),
                        compare("target", &Specification::target)}) {
    if (differs) return differs;
  }
  if (old.naa != asked.naa) return "another naa";
  if (!asked.lun || old.lun == asked.lun) return std::nullopt;
  return fmt::format("lun {}, not {}", old.lun.value_or(0), *asked.lun);
}

bool same_access(const iscsi::AccessRecord& one, const iscsi::AccessRecord& other) {
  if (one.initiator != other.initiator || one.address != other.address) return false;
  if (one.chap.has_value() != other.chap.has_value()) return false;
  return !one.chap ||
         (one.chap->user == other.chap->user && one.chap->secret == other.chap->secret);
}

// Whether each of these is among the target's; asked for none, any are right.
bool has_access(const Target& target, const std::vector<iscsi::AccessRecord>& asked) {
  return std::ranges::all_of(asked, [&](const iscsi::AccessRecord& record) {
    const auto same = [&](const auto& other) { return same_access(other.record, record); };
    return std::ranges::any_of(target.configured.access, same) ||
           std::ranges::any_of(target.record.access, same);
  });
}

TargetRecord new_target(std::string name, std::vector<iscsi::AccessRecord> access) {
  TargetRecord target{.name = std::move(name)};
  for (iscsi::AccessRecord& record : access) {
    target.access.push_back({.id = target.next_id++, .record = std::move(record)});
  }
  return target;
}

std::unexpected<Refusal> claimed_by_another(const std::string& name, const std::string& claim) {
  return refuse(Refusal::Code::kConflict, fmt::format("volume \"{}\": {}", name, claim));
}

}  // namespace

Executor& RunningGroup::next_home() {
  const auto executors = Executor::current().peers();
  return *executors[homes_given_++ % executors.size()];
}

Task<std::optional<StartRefusal>> RunningGroup::claim_against(std::filesystem::path named) const {
  if (named.empty()) co_return std::nullopt;  // Its file has a name like no other.
  std::vector<Claim> claims;
  for (const auto& [name, volume] : volumes_) {
    if (volume->path().empty()) continue;
    claims.push_back({.path = volume->path(),
                      .identity = {},
                      .reason = fmt::format(
                          "belongs to volume \"{}\"; a file or device serves one volume", name)});
  }
  members_->list_claims(claims);
  co_return co_await find_claim(Executor::current(), configuration_.state / named,
                                std::move(claims), configuration_.state);
}

std::optional<std::uint32_t> RunningGroup::free_lun(const std::string& target) const {
  const auto found = targets_.find(target);
  for (std::uint32_t lun = 0; lun <= kLargestLun; ++lun) {
    if (found == targets_.end() || !found->second->units.contains(lun)) return lun;
  }
  return std::nullopt;
}

// Making ----------------------------------------------------------------------------------------

Task<Volume::Opened> RunningGroup::make_volume(VolumeRecord record,
                                               std::optional<TargetRecord> target) {
  if (record.specification.backing == Backing::kPool) {
    co_return co_await make_on_pool(std::move(record), std::move(target));
  }
  const auto not_written = [this](Error error) {
    return std::unexpected(OpenFailure{.reason = unwritten(error), .stops_start = true});
  };
  const bool own_file = record.specification.backing == Backing::kState;
  if (own_file) {
    metadata::Batch intent;
    intent.put(intent_key(record.uuid), volume_file_name(record.uuid));
    const Error error = co_await store_.commit(std::move(intent));
    if (error != Error::kNone) co_return not_written(error);
  }
  const auto placed = place(&record);
  if (!placed) co_return std::unexpected(OpenFailure{.reason = placed.error()});
  auto volume = co_await open_device(record, Volume::Opening::kCreate);
  if (!volume) {
    co_await unmake_file(std::move(record));
    co_return std::unexpected(volume.error());
  }
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), encode((*volume)->record()));
  if (record.placement) {
    put_clearing(record.uuid, places_.at(record.uuid)->clearing.whole_record(), batch);
    members_->raise_used_end(record.placement->set, record.placement->extent.end(), batch);
  }
  if (own_file) batch.erase(intent_key(record.uuid));
  if (target && target->access.empty()) batch.erase(target_key(target->name));
  if (target && !target->access.empty()) batch.put(target_key(target->name), encode(*target));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) {
    co_await abandon(*volume);
    // In doubt the next start finds the record and needs the file, or the intent and removes it.
    if (!store_.in_doubt()) co_await unmake_file(std::move(record));
    co_return not_written(error);
  }
  if (record.placement) places_.at(record.uuid)->clearing.start();
  co_return *volume;
}

// Removes the file of a volume of which there is no record, and then the intent that names it.
// What cannot be done now is done at the next start, as long as the intent is there.
Task<void> RunningGroup::unmake_file(VolumeRecord record) {
  if (record.specification.backing != Backing::kState) co_return;
  const auto path = path_of(record, configuration_.state).string();
  const Error removed = co_await Executor::current().remove_file(path);
  if (removed != Error::kNone && removed != Error::kNotFound) {
    log_warning("{}: cannot be removed now: {}; the next start tries again", path,
                describe(removed));
    co_return;
  }
  metadata::Batch batch;
  batch.erase(intent_key(record.uuid));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) {
    log_warning("the metadata cannot be written: {}", describe(error));
  }
}

Task<void> RunningGroup::abandon(std::shared_ptr<Volume> volume) {
  const auto place = places_.find(volume->uuid());
  if (place != places_.end()) place->second->clearing.refuse_changes();
  const Error error = co_await volume->close(Executor::current().now() + kClosePatience);
  if (error != Error::kNone) {
    log_warning("volume {}: not flushed: {}", volume->name(), describe(error));
  }
  co_await leave_place(volume->uuid(), volume, error != Error::kTimedOut);
}

std::optional<Refusal> RunningGroup::refusal_to_create(const CreateVolumeRequest& request) const {
  const VolumeSpecification& s = request.specification;
  const auto invalid = [](std::string message) {
    return Refusal{.code = Refusal::Code::kInvalid, .message = std::move(message)};
  };
  if (configuration_.lead) return role_refusal();
  if (const auto error = check_volume_name(s.name)) {
    return invalid(fmt::format("name: {}", *error));
  }
  auto wrong = check_specification(s);
  if (!wrong) wrong = check_thin_choices(s);
  if (wrong) {
    return invalid(fmt::format("volume \"{}\": {}", s.name, *wrong));
  }
  if (s.backing == Backing::kRaid && !members_->find_set(s.raid)) {
    return Refusal{.code = Refusal::Code::kNotFound,
                   .message = fmt::format("volume \"{}\": there is no set \"{}\"; see the list of "
                                          "sets",
                                          s.name, s.raid)};
  }
  if (auto refusal = refusal_of_pool(s)) return refusal;
  if (const auto error = cache_error(s, members_->has_cache())) {
    return invalid(fmt::format("volume \"{}\": cache: {}", s.name, *error));
  }
  if (const auto error = check_target_name(s.target)) {
    return invalid(fmt::format("volume \"{}\": target: {}", s.name, *error));
  }
  if (s.lun && *s.lun > kLargestLun) {
    return invalid(fmt::format("volume \"{}\": lun {} is out of range; write 0 to {}", s.name,
                               *s.lun, kLargestLun));
  }
  if (request.access.size() > kMostAccessRecords) {
    return invalid(
        fmt::format("volume \"{}\": access: there are more than {} records; use wildcards", s.name,
                    kMostAccessRecords));
  }
  for (const iscsi::AccessRecord& record : request.access) {
    if (const auto error = check_access(record)) {
      return invalid(fmt::format("volume \"{}\": access: {}", s.name, *error));
    }
  }
  TargetRecord fresh{.name = s.target};
  for (const auto& record : request.access) fresh.access.push_back({.id = 1, .record = record});
  if (auto refusal = refusal_of_size(fresh)) return refusal;
  const auto target = targets_.find(s.target);
  if (target == targets_.end()) return std::nullopt;
  for (const auto& [uuid, snapshot] : snapshots_) {
    if (!snapshot.record.online || snapshot.record.target != s.target) continue;
    return Refusal{.code = Refusal::Code::kConflict,
                   .message = fmt::format("volume \"{}\": target {} exports snapshot \"{}\" and "
                                          "ends with it; name another target, or leave it out",
                                          s.name, s.target, snapshot.record.name)};
  }
  if (!request.access.empty()) {
    return Refusal{.code = Refusal::Code::kConflict,
                   .message = fmt::format("volume \"{}\": target {} exists and has its own access "
                                          "records; create the volume without access",
                                          s.name, s.target)};
  }
  if (!s.lun.has_value()) return std::nullopt;
  const auto unit = target->second->units.find(*s.lun);
  if (unit != target->second->units.end()) {
    return Refusal{.code = Refusal::Code::kConflict,
                   .message = fmt::format("volume \"{}\": LUN {} of {} is volume \"{}\"; choose "
                                          "another lun, or leave it out",
                                          s.name, *s.lun, s.target, unit->second->name())};
  }
  return std::nullopt;
}

std::optional<Refusal> RunningGroup::refusal_to_repeat(const VolumeSpecification& old,
                                                       bool own_target,
                                                       CreateVolumeRequest& request) const {
  VolumeSpecification& s = request.specification;
  const auto conflict = [&s](std::string what) {
    return Refusal{.code = Refusal::Code::kConflict,
                   .message = fmt::format("volume \"{}\" exists already, with {}", s.name, what)};
  };
  const bool sized = s.size_bytes != 0 || s.path.empty();  // An image may say its own size.
  if ((sized && old.size_bytes != s.size_bytes) || old.backing != s.backing) {
    return conflict(fmt::format("{} on {}; choose another name, or expand it",
                                format_size(old.size_bytes), describe(old.backing)));
  }
  if (own_target) s.target = old.target;  // A renamed volume's target has the old name.
  // What comes from the group's identity is not asked for.
  if (s.vendor.empty()) s.vendor = old.vendor;
  if (s.product.empty()) s.product = old.product;
  if (s.revision.empty()) s.revision = old.revision;
  configuration_.identity.keep_drawn(old, s);
  if (const auto differs = difference(old, s)) {
    return conflict(*differs + "; choose another name, or ask for it as it is");
  }
  // A clone would begin with those of its source.
  const bool same_limits =
      (s.operations_limit == 0 || s.operations_limit == old.operations_limit) &&
      (s.bytes_limit == 0 || s.bytes_limit == old.bytes_limit);
  if (!request.source && !same_limits) {
    return conflict("other limits a second; leave them out, and change them with volume limits");
  }
  if (!has_access(*targets_.at(old.target), request.access)) {
    return conflict(
        "other access; leave access out, and change it with access add and access remove");
  }
  return std::nullopt;
}

// Hosts take two volumes with one identifier for one, and a pattern may leave few digits to draw.
Uuid RunningGroup::draw_uuid(const std::function<bool(const NaaIdentifier&)>& taken) const {
  constexpr int kMostDraws = 64;  // A pattern may leave nothing to draw.
  Random& random = Executor::current().random();
  Uuid uuid = make_uuid(random);
  for (int i = 1; i < kMostDraws && taken(configuration_.identity.naa_for(uuid)); ++i) {
    uuid = make_uuid(random);
  }
  return uuid;
}

// The kind and name of a volume or snapshot that has identifiers.
std::string RunningGroup::words_of_owner(const Uuid& uuid) const {
  if (const auto volume = find(uuid)) return fmt::format("volume \"{}\"", volume->name());
  const auto snapshot = snapshots_.find(uuid);
  if (snapshot == snapshots_.end()) return "another volume";
  return fmt::format("snapshot \"{}\"", shown_as(snapshot->second.record).specification.name);
}

Task<Answer<CreatedVolume>> RunningGroup::create_now(CreateVolumeRequest request) {
  VolumeSpecification& s = request.specification;
  if (auto refusal = settle_choices(request)) co_return std::unexpected(*refusal);
  const bool own_target = s.target.empty();
  if (find(s.name) != nullptr) {
    auto info = co_await volume_now(s.name);
    if (!info) co_return std::unexpected(info.error());
    if (auto refusal = refusal_to_repeat(info->specification, own_target, request)) {
      co_return std::unexpected(*refusal);
    }
    co_return CreatedVolume{.volume = std::move(*info), .created = false};
  }
  const Uuid uuid = draw_uuid([this](const NaaIdentifier& one) { return identifiers_.has(one); });
  configuration_.identity.settle(s, uuid);
  if (auto refusal = refusal_to_create(request)) co_return std::unexpected(*refusal);
  if (own_target && !configuration_.identity.shares_target() && targets_.contains(s.target)) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("volume \"{}\": its target {} exists already; name a target to put it on",
                    s.name, s.target));
  }
  const auto claim = co_await claim_against(s.path);
  if (claim) co_return claimed_by_another(s.name, claim->text);
  const auto clash =
      identifiers_.clash(s, [this](const Uuid& other) { return words_of_owner(other); });
  if (clash) co_return claimed_by_another(s.name, *clash);
  if (!s.lun) s.lun = free_lun(s.target);
  if (!s.lun) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("volume \"{}\": {} has no LUN left; name another target", s.name, s.target));
  }
  std::optional<TargetRecord> fresh;
  if (!targets_.contains(s.target)) fresh = new_target(s.target, std::move(request.access));
  const std::string name = s.name;
  planned_.push_back({.uuid = uuid,
                      .specification = std::move(s),
                      .origin = request.origin,
                      .full_copy = request.full_copy,
                      .source = request.source});
  auto volume = co_await make_volume(planned_.back(), fresh);
  planned_.clear();
  if (!volume) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" cannot be made: {}", name, volume.error().reason));
  }
  if (fresh) target_for(fresh->name).record = std::move(*fresh);
  volumes_.put(name, *volume);
  identifiers_.take((*volume)->record());
  tell_places();
  const Outcome served = co_await serve(*volume);
  if (!served) {
    if ((*volume)->record().specification.backing == Backing::kPool) {
      (void)co_await remove_from_pool(*volume);
    } else {
      (void)co_await remove_now(*volume);
    }
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" cannot be served: {}", name, served.error().text));
  }
  log_info("volume {}: made, {} on {}", name,
           format_size((*volume)->record().specification.size_bytes),
           describe((*volume)->record().specification.backing));
  auto info = co_await volume_now(name);
  if (!info) co_return std::unexpected(info.error());
  co_return CreatedVolume{.volume = std::move(*info), .created = true};
}

Task<Answer<CreatedVolume>> RunningGroup::create_volume(CreateVolumeRequest request) {
  return alone(lasting(create_now(std::move(request))));
}

// Changing --------------------------------------------------------------------------------------

Task<Answer<VolumeInfo>> RunningGroup::change_now(std::string name, ChangeVolumeRequest request) {
  const auto volume = find(name);
  if (volume == nullptr) co_return std::unexpected(no_such_volume(name));
  const bool limits = request.thin_warning || request.thin_limit || request.snapshot_reserve ||
                      request.reserve_policy || request.operations_limit || request.bytes_limit;
  const bool access = request.online || request.read_only;
  if (!request.size_bytes && !request.name && !request.cache && !limits && !access) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("volume \"{}\": nothing to change; give a size, a name, a cache "
                                 "mode, online, read_only or limits",
                                 name));
  }
  // What comes first stays where something else is refused; so under which name it is found.
  if (request.name && (request.size_bytes || request.cache || limits || access)) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("volume \"{}\": name: changes alone", name));
  }
  if (request.name) {
    const auto renamed = co_await rename_now(volume, *request.name);
    if (!renamed) co_return std::unexpected(renamed.error());
  }
  if (request.size_bytes) {
    const auto resized = co_await resize_now(volume, *request.size_bytes, request.force);
    if (!resized) co_return std::unexpected(resized.error());
  }
  if (limits) {
    const auto changed = co_await change_limits(volume, &request);
    if (!changed) co_return std::unexpected(changed.error());
  }
  if (access) {
    const auto changed = co_await change_access_of(volume, &request);
    if (!changed) co_return std::unexpected(changed.error());
  }
  if (request.cache) {
    const auto changed = co_await change_cache_now(volume, *request.cache);
    if (!changed) co_return std::unexpected(changed.error());
  }
  co_return co_await volume_now(volume->name());
}

Task<Error> RunningGroup::keep_change(std::shared_ptr<Volume> volume, VolumeRecord record) {
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), encode(record));
  const Error stored = co_await store_.commit(std::move(batch));
  if (stored == Error::kNone) volume->record() = std::move(record);
  co_return stored;
}

// Offline and read-only volumes keep their initiators, who are told by the answers they get.
Task<Answer<void>> RunningGroup::change_access_of(std::shared_ptr<Volume> volume,
                                                  const ChangeVolumeRequest* request) {
  VolumeRecord record = volume->record();
  record.online = request->online.value_or(record.online);
  record.specification.read_only = request->read_only.value_or(record.specification.read_only);
  if (request->read_only && declared(volume->name())) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("volume \"{}\" is declared in {}; read_only changes only there",
                                 volume->name(), configuration_.file));
  }
  const Error stored = co_await keep_change(volume, std::move(record));
  if (stored != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed, fmt::format("volume \"{}\" stays as it was: {}",
                                                         volume->name(), unwritten(stored)));
  }
  co_await volume->apply_access();
  const VolumeRecord& now = volume->record();
  log_info("volume {}: {}, {}", volume->name(), now.online ? "online" : "offline",
           now.specification.read_only ? "read-only" : "takes writes");
  co_return Answer<void>{};
}

Task<Answer<void>> RunningGroup::resize_now(std::shared_ptr<Volume> volume,
                                            std::uint64_t byte_count, bool force) {
  VolumeRecord record = volume->record();
  const std::string name = volume->name();
  const std::uint64_t before = record.specification.size_bytes;
  if (byte_count == before) co_return Answer<void>{};
  record.specification.size_bytes = byte_count;
  const bool on_pool = record.specification.backing == Backing::kPool;
  if (byte_count < before && !on_pool) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("volume \"{}\" has {} and cannot shrink; give a larger size", name,
                                 format_size(before)));
  }
  if (const auto error = check_specification(record.specification)) {
    co_return refuse(Refusal::Code::kInvalid, fmt::format("volume \"{}\": {}", name, *error));
  }
  if (record.specification.backing == Backing::kDevice) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("volume \"{}\" is as large as the device {}; only volumes on pools, RAID "
                    "sets, files and memory can be expanded",
                    name, volume->path().string()));
  }
  if (!volume->has_device()) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("volume \"{}\" is not served: {}; bring it back and restart, or "
                                 "delete the volume",
                                 name, volume->reason()));
  }
  if (on_pool) co_return co_await resize_on_pool(volume, byte_count, force);
  if (record.specification.backing == Backing::kRaid) {
    co_return co_await grow_on_set(volume, byte_count);
  }
  if (record.specification.preallocate) {
    const std::string lack = lack_of_space(volume->path(), byte_count - before);
    if (!lack.empty()) {
      co_return refuse(Refusal::Code::kConflict,
                       fmt::format("volume \"{}\" cannot be expanded to {}: {}", name,
                                   format_size(byte_count), lack));
    }
  }
  const Error grown = co_await volume->grow(byte_count);
  if (grown != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" cannot be expanded to {}: {}", name,
                                 format_size(byte_count), describe(grown)));
  }
  // From here on the device has the new size whatever the metadata say; a start that finds the
  // file larger than the record takes it as it is.
  volume->record() = record;
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), encode(record));
  const Error stored = co_await store_.commit(std::move(batch));
  if (stored != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" has {} now, but {}", name, format_size(byte_count),
                                 unwritten(stored)));
  }
  log_info("volume {}: expanded from {} to {}", name, format_size(before), format_size(byte_count));
  co_return Answer<void>{};
}

Task<Answer<void>> RunningGroup::rename_now(std::shared_ptr<Volume> volume, std::string name) {
  const std::string before = volume->name();
  if (name == before) co_return Answer<void>{};
  if (const auto error = check_volume_name(name)) {
    co_return refuse(Refusal::Code::kInvalid, fmt::format("name: {}", *error));
  }
  if (volumes_.contains(name)) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("volume \"{}\" exists already; choose another name", name));
  }
  if (declared(before)) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("volume \"{}\" is declared in {}; its name changes only there",
                                 before, configuration_.file));
  }
  VolumeRecord record = volume->record();
  record.specification.name = name;
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), encode(record));
  const Error stored = co_await store_.commit(std::move(batch));
  if (stored != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" keeps its name: {}", before, unwritten(stored)));
  }
  volume->record() = std::move(record);
  volumes_.erase(before);
  volumes_.put(name, volume);
  co_await volume->take_name();
  std::vector<std::shared_ptr<Volume>> renamed;
  for (const Snapshot* const snapshot : snapshots_.of(volume->uuid())) {
    if (snapshot->volume == nullptr) continue;
    snapshot->volume->record().specification.name = shown_as(snapshot->record).specification.name;
    renamed.push_back(snapshot->volume);
  }
  for (const auto& snapshot : renamed) co_await snapshot->take_name();
  tell_places();
  log_info("volume {}: now called {}", before, name);
  co_return Answer<void>{};
}

Task<Answer<VolumeInfo>> RunningGroup::change_volume(std::string name,
                                                     ChangeVolumeRequest request) {
  return alone(lasting(change_now(std::move(name), std::move(request))));
}

// Deleting --------------------------------------------------------------------------------------

Task<Answer<void>> RunningGroup::delete_now(std::string name, bool force) {
  const auto volume = find(name);
  if (volume == nullptr) co_return std::unexpected(no_such_volume(name));
  if (declared(name)) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("volume \"{}\" is declared in {}, which would make it again; take "
                                 "it out there and restart first",
                                 name, configuration_.file));
  }
  const std::string target = volume->record().specification.target;
  const auto sessions = co_await sessions_by_target();
  const auto attached = sessions.find(target);
  if (attached != sessions.end() && !force) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("volume \"{}\" is in use: {} session{} with {}; log out first, or "
                                 "force it",
                                 name, attached->second, attached->second == 1 ? "" : "s", target));
  }
  const Uuid uuid = volume->uuid();
  const std::size_t snapshots = snapshots_.of(uuid).size();
  if (snapshots != 0 && !force) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("volume \"{}\" has {} snapshot{}; delete {} first, or force it", name,
                    snapshots, snapshots == 1 ? "" : "s", snapshots == 1 ? "it" : "them"));
  }
  const bool on_pool = volume->record().specification.backing == Backing::kPool;
  Answer<void> removed;
  if (on_pool) {
    removed = co_await remove_from_pool(volume);
  } else {
    removed = co_await remove_now(volume);
  }
  if (removed) log_info("volume {}: deleted", name);
  co_return removed;
}

// What a commit shows that changes nothing yet: that the metadata can be written. A start that
// finds the volume's record beside this intent leaves the volume alone.
Task<Error> RunningGroup::begin_removal(VolumeRecord record) {
  metadata::Batch batch;
  batch.put(intent_key(record.uuid), volume_file_name(record.uuid));
  co_return co_await store_.commit(std::move(batch));
}

// A volume of which the next start may know nothing takes no more writes. It keeps its name, and
// deleting it again brings certainty.
Task<void> RunningGroup::take_out_of_service(std::shared_ptr<Volume> volume, std::string why) {
  const VolumeSpecification s = volume->record().specification;
  const std::uint32_t lun = s.lun.value_or(0);  // Its record always has one.
  co_await targets_.at(s.target)->router->remove(lun);
  co_await abandon(volume);
  auto stopped = Volume::without_device(volume->record(), configuration_.state, volume->home(),
                                        array_facts(), {.reason = std::move(why)});
  targets_.at(s.target)->units[lun] = stopped;
  volumes_.put(s.name, std::move(stopped));
}

// The record goes before the file: from then on the volume is gone whatever happens, and a crash
// before the file is removed leaves the intent.
Task<Answer<void>> RunningGroup::remove_now(std::shared_ptr<Volume> volume) {
  const VolumeRecord record = volume->record();
  const VolumeSpecification& s = record.specification;
  Target& target = *targets_.at(s.target);
  const bool last = !target.declared && target.units.size() <= 1;
  const bool in_doubt_before = store_.in_doubt();
  Error stored = co_await begin_removal(record);
  if (stored != Error::kNone) {
    // Even in doubt: the intent alone removes nothing.
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" {}: the metadata cannot be written: {}", s.name,
                                 in_doubt_before ? "is as it was" : "stays", describe(stored)));
  }
  metadata::Batch batch;
  batch.erase(volume_key(record.uuid));
  book_.erase(record.uuid, batch);
  if (record.placement) batch.erase_prefix(clearing_key(record.uuid));
  if (last) batch.erase(target_key(s.target));
  if (s.backing != Backing::kState) batch.erase(intent_key(record.uuid));
  stored = co_await store_.commit(std::move(batch));
  if (stored != Error::kNone && store_.in_doubt()) {
    const std::string why = fmt::format(
        "is not served any more: whether it is deleted shows when the metadata can be written "
        "({}); "
        "delete it again, or restart the daemon",
        describe(stored));
    co_await take_out_of_service(volume, why);
    co_return refuse(Refusal::Code::kFailed, fmt::format("volume \"{}\" {}", s.name, why));
  }
  if (stored != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" stays: {}", s.name, unwritten(stored)));
  }
  volumes_.erase(s.name);
  identifiers_.release(record.uuid);
  book_.forget(record.uuid);
  const std::uint32_t lun = s.lun.value_or(0);  // Its record always has one.
  if (last) {
    co_await server_->remove_target(s.target);
    co_await target.router->remove(lun);
    co_await target.router->close();
    targets_.erase(s.target);
  } else {
    co_await target.router->remove(lun);
    target.units.erase(lun);
  }
  const bool cleared =
      !places_.contains(record.uuid) || places_.at(record.uuid)->clearing.left_blocks() == 0;
  co_await abandon(volume);
  tell_places();   // Now that its last flush has ended.
  if (!cleared) {  // It may have come back meanwhile.
    (void)co_await keep_clearing(record.uuid, {.changes = {}, .ended = true});
  }
  co_await unmake_file(record);
  co_return Answer<void>{};
}

Task<Answer<void>> RunningGroup::delete_volume(std::string name, bool force) {
  return alone(lasting(delete_now(std::move(name), force)));
}

}  // namespace sandbay::group
