// What a host may expect of a pool's volumes and snapshots, cell by cell, while many things happen
// at once and after any crash. It shares no code with the product and knows no chunk, page or map.
//
// A cell has versions, in the order in which they were begun; one write at a time concerns it. Live
// it reads as the last one that was acknowledged. After a kill it is that or one begun later; after
// a power cut, one not older than the last that was forced to the medium or flushed.
//
// A snapshot shows every cell as of one moment t between its request and its answer: what it shows
// was begun before t, and whatever was written over that was acknowledged after t. Once it was read
// it never changes, whatever happens.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sandbay::simtest {

struct Version {
  std::uint32_t number = 0;  // The content; 0: zeros.
  std::uint64_t begun = 0;
  std::uint64_t ended = 0;  // 0: on its way, or failed.
};

struct ModelCell {
  std::vector<Version> versions{1, Version{.number = 0, .begun = 0, .ended = 1}};
  std::size_t forced = 0;  // No older version comes back.
  bool busy = false;       // Somebody reads or writes it.

  std::size_t acknowledged() const;  // The last one.
  void become(std::uint32_t number, std::uint64_t now);
};

enum class Presence : std::uint8_t { kMaking, kThere, kRemoving };

struct ModelVolume {
  Presence presence = Presence::kMaking;
  std::vector<ModelCell> cells;
  std::size_t grown_cells = 0;  // While it is resized: what it will have; new ones are zeros.
  unsigned in_flight = 0;
  bool paused = false;
  // While it is restored: what it may be instead.
  std::optional<std::vector<std::uint32_t>> restored;
};

struct ModelSnapshot {
  Presence presence = Presence::kMaking;
  std::string volume;       // Its source.
  std::uint64_t group = 0;  // Of those that were taken at one moment.
  // By cell: the last version that was acknowledged when it was asked for, and later ones.
  std::vector<std::vector<Version>> cells;
  std::optional<std::vector<std::uint32_t>> seen;  // As it was read first.
};

// The moments that a snapshot's group may be of: after `low`, before `high`.
struct Moment {
  std::uint64_t low = 0;
  std::uint64_t high = ~std::uint64_t{0};
};

struct PoolModel {
  std::uint64_t clock = 1;
  std::uint32_t last_number = 0;
  unsigned snapshots_under_way = 0;
  std::map<std::string, ModelVolume> volumes;
  std::map<std::string, ModelSnapshot> snapshots;

  std::uint64_t tick() { return ++clock; }

  // A write or an unmapping of cells that nobody else has.
  void begin(const std::string& volume, std::uint64_t first, std::uint64_t count,
             std::uint32_t number);
  void end(const std::string& volume, std::uint64_t first, std::uint64_t count, bool done,
           bool forced);
  // What a flush that begins now will have forced.
  std::vector<std::uint64_t> begin_flush(const std::string& volume) const;
  void end_flush(const std::string& volume, const std::vector<std::uint64_t>& begun);

  void begin_snapshot(const std::string& name, const std::string& volume, std::uint64_t group);
  void end_snapshot(const std::string& name);
  // One that is under way and is found there all the same: what it may show by now.
  void settle_snapshot(const std::string& name);
  // What is wrong with these contents, or an empty text. Narrows the moment of its group. The first
  // time it remembers them.
  std::string check_snapshot(const std::string& name, const std::vector<std::uint32_t>& found,
                             std::map<std::uint64_t, Moment>& moments);

 private:
  void forget_old(ModelCell& cell) const;
};

// A cell as bytes, from its number and its place: every sector tells both.
inline constexpr std::size_t kModelCellBytes = 8192;
inline constexpr std::size_t kModelSectorBytes = 512;
inline constexpr std::uint32_t kTorn = ~std::uint32_t{0};
void fill_model_cell(std::byte* cell, std::uint64_t index, std::uint32_t number);
// The number of a sector, or kTorn for what is no such sector.
std::uint32_t number_of_sector(const std::byte* sector, std::uint64_t cell);
// The numbers of whole cells; kTorn for those whose sectors differ.
std::vector<std::uint32_t> numbers_of_cells(const std::vector<std::byte>& bytes,
                                            std::uint64_t first);

// What is wrong with a volume's bytes after a crash, or an empty text.
std::string check_volume(const ModelVolume& volume, const std::vector<std::byte>& bytes,
                         bool power_cut);

}  // namespace sandbay::simtest
