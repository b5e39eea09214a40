// The encodings of map records, little-endian, fields in the order of the structures.
//
// A record is its kind (1) and its fields; booleans take one byte, labels their length (1) and
// their bytes, counts of slots how many stores (2) and for each its number (2) and its count (8). A
// group is its sequence (8) and records. A branch's record ends with `through_pages` and has a kind
// of its own, so that those of version 2, which had none, are still read. The checkpoint is version
// (4), chunks of a page (4), sequence (8), last branch (8), UUID of the log (16). Slots by
// generation are those (4) and their counts (8), ascending.
#include "pool/map_records.h"

#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <type_traits>

#include "runtime/byte_order.h"

namespace sandbay::pool {

namespace {

constexpr std::string_view kTooShort = "a record that is too short";
constexpr std::uint32_t kOldestVersion = 2;
// Kinds of branch records: until version 2 their place in MapRecord, afterwards another.
constexpr std::uint8_t kOldBranchKind = 5;
constexpr std::uint8_t kBranchKind = 11;
static_assert(
    std::is_same_v<std::variant_alternative_t<kOldBranchKind - 1, MapRecord>, BranchRecord> &&
    kBranchKind > std::variant_size_v<MapRecord>);

class Writer {
 public:
  explicit Writer(std::string& text) : text_(text) {}

  template <class Integer>
    requires std::is_integral_v<Integer> && (!std::is_same_v<Integer, bool>)
  void field(const Integer& value) {
    std::array<std::byte, sizeof(Integer)> bytes{};
    put_little_endian(std::span(bytes), 0, value);
    text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  template <class Enum>
    requires std::is_enum_v<Enum>
  void field(const Enum& value, Enum /*last*/) {
    field(static_cast<std::uint8_t>(value));
  }
  void field(const bool& value) { text_.push_back(value ? '\1' : '\0'); }
  void field(const Place& place) {
    field(place.store);
    field(place.page);
  }
  void field(const Slot& slot) {
    field(slot.place);
    field(slot.chunk);
  }
  void field(const Uuid& uuid) {
    text_.append(reinterpret_cast<const char*>(uuid.data()), uuid.size());
  }
  void field(const KeptCounts& counts) {
    field(static_cast<std::uint16_t>(counts.entries().size()));
    for (const auto& [store, count] : counts.entries()) {
      field(store);
      field(count);
    }
  }
  void field(const std::string& label) {
    assert(label.size() <= kLongestLabel);
    text_.push_back(static_cast<char>(label.size()));
    text_.append(label);
  }

 private:
  std::string& text_;
};

class Reader {
 public:
  explicit Reader(std::string_view text)
      : bytes_(std::as_bytes(std::span(text.data(), text.size()))) {}

  bool at_end() const noexcept { return bytes_.empty(); }
  std::string_view error() const noexcept { return error_; }
  void fail(std::string_view error) {
    if (error_.empty()) error_ = error;
    bytes_ = {};
  }

  template <class Integer>
    requires std::is_integral_v<Integer> && (!std::is_same_v<Integer, bool>)
  void field(Integer& value) {
    const auto bytes = take(sizeof(Integer));
    if (!bytes.empty()) value = little_endian<Integer>(bytes, 0);
  }
  template <class Enum>
    requires std::is_enum_v<Enum>
  void field(Enum& value, Enum last) {
    std::uint8_t number = 0;
    field(number);
    if (number > static_cast<std::uint8_t>(last)) return fail("a record with an unknown state");
    value = static_cast<Enum>(number);
  }
  void field(bool& value) {
    std::uint8_t number = 0;
    field(number);
    if (number > 1) return fail("a record whose yes or no is neither");
    value = number == 1;
  }
  void field(Place& place) {
    field(place.store);
    field(place.page);
  }
  void field(Slot& slot) {
    field(slot.place);
    field(slot.chunk);
  }
  void field(Uuid& uuid) {
    const auto bytes = take(uuid.size());
    if (!bytes.empty()) std::memcpy(uuid.data(), bytes.data(), uuid.size());
  }
  void field(KeptCounts& counts) {
    std::uint16_t stores = 0;
    field(stores);
    std::uint32_t least = 0;
    for (; stores > 0 && error_.empty(); --stores) {
      StoreIndex store = 0;
      std::uint64_t count = 0;
      field(store);
      field(count);
      const bool right = store >= least && store != kNoStore && count > 0;
      if (!right) return fail("a branch whose slots are counted wrong");
      counts.add(store, count);
      least = store + 1U;
    }
  }
  void field(std::string& label) {
    std::uint8_t length = 0;
    field(length);
    const auto bytes = take(length);
    label.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

 private:
  std::span<const std::byte> take(std::size_t count) {
    if (bytes_.size() < count) fail(kTooShort);
    const auto taken = bytes_.first(error_.empty() ? count : 0);
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

  std::span<const std::byte> bytes_;
  std::string_view error_;
};

// The fields of each record, for reading and for writing: a Record may be const.
template <class Record, class Plain>
concept Of = std::is_same_v<std::remove_const_t<Record>, Plain>;

template <class Coder, Of<PlacePages> Record>
void code(Coder& coder, Record& record) {
  coder.field(record.branch);
  coder.field(record.page);
  coder.field(record.count);
  coder.field(record.place);
}

template <class Coder, Of<SetChunks> Record>
void code(Coder& coder, Record& record) {
  coder.field(record.branch);
  coder.field(record.page);
  coder.field(record.first);
  coder.field(record.count);
  coder.field(record.state, ChunkState::kData);
}

template <class Coder, Of<KeepChunks> Record>
void code(Coder& coder, Record& record) {
  coder.field(record.branch);
  coder.field(record.page);
  coder.field(record.generation);
  coder.field(record.first);
  coder.field(record.count);
  coder.field(record.state, ChunkState::kData);
  coder.field(record.slot);
}

template <class Coder, Of<ForgetChunk> Record>
void code(Coder& coder, Record& record) {
  coder.field(record.branch);
  coder.field(record.page);
  coder.field(record.generation);
  coder.field(record.chunk);
}

template <class Coder, Of<BranchRecord> Record>
void code(Coder& coder, Record& record) {
  coder.field(record.id);
  coder.field(record.byte_count);
  coder.field(record.parent);
  coder.field(record.parent_generation);
  coder.field(record.last_generation);
  coder.field(record.thick);
  coder.field(record.dead);
  coder.field(record.sweeping);
  coder.field(record.placement);
  coder.field(record.fixed_store);
  coder.field(record.page_limit);
  coder.field(record.page_warning);
  coder.field(record.kept);
  coder.field(record.label);
}

template <class Coder, Of<EraseBranch> Record>
void code(Coder& coder, Record& record) {
  coder.field(record.branch);
}

template <class Coder, Of<SnapshotRecord> Record>
void code(Coder& coder, Record& record) {
  coder.field(record.branch);
  coder.field(record.generation);
  coder.field(record.byte_count);
  coder.field(record.label);
}

template <class Coder, Of<EraseSnapshot> Record>
void code(Coder& coder, Record& record) {
  coder.field(record.branch);
  coder.field(record.generation);
}

template <class Coder, Of<StoreRecord> Record>
void code(Coder& coder, Record& record) {
  coder.field(record.index);
  coder.field(record.uuid);
  coder.field(record.page_count);
  coder.field(record.member);
  coder.field(record.placement);
  coder.field(record.state, StoreState::kVacating);
}

template <class Coder, Of<EraseStore> Record>
void code(Coder& coder, Record& record) {
  coder.field(record.index);
}

template <class Coder, Of<CheckpointRecord> Record>
void code(Coder& coder, Record& record) {
  coder.field(record.version);
  coder.field(record.page_chunks);
  coder.field(record.sequence);
  coder.field(record.last_branch);
  coder.field(record.log);
}

// What a record of whatever content must keep to; the map checks the rest.
std::string_view wrong_with(const PlacePages& record) {
  if (record.count == 0) return "a record about no page";
  if (record.page > ~record.count + 1) return "a record about pages behind the last";
  if (!record.place.none() && record.place.page > ~record.count + 1) {
    return "a record about places behind the last";
  }
  return {};
}

template <class Record>
std::string_view wrong_with_chunks(const Record& record) {
  if (record.count == 0) return "a record about no chunk";
  if (record.first >= kMostPageChunks || record.count > kMostPageChunks - record.first) {
    return "a record about chunks behind a page's end";
  }
  return {};
}

std::string_view wrong_with(const SetChunks& record) { return wrong_with_chunks(record); }

std::string_view wrong_with(const KeepChunks& record) {
  if (record.generation == 0 || record.generation == kLive) return "a record about no snapshot";
  if (record.state == ChunkState::kData) {
    if (record.slot.place.none()) return "a kept chunk in no slot";
    if (record.slot.chunk >= kMostPageChunks ||
        record.count > kMostPageChunks - record.slot.chunk) {
      return "a kept chunk behind a page's end";
    }
  }
  return wrong_with_chunks(record);
}

std::string_view wrong_with(const ForgetChunk& record) {
  return record.chunk < kMostPageChunks ? "" : "a record about chunks behind a page's end";
}

std::string_view wrong_with(const BranchRecord& record) {
  if (record.id == 0) return "a branch without a number";
  if (record.byte_count > kMostBranchBytes) return "a branch that is too large";
  if (record.parent == record.id) return "a branch that is its own parent";
  if ((record.parent == 0) != (record.parent_generation == 0)) {
    return "a branch with half a parent";
  }
  if (record.last_generation == kLive) return "a branch with too many snapshots";
  return {};
}

std::string_view wrong_with(const SnapshotRecord& record) {
  if (record.generation == 0 || record.generation == kLive) return "a record about no snapshot";
  return record.byte_count > kMostBranchBytes ? "a snapshot that is too large" : "";
}

std::string_view wrong_with(const StoreRecord& record) {
  return record.index == kNoStore ? "a store without a number" : "";
}

template <class Record>
std::string_view wrong_with(const Record&) {
  return {};
}

template <std::size_t kKind = 0>
bool read_kind(std::size_t kind, Reader& reader, MapRecord& record) {
  if constexpr (kKind < std::variant_size_v<MapRecord>) {
    if (kind != kKind) return read_kind<kKind + 1>(kind, reader, record);
    auto& value = record.emplace<kKind>();
    code(reader, value);
    if (reader.error().empty()) {
      const std::string_view wrong = wrong_with(value);
      if (!wrong.empty()) reader.fail(wrong);
    }
    return true;
  } else {
    return false;
  }
}

void read_through_pages(Reader& reader, bool is_old, BranchRecord* branch) {
  if (is_old) {
    branch->through_pages = branch->parent == 0 ? 0 : kNoPage;
    return;
  }
  reader.field(branch->through_pages);
  if (branch->through_pages > (branch->parent == 0 ? 0 : kPageEnd)) {
    reader.fail("a branch that reads through no parent, or too far");
  }
}

bool read(Reader& reader, MapRecord& record) {
  std::uint8_t kind = 0;
  reader.field(kind);
  if (!reader.error().empty()) return false;
  const bool is_old_branch = kind == kOldBranchKind;
  if (kind == kBranchKind) kind = kOldBranchKind;
  // Kinds begin with 1: zeros are no record.
  if (kind == 0 || !read_kind(kind - 1U, reader, record)) reader.fail("a record of unknown kind");
  auto* const branch = std::get_if<BranchRecord>(&record);
  if (branch != nullptr) read_through_pages(reader, is_old_branch, branch);
  return reader.error().empty();
}

}  // namespace

void append(std::string& text, const MapRecord& record) {
  Writer writer(text);
  const auto* const branch = std::get_if<BranchRecord>(&record);
  writer.field(branch != nullptr ? kBranchKind : static_cast<std::uint8_t>(record.index() + 1));
  std::visit([&writer](const auto& value) { code(writer, value); }, record);
  if (branch != nullptr) writer.field(branch->through_pages);
}

std::string pack(const MapRecord& record) {
  std::string text;
  append(text, record);
  return text;
}

std::string pack(const RecordGroup& group) {
  std::string text;
  Writer(text).field(group.sequence);
  for (const MapRecord& record : group.records) append(text, record);
  return text;
}

Result<RecordGroup, std::string_view> unpack_group(std::string_view text) {
  Reader reader(text);
  RecordGroup group;
  reader.field(group.sequence);
  while (reader.error().empty() && !reader.at_end()) {
    read(reader, group.records.emplace_back());
  }
  if (!reader.error().empty()) return std::unexpected(reader.error());
  return group;
}

Result<MapRecord, std::string_view> unpack_record(std::string_view text) {
  Reader reader(text);
  MapRecord record;
  if (!read(reader, record)) return std::unexpected(reader.error());
  if (!reader.at_end()) return std::unexpected("a record that is too long");
  return record;
}

std::string pack(const CheckpointRecord& record) {
  std::string text;
  Writer writer(text);
  code(writer, record);
  return text;
}

Result<CheckpointRecord, std::string_view> unpack_checkpoint(std::string_view text) {
  Reader reader(text);
  CheckpointRecord record;
  code(reader, record);
  if (!reader.error().empty()) return std::unexpected(reader.error());
  if (!reader.at_end()) return std::unexpected("a record that is too long");
  if (record.version < kOldestVersion || record.version > CheckpointRecord{}.version) {
    return std::unexpected("a map of another version");
  }
  if (record.page_chunks < kLeastPageChunks || record.page_chunks > kMostPageChunks) {
    return std::unexpected("a map with pages of an impossible size");
  }
  return record;
}

std::string pack(const GenerationCounts& counts) {
  std::string text;
  Writer writer(text);
  for (const auto& [generation, count] : counts.entries()) {
    writer.field(generation);
    writer.field(count);
  }
  return text;
}

Result<GenerationCounts, std::string_view> unpack_generations(std::string_view text) {
  Reader reader(text);
  GenerationCounts counts;
  for (Generation least = 1; !reader.at_end();) {
    Generation generation = 0;
    std::uint64_t count = 0;
    reader.field(generation);
    reader.field(count);
    if (!reader.error().empty()) break;
    if (generation < least || generation >= kLive || count == 0) {
      reader.fail("slots by generation that are counted wrong");
      break;
    }
    counts.add(generation, count);
    least = generation + 1;
  }
  if (!reader.error().empty()) return std::unexpected(reader.error());
  return counts;
}

}  // namespace sandbay::pool
