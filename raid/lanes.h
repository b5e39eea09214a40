// Lanes: the bytes of a stripe's members side by side, each a list of slices of one length, and the
// walk over them in stretches in which every lane is contiguous, as parity functions want them.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "raid/layout.h"
#include "runtime/buffer.h"
#include "runtime/frame_pool.h"

namespace sandbay::raid {

// A run of rows of one member, with its bytes.
struct Segment {
  unsigned member = 0;
  std::uint32_t row = 0;
  std::uint32_t row_count = 0;
  BufferList data;
};

// One list a member; pooled memory.
class Lanes {
 public:
  explicit Lanes(unsigned width)
      : lanes_(static_cast<BufferList*>(allocate_frame(width * sizeof(BufferList)))),
        width_(width) {
    for (unsigned i = 0; i < width_; ++i) new (&lanes_[i]) BufferList;
  }
  ~Lanes() {
    for (unsigned i = 0; i < width_; ++i) lanes_[i].~BufferList();
    free_frame(lanes_, width_ * sizeof(BufferList));
  }
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  BufferList& operator[](unsigned member) {
    assert(member < width_);
    return lanes_[member];
  }
  unsigned width() const noexcept { return width_; }
  void clear() {
    for (unsigned i = 0; i < width_; ++i) lanes_[i].clear();
  }

 private:
  BufferList* lanes_;
  unsigned width_;
};

// Walks lanes in step from their beginnings; empty lanes give null. Borrows the lists.
class LaneWalk {
 public:
  LaneWalk(Lanes& lanes, std::size_t byte_count) : left_(byte_count), width_(lanes.width()) {
    for (unsigned i = 0; i < width_; ++i) {
      cursors_[i].list = lanes[i].empty() ? nullptr : &lanes[i];
      assert(lanes[i].empty() || lanes[i].byte_count() >= byte_count);
    }
  }

  // The next stretch; false at the end.
  bool next() {
    if (left_ == 0) return false;
    length_ = left_;
    for (unsigned i = 0; i < width_; ++i) {
      if (cursors_[i].list != nullptr) length_ = std::min(length_, cursors_[i].left());
    }
    for (unsigned i = 0; i < width_; ++i) pointers_[i] = cursors_[i].advance(length_);
    left_ -= length_;
    return true;
  }
  std::size_t length() const noexcept { return length_; }
  std::byte* at(unsigned lane) const noexcept { return pointers_[lane]; }
  std::span<std::byte* const> pointers(unsigned count) const noexcept {
    return {pointers_.data(), count};
  }

 private:
  struct Cursor {
    const BufferList* list = nullptr;
    std::size_t index = 0;
    std::size_t offset = 0;

    std::size_t left() const { return (*list)[index].byte_count() - offset; }
    std::byte* advance(std::size_t byte_count) {
      if (list == nullptr) return nullptr;
      std::byte* here = (*list)[index].data() + offset;
      offset += byte_count;
      if (offset == (*list)[index].byte_count()) {
        offset = 0;
        ++index;
      }
      return here;
    }
  };

  std::array<Cursor, kMostDrives> cursors_;
  std::array<std::byte*, kMostDrives> pointers_{};
  std::size_t left_;
  std::size_t length_ = 0;
  unsigned width_;
};

// The parities that have a lane, out of the data lanes; each from the beginning.
void fill_parities(unsigned data, unsigned parities, Lanes& lanes, std::size_t lane_bytes);
// The missing members that have a lane, out of the others.
void recover_lanes(unsigned data, unsigned parities, std::uint64_t missing, Lanes& lanes,
                   std::size_t lane_bytes);

// What a data member's change means for parity, in place. Parities without a lane stay out of it.
class Difference {
 public:
  BufferList& before() { return lanes_[0]; }  // Becomes the difference itself.
  BufferList& after() { return lanes_[1]; }
  BufferList& p() { return lanes_[2]; }
  BufferList& q() { return lanes_[3]; }
  void apply(unsigned member, std::size_t lane_bytes);

 private:
  Lanes lanes_{4};
};

}  // namespace sandbay::raid
