// Pattern: what verify mode writes. Every logical block says where it belongs, which generation of
// that place it is and which seed made it, and carries a CRC32C over all of it; the rest of the
// block follows from these, so that nothing has to be kept to check a read.
//
// A unit is what one request moves: one or more logical blocks that share a generation.
// UnitMap keeps, for each unit, the generations that a read may find: the last one acknowledged, up
// to the last one sent.
#pragma once

#include <cassert>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/buffer.h"

namespace sandbay::lab {

struct PatternIdentity {
  std::uint64_t seed = 0;
  std::uint64_t lba = 0;
  std::uint32_t generation = 0;
};

inline constexpr std::size_t kPatternHeaderBytes = 32;

// `block` is one logical block of at least 512 bytes.
void fill_pattern(std::span<std::byte> block, const PatternIdentity& identity);

struct PatternCheck {
  bool intact = false;  // Magic, CRC and content fit together.
  PatternIdentity identity;
};
PatternCheck check_pattern(std::span<const std::byte> block);

class UnitMap {
 public:
  explicit UnitMap(std::uint64_t units) : units_(units) {}

  std::uint64_t size() const noexcept { return units_.size(); }
  bool busy(std::uint64_t unit) const { return units_[unit].busy; }
  bool written(std::uint64_t unit) const { return units_[unit].sent != 0; }

  void begin_read(std::uint64_t unit) { take(unit); }
  void end_read(std::uint64_t unit) { let_go(unit); }
  // The generation to write.
  std::uint32_t begin_write(std::uint64_t unit) {
    take(unit);
    return ++units_[unit].sent;
  }
  // Not acknowledged: any generation since the last acknowledged one may be found from now on.
  void end_write(std::uint64_t unit, bool acknowledged) {
    if (acknowledged) units_[unit].acknowledged = units_[unit].sent;
    let_go(unit);
  }
  // Whether a read may find this generation; anything goes where nothing was ever acknowledged.
  bool allows(std::uint64_t unit, std::uint32_t generation) const {
    return generation >= units_[unit].acknowledged && generation <= units_[unit].sent;
  }
  bool content_known(std::uint64_t unit) const { return units_[unit].acknowledged != 0; }
  std::uint32_t acknowledged(std::uint64_t unit) const { return units_[unit].acknowledged; }
  std::uint32_t sent(std::uint64_t unit) const { return units_[unit].sent; }

 private:
  struct Unit {
    std::uint32_t acknowledged = 0;
    std::uint32_t sent : 31 = 0;
    std::uint32_t busy : 1 = 0;
  };
  void take(std::uint64_t unit) {
    assert(!units_[unit].busy);
    units_[unit].busy = 1;
  }
  void let_go(std::uint64_t unit) {
    assert(units_[unit].busy);
    units_[unit].busy = 0;
  }
  std::vector<Unit> units_;
};

// Fills the blocks of one unit, or says in one line what is wrong with those that were read (empty:
// nothing). The buffers' slices are multiples of a logical block.
void fill_unit(const BufferList& data, std::uint32_t block_bytes, const PatternIdentity& first);
std::string check_unit(const BufferList& data, std::uint32_t block_bytes, std::uint64_t seed,
                       std::uint64_t first_lba, const UnitMap& map, std::uint64_t unit);

}  // namespace sandbay::lab
