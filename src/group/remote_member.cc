// Sets of a member elsewhere, and the claim to it, which is made anew again and again.
#include "group/remote_member.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <charconv>

#include "group/set_exports.h"

namespace sandbay::group {

namespace {

// A backup of the state directory that is older than that does harm to nobody.
constexpr Duration kRenewInterval = std::chrono::seconds(10);
// Whether one is back to which a claim is due.
constexpr Duration kRenewAgainAfter = std::chrono::seconds(1);
constexpr std::size_t kMostKnown = 256;

std::string key_of(const std::string& member) { return "remote/" + member + "/"; }

// "BYTES LEVEL NAME"
std::string encode(const MemberSet& set) {
  return fmt::format("{} {} {}", set.byte_count, describe(set.level), set.name);
}

std::optional<MemberSet> decode(std::string_view text) {
  MemberSet set;
  const std::size_t first = text.find(' ');
  const std::size_t second = text.find(' ', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return std::nullopt;
  const char* const end = text.data() + first;
  const auto [last, error] = std::from_chars(text.data(), end, set.byte_count);
  const auto level = raid::parse_level(text.substr(first + 1, second - first - 1));
  if (error != std::errc() || last != end || !level) return std::nullopt;
  set.level = *level;
  set.name = std::string(text.substr(second + 1));
  return set;
}

}  // namespace

RemoteMember::RemoteMember(Executor& home, RemoteMemberConfiguration configuration,
                           metadata::Store& store, EventLog& events, Uuid group, Uuid lead,
                           std::set<std::string> claimed)
    : Member(configuration.name),
      home_(home),
      configuration_(std::move(configuration)),
      store_(store),
      events_(events),
      ledger_(store,
              {.name = configuration_.name,
               .target = configuration_.target,
               .claimed = std::move(claimed)},
              group, lead),
      target_(options_of(configuration_, group, ledger_)) {}

RemoteMember::~RemoteMember() { assert(gate_.count() == 0); }

iscsi::RemoteTargetOptions RemoteMember::options_of(const RemoteMemberConfiguration& configuration,
                                                    const Uuid& group, LeadLedger& ledger) {
  iscsi::RemoteTargetOptions options{
      .name = "member " + configuration.name, .claim = &ledger, .patience = configuration.patience};
  options.session.endpoint = configuration.endpoint;
  options.session.target_name = configuration.target;
  options.session.initiator_name = "iqn.2026-11.org.sandbay:" + format_uuid(group);
  options.session.initiator_alias = "lead of a group";
  options.session.connections = configuration.connections;
  if (configuration.chap) {
    options.session.chap = {{configuration.chap->user, configuration.chap->secret}};
  }
  if (configuration.mutual_chap) {
    options.session.mutual_chap = {
        {configuration.mutual_chap->user, configuration.mutual_chap->secret}};
  }
  // The same for all runs: each ends what the one before has left (RFC 7143 section 6.3.5). Type
  // "random", section 11.12.5.
  for (std::size_t i = 0; i < options.session.isid.bytes.size(); ++i) {
    options.session.isid.bytes[i] = static_cast<std::byte>(group[i]);
  }
  options.session.isid.bytes[0] = std::byte{0x80};
  return options;
}

Task<std::string> RemoteMember::start(fault::FaultEngine* engine) {
  engine_ = engine;
  if (engine != nullptr) {
    link_faults_ = std::make_unique<ConnectionFaults>(*engine);
    target_.set_interferences(link_faults_.get());
  }
  const std::string wrong = co_await load();
  if (!wrong.empty()) co_return wrong;
  target_.on_event([this](bool warning, std::string text) {
    events_.add({.severity = warning ? Severity::kWarning : Severity::kInformation,
                 .kind = "member",
                 .text = std::move(text)});
  });
  target_.on_change([this] {
    learn();
    make_breakable();
    wake_.notify_all();
    if (sets_changed_) sets_changed_();
  });
  target_.start();
  const bool entered = gate_.enter();
  assert(entered);
  spawn(work());
  co_return std::string();
}

Task<void> RemoteMember::arrive(TimePoint deadline) {
  bool waiting = true;
  while (waiting && !target_.up()) waiting = co_await wake_.wait_until(deadline);
}

Task<void> RemoteMember::stop() {
  stopping_ = true;
  wake_.notify_all();
  co_await gate_.close();
  target_.on_change(nullptr);
  co_await target_.stop();
  for (auto& [set, layer] : faults_) {
    co_await layer->drain();
    if (!layer->idle()) (void)layer.release();  // For the process to end with.
  }
  faults_.clear();
}

// What was seen ----------------------------------------------------------------------------------

Task<std::string> RemoteMember::load() {
  std::string wrong = co_await ledger_.load();
  if (wrong.empty()) wrong = co_await load_known(name());
  if (wrong.empty() && !ledger_.former_name().empty()) {
    wrong = co_await load_known(ledger_.former_name());
  }
  co_return wrong;
}

// Sets that were seen under that name, which may be a former one: then they are stored anew.
Task<std::string> RemoteMember::load_known(std::string name) {
  const bool former = name != this->name();
  const std::string prefix = key_of(name);
  const auto stored = co_await store_.list(prefix, {}, kMostKnown);
  if (!stored.has_value()) {
    co_return fmt::format("the metadata cannot be read: {}", describe(stored.error()));
  }
  for (const auto& [key, value] : *stored) {
    const auto uuid = parse_uuid(std::string_view(key).substr(prefix.size()));
    auto set = decode(value);
    if (!uuid || !set) co_return fmt::format("metadata {}: not a record of a set", key);
    set->uuid = *uuid;
    if (former && set->name.starts_with(name + "/")) {
      set->name = this->name() + set->name.substr(name.size());
    }
    known_.try_emplace(*uuid, Known{.set = std::move(*set), .stored = !former});
  }
  co_return std::string();
}

// The member says only as much of a name as SCSI has room for: two sets may have the same.
std::string RemoteMember::free_name(const Uuid& set, std::string wanted) const {
  const bool taken = std::ranges::any_of(known_, [&](const auto& other) {
    return other.first != set && other.second.set.name == wanted;
  });
  constexpr std::size_t kEnough = 8;
  return taken ? wanted + "-" + format_uuid(set).substr(0, kEnough) : wanted;
}

void RemoteMember::learn() {
  for (const auto& unit : target_.units()) {
    const iscsi::RemoteUnitFacts& facts = unit->facts();
    const auto uuid = parse_hex16(facts.serial);
    if (!uuid) continue;
    MemberSet set{.uuid = *uuid,
                  .name = free_name(*uuid, name() + "/" + facts.product),
                  .level = level_in(facts.revision),
                  .byte_count = facts.geometry.block_count * facts.geometry.block_bytes};
    Known& known = known_[*uuid];
    const bool same = known.set.name == set.name && known.set.level == set.level &&
                      known.set.byte_count == set.byte_count;
    known.stored = known.stored && same;
    known.set = std::move(set);
  }
}

Task<void> RemoteMember::keep_known() {
  metadata::Batch batch;
  std::vector<Uuid> kept;
  for (const auto& [uuid, known] : known_) {
    if (known.stored) continue;
    batch.put(key_of(name()) + format_uuid(uuid), encode(known.set));
    const std::string& former = ledger_.former_name();
    if (!former.empty()) batch.erase(key_of(former) + format_uuid(uuid));
    kept.push_back(uuid);
  }
  if (kept.empty()) co_return;
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return;  // Again the next time.
  for (const Uuid& uuid : kept) known_[uuid].stored = true;
}

Task<void> RemoteMember::work() {
  const GateHold hold(gate_);
  TimePoint renew = home_.now() + kRenewInterval;
  while (!stopping_) {
    co_await wake_.wait_until(renew);
    if (stopping_) break;
    co_await keep_known();
    if (home_.now() < renew) continue;
    if (!target_.up()) {
      renew = home_.now() + kRenewAgainAfter;
      continue;
    }
    const Error error = co_await target_.renew_claim();
    renew = home_.now() + kRenewInterval;
    const bool news = error == Error::kPermission && !outdone_;
    outdone_ = error == Error::kPermission || (outdone_ && error != Error::kNone);
    if (!news) continue;
    events_.add({.severity = Severity::kError,
                 .kind = "member",
                 .text = fmt::format("member {}: does not take this lead's word any more: another "
                                     "one has taken it over",
                                     name())});
  }
}

void RemoteMember::note_use(const Uuid& set, metadata::Batch& batch) {
  const auto found = known_.find(set);
  if (found != known_.end()) {
    batch.put(key_of(name()) + format_uuid(set), encode(found->second.set));
  }
}

void RemoteMember::make_breakable() {
  if (engine_ == nullptr) return;
  for (const auto& unit : target_.units()) {
    const auto uuid = parse_hex16(unit->facts().serial);
    if (!uuid || faults_.contains(*uuid)) continue;
    faults_[*uuid] = std::make_unique<fault::FaultLayer>(
        *unit, *engine_, fault::FaultLayerOptions{.name = name_of(*uuid), .member = name()});
  }
}

// Sets --------------------------------------------------------------------------------------------

std::string RemoteMember::absence() const {
  const bool away = !faults_.empty() && std::ranges::none_of(faults_, [](const auto& each) {
    return each.second->present();
  });
  return away ? "a fault rule keeps it away" : target_.reason();
}

std::string RemoteMember::place() const { return configuration_.endpoint.to_string(); }

iscsi::RemoteUnit* RemoteMember::unit_of(const Uuid& set) const {
  const auto found = std::ranges::find_if(target_.units(), [&](const auto& unit) {
    return parse_hex16(unit->facts().serial) == std::optional(set);
  });
  return found == target_.units().end() ? nullptr : found->get();
}

BlockDevice* RemoteMember::serving(const Uuid& set) const {
  iscsi::RemoteUnit* const unit = unit_of(set);
  if (unit == nullptr || unit->health() != Health::kGood) return nullptr;
  const auto faults = faults_.find(set);
  if (faults == faults_.end()) return unit;
  return faults->second->present() ? faults->second.get() : nullptr;
}

std::string RemoteMember::refusal(const Uuid& set) const {
  if (serving(set) != nullptr) return {};
  if (!absence().empty()) return absence();
  const auto faults = faults_.find(set);
  if (faults != faults_.end() && !faults->second->present()) {
    return "a fault rule keeps its member away";
  }
  const iscsi::RemoteUnit* const unit = unit_of(set);
  return unit == nullptr ? "the member does not show it" : unit->reason();
}

std::vector<MemberSet> RemoteMember::sets() const {
  std::vector<MemberSet> list;
  for (const auto& [uuid, known] : known_) {
    MemberSet set = known.set;
    set.reason = refusal(uuid);
    set.health = set.reason.empty() ? Health::kGood : Health::kMissing;
    list.push_back(std::move(set));
  }
  return list;
}

std::string RemoteMember::name_of(const Uuid& set) const {
  const auto found = known_.find(set);
  return found == known_.end() ? std::string() : found->second.set.name;
}

std::optional<Uuid> RemoteMember::find_set(const std::string& name) const {
  const auto found =
      std::ranges::find_if(known_, [&](const auto& each) { return each.second.set.name == name; });
  if (found == known_.end()) return std::nullopt;
  return found->first;
}

}  // namespace sandbay::group
