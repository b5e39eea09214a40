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

void run(std::string_view input) {
  if (input.empty()) return;
  const auto how = static_cast<unsigned char>(input.front());
  const std::string_view text = input.substr(1);
  const std::uint32_t chunks = kLeastPageChunks + how / 8U;
  switch (how % 6U) {
    case 0:
      same_again(unpack_group(text), text);
      break;
    case 1:
      same_again(unpack_record(text), text);
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
