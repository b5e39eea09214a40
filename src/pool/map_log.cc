// MapLog: one group on its way at a time; checkpoints beside it.
#include "pool/map_log.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <span>
#include <utility>

#include "pool/sealed.h"
#include "runtime/byte_order.h"

namespace sandbay::pool {

namespace {

constexpr Duration kBetweenLooks = std::chrono::seconds(1);

void append_changes(metadata::Batch& batch, const metadata::Batch& more) {
  for (const metadata::Batch::Change& change : more.changes()) {
    switch (change.kind) {
      case metadata::Batch::Kind::kPut:
        batch.put(change.key, change.value);
        break;
      case metadata::Batch::Kind::kErase:
        batch.erase(change.key);
        break;
      case metadata::Batch::Kind::kErasePrefix:
        batch.erase_prefix(change.key);
        break;
    }
  }
}

}  // namespace

MapLog::MapLog(Executor& home, PoolMap& map, metadata::Store& store, nvram::Region* region,
               MapLogOptions options)
    : home_(home), map_(map), store_(store), region_(region), options_(options) {
  if (region_ == nullptr) return;
  assert(region_->bytes().size() >= kLeastRegionBytes);
  log_ = std::make_unique<nvram::RecordLog>(*region_, nvram::RecordLogOptions{});
}

MapLog::~MapLog() { assert(!writing_ && !checkpointing_); }

Task<Error> MapLog::commit(std::vector<MapRecord> records) {
  return commit(std::move(records), metadata::Batch());
}

Task<Error> MapLog::commit(std::vector<MapRecord> records, metadata::Batch extra) {
  if (!gate_.enter()) co_return Error::kClosed;
  const GateHold hold(gate_);
  Commit commit{.records = std::move(records), .extra = std::move(extra)};
  commit.takes_places = std::ranges::any_of(
      commit.records, [this](const MapRecord& record) { return map_.takes_place(record); });
  waiting_.push_back(&commit);
  while (!commit.done) {
    if (!may_log(commit)) {
      const Error error = co_await stamps_->settle();
      if (error == Error::kNone || commit.done) continue;
      std::erase(waiting_, &commit);
      co_return error;
    }
    if (writing_) {
      co_await changed_.wait();
    } else {
      co_await write_group();
    }
  }
  co_return commit.error;
}

Task<void> MapLog::write_group() {
  assert(!writing_);
  writing_ = true;
  // Whoever else has something in this turn comes along.
  co_await home_.turn_end();
  RecordGroup group;
  metadata::Batch extra;
  std::vector<Commit*> taken;
  for (auto at = waiting_.begin();
       at != waiting_.end() && group.records.size() < kMostGroupRecords;) {
    Commit& commit = **at;
    if (!may_log(commit)) {
      ++at;
      continue;
    }
    std::ranges::move(commit.records, std::back_inserter(group.records));
    append_changes(extra, commit.extra);
    taken.push_back(&commit);
    at = waiting_.erase(at);
  }
  const Error error = co_await log_group(&group, std::move(extra));
  if (error == Error::kNone) {
    map_.apply(group);
    counters_.commits += taken.size();
  } else {
    ++counters_.failed_groups;
  }
  for (Commit* const commit : taken) {
    commit->done = true;
    commit->error = error;
  }
  writing_ = false;
  changed_.notify_all();
  if (is_due()) start_checkpoint();
}

Task<Error> MapLog::log_group(RecordGroup* group, metadata::Batch extra) {
  const Error sure = co_await make_sure();
  if (sure != Error::kNone) co_return sure;
  group->sequence = sequence_ + 1;
  const std::string text = pack(*group);
  // The store's values have a greatest length; a change that needs more is taken apart by its
  // maker.
  assert(text.size() + kSealBytes <= metadata::kLongestValue);
  Error error = Error::kNone;
  const bool in_nvram = extra.empty() && text.size() <= kMostNvramBytes && nvram_trusted() &&
                        naming_ == Naming::kNamed;
  if (in_nvram) {
    appending_ = true;
    if (log_->free_bytes() < text.size() + kNvramSpare) error = co_await checkpoint();
    const Error room = error;
    if (room == Error::kNone) error = co_await log_in_nvram(&text, group->sequence);
    appending_ = false;
    if (room != Error::kNone) co_return room;
  } else {
    std::string key = map_.group_key(group->sequence);
    std::string stored = sealed(key, text);
    extra.put(std::move(key), std::move(stored));
    error = co_await store_.commit(std::move(extra));
    if (error == Error::kNone) {
      store_groups_.push_back(group->sequence);
      ++counters_.store_groups;
    }
  }
  sequence_ = group->sequence;
  if (error != Error::kNone) {
    failure_ = error;
    for (const MapRecord& record : group->records) {
      const BranchId branch = map_.takes_from(record);
      if (branch != 0) endangered_.insert(branch);
    }
    nvram_failed_ = nvram_failed_ || in_nvram;
    map_.skip(sequence_);
    map_.begin_doubt();
  }
  co_return error;
}

Task<Error> MapLog::log_in_nvram(const std::string* text, std::uint64_t sequence) {
  std::array<std::byte, sizeof sequence> descriptor{};
  put_little_endian(std::span(descriptor), 0, sequence);
  // The log only reads it.
  const IoSlice payload{.data = reinterpret_cast<std::byte*>(const_cast<char*>(text->data())),
                        .byte_count = text->size()};
  const auto id = co_await log_->append(descriptor, {&payload, 1});
  if (!id.has_value()) co_return id.error();
  nvram_groups_.push_back({.sequence = sequence, .id = *id});
  ++counters_.nvram_groups;
  co_return Error::kNone;
}

bool MapLog::nvram_trusted() const noexcept {
  return log_ != nullptr && !options_.only_replay_nvram && !nvram_failed_ &&
         region_->nvram().non_volatile();
}

// A group that failed is not replayed once a checkpoint has its number.
Task<Error> MapLog::make_sure() {
  if (failure_ == Error::kNone) co_return Error::kNone;
  const Error error = co_await checkpoint();
  if (error != Error::kNone) co_return error;
  failure_ = Error::kNone;
  endangered_.clear();
  map_.end_doubt();
  co_return Error::kNone;
}

bool MapLog::is_due() const noexcept {
  if (!is_secure()) return true;
  if (failure_ != Error::kNone) return false;
  if (store_groups_.size() >= options_.store_groups) return true;
  if (map_.changed_count() >= options_.changed_parts) return true;
  // The NVRAM is trusted again.
  if (nvram_trusted() && naming_ != Naming::kNamed) return true;
  if (log_ == nullptr || nvram_groups_.empty()) return false;
  return log_->used_bytes() * 100 >= log_->capacity_bytes() * options_.nvram_percent;
}

void MapLog::start_checkpoint() {
  if (checkpointing_ || !gate_.enter()) return;
  checkpointing_ = true;
  spawn(run_checkpoint());
}

// The NVRAM may have failed or a checkpoint too, and on an idle pool no change comes by that begins
// another.
Task<void> MapLog::tend() {
  const GateHold hold(gate_);
  while (true) {
    const bool stopped = co_await stop_.wait_until(home_.now() + kBetweenLooks);
    if (stopped) co_return;
    const bool idle = std::exchange(looked_at_, sequence_) == sequence_;
    if (is_due() || (idle && !nvram_groups_.empty())) start_checkpoint();
  }
}

Task<void> MapLog::run_checkpoint() {
  const GateHold hold(gate_);
  co_await checkpoint();
  checkpointing_ = false;
}

Task<Error> MapLog::checkpoint() {
  co_await checkpoint_turn_.lock();
  const Error error = co_await write_checkpoint();
  checkpoint_turn_.unlock();
  co_return error;
}

// One checkpoint is enough for all callers that wait for their turn. While a group is on its way to
// the NVRAM, every checkpoint names that.
Task<Error> MapLog::secure() {
  Error error = Error::kNone;
  while (error == Error::kNone && !is_secure()) {
    if (appending_) {
      co_await changed_.wait();
      continue;
    }
    const std::uint64_t before = attempts_;
    co_await checkpoint_turn_.lock();
    // One that failed since this call began speaks for it, too.
    if (failed_attempt_ > before) error = attempt_error_;
    if (error == Error::kNone && !is_secure()) error = co_await write_checkpoint();
    checkpoint_turn_.unlock();
  }
  co_return error;
}

Task<Error> MapLog::hold() {
  if (!gate_.enter()) co_return Error::kClosed;
  while (writing_) co_await changed_.wait();
  writing_ = true;
  const Error error = co_await checkpoint();
  if (error != Error::kNone) release();
  co_return error;
}

void MapLog::release() {
  assert(writing_);
  // Until now another change may have drawn a stamp that is listed.
  if (stamps_ != nullptr) stamps_->begin_era();
  writing_ = false;
  changed_.notify_all();
  gate_.leave();
}

Task<Error> MapLog::write_checkpoint() {
  const std::uint64_t sequence = map_.sequence();
  const std::uint64_t attempt = ++attempts_;
  // A group that is on its way to the NVRAM will count only if the checkpoint names that.
  const bool named = log_uuid_ != Uuid{} && (nvram_trusted() || appending_);
  const Naming naming = named ? Naming::kNamed : Naming::kNone;
  if (naming != naming_) naming_ = Naming::kUnsure;
  map_.set_log(named ? log_uuid_ : Uuid{});
  metadata::Batch batch = map_.changes();
  for (const std::uint64_t group : store_groups_) {
    if (group <= sequence) batch.erase(map_.group_key(group));
  }
  const Error error = co_await store_.commit(std::move(batch));
  ++(error == Error::kNone ? counters_.checkpoints : counters_.failed_checkpoints);
  if (error != Error::kNone) {
    failed_attempt_ = attempt;
    attempt_error_ = error;
    co_return error;
  }
  naming_ = naming;
  map_.changes_stored(sequence);
  std::erase_if(store_groups_, [sequence](std::uint64_t group) { return group <= sequence; });
  for (const NvramGroup& group : nvram_groups_) {
    if (group.sequence <= sequence) log_->release(group.id);
  }
  std::erase_if(nvram_groups_,
                [sequence](const NvramGroup& group) { return group.sequence <= sequence; });
  co_return Error::kNone;
}

Task<Error> MapLog::close() {
  battery_.reset();
  stop_.set();
  co_await gate_.close();
  // Nothing of the map is anywhere but in the store.
  log_uuid_ = {};
  const Error error = co_await checkpoint();
  if (log_ != nullptr) co_await log_->close();
  co_return error;
}

Task<void> MapLog::stop() {
  battery_.reset();
  stop_.set();
  co_await gate_.close();
  if (log_ != nullptr) co_await log_->close();
}

}  // namespace sandbay::pool
