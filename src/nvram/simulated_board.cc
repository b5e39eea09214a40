// SimulatedBoard and the image on it: two arrays, what is in memory and what is durable.
#include "nvram/simulated_board.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>
#include <vector>

#include "nvram/damage.h"
#include "nvram/image.h"
#include "nvram/image_layout.h"

namespace sandbay::nvram {
namespace {

constexpr std::size_t kSectorBytes = 512;

// Some sectors of `target` become what they are in `source`.
void copy_some(std::span<std::byte> target, std::span<const std::byte> source, Random& random) {
  for (std::size_t at = 0; at < target.size(); at += kSectorBytes) {
    if (std::memcmp(target.data() + at, source.data() + at, kSectorBytes) == 0) continue;
    if (random.chance(0.5)) std::memcpy(target.data() + at, source.data() + at, kSectorBytes);
  }
}

}  // namespace

SimulatedBoard::SimulatedBoard(std::uint64_t byte_count)
    : memory_(byte_count), durable_(byte_count) {
  assert(byte_count >= kLeastImageBytes && byte_count % kPageBytes == 0);
}

void SimulatedBoard::cut_power(BatteryState battery) { emulate_power_cut(memory_, battery); }

void SimulatedBoard::crash_host(Random& random) {
  copy_some(durable_, memory_, random);
  memory_ = durable_;
}

void SimulatedBoard::write_back(Random& random) { copy_some(durable_, memory_, random); }

void SimulatedBoard::cut_short(std::uint64_t byte_count) {
  std::ranges::fill(std::span(memory_).subspan(byte_count), std::byte{0});
  std::ranges::fill(std::span(durable_).subspan(byte_count), std::byte{0});
  cut_short_ = true;
}

class SimulatedImage final : public Image {
 public:
  SimulatedImage(Executor& home, SimulatedBoard& board) : home_(home), board_(board) {}

  std::span<std::byte> memory() noexcept override { return board_.memory_; }

  Task<Error> sync() override {
    // What is durable already need not be held.
    std::vector<std::pair<std::size_t, std::vector<std::byte>>> begun;
    for (std::size_t at = 0; at < board_.memory_.size(); at += kPageBytes) {
      const auto page = std::span(board_.memory_).subspan(at, kPageBytes);
      if (std::memcmp(page.data(), board_.durable_.data() + at, kPageBytes) == 0) continue;
      begun.emplace_back(at, std::vector<std::byte>(page.begin(), page.end()));
    }
    co_await home_.sleep_for(board_.sync_time);
    if (board_.sync_error != Error::kNone) co_return board_.sync_error;
    for (const auto& [at, page] : begun)
      std::ranges::copy(page, board_.durable_.begin() + static_cast<std::ptrdiff_t>(at));
    co_return Error::kNone;
  }

  Found found() const noexcept override { return found_; }
  bool broken() const noexcept override { return board_.cut_short_; }
  bool cut_short() const noexcept override { return board_.cut_short_; }
  Task<void> check() override { co_return; }

  void put_first(std::span<const std::byte> first_bytes) {
    if (!board_.blank_) return;
    board_.blank_ = false;
    found_ = Found::kNothing;
    std::ranges::copy(first_bytes, board_.memory_.begin());
    std::ranges::copy(first_bytes, board_.durable_.begin());
  }

 private:
  Executor& home_;
  SimulatedBoard& board_;
  Found found_ = Found::kImage;
};

std::unique_ptr<Image> board_image(Executor& home, SimulatedBoard& board,
                                   std::span<const std::byte> first_bytes) {
  auto image = std::make_unique<SimulatedImage>(home, board);
  image->put_first(first_bytes);
  return image;
}

}  // namespace sandbay::nvram
