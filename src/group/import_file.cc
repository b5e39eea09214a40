// The file is read with blocking calls: at a start nothing else runs yet.
#include "group/import_file.h"

#include <fmt/core.h>

#include <array>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <span>

#include "group/audit_log.h"
#include "group/claims.h"
#include "group/digest.h"
#include "group/event_log.h"
#include "group/export_document.h"
#include "group/export_reader.h"
#include "group/import_rules.h"
#include "group/lead_fence.h"
#include "group/log.h"
#include "group/pool_records.h"
#include "group/record_json.h"
#include "group/records.h"
#include "group/unit_book.h"
#include "pool/log_name.h"
#include "runtime/executor.h"
#include "runtime/io.h"
#include "runtime/known.h"

namespace sandbay::group {

using nlohmann::json;

namespace {

constexpr std::size_t kBytesAtOnce = std::size_t{1} << 20;
constexpr std::size_t kEntriesAtOnce = 4096;

struct ImportRecord {
  std::uint64_t byte_count = 0;
  std::string sha256;
};

std::string encode_import(const ImportRecord& record) {
  return to_text(
      {{"format", kRecordFormat}, {"bytes", record.byte_count}, {"sha256", record.sha256}});
}

std::expected<ImportRecord, std::string> decode_import(std::string_view text) {
  return decode<ImportRecord>(text, [](const json& value) {
    return ImportRecord{.byte_count = value.at("bytes").get<std::uint64_t>(),
                        .sha256 = value.at("sha256").get<std::string>()};
  });
}

Task<Error> write_at(File* file, std::uint64_t offset, std::string text) {
  const std::array<IoSlice, 1> slices{
      IoSlice{.data = reinterpret_cast<std::byte*>(text.data()), .byte_count = text.size()}};
  co_return co_await file->write(offset, slices, nullptr);
}

// The file's bytes, piece by piece, which also go into a digest.
class ImportText {
 public:
  explicit ImportText(const std::string& path) : file_(path, std::ios::binary) {}

  bool good() const { return file_.is_open() && !file_.bad(); }
  std::size_t read(std::span<char> room) {
    file_.read(room.data(), static_cast<std::streamsize>(room.size()));
    const auto count = static_cast<std::size_t>(file_.gcount());
    digest_.add({room.data(), count});
    byte_count_ += count;
    return count;
  }
  // Reads the rest of it.
  bool is(const ImportRecord& record) {
    std::string rest(kBytesAtOnce, '\0');
    while (read(rest) != 0) continue;
    return byte_count_ == record.byte_count && digest_.text() == record.sha256;
  }

 private:
  std::ifstream file_;
  Digest digest_;
  std::uint64_t byte_count_ = 0;
};

ExportReader reader_of(ImportText& text) {
  return ExportReader([&text](std::span<char> room) { return text.read(room); });
}

using Visitor = std::function<void(const metadata::Entry&)>;

// All of the file is right, and of the group `uuid`. Shows each record.
std::expected<ExportReader::Head, std::string> check_file(const std::string& path,
                                                          const ImportRecord& record,
                                                          const std::string& uuid,
                                                          const Visitor& visit = {}) {
  ImportText text(path);
  ExportReader reader = reader_of(text);
  std::expected<std::optional<metadata::Entry>, std::string> entry;
  for (;;) {
    entry = reader.next();
    if (!entry) break;
    const std::optional<metadata::Entry>& record_here = *entry;
    if (!record_here) break;
    if (visit) visit(*record_here);
  }
  const bool same = text.is(record);
  if (!text.good()) return std::unexpected("cannot be read");
  if (!same) return std::unexpected("is not what was taken in");
  if (!entry) return std::unexpected(std::move(entry.error()));
  const ExportReader::Head& head = reader.head();
  if (uuid.empty() || head.uuid == uuid) return head;
  return std::unexpected(
      fmt::format("is of group {}, but the configuration says group.uuid = {}", head.uuid, uuid));
}

// Why a volume of an import is refused: its place is not one that management may use.
std::optional<Refusal> refusal_of_place(const metadata::Entry& entry, const ImportPlaces& places) {
  if (!entry.first.starts_with(kVolumePrefix)) return std::nullopt;
  const auto volume = decode_volume(entry.second);
  if (!volume || volume->specification.path.empty()) return std::nullopt;
  const auto place = places.state / volume->specification.path;
  if (places.in_use.contains(place)) return std::nullopt;
  const auto outside = outside_of(place, places.folders);
  if (!outside) return std::nullopt;
  return Refusal{
      .code = Refusal::Code::kForbidden,
      .message = fmt::format("import: volume \"{}\": {}", volume->specification.name, *outside)};
}

// Everything but the history and the record of the import itself.
Task<Error> clear(metadata::Store* store, std::string record) {
  std::string after;
  for (;;) {
    auto part = co_await store->list("", after, kEntriesAtOnce);
    if (!part) co_return part.error();
    metadata::Batch batch;
    for (const auto& [key, value] : *part) {
      const bool stays = is_history(key) || is_of_import(key) || is_work_on_blocks(key);
      if (!stays) batch.erase(key);
    }
    batch.put(std::string(kImportKey), record);
    const Error error = co_await store->commit(std::move(batch));
    if (error != Error::kNone) co_return error;
    if (part->size() < kEntriesAtOnce) co_return Error::kNone;
    after = part->back().first;
  }
}

// The length of "member/NAME/", below which a local member's records are; 0 at the top.
std::size_t member_length(std::string_view key) {
  constexpr std::string_view kMember = "member/";
  if (!key.starts_with(kMember)) return 0;
  const std::size_t end = key.find('/', kMember.size());
  return end == std::string_view::npos ? key.size() : end + 1;
}

// A record of the hardware in an export may be older than the hardware. Nothing: the record is
// dropped.
std::optional<std::string> as_imported(std::string_view key, std::string value) {
  // Without a mark all of a set counts as used, so that nobody sees what volumes wrote that were
  // made after the export.
  if (key.starts_with(kUsedPrefix) || is_work_on_blocks(key)) return std::nullopt;
  if (key.starts_with(kSetPrefix)) {
    auto record = decode_set(value);
    if (!record) return value;  // The start reports it.
    record->imported = true;
    return encode(*record);
  }
  if (key == kMirrorKey) {
    // It may have failed since, and then what it has would be written over newer data.
    auto record = decode_mirror(value);
    if (!record) return value;
    record->stale = true;
    return encode(*record);
  }
  return value;
}

// From a file that has been checked.
Task<Error> fill(metadata::Store* store, std::string path) {
  ImportText file(path);
  ExportReader reader = reader_of(file);
  metadata::Batch batch;
  std::size_t bytes = 0;
  std::set<std::string> members{""};
  for (;;) {
    auto entry = reader.next();
    if (!entry) co_return Error::kDataCorrupt;
    std::optional<metadata::Entry>& next = *entry;
    if (!next) break;
    auto& [key, text] = *next;
    if (is_history(key) || is_of_import(key)) continue;
    const std::size_t member = member_length(key);
    members.insert(key.substr(0, member));
    auto value = as_imported(std::string_view(key).substr(member), std::move(text));
    if (!value) continue;
    bytes += key.size() + value->size();
    batch.put(std::move(key), *std::move(value));
    if (bytes < kBytesAtOnce) continue;
    const Error error = co_await store->commit(std::exchange(batch, {}));
    if (error != Error::kNone) co_return error;
    bytes = 0;
  }
  for (const std::string& member : members) batch.put(member + std::string(kUncheckedKey), "{}");
  batch.erase(std::string(kImportKey));
  const auto before = co_await store->get(std::string(kBeforeImportKey));
  if (!before) co_return before.error();
  if (before->value_or("").empty()) batch.erase(std::string(kBeforeImportKey));
  co_return co_await store->commit(std::move(batch));
}

// Everything but the history and the records of imports, as an export. A pool that opens with the
// imported map releases what the NVRAM has of the old map. An old map that needs it gets a name
// that no NVRAM has, so that its next start reports the loss; *needing counts these maps.
Task<Error> write_export(metadata::Store* store, GroupRecord group, std::string path,
                         std::size_t* needing) {
  ExportWriter writer(wall_time(), group);
  ImportPart part;
  std::string after;
  while (!part.last) {
    auto entries = co_await store->list("", after, kEntriesAtOnce);
    if (!entries) co_return entries.error();
    for (metadata::Entry& entry : *entries) {
      if (is_of_import(entry.first)) continue;
      if (is_checkpoint(entry.first) &&
          pool::rename_log(&entry, make_uuid(Executor::current().random()))) {
        ++*needing;
      }
      writer.add(entry);
    }
    part.last = entries->size() < kEntriesAtOnce;
    if (part.last) writer.finish();
    if (!part.last) after = entries->back().first;
    if (!part.last && writer.byte_count() < kBytesAtOnce) continue;
    part.text = writer.take();
    const std::uint64_t end = part.offset + part.text.size();
    const Error error = co_await write_import(path, part);
    if (error != Error::kNone) co_return error;
    part.offset = end;
  }
  co_return Error::kNone;
}

// Writes the records from before an import to a file, unless an earlier import has done so. A new
// state directory has no group yet, and nothing to keep: then the record that says so is empty.
Task<Error> keep_before(metadata::Store* store, std::string path, std::size_t* needing) {
  const auto kept = co_await store->get(std::string(kBeforeImportKey));
  if (!kept) co_return kept.error();
  if (*kept) co_return Error::kNone;
  const auto group = co_await store->get(std::string(kGroupKey));
  if (!group) co_return group.error();
  if (*group) {
    const GroupRecord identity = decode_group(known(*group)).value_or(GroupRecord{});
    const Error error = co_await write_export(store, identity, std::move(path), needing);
    if (error != Error::kNone) co_return error;
  }
  metadata::Batch batch;
  batch.put(std::string(kBeforeImportKey), *group ? "{}" : "");
  co_return co_await store->commit(std::move(batch));
}

// Where whoever looks after the group reads what became of it.
Task<void> tell(metadata::Store* store, std::string what) {
  EventLog events;
  const Error opened = co_await events.open(*store);
  if (opened != Error::kNone) co_return log_warning("{}", what);
  events.add({.severity = Severity::kWarning, .kind = "import", .text = std::move(what)});
  co_await events.close();
}

}  // namespace

std::string import_path(const std::filesystem::path& state) { return (state / "import").string(); }

std::string before_import_path(const std::filesystem::path& state) {
  return (state / "before-import").string();
}

bool is_of_import(std::string_view key) { return key == kImportKey || key == kBeforeImportKey; }

Task<Error> write_import(std::string path, ImportPart part) {
  Executor& home = Executor::current();
  FileOptions options;
  options.create = true;
  auto file = co_await home.open_file(path, options);
  if (!file) co_return file.error();
  Error error = Error::kNone;
  if (part.offset == 0) error = co_await (*file)->resize(0);
  const bool empty = part.text.empty();
  if (error == Error::kNone && !empty) {
    error = co_await write_at(file->get(), part.offset, std::move(part.text));
  }
  if (error == Error::kNone && part.last) error = co_await (*file)->sync(nullptr);
  if (error == Error::kNone && part.last) {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    error = co_await home.sync_directory(folder);
  }
  co_return error;
}

std::optional<Refusal> refusal_of_import(const std::string& path, std::uint64_t byte_count,
                                         const std::string& sha256, const std::string& uuid,
                                         const ImportPlaces& places) {
  std::optional<Refusal> refusal;
  ImportRules rules;
  const auto group = check_file(path, {.byte_count = byte_count, .sha256 = sha256}, uuid,
                                [&](const metadata::Entry& entry) {
                                  if (!refusal) refusal = refusal_of_place(entry, places);
                                  rules.add(entry);
                                });
  if (group && !refusal && !rules.mistake().empty()) {
    return Refusal{.code = Refusal::Code::kInvalid,
                   .message = fmt::format("import: {}", rules.mistake())};
  }
  if (group) return refusal;
  return Refusal{.code = Refusal::Code::kInvalid,
                 .message = fmt::format("import: the text {}; begin anew at 0", group.error())};
}

Task<Error> withdraw_import(metadata::Store& store) {
  metadata::Batch batch;
  batch.erase(std::string(kImportKey));
  co_return co_await store.commit(std::move(batch));
}

Task<Error> announce_import(metadata::Store& store, std::uint64_t byte_count, std::string sha256,
                            bool forget_before) {
  metadata::Batch batch;
  if (forget_before) batch.erase(std::string(kBeforeImportKey));
  batch.put(std::string(kImportKey),
            encode_import({.byte_count = byte_count, .sha256 = std::move(sha256)}));
  co_return co_await store.commit(std::move(batch));
}

Task<std::expected<std::string, Error>> provisioned_in(metadata::Store& store) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kKinds{
      {{kVolumePrefix, "volumes"},
       {kPoolPrefix, "pools"},
       {kTargetPrefix, "access records"},
       {kSnapshotPrefix, "snapshots"}}};
  for (const auto& [prefix, name] : kKinds) {
    auto first = co_await store.list(std::string(prefix), "", 1);
    if (!first) co_return std::unexpected(first.error());
    if (!first->empty()) co_return std::string(name);
  }
  // Of a member: whom it lets in.
  const auto lead = co_await store.get("lead");
  if (!lead) co_return std::unexpected(lead.error());
  const auto record = parse_lead_record(lead->value_or(""));
  if (record && !record->open) co_return "records of a lead";
  co_return std::string();
}

namespace {

Task<std::expected<void, std::string>> take_announced(metadata::Store* store,
                                                      std::filesystem::path state,
                                                      std::string uuid) {
  const auto stored = co_await store->get(std::string(kImportKey));
  const std::string path = import_path(state);
  const auto cannot = [&](std::string_view what) {
    return std::unexpected(fmt::format("the import {} cannot be taken in: {}", path, what));
  };
  if (!stored) co_return cannot(describe(stored.error()));
  if (!*stored) co_return std::expected<void, std::string>{};
  const std::string& announced = known(*stored);
  const auto record = decode_import(announced);
  if (!record) co_return cannot("its record " + record.error());
  const auto group = check_file(path, *record, uuid);
  if (!group) {
    const std::string way = co_await way_before_import(*store, state);
    co_return cannot(fmt::format("it {}; put the file back where it was{}", group.error(),
                                 way.empty() ? ", or begin with another state directory" : ""));
  }
  std::size_t needing = 0;
  Error error = co_await keep_before(store, before_import_path(state), &needing);
  if (error != Error::kNone) {
    co_return cannot(fmt::format("the records from before it cannot be written to {}: {}",
                                 before_import_path(state), describe(error)));
  }
  error = co_await clear(store, announced);
  if (error == Error::kNone) error = co_await fill(store, path);
  if (error != Error::kNone) {
    co_return cannot(fmt::format("the metadata cannot be written: {}", describe(error)));
  }
  co_await tell(store, fmt::format("group {} ({}): {} records were taken in from an export of {}, "
                                   "in place of what was there",
                                   group->name, group->uuid, group->count, group->time));
  if (needing != 0) {
    co_await tell(store,
                  fmt::format("{}: lacks the changes of {} pool maps that only the NVRAM has; "
                              "a pool that comes back from it reports that loss",
                              before_import_path(state), needing));
  }
  const Error removed = co_await Executor::current().remove_file(path);
  if (removed != Error::kNone) log_warning("{}: cannot be removed: {}", path, describe(removed));
  co_return std::expected<void, std::string>{};
}

}  // namespace

Task<std::expected<void, std::string>> take_import(metadata::Store& store,
                                                   std::filesystem::path state, std::string uuid) {
  auto taken = co_await take_announced(&store, state, std::move(uuid));
  if (taken) co_return taken;
  const std::string way = co_await way_before_import(store, state);
  co_return std::unexpected(taken.error() + way);
}

// Erases the record first: without the file it would say that there is one.
Task<void> forget_before_import(metadata::Store& store, std::filesystem::path state) {
  const auto kept = co_await store.get(std::string(kBeforeImportKey));
  if (!kept || !*kept) co_return;
  const std::string path = before_import_path(state);
  metadata::Batch batch;
  batch.erase(std::string(kBeforeImportKey));
  Error error = co_await store.commit(std::move(batch));
  if (error == Error::kNone) error = co_await Executor::current().remove_file(path);
  if (error == Error::kNotFound) co_return;
  if (error != Error::kNone) log_warning("{}: cannot be removed: {}", path, describe(error));
}

Task<std::string> way_before_import(metadata::Store& store, std::filesystem::path state) {
  const auto kept = co_await store.get(std::string(kBeforeImportKey));
  if (!kept || kept->value_or("").empty()) co_return std::string();
  co_return fmt::format(
      "; to bring back the records from before the import, start sandbayd with --import {} --force",
      before_import_path(state));
}

}  // namespace sandbay::group
