// How a site judges a command, and how firings come home.
#include "fault/site.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/core.h>

#include "fault/engine.h"
#include "fault/traits.h"
#include "runtime/message.h"

namespace sandbay::fault {

namespace {

// Keys of a site's lists: an operation code that rules name; behind these the operations on
// blocks, for rules that name no code, and what commands do that have none.
constexpr std::size_t kOperationKeys = kOpcodes;
constexpr std::size_t kOtherKey = kOperationKeys + 6;
constexpr std::size_t kKeys = kOtherKey + 1;

std::size_t operation_key(std::uint8_t operation) {
  if (operation == 0) return kOtherKey;
  return kOperationKeys + static_cast<std::size_t>(std::countr_zero(operation));
}

std::vector<std::size_t> keys_of(const PathRule& rule) {
  std::vector<std::size_t> keys;
  if (!rule.rule.opcodes.empty()) return {rule.rule.opcodes.begin(), rule.rule.opcodes.end()};
  for (std::size_t i = 0; i < kOtherKey - kOperationKeys; ++i) {
    const bool named = (rule.rule.operations >> i & 1U) != 0;
    if (named || rule.rule.operations == 0) keys.push_back(kOperationKeys + i);
  }
  if (rule.rule.operations == 0) keys.push_back(kOtherKey);
  return keys;
}

bool has_fit(const Rule& rule, const Occasion& occasion) {
  if (occasion.always_served && rule.opcodes.empty()) return false;
  if (rule.operations != 0 && (rule.operations & occasion.operation) == 0) return false;
  if (rule.lba.has_value() && !rule.lba->overlaps(occasion.extent)) return false;
  if (rule.fua.has_value() && *rule.fua != occasion.force_unit_access) return false;
  return rule.length.contains(occasion.extent.block_count) && rule.depth.contains(occasion.depth) &&
         (rule.initiator.empty() || fits(rule.initiator, occasion.initiator));
}

}  // namespace

// Sites. -----------------------------------------------------------------------------------------

Site::Site(std::shared_ptr<Post> post, Place place)
    : post_(std::move(post)), place_(std::move(place)) {
  link(*post_->rules_);
}

void Site::rename(std::string name) {
  place_.name = std::move(name);
  link(*post_->rules_);
}

void Site::link(const PathRules& rules) {
  const std::vector<PathRules::Pointer> concern = rules.at(place_);
  std::vector<Entry> entries;
  std::vector<std::vector<std::uint32_t>> lists(concern.empty() ? 0 : kKeys);
  auto old = entries_.begin();
  for (const PathRules::Pointer& rule : concern) {
    for (const std::size_t key : keys_of(*rule)) {
      lists[key].push_back(static_cast<std::uint32_t>(entries.size()));
    }
    while (old != entries_.end() && old->shared->number < rule->number) ++old;
    if (old != entries_.end() && old->shared == rule) {
      entries.push_back(std::move(*old++));
    } else {
      const Random stream(rule->seed ^ hash_of(place_text(place_)));
      entries.push_back({.shared = rule, .decisions = stream});
    }
  }
  entries_ = std::move(entries);
  first_.clear();
  listed_.clear();
  for (const std::vector<std::uint32_t>& list : lists) {
    first_.push_back(static_cast<std::uint32_t>(listed_.size()));
    listed_.insert(listed_.end(), list.begin(), list.end());
  }
  first_.push_back(static_cast<std::uint32_t>(listed_.size()));
}

std::span<const std::uint32_t> Site::listed(std::size_t key) const {
  return std::span(listed_).subspan(first_[key], first_[key + 1] - first_[key]);
}

const Rule* Site::judge(const Occasion& occasion, const FaultSet& faults) {
  if (quiet()) return nullptr;
  if (occasion.arrives) ++operations_;
  std::span<const std::uint32_t> named = listed(occasion.opcode);
  std::span<const std::uint32_t> others = listed(operation_key(occasion.operation));
  while (!named.empty() || !others.empty()) {
    const bool first = others.empty() || (!named.empty() && named.front() < others.front());
    std::span<const std::uint32_t>& from = first ? named : others;
    Entry& entry = entries_[from.front()];
    from = from.subspan(1);
    const Rule& rule = entry.shared->rule;
    if (!faults.has(rule.fault) || !has_fit(rule, occasion) || !strikes(entry, occasion)) continue;
    if (rule.fault != Fault::kNothing) return &rule;
  }
  return nullptr;
}

bool Site::decides(Entry& entry) const {
  const Rule& rule = entry.shared->rule;
  ++entry.seen;
  if (entry.shared->limit > 0 && entry.fired >= entry.shared->limit) return false;
  if (!rule.matches.empty()) return std::ranges::binary_search(rule.matches, entry.seen);
  if (entry.seen <= rule.after || (entry.seen - rule.after - 1) % rule.every != 0) return false;
  return rule.probability >= 1 || entry.decisions.chance(rule.probability);
}

bool Site::strikes(Entry& entry, const Occasion& occasion) {
  PathRule& shared = *entry.shared;
  const TimePoint now = post_->here().now();
  if (!shared.acts.load(std::memory_order_relaxed) || now < shared.from || now >= shared.until) {
    return false;
  }
  const auto count = [](std::atomic<std::uint64_t>& counter) {
    counter.fetch_add(1, std::memory_order_relaxed);
  };
  count(shared.matched);
  const std::uint32_t ended = shared.ended.load(std::memory_order_relaxed);
  const bool lasts = entry.active_until > now && entry.ended == ended;
  if (!lasts) {
    if (!decides(entry)) return false;
    ++entry.fired;
    count(shared.fired);
    entry.active_until = now + shared.rule.duration;
    entry.ended = ended;
  }
  count(shared.struck);
  post_->report({.firing = {.rule = shared.rule.id,
                            .fault = shared.rule.fault,
                            .time = now,
                            .target = "lun " + place_.name,
                            .operation = operations_,
                            .extent = occasion.extent,
                            .effect = fmt::format("{} from {}", occasion.name, occasion.initiator)},
                 .number = shared.number,
                 .match = entry.seen,
                 .begins = !lasts,
                 .site = place_.name});
  return true;
}

// Posts. -----------------------------------------------------------------------------------------

struct Post::Batch : Message {
  std::shared_ptr<Post> post;
  std::vector<Fired> fired;
  std::uint64_t unrecorded = 0;
};

Post::Post(Executor& here, Executor& home, FaultEngine& engine,
           std::shared_ptr<const PathRules> rules)
    : here_(here), home_(home), engine_(&engine), rules_(std::move(rules)) {}

std::shared_ptr<Site> Post::make_site(Place place) {
  auto site = std::make_shared<Site>(shared_from_this(), std::move(place));
  if (sites_.size() >= forget_at_) {
    forget_sites();
    forget_at_ = std::max<std::size_t>(64, 2 * sites_.size());
  }
  sites_.push_back(site);
  return site;
}

void Post::forget_sites() {
  std::erase_if(sites_, [](const std::weak_ptr<Site>& site) { return site.expired(); });
}

Task<void> Post::adopt(std::shared_ptr<const PathRules> rules) {
  constexpr std::size_t kComparisonsPerTurn = 10'000;
  const std::shared_ptr<Post> keep = shared_from_this();
  rules_ = std::move(rules);
  forget_sites();
  outdated_ = sites_;
  std::size_t compared = 0;
  while (!outdated_.empty()) {
    const std::shared_ptr<Site> site = outdated_.back().lock();
    outdated_.pop_back();
    if (site == nullptr) continue;
    site->link(*rules_);
    compared += 1 + rules_->pattern_count() + site->entries_.size();
    if (compared < kComparisonsPerTurn) continue;
    compared = 0;
    co_await here_.yield();
  }
}

Task<void> Post::settle() {
  while (!outdated_.empty()) co_await here_.yield();
}

void Post::report(Fired fired) {
  if (waiting_.size() == kMostWaiting) {
    ++unrecorded_;
    return;
  }
  waiting_.push_back(std::move(fired));
  if (!under_way_) send_home();
}

// The batch comes back to be freed here, and for what has fired meanwhile.
void Post::send_home() {
  under_way_ = true;
  auto* const batch = new Batch;
  batch->post = shared_from_this();
  batch->fired = std::exchange(waiting_, {});
  batch->unrecorded = std::exchange(unrecorded_, 0);
  batch->run = [](Message& message) {
    auto& arrived = static_cast<Batch&>(message);
    Post& post = *arrived.post;
    if (post.engine_ != nullptr) post.engine_->fired_at_sites(arrived.fired, arrived.unrecorded);
    arrived.run = [](Message& returned) {
      const std::unique_ptr<Batch> own(static_cast<Batch*>(&returned));
      Post& sender = *own->post;
      sender.under_way_ = false;
      if (!sender.waiting_.empty()) sender.send_home();
    };
    post.here_.send(arrived);
  };
  home_.send(*batch);
}

}  // namespace sandbay::fault
