// A set comes up in this order: drives in their places, the journal, its replay, then what was
// found is written on every drive (it may have been on some only), and only then the first request.
#include "raid/managed_set.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/core.h>

#include "raid/drive_journal.h"
#include "raid/nvram_journal.h"
#include "raid/set_back.h"
#include "runtime/known.h"

namespace sandbay::raid {

namespace {

// What is posted when the last operation of a drive has ended runs within so many turns.
constexpr unsigned kTurnsToSettle = 8;

constexpr std::string_view kRegionPrefix = "raid-";

bool needs_journal(const Superblock& superblock, const Layout& layout) {
  return layout.parity_chunks() > 0 || superblock.integrity;
}

// What is on no drive any more is stale or gone, before anything is written.
void note_losses(Superblock& superblock, RegionMap& regions, const Layout& layout,
                 const std::vector<SetMember>& members,
                 const std::vector<SetMember>& replacements) {
  for (unsigned role = 0; role < layout.drive_count(); ++role) {
    RoleEntry& entry = superblock.roles[role];
    if (replacements[role].device == nullptr && entry.replacement != Uuid{}) {
      entry.replacement = {};
      entry.replacement_known_event = 0;
      regions.set_all_stale(role, true, true);
    }
    if (members[role].device != nullptr) continue;
    if (entry.state == RoleState::kActive) entry.state = RoleState::kMissing;
    // Where redundancy is not verified, the ones that are here count: mirrors differ where a crash
    // came while they were written, and nothing matches yet in a new set.
    if (layout.redundancy() == 0 || superblock.redundancy_suspect) continue;
    for (auto region = regions.first_dirty(); region; region = regions.first_dirty(*region + 1)) {
      regions.set_stale(role, false, *region, true);
      if (*region + 1 == regions.region_count()) break;
    }
  }
}

bool owes_flush(const Request& request) {
  return !request.force_unit_access &&
         (request.operation == Operation::kWrite || request.operation == Operation::kUnmap ||
          request.operation == Operation::kWriteZeroes);
}

}  // namespace

std::string journal_region(const Uuid& set) {
  return std::string(kRegionPrefix) + format_uuid(set);
}

std::optional<Uuid> set_of_journal_region(std::string_view name) {
  if (!name.starts_with(kRegionPrefix)) return std::nullopt;
  return parse_uuid(name.substr(kRegionPrefix.size()));
}

ManagedSet::ManagedSet(Executor& home, Superblock known, ManagedSetOptions options)
    : home_(home), known_(std::move(known)), options_(std::move(options)) {
  const auto layout = known_.layout();
  assert(layout.has_value());
  geometry_.block_bytes = layout->block_bytes();
  geometry_.block_count = layout->block_count();
  geometry_.physical_block_bytes = std::max(geometry_.block_bytes, 4096U);
  geometry_.optimal_io_blocks = layout->stripe_blocks();
  geometry_.unmap_granularity_blocks = layout->stripe_blocks();
}

ManagedSet::~ManagedSet() { assert(!assembled() && set_ == nullptr); }

Health ManagedSet::health() const noexcept {
  if (running()) return set_->health();
  return assembled() ? Health::kFailed : Health::kMissing;
}

bool ManagedSet::serves() const noexcept { return serving_ && set_->serves(); }

std::string ManagedSet::description() const {
  return fmt::format("{} {} of {} drives", describe(known_.level), known_.set_name,
                     known_.drive_count());
}

Task<Completion> ManagedSet::submit(Request request) {
  assert(fits(geometry_, request));
  if (!serving_) {
    Completion refused;
    refused.error = Error::kNotReady;
    refused.data = std::move(request.data);
    co_return refused;
  }
  const bool flush = request.operation == Operation::kFlush;
  if (flush && running() && unflushed_lost_.erase(request.volume) > 0) {
    Completion failed;
    failed.error = Error::kHardware;
    failed.data = std::move(request.data);
    co_return failed;
  }
  const std::uint64_t volume = request.volume;
  const bool owed = owes_flush(request);
  Completion completion = co_await set_->submit(std::move(request));
  if (completion.error != Error::kNone) co_return completion;
  if (owed) unflushed_.insert(volume);
  if (flush && set_ != nullptr && !set_->unflushed()) unflushed_.clear();
  co_return completion;
}

Task<Error> ManagedSet::lose(std::vector<Extent> extents) {
  if (!serving_) co_return Error::kNotReady;
  co_return co_await set_->lose(std::move(extents));
}

Task<Result<ProvisioningRun>> ManagedSet::provisioning(Lba first, Lba limit) {
  if (!running() || !queries_->enter()) co_return std::unexpected(Error::kNotReady);
  const Result<ProvisioningRun> run = co_await set_->provisioning(first, limit);
  queries_->leave();
  co_return run;
}

void ManagedSet::set_policy(MaintenancePolicy policy) {
  options_.maintenance = policy;
  if (maintenance_ != nullptr) maintenance_->set_policy(policy);
}

// ---- coming up ----------------------------------------------------------------------------------

Task<std::expected<void, std::string>> ManagedSet::start(AssembledSet assembled,
                                                         std::vector<SetMember> members,
                                                         std::vector<SetMember> replacements,
                                                         bool accept_loss) {
  assert(!this->assembled());
  accept_loss_ = accept_loss;
  assert(assembled.startable && assembled.regions.has_value() && assembled.lost.has_value());
  place_drives(std::move(assembled), members, replacements);
  std::string problem = co_await open_journal();
  if (problem.empty()) problem = co_await bring_up();
  if (!problem.empty()) {
    refusal_ = fmt::format("set {}: {}", name(), problem);
    co_return std::unexpected(refusal_);
  }
  learn_geometry();
  maintenance_ = std::make_unique<Maintenance>(*set_, options_.maintenance);
  queries_ = std::make_unique<Gate>();
  refusal_.clear();
  serving_ = true;
  maintenance_->start();
  if (has_run_) {
    tell({SetEvent::Kind::kOnline, kNoRole,
          unflushed_lost_.empty()
              ? "it runs again"
              : "it runs again; writes that were not flushed before it went offline may "
                "be lost, so the next flush of each volume that wrote them fails"});
  }
  has_run_ = true;
  const unsigned away = static_cast<unsigned>(std::popcount(drives_->absent_roles()));
  if (away > 0) {
    tell({SetEvent::Kind::kDegraded, kNoRole,
          fmt::format("it starts degraded: {} of {} drives are away", away, known_.drive_count())});
  }
  co_return std::expected<void, std::string>{};
}

void ManagedSet::place_drives(AssembledSet assembled, const std::vector<SetMember>& members,
                              const std::vector<SetMember>& replacements) {
  const auto layout = assembled.superblock.layout();
  assert(layout.has_value());
  Superblock found = std::move(assembled.superblock);
  note_losses(found, known(assembled.regions), *layout, members, replacements);
  known_ = found;
  known(assembled.lost).limit(options_.most_lost_bytes);
  drives_ = std::make_unique<SetDrives>(home_, *layout, std::move(found),
                                        std::move(known(assembled.regions)),
                                        std::move(known(assembled.lost)));
  drives_->on_event([this](SetEvent event) { tell(std::move(event)); });
  drives_->on_record([this](Event event) { return record(event); });
  for (unsigned role = 0; role < layout->drive_count(); ++role) {
    const SetMember& member = members[role];
    if (member.device != nullptr) {
      const RoleEntry entry = drives_->superblock().roles[role];
      if (entry.state == RoleState::kActive) {
        drives_->set_drive(role, *member.device, member.name, options_.drive_policy);
      } else {
        drives_->take_role(role, *member.device, member.name, options_.drive_policy, entry.drive,
                           true);
        tell({SetEvent::Kind::kDriveReturned, role,
              fmt::format("drive {} is back in role {}; {} of {} regions are stale", member.name,
                          role, drives_->stale_count(role, false), drives_->region_count())});
      }
    }
    if (replacements[role].device == nullptr) continue;
    drives_->set_replacement(role, *replacements[role].device, replacements[role].name,
                             options_.drive_policy);
  }
}

Task<std::string> ManagedSet::open_journal() {
  const Layout& layout = drives_->layout();
  if (known_.journal_bytes > 0) {
    const JournalRing ring = ring_of(known_, layout, drives_->largest_physical_block());
    if (ring.unit_count() < DriveJournal::kLeastUnits) {
      co_return fmt::format("its journal has {} bytes; at least {}", known_.journal_bytes,
                            DriveJournal::kLeastUnits * ring.unit_bytes);
    }
    journal_ = std::make_unique<DriveJournal>(*drives_, ring, home_);
    co_return std::string();
  }
  if (!needs_journal(known_, layout)) co_return std::string();
  if (options_.nvram != nullptr) co_return co_await open_nvram_journal();
  if (drives_->superblock().clean) co_return std::string();
  co_return note_lost_journal("is not there");
}

Task<std::string> ManagedSet::open_nvram_journal() {
  nvram::Nvram& memory = *options_.nvram;
  const std::string region = journal_region(known_.set_uuid);
  const auto regions = memory.regions();
  const auto there = std::ranges::find(regions, region, &nvram::RegionState::name);
  auto claimed = co_await memory.claim(
      region, there != regions.end() ? there->byte_count : options_.nvram_journal_bytes);
  if (!claimed) {
    // An NVRAM that was closed, or whose power was cut, keeps its content for the next start.
    const Error failure = memory.failure();
    const bool failed = failure != Error::kNone && failure != Error::kClosed;
    if (failed && !memory.power_is_cut()) co_return run_without_journal(describe(failure));
    co_return fmt::format("its journal: {}", claimed.error());
  }
  region_ = std::move(*claimed);
  journal_ = std::make_unique<NvramJournal>(*region_, known_.set_uuid, known_.block_bytes);
  if (drives_->superblock().clean) co_return std::string();
  if (region_->is_new()) co_return note_lost_journal("has been replaced by another");
  const nvram::Loss loss = region_->loss();
  const bool untold = loss != nvram::Loss::kNone && loss != nvram::Loss::kPowerCut;
  co_return untold ? lacks_without_journal("has lost its content") : std::string();
}

// An NVRAM that has failed stays so until it is replaced and the daemon starts again. A set that
// ran when it failed has lost nothing but redundancy of its last updates. Until then it runs as if
// its journal were lost at every crash: the key that it begins belongs to no journal, so the next
// start believes none.
std::string ManagedSet::run_without_journal(std::string_view why) {
  if (!drives_->superblock().clean) {
    if (!drives_have_all_ && !accept_loss_) {
      return fmt::format(
          "its NVRAM has failed ({}) and may hold updates that are not on the drives; restart the "
          "daemon when the NVRAM works again, or start the set without those updates with `sandbay "
          "raid start {} --accept-loss`",
          why, name());
    }
    std::string lacking = note_lost_journal("has failed");
    if (!lacking.empty()) return lacking;
  }
  tell({SetEvent::Kind::kJournalLost, kNoRole,
        fmt::format("its NVRAM has failed ({}): it runs without a journal until the NVRAM is "
                    "replaced and the daemon restarted; after a crash all redundancy is verified",
                    why)});
  return {};
}

// Mirrors that are there are whole, but of one that is away nobody knows where it differs.
std::string ManagedSet::lacks_without_journal(const char* why) {
  const bool parity = !drives_->layout().mirrored();
  if (drives_->absent_roles() == 0 && (!parity || drives_->stale_roles() == 0)) return {};
  if (accept_loss_) {
    tell(
        {SetEvent::Kind::kJournalLost, kNoRole,
         fmt::format("its journal was in an NVRAM that {}, and drives are missing or not whole; an "
                     "operator accepts the loss: blocks that only redundancy could give are medium "
                     "errors until the drives are back or the blocks are rewritten",
                     why)});
    return {};
  }
  return fmt::format(
      "its journal was in an NVRAM that {}, it was not stopped in order, and not all drives are "
      "there and whole: what was on them cannot be told; it starts when all are back, or, without "
      "what was on them, with `sandbay raid start {} --accept-loss`",
      why, name());
}

std::string ManagedSet::note_lost_journal(const char* why) {
  if (const std::string lacking = lacks_without_journal(why); !lacking.empty()) return lacking;
  drives_->all_redundancy_lost();
  tell({SetEvent::Kind::kJournalLost, kNoRole,
        fmt::format("its journal was in an NVRAM that {}: the last writes may be lost; all "
                    "redundancy is verified",
                    why)});
  return {};
}

Task<std::string> ManagedSet::bring_up() {
  set_ = std::make_unique<RaidSet>(home_, *drives_, journal_.get(),
                                   RaidSetOptions{.name = known_.set_name});
  if (journal_ != nullptr && journal_->largest_payload_bytes() < set_->least_journal_payload()) {
    co_return fmt::format("its journal takes updates of {} bytes; so many drives need {}",
                          journal_->largest_payload_bytes(), set_->least_journal_payload());
  }
  // An event of its own first: from here on the version that was found is acted upon, and what the
  // journal forgets must not be needed by another version that fewer drives would speak for. A set
  // with a journal that was stopped in order is still clean until the journal has begun a life.
  const bool clean = drives_->superblock().clean;
  const bool journaled = needs_journal(known_, drives_->layout()) || journal_ != nullptr;
  if (journaled) drives_->begin_journal_life();
  drives_->learn_physical_block();
  if (journal_ != nullptr) {
    journal_->set_keys({.last = drives_->superblock().journal_key,
                        .next = drives_->superblock().next_journal_key});
  }
  Error error = co_await drives_->save_regions();
  if (error == Error::kNone) error = co_await drives_->save_lost();
  if (error == Error::kNone) error = co_await drives_->save_clean(clean && journaled);
  if (error != Error::kNone) {
    co_return fmt::format("its superblocks, or its record in the metadata, cannot be written: {}",
                          describe(error));
  }
  error = co_await set_->replay_journal(clean, accept_loss_);
  if (error == Error::kDataCorrupt && region_ != nullptr) {
    std::string lacking = lacks_without_journal("has lost its content");
    if (!lacking.empty()) co_return lacking;
  }
  if (error == Error::kNoSpace && !set_->no_room_on().empty()) {
    co_return fmt::format(
        "its journal cannot be replayed: there is no room on {}; it starts when "
        "there is",
        set_->no_room_on());
  }
  if (error != Error::kNone) {
    co_return fmt::format(
        "{}: {}",
        journal_ != nullptr ? "its journal cannot be replayed" : "its drives cannot be flushed",
        describe(error));
  }
  if (!journaled) co_return std::string();
  // Nothing is appended before the journal of now is the only one that counts.
  drives_->end_last_journal_life();
  error = co_await drives_->save_clean(false);
  if (error != Error::kNone) {
    co_return fmt::format("its superblocks, or its record in the metadata, cannot be written: {}",
                          describe(error));
  }
  co_return std::string();
}

// What a host was told stays: only what makes it more careful is added later.
void ManagedSet::learn_geometry() {
  const Geometry& now = set_->geometry();
  assert(now.block_bytes == geometry_.block_bytes && now.block_count == geometry_.block_count);
  if (!has_run_) {
    geometry_ = now;
  } else {
    geometry_.volatile_cache |= now.volatile_cache;
  }
}

Task<Error> ManagedSet::record(Event event) {
  if (!recorder_) co_return Error::kNone;
  co_return co_await recorder_(uuid(), event);
}

// ---- going down ---------------------------------------------------------------------------------

Task<void> ManagedSet::stop_maintenance() {
  co_await maintenance_->stop();
  maintenance_stopped_.set();
}

Task<Error> ManagedSet::stop(TimePoint deadline) {
  if (!assembled()) co_return Error::kNone;
  const bool served = std::exchange(serving_, false);
  if (served) refusal_ = fmt::format("set {}: it has been stopped", name());
  if (queries_ != nullptr) {
    const bool ended = co_await queries_->close_until(deadline);
    if (!ended) co_return Error::kTimedOut;
  }
  if (maintenance_ != nullptr) {
    if (!std::exchange(stopping_maintenance_, true)) spawn(stop_maintenance());
    const bool ended = co_await maintenance_stopped_.wait_until(deadline);
    if (!ended) co_return Error::kTimedOut;
  }
  if (set_ != nullptr) {
    const Error closed = co_await set_->close(deadline);
    if (closed == Error::kTimedOut) co_return closed;
    // A journal brings back what a drive lost that it had not flushed, unless its memory failed.
    const bool forgets = region_ != nullptr && region_->nvram().failure() != Error::kNone;
    if (served) drives_have_all_ = drives_->all_answer();
    const bool in_caches = journal_ == nullptr || (forgets && !drives_->all_answer());
    if (closed != Error::kNone && in_caches && geometry_.volatile_cache && set_->unflushed()) {
      unflushed_lost_.merge(unflushed_);
      unflushed_lost_.insert(0);
    }
    unflushed_.clear();
    if (journal_ != nullptr) {
      const bool ended = co_await journal_->close_until(deadline);
      if (!ended) co_return Error::kTimedOut;
    }
    if (served && closed == Error::kNone) {
      co_await drives_->retire_intents(true);
      co_await drives_->save_clean(true);
    }
  }
  const bool idle = co_await drives_->wait_idle_until(deadline);
  if (!idle) co_return Error::kTimedOut;
  for (unsigned turn = 0; turn < kTurnsToSettle; ++turn) co_await home_.yield();
  known_ = drives_->superblock();
  maintenance_.reset();
  stopping_maintenance_ = false;
  maintenance_stopped_.reset();
  set_.reset();
  journal_.reset();
  region_.reset();
  drives_.reset();
  queries_.reset();
  co_return Error::kNone;
}

}  // namespace sandbay::raid
