// Starting and stopping a group. Start: metadata, intents, hardware, declared volumes, all other
// volumes, targets, portals, in this order, so that nobody can log in before everything is there.
// Shutdown
// is the reverse and is also how a start that failed is undone.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "group/identifiers.h"
#include "group/import_file.h"
#include "group/log.h"
#include "group/place.h"
#include "group/role.h"
#include "group/running_group.h"
#include "group/units.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {
// How long the cache may bring nothing to the sets before it is given up, and how long these may
// take to end what they do and to mark themselves clean.
constexpr Duration kStopPatience = std::chrono::seconds(30);
// The same before volumes are closed.
constexpr Duration kSettlePatience = std::chrono::seconds(20);
// How long an operation of management may go on when the group is to end.
constexpr Duration kOperationPatience = std::chrono::seconds(15);

std::string unreadable(const Configuration& configuration, Error error) {
  return fmt::format("the metadata in {}/metadata cannot be read: {}{}",
                     configuration.state.string(), describe(error),
                     error == Error::kDataCorrupt
                         ? "; set them aside and take in an export in their place: sandbayd "
                           "--config FILE --import EXPORT"
                         : "");
}
}  // namespace

struct RunningGroup::Loaded {
  std::optional<std::string> group;
  std::map<std::string, std::pair<VolumeRecord, std::string>> volumes;  // By name; and as stored.
  std::vector<metadata::Entry> intents;
  std::vector<PoolRecord> pools;
};

Task<std::expected<std::unique_ptr<Group>, StartRefusal>> Group::start(Configuration configuration,
                                                                       metadata::Store& store) {
  auto group = std::make_unique<RunningGroup>(std::move(configuration), store);
  auto assembled = co_await group->assemble();
  if (!assembled) {
    co_await group->shutdown();
    co_return std::unexpected(assembled.error());
  }
  co_return std::unique_ptr<Group>(std::move(group));
}

RunningGroup::RunningGroup(Configuration configuration, metadata::Store& store)
    : configuration_(std::move(configuration)), store_(store), started_(Executor::current().now()) {
  for (const PortalConfiguration& portal : configuration_.portals) {
    access_states_.emplace(portal.group_tag, scsi::AccessState::kActiveOptimized);
  }
}

RunningGroup::~RunningGroup() { assert(gate_.closed()); }

Task<RunningGroup::Outcome> RunningGroup::assemble() {
  Loaded loaded;
  auto outcome = co_await load(&loaded);
  if (!outcome) co_return outcome;
  outcome = co_await adopt_identity(loaded.group);
  if (!outcome) co_return outcome;
  outcome = co_await finish_intents(&loaded);
  if (!outcome) co_return outcome;
  Error logs = co_await events_.open(store_);
  if (logs == Error::kNone) logs = co_await audit_.open(store_);
  if (logs != Error::kNone) {
    co_return std::unexpected(unreadable(configuration_, logs));
  }
  members_ = std::make_unique<Members>(Executor::current(), configuration_, store_, events_,
                                       known(parse_uuid(identity_.uuid)));
  ControllerCache::VolumePlaces places;
  for (const auto& [name, entry] : loaded.volumes) note_place(entry.first, places);
  outcome = co_await members_->start(std::move(places));
  if (!outcome) co_return outcome;
  outcome = plan_volumes(&loaded);
  if (!outcome) co_return outcome;
  outcome = co_await open_pools(&loaded);
  if (!outcome) co_return outcome;
  outcome = co_await open_volumes(&loaded);
  if (!outcome) co_return outcome;
  for (const TargetConfiguration& target : configuration_.targets) target_for(target.name);
  for (const auto& [name, volume] : volumes_) {
    outcome = attach(volume);
    if (!outcome) co_return outcome;
  }
  outcome = co_await forget_clearing();
  if (!outcome) co_return outcome;
  outcome = co_await open_snapshots();
  if (!outcome) co_return outcome;
  for (const auto& [name, volume] : volumes_) identifiers_.take(volume->record());
  for (const auto& [uuid, snapshot] : snapshots_) identifiers_.take(shown_as(snapshot.record));
  (void)co_await settle_pools();
  tell_places();
  const auto tell = [](const iscsi::ServerEvent& event) {
    const bool warning = event.severity == iscsi::EventSeverity::kWarning;
    log(warning ? Severity::kWarning : Severity::kInformation, event.text);
  };
  fault::FaultEngine* const engine = members_->first().faults();
  if (engine != nullptr) connection_faults_ = std::make_unique<ConnectionFaults>(*engine);
  server_ = iscsi::TargetServer::create(configuration_.limits, tell, connection_faults_.get());
  outcome = co_await register_targets();
  if (!outcome) co_return outcome;
  if (configuration_.lead) {
    exports_ =
        std::make_unique<SetExports>(Executor::current(), members_->first(), store_, events_);
    outcome =
        co_await exports_->start(server_.get(), *configuration_.lead, array_facts().target_ports);
    if (!outcome) co_return outcome;
  }
  std::string message;
  const Error discovery = server_->set_discovery(configuration_.discovery, &message);
  if (discovery != Error::kNone) {
    co_return fault_of_configuration(
        fmt::format("{}: discovery: {}", configuration_.file, message));
  }
  // Without portals nobody is served: whoever only looks takes and deletes no snapshot.
  if (!configuration_.portals.empty()) spawn(run_schedules());
  co_return open_portals();
}

Task<std::expected<std::vector<metadata::Entry>, std::string>> RunningGroup::load_all(
    std::string prefix) {
  auto all = co_await metadata::list_all(store_, std::move(prefix));
  if (!all) co_return std::unexpected(unreadable(configuration_, all.error()));
  co_return std::move(*all);
}

Task<RunningGroup::Outcome> RunningGroup::load(Loaded* loaded) {
  const auto group = co_await load_all(std::string(kGroupKey));
  if (!group) co_return std::unexpected(group.error());
  for (const auto& [key, value] : *group) {
    if (key == kGroupKey) loaded->group = value;
  }
  const auto volumes = co_await load_all(std::string(kVolumePrefix));
  if (!volumes) co_return std::unexpected(volumes.error());
  for (const auto& [key, value] : *volumes) {
    auto record = decode_volume(value);
    if (!record) co_return std::unexpected(fmt::format("metadata {} {}", key, record.error()));
    std::string name = record->specification.name;
    loaded->volumes.emplace(std::move(name), std::pair(std::move(*record), value));
  }
  const auto targets = co_await load_all(std::string(kTargetPrefix));
  if (!targets) co_return std::unexpected(targets.error());
  for (const auto& [key, value] : *targets) {
    auto record = decode_target(value);
    if (!record) co_return std::unexpected(fmt::format("metadata {} {}", key, record.error()));
    stored_targets_.push_back(std::move(*record));
  }
  const auto pools = co_await load_all(std::string(kPoolPrefix));
  if (!pools) co_return std::unexpected(pools.error());
  for (const auto& [key, value] : *pools) {
    auto record = decode_pool(value);
    if (!record) co_return std::unexpected(fmt::format("metadata {} {}", key, record.error()));
    loaded->pools.push_back(std::move(*record));
  }
  const auto snapshots = co_await load_all(std::string(kSnapshotPrefix));
  if (!snapshots) co_return std::unexpected(snapshots.error());
  for (const auto& [key, value] : *snapshots) {
    auto record = decode_snapshot(value);
    if (!record) co_return std::unexpected(fmt::format("metadata {} {}", key, record.error()));
    const Uuid uuid = record->uuid;
    snapshots_.emplace(uuid, Snapshot{.record = std::move(*record), .volume = nullptr});
  }
  const auto schedules = co_await load_all(std::string(kSchedulePrefix));
  if (!schedules) co_return std::unexpected(schedules.error());
  for (const auto& [key, value] : *schedules) {
    auto record = decode_schedule(value);
    if (!record) co_return std::unexpected(fmt::format("metadata {} {}", key, record.error()));
    schedules_[record->uuid] = std::move(*record);
  }
  std::set<Uuid> units;
  for (const auto& [name, entry] : loaded->volumes) units.insert(entry.first.uuid);
  for (const auto& [uuid, snapshot] : snapshots_) units.insert(uuid);
  const auto book = co_await book_.load(std::move(units));
  if (!book) co_return std::unexpected(book.error());
  auto intents = co_await load_all(std::string(kIntentPrefix));
  if (!intents) co_return std::unexpected(intents.error());
  loaded->intents = std::move(*intents);
  RoleFacts facts{.member = configuration_.lead.has_value()};
  for (const PoolRecord& pool : loaded->pools) facts.pools.push_back(pool.name);
  for (const auto& [name, entry] : loaded->volumes) {
    const Backing backing = entry.first.specification.backing;
    if (backing == Backing::kRaid || backing == Backing::kPool) facts.volumes.push_back(name);
  }
  auto fits = co_await role_fits(&store_, std::move(facts));
  if (!fits) fits.error().text = fmt::format("{}: {}", configuration_.file, fits.error().text);
  co_return fits;
}

// Volumes that are about to be opened have their sets already.
Task<RunningGroup::Outcome> RunningGroup::open_pools(Loaded* loaded) {
  for (const auto& [name, entry] : loaded->volumes) {
    if (entry.first.specification.backing == Backing::kRaid) planned_.push_back(entry.first);
  }
  way_before_import_ = co_await way_before_import(store_, configuration_.state);
  pools_ = std::make_unique<Pools>(Executor::current(), store_, events_, *members_, pool_owner());
  auto started = co_await pools_->start(std::move(loaded->pools), configuration_.pools);
  if (!started) {
    started.error().text = fmt::format("{}: {}", configuration_.file, started.error().text);
  }
  co_return started;
}

Task<RunningGroup::Outcome> RunningGroup::adopt_identity(std::optional<std::string> stored) {
  const Configuration& c = configuration_;
  if (stored) {
    auto record = decode_group(*stored);
    if (!record) co_return std::unexpected(fmt::format("metadata group {}", record.error()));
    identity_ = std::move(*record);
    if (!c.uuid.empty() && c.uuid != identity_.uuid) {
      co_return fault_of_configuration(
          fmt::format("{}: group.uuid: is {}, but {} holds group {}; name that group's state "
                      "directory, or leave uuid out",
                      c.file, c.uuid, c.state.string(), identity_.uuid));
    }
    if (identity_.name == c.group_name) co_return Outcome{};
    log_info("group {} is now called {}", identity_.name, c.group_name);
  } else {
    identity_.uuid = c.uuid.empty() ? format_uuid(make_uuid(Executor::current().random())) : c.uuid;
  }
  identity_.name = c.group_name;
  metadata::Batch batch;
  batch.put(std::string(kGroupKey), encode(identity_));
  const Error error = co_await store_.commit(std::move(batch));
  if (error == Error::kNone) co_return Outcome{};
  co_return std::unexpected(fmt::format("the metadata in {}/metadata cannot be written: {}",
                                        c.state.string(), describe(error)));
}

Task<RunningGroup::Outcome> RunningGroup::finish_intents(const Loaded* loaded) {
  std::set<std::string> only_begun;
  for (const auto& [name, entry] : loaded->volumes) only_begun.insert(intent_key(entry.first.uuid));
  for (const auto& [key, file] : loaded->intents) {
    const auto path = (configuration_.state / "volumes" / file).string();
    if (!only_begun.contains(key)) {
      const Error removed = co_await Executor::current().remove_file(path);
      if (removed != Error::kNone && removed != Error::kNotFound) {
        log_warning("{}: left over from a crash, and cannot be removed: {}", path,
                    describe(removed));
        continue;
      }
      if (removed == Error::kNone) log_info("{}: left over from a crash, removed", path);
    }
    metadata::Batch batch;
    batch.erase(key);
    const Error error = co_await store_.commit(std::move(batch));
    if (error != Error::kNone) {
      co_return std::unexpected(fmt::format("the metadata in {}/metadata cannot be written: {}",
                                            configuration_.state.string(), describe(error)));
    }
  }
  co_return Outcome{};
}

std::string RunningGroup::unwritten(Error error) const {
  if (error == Error::kTimedOut) {
    return "I/O to its sets takes too long; see the list of drives, and try again";
  }
  std::string text = fmt::format("the metadata cannot be written: {}", describe(error));
  if (error == Error::kNoSpace) {
    text += fmt::format("; make room where {} stands", configuration_.state.string());
  }
  if (store_.in_doubt()) {
    text +=
        "; until they can nothing changes, and should the daemon be killed before, this may count";
  }
  return text;
}

std::string RunningGroup::at(const VolumeConfiguration& configured) const {
  return fmt::format("{}:{}: volume \"{}\"", configuration_.file, configured.line,
                     configured.specification.name);
}

namespace {

// What is chosen when a volume on a pool is made, or changed since.
void keep_pool_choices(const VolumeSpecification& stored, VolumeSpecification& wanted) {
  wanted.thin = stored.thin;
  wanted.on = stored.on;
  wanted.raid_level = stored.raid_level;
  wanted.thin_warning = stored.thin_warning;
  wanted.thin_limit = stored.thin_limit;
  wanted.snapshot_reserve = stored.snapshot_reserve;
  wanted.reserve_policy = stored.reserve_policy;
  wanted.operations_limit = stored.operations_limit;
  wanted.bytes_limit = stored.bytes_limit;
}

}  // namespace

// Provisioned values stay as the metadata has them; values that are only presented follow the file.
RunningGroup::Outcome RunningGroup::reconcile(VolumeRecord& record,
                                              const VolumeConfiguration& configured) const {
  const VolumeSpecification stored = record.specification;
  VolumeSpecification wanted = configured.specification;
  // A file that the group keeps for itself is there whatever the text says now.
  if (configured.open.block_bytes) wanted.block_bytes = stored.block_bytes;
  const bool elsewhere = wanted.backing == Backing::kRaid || wanted.backing == Backing::kPool;
  if (stored.backing == Backing::kState && elsewhere && stored.block_bytes == wanted.block_bytes) {
    log_warning(
        "{}: stays on its file in {}, where it was made; to have it on {} \"{}\" copy it "
        "to a new volume there",
        at(configured), configuration_.state.string(),
        wanted.backing == Backing::kPool ? "pool" : "set",
        wanted.backing == Backing::kPool ? wanted.pool : wanted.raid);
    if (wanted.backing == Backing::kPool) wanted.thin = stored.thin;
    wanted.backing = Backing::kState;
    wanted.raid.clear();
    wanted.pool.clear();
    wanted.on.clear();
    wanted.raid_level.clear();
    wanted.snapshot_reserve = {};
    wanted.preallocate = stored.preallocate;
  }
  if (stored.backing == Backing::kRaid && wanted.backing == Backing::kRaid &&
      stored.raid != wanted.raid) {
    return fault_of_configuration(
        fmt::format("{}: was made on set \"{}\", not on \"{}\"; write that, or give the new volume "
                    "another name",
                    at(configured), stored.raid, wanted.raid));
  }
  if (stored.backing == Backing::kPool && wanted.backing == Backing::kPool) {
    if (stored.pool != wanted.pool) {
      return fault_of_configuration(
          fmt::format("{}: was made on pool \"{}\", not on \"{}\"; write that, or give the new "
                      "volume another name",
                      at(configured), stored.pool, wanted.pool));
    }
    keep_pool_choices(stored, wanted);
  }
  if (stored.backing != wanted.backing || stored.block_bytes != wanted.block_bytes) {
    return fault_of_configuration(fmt::format(
        "{}: was made on {} with {}-byte blocks, not on {} with {}-byte blocks; write that, or "
        "give the new volume another name",
        at(configured), describe(stored.backing), stored.block_bytes, describe(wanted.backing),
        wanted.block_bytes));
  }
  configuration_.identity.keep_drawn(stored, wanted);
  record.specification = wanted;
  record.specification.cache = stored.cache;
  if (configured.cache_given && wanted.cache != stored.cache) {
    log_warning(
        "{}: its cache is {}, as it was made or changed; cache = \"{}\" only counts when "
        "it is made",
        at(configured), describe(stored.cache), describe(wanted.cache));
  }
  if (wanted.backing != Backing::kMemory) {
    record.specification.size_bytes = stored.size_bytes;
    if (wanted.size_bytes != 0 && wanted.size_bytes != stored.size_bytes) {
      log_warning(
          "{}: has {}, as it was made or expanded; size = \"{}\" only counts when it is "
          "made",
          at(configured), format_size(stored.size_bytes), format_size(wanted.size_bytes));
    }
  }
  if (!wanted.lun && wanted.target == stored.target) record.specification.lun = stored.lun;
  return {};
}

Task<RunningGroup::Outcome> RunningGroup::keep_record(VolumeRecord record, std::string stored) {
  std::string text = encode(record);
  if (text == stored) co_return Outcome{};
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), std::move(text));
  const Error error = co_await store_.commit(std::move(batch));
  if (error == Error::kNone) co_return Outcome{};
  co_return std::unexpected(fmt::format("volume \"{}\": its record cannot be written: {}",
                                        record.specification.name, describe(error)));
}

// Adds records for volumes that are declared and not there, brings the others in line with the
// file, and then gives LUNs to those that have none: the lowest free ones, in the file's order.
RunningGroup::Outcome RunningGroup::plan_volumes(Loaded* loaded) {
  std::set<std::pair<std::string, std::uint32_t>> taken;
  std::set<NaaIdentifier> identifiers;
  for (const auto& [name, entry] : loaded->volumes) identifiers.insert(naa_of(entry.first));
  for (const VolumeConfiguration& configured : configuration_.volumes) {
    if (configured.specification.naa) identifiers.insert(*configured.specification.naa);
  }
  for (const VolumeConfiguration& configured : configuration_.volumes) {
    const std::string& name = configured.specification.name;
    const auto stored = loaded->volumes.find(name);
    if (stored == loaded->volumes.end()) {
      const auto taken_already = [&](const NaaIdentifier& one) {
        return identifiers.contains(one);
      };
      VolumeRecord record{.uuid = draw_uuid(taken_already),
                          .specification = configured.specification};
      record.open_block_bytes = configured.open.block_bytes;
      configuration_.identity.settle(record.specification, record.uuid);
      identifiers.insert(naa_of(record));
      loaded->volumes.emplace(name, std::pair(std::move(record), std::string()));
      continue;
    }
    auto outcome = reconcile(stored->second.first, configured);
    if (!outcome) return outcome;
    // The stored block size counts if the file names no other.
    if (const auto error = check_presentation(stored->second.first.specification)) {
      return fault_of_configuration(fmt::format("{}: {}", at(configured), *error));
    }
  }
  Identifiers claimed(configuration_.identity);
  // Nobody has these in a file to change them there.
  for (const auto& [name, entry] : loaded->volumes) {
    if (configured(name) != nullptr) continue;
    const auto twice = claimed.claim(entry.first, "volume");
    if (twice) log_warning("volume \"{}\": {}", name, *twice);
  }
  for (const VolumeConfiguration& configured : configuration_.volumes) {
    const auto& entry = loaded->volumes.at(configured.specification.name);
    const auto twice = claimed.claim(entry.first, "volume");
    if (twice) return fault_of_configuration(fmt::format("{}: {}", at(configured), *twice));
  }
  for (const auto& [name, entry] : loaded->volumes) {
    const VolumeSpecification& s = entry.first.specification;
    if (s.lun) taken.emplace(s.target, *s.lun);
  }
  for (const VolumeConfiguration& configured : configuration_.volumes) {
    VolumeSpecification& s = loaded->volumes.at(configured.specification.name).first.specification;
    for (std::uint32_t lun = 0; !s.lun; ++lun) {
      if (taken.emplace(s.target, lun).second) s.lun = lun;
    }
  }
  return {};
}

const VolumeConfiguration* RunningGroup::configured(const std::string& volume) const {
  for (const VolumeConfiguration& candidate : configuration_.volumes) {
    if (candidate.specification.name == volume) return &candidate;
  }
  return nullptr;
}

Task<RunningGroup::Outcome> RunningGroup::open_volumes(Loaded* loaded) {
  // Those that are there already come first: a new one may not take what belongs to them.
  for (const bool fresh : {false, true}) {
    for (const auto& [name, entry] : loaded->volumes) {
      if (entry.second.empty() != fresh) continue;
      auto outcome = co_await open_volume(entry.first, entry.second);
      if (!outcome) co_return outcome;
    }
  }
  planned_.clear();
  co_return Outcome{};
}

// A volume that cannot be opened keeps its place and its record, and nobody else from starting.
Task<RunningGroup::Outcome> RunningGroup::open_volume(VolumeRecord record, std::string stored) {
  const std::string name = record.specification.name;
  const bool fresh = stored.empty();
  const VolumeConfiguration* const declaration = configured(name);
  const std::string where =
      declaration != nullptr ? at(*declaration) : fmt::format("volume \"{}\"", name);
  const auto claim = co_await claim_against(record.specification.path);
  Volume::Opened volume;
  if (claim) {
    volume = std::unexpected(OpenFailure{.reason = claim->text, .stops_start = fresh});
  } else if (fresh) {
    volume = co_await make_volume(record, std::nullopt);
  } else {
    volume = co_await open_device(record, Volume::Opening::kExisting);
  }
  if (!volume) {
    if (volume.error().stops_start) {
      co_return std::unexpected(StartRefusal(claim ? claim->kind : StartRefusal::Kind::kNotNow,
                                             fmt::format("{}: {}", where, volume.error().reason)));
    }
    log_warning("{}: not served: {}", where, volume.error().reason);
    volumes_.put(name, without_device(std::move(record), std::move(volume.error())));
    co_return Outcome{};
  }
  volumes_.put(name, *volume);
  if (!fresh) {
    // A crash came between its new size and what follows from that; the next start tries again.
    const Error settled = co_await settle_limits(*volume);
    if (settled != Error::kNone) {
      log_warning("{}: its limits are those of another size: {}", where, describe(settled));
    }
    co_return co_await keep_record((*volume)->record(), std::move(stored));
  }
  log_info("volume {}: made, {} on {}", name,
           format_size((*volume)->record().specification.size_bytes),
           describe(record.specification.backing));
  co_return Outcome{};
}

RunningGroup::Outcome RunningGroup::attach(const std::shared_ptr<Volume>& volume) {
  const VolumeSpecification& s = volume->record().specification;
  Target& target = target_for(s.target);
  const std::uint32_t lun = s.lun.value_or(0);  // Its record always has one.
  const auto [other, added] = target.units.emplace(lun, volume);
  if (added) return {};
  return fault_of_configuration(fmt::format(
      "{}: volume \"{}\": LUN {} of {} is volume \"{}\"; give one of them another lun or target",
      configuration_.file, s.name, lun, s.target, other->second->name()));
}

Task<RunningGroup::Outcome> RunningGroup::register_targets() {
  for (const auto& [name, target] : targets_) {
    for (const auto& [lun, volume] : target->units) {
      if (!volume->has_unit()) continue;
      const Error error = co_await target->router->add(lun, &volume->unit());
      if (error != Error::kNone) {
        co_return std::unexpected(fmt::format("target {}: LUN {}: {}", name, lun, describe(error)));
      }
    }
    std::string message;
    const Error error = co_await server_->add_target(options_of(*target), &message);
    if (error != Error::kNone) {
      co_return fault_of_configuration(fmt::format("{}:{}: target {}: {}", configuration_.file,
                                                   target->configured.line, name,
                                                   message.empty() ? describe(error) : message));
    }
  }
  co_return Outcome{};
}

namespace {

using Ending = Task<Error> (Volume::*)(TimePoint deadline);

Task<void> end_volume(std::shared_ptr<Volume> volume, Ending ending, TimePoint deadline,
                      Error* error, Gate* under_way) {
  *error = co_await ((*volume).*ending)(deadline);
  under_way->leave();
}

// At the same time: what hangs below one takes nobody else's time.
Task<std::vector<Error>> end_all(std::vector<std::shared_ptr<Volume>> volumes, Ending ending,
                                 TimePoint deadline) {
  std::vector<Error> errors(volumes.size(), Error::kNone);
  Gate under_way;
  for (std::size_t i = 0; i < volumes.size(); ++i) {
    if (under_way.enter()) {
      spawn(end_volume(volumes[i], ending, deadline, &errors[i], &under_way));
    }
  }
  co_await under_way.close();
  co_return errors;
}

// "RunningGroup::create_snapshots(…)", whatever stands around it, is "create snapshots".
std::string name_of(const std::source_location& at) {
  std::string_view name = at.function_name();
  name = name.substr(0, name.find('('));
  const std::size_t before = name.find_last_of(": ");
  if (before != std::string_view::npos) name.remove_prefix(before + 1);
  std::string words(name);
  std::ranges::replace(words, '_', ' ');
  return words;
}

}  // namespace

// False: something in it has not ended. What only takes its time may still be brought to the drives
// by whoever is below.
bool RunningGroup::judge_flush(const Volume& volume, Error error) {
  const bool on_sets = volume.record().placement || volume.record().pool;
  // On a set that does not run nothing is left to flush: it took nothing.
  const bool set_away = error == Error::kNotReady && on_sets;
  if (error != Error::kNone && !set_away) {
    log_error("volume {}: not flushed: {}", volume.name(), describe(error));
    lost_writes_ = lost_writes_ || error != Error::kTimedOut;
  }
  return error != Error::kTimedOut || !on_sets;
}

// What has not ended may go on at any time with whatever it has in its hands, so all of it stays.
// What initiators have written is brought to the drives all the same; the rest is as after a kill.
Task<void> RunningGroup::leave_all_behind() {
  left_behind_ = true;
  std::vector<std::string> names;
  for (const Operation& one : operations_) {
    const auto under_way = Executor::current().now() - one.begun;
    names.push_back(
        fmt::format("{} ({} s)", name_of(one.at),
                    std::chrono::duration_cast<std::chrono::seconds>(under_way).count()));
  }
  log_warning("not waited for any longer: {}; whether it is done shows after the next start",
              fmt::join(names, ", "));
  std::vector<std::shared_ptr<Volume>> all;
  for (const auto& [name, volume] : volumes_) all.push_back(volume);
  for (const auto& [uuid, snapshot] : snapshots_) {
    if (snapshot.volume != nullptr) all.push_back(snapshot.volume);
  }
  co_await members_->settle(Executor::current().now() + kSettlePatience);
  const std::vector<Error> errors =
      co_await end_all(all, &Volume::flush, Executor::current().now() + kClosePatience);
  for (std::size_t i = 0; i < all.size(); ++i) (void)judge_flush(*all[i], errors[i]);
}

Task<void> RunningGroup::shutdown() {
  stopping_.set();
  const TimePoint patience = Executor::current().now() + kOperationPatience;
  const bool managed = co_await gate_.close_until(patience);
  const bool scheduled = co_await schedule_gate_.close_until(patience);
  if (server_ != nullptr) co_await server_->shutdown();
  if (!managed || !scheduled) co_return co_await leave_all_behind();
  co_await dropping_.close();
  for (const auto& [name, target] : targets_) {
    // Copies: removing is for the router; the map stays as it is until the end.
    if (server_ != nullptr) {
      for (const auto& [lun, volume] : target->units) co_await target->router->remove(lun);
    }
    co_await target->router->close();
  }
  bool quiet = co_await leave_places();
  if (exports_ != nullptr) {
    const bool ended = co_await exports_->stop(Executor::current().now() + kClosePatience);
    quiet = quiet && ended;
    exports_.reset();
  }
  if (members_ != nullptr) {
    co_await members_->settle(Executor::current().now() + kSettlePatience);
  }
  const TimePoint deadline = Executor::current().now() + kClosePatience;
  quiet = quiet && pools_quiet_;
  std::vector<std::shared_ptr<Volume>> all;
  for (const auto& [name, volume] : volumes_) all.push_back(volume);
  for (auto& [uuid, snapshot] : snapshots_) {
    if (snapshot.volume != nullptr) all.push_back(std::move(snapshot.volume));
  }
  const std::vector<Error> errors = co_await end_all(all, &Volume::close, deadline);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool closed = judge_flush(*all[i], errors[i]);
    quiet = quiet && closed;
  }
  targets_.clear();
  volumes_.clear();
  all.clear();
  server_.reset();
  if (pools_ != nullptr) {
    quiet = co_await pools_->stop(quiet, Executor::current().now() + kSettlePatience);
    if (!quiet) (void)pools_.release();
    pools_.reset();
  }
  if (members_ != nullptr) {
    co_await members_->stop(Executor::current().now() + kStopPatience, quiet);
    lost_writes_ = lost_writes_ || members_->lost_writes();
    members_.reset();
  }
  for (auto& [volume, place] : places_) {
    if (!quiet) (void)place.release();  // Something is still in a device.
  }
  places_.clear();
  left_places_.clear();
  co_await events_.close();
  co_await audit_.close();
}

}  // namespace sandbay::group
