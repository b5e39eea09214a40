// MapLog: the start. What was logged since the checkpoint, in NVRAM and in the store, is put in
// order by its numbers and replayed. Numbers are consecutive; a gap is a loss.
//
// The checkpoint names the NVRAM that may have more than it has. If that NVRAM is not here, is new,
// or has lost records that were acknowledged, changes of the map are lost: of pages that were
// given to volumes, and of what was in them. Nothing is opened then but by an explicit word, and
// what is found in an NVRAM that does not count never counts again.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include <fmt/core.h>

#include "pool/map_log.h"
#include "pool/sealed.h"
#include "runtime/byte_order.h"

namespace sandbay::pool {

namespace {

constexpr std::size_t kListGroups = 256;

Uuid uuid_of(const nvram::Nvram& nvram) {
  Uuid uuid{};
  static_assert(sizeof(Uuid) == sizeof nvram.uuid());
  std::memcpy(uuid.data(), nvram.uuid().data(), uuid.size());
  return uuid;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string unwritten(Error error) {
  return fmt::format("the map cannot be written: {}", describe(error));
}

}  // namespace

Task<std::string> MapLog::open() {
  std::vector<RecordGroup> groups;
  const std::string loss = read_nvram(&groups);
  if (!loss.empty()) {
    if (!options_.accept_loss) co_return loss;
    lost_ = true;
  }
  std::string wrong = co_await read_store(&groups);
  if (!wrong.empty()) co_return wrong;
  std::erase_if(groups,
                [this](const RecordGroup& group) { return group.sequence <= map_.sequence(); });
  std::ranges::sort(groups, {}, &RecordGroup::sequence);
  sequence_ = std::max(sequence_, map_.sequence());
  if (!groups.empty()) sequence_ = std::max(sequence_, groups.back().sequence);
  wrong = co_await replay(std::move(groups));
  if (!wrong.empty()) co_return wrong;
  map_.skip(sequence_);
  map_.bound_old_branches();
  co_return co_await start();
}

std::string MapLog::read_nvram(std::vector<RecordGroup>* groups) {
  const Uuid& expected = map_.checkpoint().log;
  const bool expects = expected != Uuid{};
  if (log_ == nullptr) {
    return expects ? fmt::format("{}in an NVRAM that is not here", kLoss) : std::string();
  }
  const nvram::Recovery recovery = log_->recover();
  for (const nvram::Record& record : recovery.records) {
    nvram_groups_.push_back({.id = record.id});
    // Nothing new gets the number of what does not count: that would be replayed over it if the
    // daemon were killed before it is released.
    if (record.descriptor.size() != sizeof sequence_) continue;
    sequence_ = std::max(sequence_, little_endian<std::uint64_t>(record.descriptor, 0));
  }
  if (!expects) return {};
  if (uuid_of(region_->nvram()) != expected || region_->is_new()) {
    return fmt::format("{}in another NVRAM than the one that is here", kLoss);
  }
  if (recovery.region_loss != nvram::Loss::kNone) {
    return fmt::format("{}lost with the NVRAM: {}", kLoss, nvram::describe(recovery.region_loss));
  }
  if (recovery.control_lost) return fmt::format("{}lost: the NVRAM's log is damaged", kLoss);
  for (const nvram::LostRecord& lost : recovery.lost) {
    const bool old = lost.described && lost.descriptor.size() == sizeof(std::uint64_t) &&
                     little_endian<std::uint64_t>(lost.descriptor, 0) <= map_.sequence();
    if (lost.acknowledged && !old) {
      return fmt::format("{}lost: a record of the NVRAM's log is damaged", kLoss);
    }
  }
  for (const nvram::Record& record : recovery.records) {
    auto group = unpack_group(text_of(record.payload));
    if (!group.has_value()) {
      return fmt::format("{}lost: the NVRAM's log has {}", kLoss, group.error());
    }
    groups->push_back(std::move(*group));
  }
  return {};
}

Task<std::string> MapLog::read_store(std::vector<RecordGroup>* groups) {
  std::string after;
  while (true) {
    const auto entries = co_await store_.list(map_.key('l'), after, kListGroups);
    if (!entries.has_value()) {
      co_return fmt::format("the map's log cannot be read: {}", describe(entries.error()));
    }
    for (const auto& [key, value] : *entries) {
      const auto whole = unsealed(key, value);
      if (!whole.has_value()) co_return "the map's log has a group whose checksum is wrong";
      auto group = unpack_group(*whole);
      if (!group.has_value()) co_return fmt::format("the map's log has {}", group.error());
      if (key != map_.group_key(group->sequence)) {
        co_return "the map's log has a group under another's number";
      }
      store_groups_.push_back(group->sequence);
      groups->push_back(std::move(*group));
    }
    if (entries->size() < kListGroups) co_return std::string();
    after = entries->back().first;
  }
}

Task<std::string> MapLog::replay(std::vector<RecordGroup> groups) {
  for (RecordGroup& group : groups) {
    if (group.sequence != map_.sequence() + 1) {
      // Whatever came after it stood on it.
      if (options_.accept_loss) {
        lost_ = true;
        co_return std::string();
      }
      co_return fmt::format("{}lost: number {} is missing", kLoss, map_.sequence() + 1);
    }
    std::string wrong = co_await map_.replay(std::move(group));
    if (!wrong.empty()) co_return wrong;
  }
  co_return std::string();
}

// The first checkpoint: from now on only what is newer counts, in the NVRAM that it names. All that
// was found goes: it is in the checkpoint, or of no use.
Task<std::string> MapLog::start() {
  Error error = Error::kNone;
  // It names no NVRAM before the log is accepted: what was lost with another must not come back.
  if (lost_ && log_ != nullptr) {
    // Before the NVRAM forgets the loss: until this is written, the next start finds it again.
    std::vector<NvramGroup> found = std::exchange(nvram_groups_, {});
    error = co_await checkpoint();
    nvram_groups_ = std::move(found);
    if (error != Error::kNone) co_return unwritten(error);
  }
  if (log_ != nullptr) {
    error = co_await log_->accept();
    if (error == Error::kNone && !region_->settled()) error = co_await region_->settle();
    if (error != Error::kNone) {
      co_return fmt::format("the NVRAM's log cannot be opened: {}", describe(error));
    }
    log_uuid_ = uuid_of(region_->nvram());
    // What is in there when the battery fails belongs into the store at once.
    battery_.emplace(region_->nvram().battery(), [this](nvram::BatteryState) {
      if (is_due()) start_checkpoint();
    });
  }
  error = co_await checkpoint();
  if (error != Error::kNone) co_return unwritten(error);
  if (log_ != nullptr && gate_.enter()) spawn(tend());
  co_return std::string();
}

}  // namespace sandbay::pool
