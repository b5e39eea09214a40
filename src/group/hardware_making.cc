// Making sets that are declared and not there, of blank drives only: whatever stands on a drive is
// somebody's data.
//
// Every UUID of the new set and of its drives is drawn and kept in an intent before anything is
// written. What a failure or a crash leaves behind is therefore known by these UUIDs, and nothing
// else is erased: another disk may have come under a drive's name since.
#include <fmt/core.h>

#include <algorithm>
#include <cassert>

#include "group/hardware.h"
#include "group/units.h"
#include "raid/metadata_image.h"
#include "raid/superblock.h"

namespace sandbay::group {

namespace {

// Of a drive that is to be part of a set: superblocks, maps, and where its journal begins.
constexpr std::uint64_t kSetBookkeepingBytes = std::uint64_t{2} << 20;
constexpr std::size_t kReadBytes = std::size_t{128} << 10;
constexpr std::size_t kUuidOffset = 32;  // In the frame of an image; see raid/metadata_image.h.

// Where on a drive an image begins whose frame says whose it is.
struct Slot {
  std::uint64_t offset;
  std::size_t byte_count;
  bool of_drive;  // It bears the UUID of the drive, not of the set.
};

constexpr Slot kSlots[] = {
    {raid::kSuperblockOffset[0], raid::kSuperblockBytes, true},
    {raid::kSuperblockOffset[1], raid::kSuperblockBytes, true},
    {raid::kRegionMapOffset[0], raid::kRegionMapBytes, false},
    {raid::kRegionMapOffset[1], raid::kRegionMapBytes, false},
    {raid::kLostSectorsOffset[0], raid::kLostSectorsBytes, false},
    {raid::kLostSectorsOffset[1], raid::kLostSectorsBytes, false},
};

Task<Result<std::vector<std::byte>>> read_head(BlockDevice* drive) {
  const Geometry& geometry = drive->geometry();
  std::vector<std::byte> head(raid::kJournalOffset);
  if (geometry.block_count < head.size() / geometry.block_bytes) {
    co_return std::unexpected(Error::kOutOfRange);
  }
  for (std::size_t at = 0; at < head.size(); at += kReadBytes) {
    Request request{.operation = Operation::kRead,
                    .extent = {.first = at / geometry.block_bytes,
                               .block_count = kReadBytes / geometry.block_bytes}};
    request.data = co_await drive->home().buffers().allocate(kReadBytes);
    const Completion done = co_await drive->submit(std::move(request));
    if (done.error != Error::kNone) co_return std::unexpected(done.error);
    done.data.copy_to(std::span(head).subspan(at, kReadBytes));
  }
  co_return head;
}

// Whether something of that set was written here, and nothing else stands beside it.
bool is_remainder(std::vector<std::byte> head, const MakingRecord& making) {
  bool ours = false;
  for (const Slot& slot : kSlots) {
    const auto image = std::span(head).subspan(slot.offset, slot.byte_count);
    const Uuid uuid = raid::get_uuid(image, kUuidOffset);
    if (raid::is_zero(uuid)) continue;
    const bool planned =
        slot.of_drive ? std::ranges::find(making.drive_uuids, uuid) != making.drive_uuids.end()
                      : uuid == making.set;
    if (!planned) return false;
    ours = true;
    std::ranges::fill(image, std::byte{0});
  }
  return ours && raid::all_zeros(head);
}

// Zeros where a set keeps its books, durably.
Task<Error> erase_books(BlockDevice* drive) {
  const std::uint32_t block_bytes = drive->geometry().block_bytes;
  Request request{.operation = Operation::kWriteZeroes, .force_unit_access = true};
  request.extent.block_count =
      std::min(drive->geometry().block_count, kSetBookkeepingBytes / block_bytes);
  const Completion erased = co_await drive->submit(std::move(request));
  if (erased.error != Error::kNone) co_return erased.error;
  const Completion flushed = co_await drive->submit(Request{.operation = Operation::kFlush});
  co_return flushed.error;
}

}  // namespace

// Nobody has used such a set: its volumes come after it.
Task<Hardware::Outcome> Hardware::erase_unfinished() {
  for (const auto& [set, making] : std::map(unfinished_)) {
    const Outcome erased = co_await erase_remains(set, making);
    if (!erased) co_return erased;
  }
  unfinished_.clear();
  co_return Outcome{};
}

// The intent goes, too: a drive that cannot be erased now is shown as what it is.
Task<Hardware::Outcome> Hardware::erase_remains(std::string set, MakingRecord making) {
  for (const std::string& name : making.drives) {
    const DriveBay* const found = bay(name);
    if (found == nullptr || found->device() == nullptr) continue;
    auto head = co_await read_head(found->device());
    if (!head || !is_remainder(std::move(*head), making)) continue;
    const Error error = co_await erase_books(found->device());
    events_.add(
        {.severity = error == Error::kNone ? Severity::kInformation : Severity::kError,
         .kind = "drive erased",
         .set = set,
         .drive = name,
         .text = fmt::format("drive {}: the making of set {} was cut short; it {}", name, set,
                             error == Error::kNone
                                 ? "is blank again"
                                 : fmt::format("cannot be erased: {}", describe(error)))});
  }
  metadata::Batch batch;
  batch.erase(making_key(set));
  if (!raid::is_zero(making.set)) batch.erase(set_key(making.set));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(not_written(error));
  records_.erase(making.set);
  co_return Outcome{};
}

Task<Hardware::Outcome> Hardware::make_sets() {
  for (const SetConfiguration& wanted : configuration_.hardware.sets) {
    if (controller_->find(wanted.name) != nullptr) continue;
    if (find_set(wanted.name)) {
      not_made_[wanted.name] = fmt::format("all drives of set {} are missing", wanted.name);
    } else {
      const Outcome made = co_await make_set(wanted);
      if (!made) co_return made;
    }
    const auto why = not_made_.find(wanted.name);
    if (why == not_made_.end()) continue;
    events_.add({.severity = Severity::kError,
                 .kind = "set missing",
                 .set = wanted.name,
                 .text = fmt::format("{}: {}", at(wanted), why->second)});
  }
  co_return Outcome{};
}

std::string Hardware::why_not_blank(const SetConfiguration& wanted) const {
  const auto drives = show_drives();
  for (const std::string& name : wanted.drives) {
    const auto found = std::ranges::find(
        drives, name, [](const DriveInfo& info) { return std::string_view(info.raid.name); });
    if (found != drives.end() && found->raid.use == raid::DriveUse::kBlank) continue;
    const raid::DriveInfo info = found == drives.end() ? raid::DriveInfo{} : found->raid;
    if (info.use == raid::DriveUse::kAbsent) {
      return fmt::format(
          "cannot be made: drive {} is not there{}{}; bring it, or correct where it is, and "
          "restart "
          "the daemon",
          name, info.why.empty() ? "" : ": ", info.why);
    }
    return fmt::format(
        "cannot be made: drive {0} is not blank but {1}{2}{3}; if nobody needs what is on it: "
        "sandbay drive erase {0}, and restart the daemon",
        name, describe(info.use), info.set.empty() ? "" : " of set " + info.set,
        info.why.empty() ? "" : ": " + info.why);
  }
  return {};
}

Task<Hardware::Outcome> Hardware::make_set(SetConfiguration wanted) {
  const std::string not_blank = why_not_blank(wanted);
  if (!not_blank.empty()) {
    not_made_[wanted.name] = not_blank;
    co_return Outcome{};
  }
  // "Blank" is what samples say. Behind the bookkeeping, which they cover, only holes are proof.
  bool blank = true;
  for (const std::string& name : wanted.drives) {
    const bool this_one = co_await bay(name)->has_nothing_behind(kSetBookkeepingBytes);
    blank &= this_one;
  }
  raid::NewSet plan = new_set_of(wanted, group_);
  MakingRecord making{.set = make_uuid(home_.random()), .drives = wanted.drives};
  for (std::size_t role = 0; role < wanted.drives.size(); ++role) {
    making.drive_uuids.push_back(make_uuid(home_.random()));
  }
  plan.set_uuid = making.set;
  plan.drive_uuids = making.drive_uuids;
  metadata::Batch intent;
  intent.put(making_key(wanted.name), encode(making));
  const Error error = co_await store_.commit(std::move(intent));
  if (error != Error::kNone) co_return std::unexpected(not_written(error));
  const auto made = co_await controller_->create_set(std::move(plan), wanted.drives);
  // A set that does not run is made, all the same, and says itself what is wrong with it.
  raid::ManagedSet* const set = made ? *made : controller_->find(wanted.name);
  if (set == nullptr) {
    not_made_[wanted.name] = fmt::format("cannot be made: {}", made.error());
    co_return co_await erase_remains(wanted.name, std::move(making));
  }
  co_return co_await keep_made(std::move(wanted), set, blank);
}

Task<Hardware::Outcome> Hardware::keep_made(SetConfiguration wanted, raid::ManagedSet* made,
                                            bool blank) {
  learn_sets();
  const Uuid uuid = made->uuid();
  metadata::Batch batch;
  batch.put(set_key(uuid), encode(records_.at(uuid)));
  batch.erase(making_key(wanted.name));
  if (blank) {
    used_ends_[uuid] = 0;
    batch.put(used_key(uuid), encode_used(0));
  }
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(not_written(error));
  const Geometry& geometry = made->geometry();
  events_.add(
      {.kind = "set made",
       .set = wanted.name,
       .text = fmt::format("set {}: made, {} of {} drives, {}", wanted.name, describe(wanted.level),
                           wanted.drives.size(),
                           format_size_rounded(geometry.block_count * geometry.block_bytes))});
  co_return Outcome{};
}

}  // namespace sandbay::group
