// The life of an operation in a drive that breaks: refused, held back, performed; and what the
// engine changes about the drive. What happens to data: fault_layer_data.cc.
#include "fault/fault_layer.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "fault/fault_layer_state.h"

namespace sandbay::fault {

namespace {

constexpr std::uint64_t kMostGrownDefects = 65536;
constexpr Duration kPatience = std::chrono::seconds(5);

std::size_t index_of(Fault fault) { return static_cast<std::size_t>(fault); }

}  // namespace

FaultLayer::FaultLayer(BlockDevice& below, FaultEngine& engine, FaultLayerOptions options)
    : Layer(below),
      engine_(engine),
      options_(std::move(options)),
      target_(&below),
      told_health_(below.health()),
      damage_(below.geometry().block_bytes) {
  assert(!options_.name.empty());
  engine_.attach(*this);
}

FaultLayer::~FaultLayer() {
  assert(parked_.empty() && depth_ == 0);
  engine_.detach(*this);
}

// What it shows. ---------------------------------------------------------------------------------

const Geometry& FaultLayer::geometry() const noexcept {
  const Geometry& real = target_->geometry();
  if (!involved_) return real;
  shown_geometry_ = real;
  if (lasts(Fault::kReadOnly)) shown_geometry_.read_only = true;
  const RulePointer changed = lasting_rule(Fault::kWrongId);
  if (changed == nullptr) return shown_geometry_;
  const Rule& rule = changed->rule;
  if (rule.block_bytes != 0) {
    shown_geometry_.block_bytes = static_cast<std::uint32_t>(rule.block_bytes);
    shown_geometry_.physical_block_bytes =
        std::max(shown_geometry_.physical_block_bytes, shown_geometry_.block_bytes);
    shown_geometry_.block_count = real.block_count * real.block_bytes / rule.block_bytes;
  }
  if (rule.block_count != 0) shown_geometry_.block_count = rule.block_count;
  return shown_geometry_;
}

Health FaultLayer::health() const noexcept {
  if (away()) return Health::kMissing;
  if (dead()) return Health::kFailed;
  const Health below_says = target_->health();
  if (below_says == Health::kFailed || below_says == Health::kMissing) return below_says;
  if (lasts(Fault::kSmart) || wearing_out_) return Health::kPredictedFailure;
  return below_says;
}

std::string FaultLayer::target_name() const {
  if (options_.member.empty()) return "drive " + options_.name;
  return "member " + options_.member + ", set " + options_.name;
}

DriveStatus FaultLayer::status() const {
  DriveStatus status{.serial = options_.serial,
                     .unreadable_blocks = damage_.unreadable_blocks(),
                     .recovered_errors = recovered_};
  const RulePointer changed = lasting_rule(Fault::kWrongId);
  if (changed != nullptr && !changed->rule.serial.empty()) status.serial = changed->rule.serial;
  const RulePointer smart = lasting_rule(Fault::kSmart);
  if (smart != nullptr) {
    status.wear_percent = smart->rule.wear.value_or(status.wear_percent);
    status.temperature_celsius = smart->rule.temperature.value_or(status.temperature_celsius);
  }
  return status;
}

Task<Result<ProvisioningRun>> FaultLayer::provisioning(Lba first, Lba limit) {
  if (!involved_) return target_->provisioning(first, limit);
  return provisioning_involved(first, limit);
}

Task<Result<ProvisioningRun>> FaultLayer::provisioning_involved(Lba first, Lba limit) {
  const Error refused = refusal(Operation::kRead);
  if (refused != Error::kNone) co_return std::unexpected(refused);
  if (take_attention()) co_return std::unexpected(Error::kNotReady);
  const Geometry& real = target_->geometry();
  if (limit > real.block_count || geometry().block_bytes != real.block_bytes) {
    co_return ProvisioningRun{.block_count = limit - first, .mapped = true};
  }
  const std::uint64_t power_cycle = power_cycle_;
  const Result<ProvisioningRun> run = co_await target_->provisioning(first, limit);
  // As an operation that was in the drive.
  const Error gone = refusal(Operation::kRead);
  if (gone != Error::kNone) co_return std::unexpected(gone);
  if (power_cycle != power_cycle_ || take_attention()) co_return std::unexpected(Error::kNotReady);
  co_return run;
}

Task<void> FaultLayer::drain() { co_await gate_.drain(); }

// The life of an operation. ----------------------------------------------------------------------

Task<Completion> FaultLayer::submit(Request request) {
  ++operations_;
  if (!involved_) [[likely]] {
    return target_->submit(std::move(request));
  }
  return submit_involved(std::move(request), operations_);
}

Task<Completion> FaultLayer::submit_involved(Request request, std::uint64_t operation) {
  ++depth_;
  const std::uint64_t power_cycle = power_cycle_;
  Cancellation* const cancellation = request.cancellation;
  const Operation kind = request.operation;
  grow_defects();
  Strikes strikes;
  if (!away() && !dead()) strikes = engine_.judge(*this, request, operation);

  Completion completion =
      co_await perform(std::move(request), std::move(strikes), operation, power_cycle);
  // What was done may still not be told while nothing completes.
  while (lasts(Fault::kStall) && completion.error != Error::kCancelled) {
    count_struck(Fault::kStall);
    const Error waited = co_await park(lasting_rule(Fault::kStall), cancellation, kNever);
    if (waited != Error::kNone) completion.error = waited;
  }
  if (lasts(Fault::kMemberPartition) && completion.error != Error::kCancelled) {
    const Error waited = co_await wait_out_partition(cancellation);
    if (waited != Error::kNone) completion.error = waited;
  }
  const Error refused = refusal(kind);
  const bool gone = refused == Error::kNotReady || refused == Error::kHardware;
  if (completion.error == Error::kNone && gone) completion.error = refused;
  if (completion.error == Error::kNone && power_cycle != power_cycle_) {
    completion.error = Error::kNotReady;
  }
  --depth_;
  co_return completion;
}

Task<Completion> FaultLayer::perform(Request request, Strikes strikes, std::uint64_t operation,
                                     std::uint64_t power_cycle) {
  Error error = refusal(request.operation);
  const bool advises = request.operation == Operation::kAdvise;
  if (error == Error::kNone && !advises && take_attention()) error = Error::kNotReady;
  if (error == Error::kNone) error = co_await delay(request, strikes, operation);
  // The power may have gone with this very operation, or the drive died while it waited; a command
  // that hung ends with it.
  const bool power_lost = power_cycle != power_cycle_;
  const Error refused = power_lost ? Error::kNotReady : refusal(request.operation);
  if (refused != Error::kNone && error != Error::kCancelled) error = refused;
  if (refused != Error::kNone && error == refused) count_refusal();
  if (error == Error::kNone) error = adapt(request);
  if (error != Error::kNone) {
    co_return Completion{.error = error, .data = std::move(request.data)};
  }
  switch (request.operation) {
    case Operation::kRead:
      co_return co_await struck_read(std::move(request), std::move(strikes), operation);
    case Operation::kWrite:
      co_return co_await struck_write(std::move(request), std::move(strikes), operation);
    case Operation::kUnmap:
    case Operation::kWriteZeroes:
      co_return co_await struck_zero(std::move(request), std::move(strikes), operation);
    case Operation::kFlush:
      strike_at_rest(strikes, {}, operation);
      co_return co_await struck_flush(std::move(request));
    case Operation::kAdvise:
      strike_at_rest(strikes, request.extent, operation);
      co_return co_await target_->submit(std::move(request));
  }
  assert(false && "unknown operation");
  __builtin_unreachable();
}

bool FaultLayer::take_attention() {
  if (!std::exchange(attention_, false)) return false;
  update();
  return true;
}

Error FaultLayer::refusal(Operation operation) const {
  if (away()) return Error::kNotReady;
  if (dead()) return Error::kHardware;
  const bool writes = operation == Operation::kWrite || operation == Operation::kWriteZeroes;
  if (writes || operation == Operation::kUnmap) {
    if (lasts(Fault::kReadOnly)) return Error::kReadOnly;
  }
  if (writes && lasts(Fault::kFull)) return Error::kNoSpace;
  return Error::kNone;
}

Error FaultLayer::adapt(Request& request) const {
  if (!lasts(Fault::kWrongId) && !replaced_) return Error::kNone;
  const Geometry& real = target_->geometry();
  const Geometry& shown = geometry();
  if (request.extent.first > shown.block_count ||
      request.extent.block_count > shown.block_count - request.extent.first) {
    return Error::kOutOfRange;
  }
  if (shown.block_bytes != real.block_bytes) {
    const std::uint64_t first = request.extent.first * shown.block_bytes;
    const std::uint64_t bytes = request.extent.block_count * shown.block_bytes;
    if (first % real.block_bytes != 0 || bytes % real.block_bytes != 0) return Error::kInvalid;
    request.extent = {.first = first / real.block_bytes, .block_count = bytes / real.block_bytes};
  }
  if (fits(real, request)) return Error::kNone;
  return request.extent.end() > real.block_count ? Error::kOutOfRange : Error::kInvalid;
}

Task<Error> FaultLayer::delay(Request& request, Strikes strikes, std::uint64_t operation) {
  const Extent extent = request.extent;
  while (lasts(Fault::kStall)) {
    count_struck(Fault::kStall);
    const Error waited = co_await park(lasting_rule(Fault::kStall), request.cancellation, kNever);
    if (waited != Error::kNone) co_return waited;
  }
  const Error apart = co_await wait_out_partition(request.cancellation);
  if (apart != Error::kNone) co_return apart;
  for (const RulePointer& rule : strikes) {
    const Fault fault = rule->rule.fault;
    const bool slow = fault == Fault::kSlow || fault == Fault::kMemberSlow;
    if (rule->ended || (!slow && fault != Fault::kHold && fault != Fault::kHang)) continue;
    TimePoint until = kNever;
    std::string effect;
    if (slow) {
      until = end_at_pace(rule, request.data.byte_count());
      const auto late = std::chrono::duration_cast<std::chrono::microseconds>(until - home().now());
      effect = std::to_string(late.count()) + " us";
    }
    record(rule, operation, extent, std::move(effect));
    const Error waited = co_await park(rule, request.cancellation, until);
    if (waited != Error::kNone) co_return waited;
    if (fault == Fault::kHang) co_return Error::kTimedOut;
  }
  co_return Error::kNone;
}

// Whoever is elsewhere says nothing; then it is taken for lost, and whoever waits is told.
Task<Error> FaultLayer::wait_out_partition(Cancellation* cancellation) {
  Error waited = Error::kNone;
  while (waited == Error::kNone && lasts(Fault::kMemberPartition) &&
         home().now() < patience_ends_) {
    count_struck(Fault::kMemberPartition);
    waited = co_await park(lasting_rule(Fault::kMemberPartition), cancellation, patience_ends_);
  }
  if (waited == Error::kNone && away()) update();
  co_return waited;
}

Task<Error> FaultLayer::park(RulePointer rule, Cancellation* cancellation, TimePoint until) {
  if (cancellation != nullptr && cancellation->cancelled()) co_return Error::kCancelled;
  Parked parked(cancellation, std::move(rule));
  parked_.push_back(&parked);
  if (until == kNever) {
    co_await parked.let_go.wait();
  } else {
    co_await parked.let_go.wait_until(until);
  }
  std::erase(parked_, &parked);
  co_return parked.cancelled ? Error::kCancelled : Error::kNone;
}

// Lanes work at the same time; the bytes of all of them pass one after another.
TimePoint FaultLayer::end_at_pace(const RulePointer& rule, std::uint64_t byte_count) {
  auto found = std::ranges::find_if(paces_, [&](const auto& pace) { return pace->rule == rule; });
  if (found == paces_.end()) {
    paces_.push_back(std::make_unique<Pace>(Pace{.rule = rule}));
    paces_.back()->lanes.resize(rule->rule.lanes);
    found = std::prev(paces_.end());
  }
  Pace& pace = **found;
  const Duration service = draw(rule->rule.latency, rule->random);
  TimePoint end = home().now();
  auto lane = std::ranges::min_element(pace.lanes);
  if (lane != pace.lanes.end()) end = std::max(end, *lane);
  end += service;
  if (rule->rule.bandwidth > 0) {
    const double seconds =
        static_cast<double>(byte_count) / static_cast<double>(rule->rule.bandwidth);
    end = std::max(end, pace.pipe) + Duration(static_cast<Duration::rep>(seconds * 1e9));
    pace.pipe = end;
  }
  if (lane != pace.lanes.end()) *lane = end;
  return end;
}

Task<Completion> FaultLayer::struck_flush(Request request) {
  if (!lasts(Fault::kNoFlush)) co_return co_await target_->submit(std::move(request));
  count_struck(Fault::kNoFlush);
  co_return Completion{.data = std::move(request.data)};
}

// What the engine changes. -----------------------------------------------------------------------

void FaultLayer::set_rules(std::vector<RulePointer> rules,
                           const std::vector<RulePointer>& watching) {
  rules_ = std::move(rules);
  std::erase_if(watches_, [&](const auto& watch) {
    return std::ranges::find(watching, watch->rule) == watching.end();
  });
  for (const RulePointer& rule : watching) {
    const bool there =
        std::ranges::any_of(watches_, [&](const auto& watch) { return watch->rule == rule; });
    if (there) continue;
    const bool all = rule->rule.fault == Fault::kMemberReturnStale;
    const Extent whole{.first = 0, .block_count = target_->geometry().block_count};
    watches_.push_back(std::make_unique<Watch>(
        Watch{.rule = rule, .region = all ? whole : rule->rule.lba.value_or(Extent{})}));
  }
  update();
}

void FaultLayer::begin(const RulePointer& rule) {
  const Fault fault = rule->rule.fault;
  ++lasting_[index_of(fault)];
  lasting_rules_.push_back(rule);
  if (fault == Fault::kReorder) options_.power->set_reordering(true);
  if (fault == Fault::kWrongId) attention_ = true;
  if (fault == Fault::kMemberPartition) {
    const Duration patience = rule->rule.patience;
    patience_ends_ = home().now() + (patience > Duration::zero() ? patience : kPatience);
  }
  if (fault == Fault::kLseGrowing) {
    growths_.push_back(std::make_unique<Growth>(Growth{.rule = rule, .started = home().now()}));
  }
  // What waits in a drive that goes away does not wait any longer.
  if (away() || dead()) unpark(nullptr, nullptr);
  update();
}

void FaultLayer::finish(ActiveRule& rule, bool forget) {
  grow_defects();
  const bool was_away = away();
  const auto is_rule = [&](const auto& entry) { return entry->rule.get() == &rule; };
  const auto found = std::ranges::find_if(
      lasting_rules_, [&](const RulePointer& lasting) { return lasting.get() == &rule; });
  if (found != lasting_rules_.end()) {
    const Fault fault = rule.rule.fault;
    if (fault == Fault::kMemberReturnStale) return_to_earlier(*found, 0);
    lasting_rules_.erase(found);
    assert(lasting_[index_of(fault)] > 0);
    --lasting_[index_of(fault)];
    if (fault == Fault::kReorder && !lasts(fault)) options_.power->set_reordering(false);
    if (fault == Fault::kWrongId) attention_ = true;
    if (fault == Fault::kLseGrowing) std::erase_if(growths_, is_rule);
    // All at once, in any order.
    if (fault == Fault::kStall || fault == Fault::kMemberPartition) unpark(&rule, &rule.random);
  }
  // A member's drives had power all the time, and nobody could have changed them.
  if (was_away && !away() && options_.member.empty()) attention_ = true;
  if (forget) {
    std::erase_if(paces_, is_rule);
    std::erase_if(watches_, is_rule);
  }
  update();
}

void FaultLayer::insert_drive(BlockDevice* content) {
  if (content != nullptr) {
    assert(&content->home() == &home());
    target_ = content;
    replaced_ = true;
    damage_ = Damage(content->geometry().block_bytes);
    for (const auto& watch : watches_) watch->saved.clear();
    wearing_out_ = false;
  }
  update();
}

void FaultLayer::power_lost() {
  ++power_cycle_;
  unpark(nullptr, nullptr);
}

void FaultLayer::heal() {
  damage_.heal();
  wearing_out_ = false;
  update();
}

std::size_t FaultLayer::held_by(const ActiveRule& rule) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      parked_, [&](const Parked* parked) { return parked->rule.get() == &rule; }));
}

std::size_t FaultLayer::release_held(ActiveRule& rule) {
  const std::size_t held = held_by(rule);
  if (held > 0) unpark(&rule, nullptr);
  return held;
}

void FaultLayer::unpark(const ActiveRule* rule, Random* shuffle) {
  std::vector<Parked*> freed;
  for (Parked* parked : parked_) {
    if (rule == nullptr || parked->rule.get() == rule) freed.push_back(parked);
  }
  if (shuffle != nullptr) {
    for (std::size_t i = freed.size(); i > 1; --i)
      std::swap(freed[i - 1], freed[shuffle->below(i)]);
  }
  for (Parked* parked : freed) parked->let_go.set();
}

FaultLayer::RulePointer FaultLayer::lasting_rule(Fault fault) const {
  if (!lasts(fault)) return nullptr;
  const auto found = std::ranges::find_if(
      lasting_rules_, [&](const RulePointer& rule) { return rule->rule.fault == fault; });
  assert(found != lasting_rules_.end());
  return *found;
}

void FaultLayer::count_struck(Fault fault) {
  const RulePointer rule = lasting_rule(fault);
  if (rule != nullptr) ++rule->counters.struck;
}

void FaultLayer::count_refusal() {
  for (const Fault fault : {Fault::kPull, Fault::kShelfLoss, Fault::kMemberLoss,
                            Fault::kMemberReturnStale, Fault::kMemberPartition, Fault::kFail,
                            Fault::kFailTransient, Fault::kReadOnly, Fault::kFull}) {
    if (lasts(fault)) return count_struck(fault);
  }
}

void FaultLayer::grow_defects() {
  for (const auto& growth : growths_) {
    const Rule& rule = growth->rule->rule;
    Random& random = growth->rule->random;
    const Extent region = area(rule, {});
    const double seconds = std::chrono::duration<double>(home().now() - growth->started).count();
    const double due_now = std::min(seconds * rule.rate, double{kMostGrownDefects});
    const auto due = static_cast<std::uint64_t>(due_now);
    std::uint64_t grown = 0;
    for (; growth->produced < due; ++growth->produced) {
      Lba lba = region.first + random.below(region.block_count);
      // Three of four are near the last one.
      const std::optional<Lba> last = growth->neighbour;
      if (last.has_value() && random.below(4) != 0) {
        const std::uint64_t offset = *last - region.first + random.below(rule.cluster);
        lba = region.first + offset % region.block_count;
      }
      if (!damage_.mark_unreadable({.first = lba, .block_count = 1})) break;
      growth->neighbour = lba;
      ++grown;
    }
    if (grown == 0) continue;
    record(growth->rule, 0, region, std::to_string(grown) + " more blocks unreadable");
    if (rule.threshold > 0 && damage_.unreadable_blocks() >= rule.threshold) wearing_out_ = true;
    update();
  }
}

void FaultLayer::update() {
  involved_ = replaced_ || attention_ || !rules_.empty() || !lasting_rules_.empty() ||
              !damage_.none() || !watches_.empty();
  const Health now = health();
  if (now == told_health_) return;
  told_health_ = now;
  if (engine_.options_.on_health) engine_.options_.on_health(options_.name, now);
}

}  // namespace sandbay::fault
