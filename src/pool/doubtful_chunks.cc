// DoubtfulChunks: the list in memory and in the metadata, and I/O past it.
#include "pool/doubtful_chunks.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <span>

#include "pool/page_io.h"
#include "pool/sealed.h"
#include "runtime/byte_order.h"

namespace sandbay::pool {

namespace {

constexpr std::size_t kListedSegments = 256;
constexpr std::uint32_t kPagesInTurn = 65536;
constexpr std::size_t kRunsText = 4;
constexpr std::size_t kPlaceText = 6;
const std::string kDamaged = "the list of doubtful chunks is damaged: its checksum is wrong";

// Calls `visit` with each segment of the chunks, and with their extent in it.
template <class Visit>
void for_segments(const Extent& chunks, Visit visit) {
  constexpr std::uint64_t kSegment = DoubtfulChunks::kSegmentChunks;
  for (std::uint64_t at = chunks.first; at < chunks.end();) {
    const std::uint64_t end = std::min(chunks.end(), (at / kSegment + 1) * kSegment);
    visit(static_cast<std::uint32_t>(at / kSegment),
          Extent{.first = at % kSegment, .block_count = end - at});
    at = end;
  }
}

std::string packed(const ExtentSet& segment) {
  std::vector<std::byte> bytes(kRunsText);
  put_little_endian(std::span(bytes), 0, static_cast<std::uint32_t>(segment.run_count()));
  segment.pack(&bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

// The metadata ------------------------------------------------------------------------------------

std::string DoubtfulChunks::key_of(const Key& key) const {
  std::array<std::byte, kPlaceText> place{};
  put_big_endian(std::span(place), 0, key.first);
  put_big_endian(std::span(place), 2, key.second);
  return map_.key('q') + std::string(reinterpret_cast<const char*>(place.data()), place.size());
}

bool DoubtfulChunks::unpack(std::string_view key, std::string stored) {
  const std::size_t prefix = map_.key('q').size();
  const auto text = unsealed(key, std::move(stored));
  if (!text.has_value() || text->size() < kRunsText) return false;
  if (key.size() != prefix + kPlaceText) return false;
  const auto place = std::as_bytes(std::span(key.data() + prefix, kPlaceText));
  std::span<const std::byte> bytes = std::as_bytes(std::span(text->data(), text->size()));
  const auto runs = little_endian<std::uint32_t>(bytes, 0);
  bytes = bytes.subspan(kRunsText);
  auto segment = ExtentSet::unpack(&bytes, runs, kSegmentChunks);
  if (!segment.has_value() || segment->empty() || !bytes.empty()) return false;
  const Key at{big_endian<std::uint16_t>(place, 0), big_endian<std::uint32_t>(place, 2)};
  segments_.emplace(at, std::move(*segment));
  return true;
}

Task<std::string> DoubtfulChunks::load() {
  std::string after;
  while (true) {
    auto entries = co_await map_.store().list(map_.key('q'), after, kListedSegments);
    if (!entries.has_value()) {
      co_return "the list of doubtful chunks cannot be read: " +
          std::string(describe(entries.error()));
    }
    for (auto& [key, value] : *entries) {
      if (!unpack(key, std::move(value))) co_return kDamaged;
    }
    if (entries->size() < kListedSegments) co_return std::string();
    after = std::move(entries->back().first);
  }
}

// The metadata come first: what is in memory is durable.
Task<Error> DoubtfulChunks::commit(Segments changed, metadata::Batch batch) {
  for (const auto& [at, segment] : changed) {
    std::string key = key_of(at);
    if (segment.empty()) {
      batch.erase(std::move(key));
    } else {
      std::string value = sealed(key, packed(segment));
      batch.put(std::move(key), std::move(value));
    }
  }
  if (batch.empty()) co_return Error::kNone;
  const Error error = co_await map_.store().commit(std::move(batch));
  if (error != Error::kNone) co_return error;
  for (auto& [at, segment] : changed) {
    if (segment.empty()) {
      segments_.erase(at);
    } else {
      segments_[at] = std::move(segment);
    }
  }
  co_return Error::kNone;
}

// The segment as it will be.
ExtentSet* DoubtfulChunks::segment_in(Segments* changed, const Key& key) const {
  const auto [at, added] = changed->try_emplace(key);
  const auto now = segments_.find(key);
  if (added && now != segments_.end()) at->second = now->second;
  return &at->second;
}

// Longer and shorter ------------------------------------------------------------------------------

Task<Error> DoubtfulChunks::add(StoreIndex store, metadata::Batch batch) {
  ++added_;
  co_await turn_.lock();
  const auto known = map_.stores().find(store);
  assert(known != map_.stores().end());
  const FreePages pages = known->second.pages;
  Segments changed;
  for (PageNumber page = 0; page < pages.page_count(); ++page) {
    if (page % kPagesInTurn == kPagesInTurn - 1) co_await map_.store().home().turn_end();
    if (!pages.owned(page)) continue;
    const std::uint64_t page_chunks = map_.page_chunks();
    for_segments({.first = page * page_chunks, .block_count = page_chunks},
                 [&](std::uint32_t segment, const Extent& chunks) {
                   segment_in(&changed, {store, segment})->add(chunks);
                 });
  }
  const Error error = co_await commit(std::move(changed), std::move(batch));
  turn_.unlock();
  co_return error;
}

void DoubtfulChunks::erase(StoreIndex store, metadata::Batch* batch) const {
  if (segments_.lower_bound({store, 0}) == segments_.upper_bound({store, ~std::uint32_t{0}}))
    return;
  std::string prefix = key_of({store, 0});
  prefix.resize(prefix.size() - sizeof(std::uint32_t));
  batch->erase_prefix(std::move(prefix));
}

void DoubtfulChunks::forget(StoreIndex store) {
  segments_.erase(segments_.lower_bound({store, 0}),
                  segments_.upper_bound({store, ~std::uint32_t{0}}));
}

Task<Error> DoubtfulChunks::clear(StoreIndex store, Extent chunks) {
  if (gathering_ == nullptr) gathering_ = std::make_shared<Group>();
  const std::shared_ptr<Group> group = gathering_;
  group->chunks.emplace_back(store, chunks);
  co_await turn_.lock();
  if (!group->result.has_value()) {
    assert(gathering_ == group);
    gathering_.reset();
    const Error error = co_await clear_group(group.get());
    group->result = error;
  }
  const Error result = group->result.value_or(Error::kNone);
  turn_.unlock();
  co_return result;
}

Task<Error> DoubtfulChunks::clear_group(Group* group) {
  Segments changed;
  for (const auto& [store, chunks] : group->chunks) {
    for_segments(chunks, [&](std::uint32_t segment, const Extent& part) {
      if (!segments_.contains({store, segment})) return;
      segment_in(&changed, {store, segment})->remove(part);
    });
  }
  co_return co_await commit(std::move(changed), {});
}

// I/O ---------------------------------------------------------------------------------------------

std::optional<std::uint64_t> DoubtfulChunks::first_in(StoreIndex store,
                                                      const Extent& chunks) const {
  std::optional<std::uint64_t> first;
  for_segments(chunks, [&](std::uint32_t segment, const Extent& part) {
    const auto at = segments_.find({store, segment});
    if (first.has_value() || at == segments_.end()) return;
    const auto found = at->second.first_in(part);
    if (found.has_value()) first = segment * kSegmentChunks + *found;
  });
  return first;
}

// In its store.
std::uint64_t DoubtfulChunks::number_of(Slot slot) const noexcept {
  return slot.place.page * std::uint64_t{map_.page_chunks()} + slot.chunk;
}

std::uint64_t DoubtfulChunks::count_in(Slot first, std::uint32_t chunk_count) const {
  std::uint64_t count = 0;
  const Extent chunks{.first = number_of(first), .block_count = chunk_count};
  for_segments(chunks, [&](std::uint32_t segment, Extent part) {
    const auto at = segments_.find({first.place.store, segment});
    while (at != segments_.end() && part.block_count > 0) {
      const std::uint64_t run = at->second.alike(part);
      if (at->second.covers({.first = part.first, .block_count = 1})) count += run;
      part = {.first = part.first + run, .block_count = part.block_count - run};
    }
  });
  return count;
}

Task<Completion> DoubtfulChunks::submit(StoreIndex store, BlockDevice* device, Request request) {
  const bool advises = request.operation == Operation::kAdvise;  // Nobody sees what it fetches.
  if (advises) co_return co_await device->submit(std::move(request));
  assert(request.operation == Operation::kRead || request.operation == Operation::kWrite);
  const std::uint32_t block = device->geometry().block_bytes;
  const std::uint64_t first = request.extent.first * block;
  const std::uint64_t end = request.extent.end() * block;
  const std::uint64_t touched = first / kChunkBytes;
  const std::uint64_t touched_end = (end + kChunkBytes - 1) / kChunkBytes;
  // The chunks that the request replaces as a whole.
  Extent whole{.first = touched_end, .block_count = 0};
  const std::uint64_t whole_first = (first + kChunkBytes - 1) / kChunkBytes;
  if (request.operation == Operation::kWrite && whole_first < end / kChunkBytes) {
    whole = {.first = whole_first, .block_count = end / kChunkBytes - whole_first};
  }
  auto bad = first_in(store, {.first = touched, .block_count = whole.first - touched});
  if (!bad.has_value()) {
    bad = first_in(store, {.first = whole.end(), .block_count = touched_end - whole.end()});
  }
  if (bad.has_value()) {
    co_return Completion{.error = Error::kMediumError,
                         .first_bad_lba = std::max(*bad * kChunkBytes, first) / block,
                         .data = std::move(request.data)};
  }
  const bool clears = first_in(store, whole).has_value();
  if (clears && needs_force(*device)) request.force_unit_access = true;
  const std::uint64_t added = added_;
  Completion done = co_await device->submit(std::move(request));
  if (!clears || done.error != Error::kNone) co_return done;
  // If the store has come back with pages in doubt meanwhile, nobody knows if they have this write.
  done.error = Error::kNotReady;
  if (added == added_) done.error = co_await clear(store, whole);
  co_return done;
}

}  // namespace sandbay::pool
