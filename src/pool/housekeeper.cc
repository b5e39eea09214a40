// Housekeeper: rounds, each with a small step of everything that is due.
#include "pool/housekeeper.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sandbay::pool {

namespace {

// Of one step, so that everything has its turn soon.
constexpr std::uint32_t kStepPages = 4;
constexpr std::uint32_t kSweepPages = 64;
constexpr std::uint32_t kTrimPages = 16;

}  // namespace

Housekeeper::Housekeeper(Pool& pool, HousekeepingOptions options)
    : pool_(pool), options_(options), balance_(pool, options.balance) {}

Housekeeper::~Housekeeper() { assert(gate_.count() == 0); }

void Housekeeper::start() {
  const bool entered = gate_.enter();
  assert(entered);
  spawn(run());
}

Task<bool> Housekeeper::stop(TimePoint deadline) {
  stop_.set();
  // Nobody waits for a pace any more, nor for what a slow store takes for many pages.
  pool_.set_pace(0);
  pool_.hurry();
  co_return co_await gate_.close_until(deadline);
}

Error Housekeeper::fill(BranchId branch) {
  if (pool_.map().find(branch) == nullptr) return Error::kNotFound;
  fills_[branch].progress.begun = pool_.home().now();
  return Error::kNone;
}

Task<void> Housekeeper::run() {
  const GateHold hold(gate_);
  while (!stop_.is_set()) {
    choose_pace();
    pool_.weigh_by_latency();
    balance_.cool(pool_.home().now());
    const bool more = co_await round();
    if (stop_.is_set()) break;
    if (more) {
      co_await pool_.home().yield();
    } else {
      co_await stop_.wait_until(pool_.home().now() + options_.pause);
    }
  }
}

void Housekeeper::choose_pace() {
  if (stop_.is_set()) return;
  const bool busy = std::exchange(host_requests_, pool_.host_requests()) != pool_.host_requests();
  pool_.set_pace(busy ? options_.busy_bytes_per_second : options_.idle_bytes_per_second);
}

// Whether something was done, so that another round comes at once.
Task<bool> Housekeeper::round() {
  using Step = Task<bool> (Housekeeper::*)();
  static constexpr Step kSteps[] = {&Housekeeper::vacate,    &Housekeeper::sweep,
                                    &Housekeeper::fill_some, &Housekeeper::flatten,
                                    &Housekeeper::balance,   &Housekeeper::trim};
  bool any = false;
  for (const Step step : kSteps) {
    if (stop_.is_set()) co_return false;
    const bool did = co_await (this->*step)();
    any = any || did;
  }
  co_return any;
}

Housekeeper::Progress& Housekeeper::began(std::optional<Progress>& progress) const {
  if (!progress.has_value()) progress = Progress{.begun = pool_.home().now()};
  return *progress;
}

// Vacating ----------------------------------------------------------------------------------------

Task<bool> Housekeeper::vacate() {
  std::vector<StoreIndex> due;
  for (const auto& [index, store] : pool_.map().stores()) {
    if (store.record.state == StoreState::kVacating) due.push_back(index);
  }
  std::erase_if(vacating_, [&due](const auto& entry) {
    return std::ranges::find(due, entry.first) == due.end();
  });
  bool any = false;
  for (const StoreIndex store : due) {
    const bool did = co_await vacate_one(store);
    any = any || did;
  }
  co_return any;
}

Task<bool> Housekeeper::vacate_one(StoreIndex store) {
  const auto owned = [this, store] {
    const PoolSpace space = pool_.space(store);
    return space.pages - space.free_pages;
  };
  const std::uint64_t before = owned();
  const bool begins = !vacating_.contains(store);
  // Told already, and nothing has come back since.
  if (!begins && vacating_.at(store).left == 0 && before == 0) co_return false;
  if (begins) vacating_[store] = {.begun = pool_.home().now(), .left = before};
  const auto more = co_await pool_.vacate(store, kStepPages);
  if (stop_.is_set()) co_return false;
  const auto known = pool_.map().stores().find(store);
  if (known == pool_.map().stores().end() || known->second.record.state != StoreState::kVacating) {
    // It has gone meanwhile, or is to stay: there is nothing to tell.
    vacating_.erase(store);
    co_return false;
  }
  Progress& progress = vacating_[store];
  const std::uint64_t after = owned();
  progress.left = after;
  if (before > after) progress.done += before - after;
  if (!more.has_value()) {
    // kNotReady: the store is away, or somebody else is moving a page of the branch just now.
    const bool passes = more.error() == Error::kNotReady && pool_.device(store) != nullptr;
    const bool news = progress.stuck != more.error() && !passes;
    progress.stuck = more.error();
    if (news) {
      pool_.tell({.kind = PoolEvent::Kind::kVacateStuck, .store = store, .error = more.error()});
    }
    co_return false;
  }
  if (before > after) progress.stuck = Error::kNone;
  if (after == 0) pool_.tell({.kind = PoolEvent::Kind::kVacated, .store = store});
  co_return *more || after > 0;
}

// The others --------------------------------------------------------------------------------------

Task<bool> Housekeeper::sweep() {
  if (!pool_.needs_sweep()) {
    sweeping_.reset();
    co_return false;
  }
  began(sweeping_);
  const std::uint64_t freed = pool_.counters().pages_freed;
  const auto more = co_await pool_.sweep(kSweepPages);
  Progress& progress = began(sweeping_);
  progress.done += pool_.counters().pages_freed - freed;
  progress.stuck = more.has_value() ? Error::kNone : more.error();
  co_return more.has_value() && *more;
}

// One after the other: one that cannot go on holds up no other.
Task<bool> Housekeeper::fill_some() {
  for (std::size_t tries = fills_.size(); tries > 0 && !stop_.is_set(); --tries) {
    const bool did = co_await fill_next();
    if (did) co_return true;
  }
  co_return false;
}

Task<bool> Housekeeper::fill_next() {
  if (fills_.empty()) co_return false;
  auto turn = fills_.upper_bound(filled_);
  if (turn == fills_.end()) turn = fills_.begin();
  const BranchId branch = filled_ = turn->first;
  PageNumber next = turn->second.next;
  const auto more = co_await pool_.make_independent(branch, &next, kStepPages);
  if (stop_.is_set()) co_return false;
  // The owner may have changed his mind meanwhile.
  const auto found = fills_.find(branch);
  if (found == fills_.end()) co_return true;
  Progress& progress = found->second.progress;
  progress.done += next - found->second.next;
  found->second.next = next;
  if (!more.has_value()) {
    // The pool has told that the copy waits for pages.
    const bool waits = more.error() == Error::kNoSpace && pool_.pages_awaited(branch) > 0;
    const bool news = progress.stuck != more.error() && !waits;
    progress.stuck = more.error();
    if (news) {
      pool_.tell({.kind = PoolEvent::Kind::kFillFailed, .branch = branch, .error = more.error()});
    }
    // It was removed; nothing is left to do.
    if (more.error() == Error::kNotFound) fills_.erase(found);
    co_return false;
  }
  progress.stuck = Error::kNone;
  if (!*more) {
    fills_.erase(found);
    pool_.tell({.kind = PoolEvent::Kind::kFilled, .branch = branch});
  }
  co_return true;
}

Task<bool> Housekeeper::flatten() {
  const auto more = co_await pool_.flatten(options_.most_parents, kStepPages, &flattened_);
  if (!more.has_value()) {
    began(flattening_).stuck = more.error();
    co_return false;
  }
  if (*more) {
    Progress& progress = began(flattening_);
    progress.done += kStepPages;
    progress.stuck = Error::kNone;
  } else {
    flattening_.reset();
  }
  co_return *more;
}

Task<bool> Housekeeper::balance() {
  if (!options_.balances) co_return false;
  const std::optional<Balance::Move> move = balance_.next();
  if (!move.has_value()) {
    balancing_.reset();
    co_return false;
  }
  began(balancing_);
  const Error error = co_await pool_.move_page(move->branch, move->page, move->target);
  Progress& progress = began(balancing_);
  progress.left = balance_.pages_left();
  progress.stuck = error;
  if (error == Error::kNone) ++progress.done;
  if (error != Error::kNone) balance_.pass_over(*move);
  // A page that is not there any more is no reason to rest.
  co_return error == Error::kNone || error == Error::kNotFound;
}

Task<bool> Housekeeper::trim() {
  if (!options_.trims || !pool_.needs_trim()) {
    trimming_.reset();
    co_return false;
  }
  began(trimming_);
  const std::uint64_t trimmed = pool_.counters().pages_trimmed;
  const bool more = co_await pool_.trim(kTrimPages);
  began(trimming_).done += pool_.counters().pages_trimmed - trimmed;
  co_return more;
}

// Views -------------------------------------------------------------------------------------------

HousekeepingView Housekeeper::view(HousekeepingView::Kind kind, const Progress& progress) const {
  HousekeepingView view{.kind = kind,
                        .done_pages = progress.done,
                        .left_pages = progress.left,
                        .stuck = progress.stuck};
  if (progress.done > 0 && progress.left > 0) {
    const Duration spent = pool_.home().now() - progress.begun;
    const double times = static_cast<double>(progress.left) / static_cast<double>(progress.done);
    view.time_left =
        Duration(static_cast<Duration::rep>(static_cast<double>(spent.count()) * times));
  }
  return view;
}

HousekeepingView Housekeeper::view_of_copy(HousekeepingView::Kind kind, BranchId id,
                                           const Progress& progress) const {
  HousekeepingView view = this->view(kind, progress);
  view.branch = id;
  const Branch* const branch = pool_.map().find(id);
  if (branch == nullptr || progress.stuck != Error::kNoSpace) return view;
  view.needed_pages = pool_.pages_awaited(id);
  view.room_pages = pool_.room_for_copies(branch->record.fixed_store);
  return view;
}

std::vector<HousekeepingView> Housekeeper::views() const {
  using Kind = HousekeepingView::Kind;
  std::vector<HousekeepingView> views;
  for (const auto& [store, progress] : vacating_) {
    views.push_back(view(Kind::kVacate, progress));
    views.back().store = store;
  }
  for (const auto& [id, fill] : fills_) {
    Progress progress = fill.progress;
    const Branch* const branch = pool_.map().find(id);
    const std::uint64_t pages = branch != nullptr ? pool_.map().page_count_of(*branch) : 0;
    progress.left = pages > fill.next ? pages - fill.next : 0;
    views.push_back(view_of_copy(Kind::kFill, id, progress));
  }
  if (sweeping_.has_value()) views.push_back(view(Kind::kSweep, *sweeping_));
  if (flattening_.has_value()) {
    views.push_back(view_of_copy(Kind::kFlatten, flattened_, *flattening_));
  }
  if (balancing_.has_value()) views.push_back(view(Kind::kBalance, *balancing_));
  if (trimming_.has_value()) views.push_back(view(Kind::kTrim, *trimming_));
  return views;
}

}  // namespace sandbay::pool
