// Fuzzes everything that the pool's map reads back: groups of records, single records, checkpoints,
// leaves of page maps, chunk maps and kept chunks. The first byte chooses the decoder.
//
// Whatever is taken packs into the same bytes again (a leaf, into what means the same); whatever is
// not is refused with a reason.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "pool/chunk_map.h"
#include "pool/kept_chunks.h"
#include "pool/map_records.h"
#include "pool/page_map.h"

namespace sandbay::pool {
namespace {

void expect(bool condition) {
  if (!condition) std::abort();
}

// The same bytes, or a reason.
template <class Taken>
void same_again(const Taken& taken, std::string_view text) {
  if (!taken.has_value()) {
    expect(!taken.error().empty());
    return;
  }
  if constexpr (requires { taken->pack(); }) {
    expect(taken->pack() == text);
  } else {
    expect(pack(*taken) == text);
  }
}

// Returns what follows a record in `text`. Branches of version 2 had another kind, and did not say
// how far they read through their parents: version 3 packs them with both.
std::string_view behind(const MapRecord& record, std::string_view text) {
  constexpr char kOldBranchKind = 5;
  std::string packed = pack(record);
  if (text.front() == kOldBranchKind) {
    expect(std::holds_alternative<BranchRecord>(record));
    packed.front() = kOldBranchKind;
    packed.resize(packed.size() - sizeof BranchRecord{}.through_pages);
  }
  expect(text.starts_with(packed));
  return text.substr(packed.size());
}

void same_group_again(std::string_view text) {
  const auto taken = unpack_group(text);
  if (!taken.has_value()) return expect(!taken.error().empty());
  const std::string sequence = pack(RecordGroup{.sequence = taken->sequence, .records = {}});
  expect(text.starts_with(sequence));
  text.remove_prefix(sequence.size());
  for (const MapRecord& record : taken->records) text = behind(record, text);
  expect(text.empty());
}

void same_record_again(std::string_view text) {
  const auto taken = unpack_record(text);
  if (!taken.has_value()) return expect(!taken.error().empty());
  expect(behind(*taken, text).empty());
}

void run(std::string_view input) {
  if (input.empty()) return;
  const auto how = static_cast<unsigned char>(input.front());
  const std::string_view text = input.substr(1);
  const std::uint32_t chunks = kLeastPageChunks + how / 8U;
  switch (how % 6U) {
    case 0:
      same_group_again(text);
      break;
    case 1:
      same_record_again(text);
      break;
    case 2:
      same_again(unpack_checkpoint(text), text);
      break;
    case 3:
      same_again(ChunkMap::unpack(text, chunks), text);
      break;
    case 4:
      same_again(KeptLeaf::unpack(text, chunks), text);
      break;
    default: {
      PageMap map;
      const auto taken = map.unpack_leaf(how, text);
      if (!taken.has_value()) {
        expect(!taken.error().empty());
        break;
      }
      PageMap again;
      expect(again.unpack_leaf(how, map.pack_leaf(how)).has_value());
      expect(again.pack_leaf(how) == map.pack_leaf(how));
      expect(again.placed_count() == map.placed_count());
    }
  }
}

}  // namespace
}  // namespace sandbay::pool

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sandbay::pool::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
