// Sets as logical units.
#include "group/set_exports.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <set>

#include "group/naa.h"

namespace sandbay::group {

namespace {

constexpr std::string_view kPrefix = "export/";
constexpr std::size_t kMostSets = 256;
constexpr std::size_t kProductBytes = 16;
constexpr Duration kLookAtExports = std::chrono::seconds(1);
constexpr std::string_view kRaid = "raid";
constexpr std::size_t kRevisionBytes = 4;

}  // namespace

std::string revision_of(raid::Level level) {
  std::string_view name = raid::describe(level);
  if (name.starts_with(kRaid)) name.remove_prefix(kRaid.size());
  return std::string(name.substr(0, kRevisionBytes));
}

raid::Level level_in(std::string_view revision) {
  for (unsigned value = 0; value < 256; ++value) {
    const auto level = static_cast<raid::Level>(value);
    if (raid::parse_level(raid::describe(level)) != std::optional(level)) continue;
    if (revision_of(level) == revision) return level;
  }
  return raid::Level::kJbod;
}

SetExports::SetExports(Executor& home, Hardware& hardware, metadata::Store& store, EventLog& events)
    : home_(home), hardware_(hardware), store_(store), events_(events), fence_(store, events) {}

SetExports::~SetExports() { assert(units_.empty() && gate_.count() == 0); }

Task<SetExports::Outcome> SetExports::start(iscsi::TargetServer* server, LeadConfiguration lead,
                                            std::vector<std::uint16_t> target_ports) {
  target_ports_ = std::move(target_ports);
  router_ = std::make_unique<scsi::TaskRouter>(home_.peers());
  const auto loaded = co_await fence_.load(lead.forget);
  if (!loaded) co_return std::unexpected(loaded.error());
  const std::string wrong = co_await load();
  if (!wrong.empty()) co_return std::unexpected(wrong);
  co_await show_all();
  const std::string run = format_uuid(make_uuid(home_.random()));
  iscsi::TargetOptions options{.name = lead.target,
                               .device = router_.get(),
                               .access = lead.access,
                               .mutual_chap = lead.mutual_chap,
                               .keys = {{std::string(iscsi::kLeadKey), run}},
                               .maximum_sessions = 1,
                               .fence = &fence_};
  std::string message;
  const Error error = co_await server->add_target(std::move(options), &message);
  if (error != Error::kNone) {
    co_return std::unexpected(
        fmt::format("target {}: {}", lead.target, message.empty() ? describe(error) : message));
  }
  const bool entered = gate_.enter();
  assert(entered);
  spawn(watch());
  co_return Outcome{};
}

Task<bool> SetExports::stop(TimePoint deadline) {
  stopping_ = true;
  wake_.notify_all();
  co_await gate_.close();
  bool quiet = true;
  if (router_ != nullptr) {
    for (const auto& [set, shown] : units_) co_await router_->remove(shown.lun);
    co_await router_->close();
  }
  for (auto& [set, shown] : units_) {
    const bool closed = co_await invoke_on(shown.unit->home(), shown.unit->close(deadline));
    quiet = quiet && closed;
    if (!closed) (void)shown.unit.release();  // Something is still in the set.
  }
  units_.clear();
  router_.reset();
  co_return quiet;
}

// LUNs --------------------------------------------------------------------------------------------

Task<std::string> SetExports::load() {
  const auto stored = co_await store_.list(std::string(kPrefix), {}, kMostSets);
  if (!stored.has_value()) {
    co_return fmt::format("the metadata cannot be read: {}", describe(stored.error()));
  }
  for (const auto& [key, value] : *stored) {
    const auto uuid = parse_uuid(std::string_view(key).substr(kPrefix.size()));
    std::uint32_t lun = 0;
    const auto [last, error] = std::from_chars(value.data(), value.data() + value.size(), lun);
    const bool sound = error == std::errc() && last == value.data() + value.size();
    if (!uuid || !sound || lun > kMostSets) co_return fmt::format("metadata {}: not a LUN", key);
    luns_[*uuid] = lun;
  }
  co_return std::string();
}

// With its LUN the set is all the lead's: nothing of it is known to be blank any more.
Task<bool> SetExports::give_lun(Uuid set) {
  if (luns_.contains(set)) co_return true;
  std::set<std::uint32_t> taken;
  for (const auto& [other, lun] : luns_) taken.insert(lun);
  std::uint32_t lun = 0;
  while (taken.contains(lun)) ++lun;
  Door* const door = hardware_.door(set);
  if (lun >= kMostSets || door == nullptr) co_return false;
  metadata::Batch batch;
  batch.put(std::string(kPrefix) + format_uuid(set), std::to_string(lun));
  hardware_.raise_used_end(set, door->geometry().block_count, batch);
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return false;
  luns_[set] = lun;
  co_return true;
}

Task<void> SetExports::show_all() {
  const std::vector<SetInfo> sets = hardware_.show_sets();
  for (const SetInfo& set : sets) co_await show(set);
}

Task<void> SetExports::show(SetInfo set) {
  const Uuid uuid = set.raid.uuid;
  Door* const door = hardware_.serving(uuid);
  if (door == nullptr || units_.contains(uuid)) co_return;
  const bool has_lun = co_await give_lun(uuid);
  if (!has_lun || stopping_) co_return;
  scsi::LogicalUnitOptions options{.product = set.raid.name.substr(0, kProductBytes),
                                   .revision = revision_of(set.raid.level),
                                   .uuid = uuid,
                                   .naa = naa_of(uuid),
                                   .target_ports = target_ports_};
  Unit shown{.lun = luns_[uuid],
             .unit = std::make_unique<scsi::LogicalUnit>(*door, std::move(options))};
  const Error error = co_await router_->add(shown.lun, shown.unit.get());
  assert(error == Error::kNone);
  events_.add(
      {.kind = "lead",
       .set = set.raid.name,
       .text = fmt::format("set {} is shown to the lead as LUN {}", set.raid.name, shown.lun)});
  units_.emplace(uuid, std::move(shown));
}

Task<void> SetExports::watch() {
  const GateHold hold(gate_);
  while (!stopping_) {
    co_await wake_.wait_until(home_.now() + kLookAtExports);
    if (!stopping_) co_await show_all();
  }
}

}  // namespace sandbay::group
