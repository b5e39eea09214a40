// Parity over lanes, stretch by stretch. Plain functions of their own: a walk is two kilobytes,
// which no coroutine is to carry in its frame. Lanes without data have no parity.
#include "raid/lanes.h"

#include "raid/parity.h"

namespace sandbay::raid {
namespace {

bool data_less(Lanes& lanes) {
  for (unsigned lane = 0; lane < lanes.width(); ++lane) {
    if (!lanes[lane].empty()) return lanes[lane].data_less();
  }
  return false;
}

}  // namespace

void fill_parities(unsigned data, unsigned parities, Lanes& lanes, std::size_t lane_bytes) {
  if (data_less(lanes)) return;
  LaneWalk walk(lanes, lane_bytes);
  while (walk.next()) {
    const std::span<const std::byte* const> sources(walk.pointers(data).data(), data);
    std::byte* p = walk.at(data);
    std::byte* q = parities > 1 ? walk.at(data + 1) : nullptr;
    if (p != nullptr && q != nullptr) {
      generate_pq(sources, p, q, walk.length());
    } else if (p != nullptr) {
      generate_p(sources, p, walk.length());
    } else if (q != nullptr) {
      generate_q(sources, q, walk.length());
    }
  }
}

void recover_lanes(unsigned data, unsigned parities, std::uint64_t missing, Lanes& lanes,
                   std::size_t lane_bytes) {
  if (data_less(lanes)) return;
  LaneWalk walk(lanes, lane_bytes);
  while (walk.next()) {
    recover(data, parities, walk.pointers(data + parities), missing, walk.length());
  }
}

void Difference::apply(unsigned member, std::size_t lane_bytes) {
  if (data_less(lanes_)) return;
  LaneWalk walk(lanes_, lane_bytes);
  while (walk.next()) {
    xor_of(walk.at(0), walk.at(1), walk.at(0), walk.length());
    if (walk.at(2) != nullptr) add_to_p(walk.at(0), walk.at(2), walk.length());
    if (walk.at(3) != nullptr) add_to_q(member, walk.at(0), walk.at(3), walk.length());
  }
}

}  // namespace sandbay::raid
