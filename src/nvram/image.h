// Image: the bytes under an Nvram, and how they become durable. Two kinds: a mapped file and a
// simulated board.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <string>

#include "nvram/nvram.h"
#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/task.h"

namespace sandbay::nvram {

class SimulatedBoard;

class Image {
 public:
  Image() = default;
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;
  virtual ~Image() = default;  // No sync is in flight. What was stored stays.

  virtual std::span<std::byte> memory() noexcept = 0;
  // What was stored before the call is durable when it ends with kNone. One at a time.
  virtual Task<Error> sync() = 0;
  virtual Found found() const noexcept = 0;
  // Part of the memory is not the image any more: its file was cut short, or cannot be read. What
  // was there is lost, and what is stored there is not kept.
  virtual bool broken() const noexcept = 0;
  // Of these: the file is shorter than it was.
  virtual bool cut_short() const noexcept = 0;
  // Finds that out where nobody has touched that part yet.
  virtual Task<void> check() = 0;
};

// The file, made with `first_bytes` (the header copies) in front and zeros behind if it is not
// there or no longer than those. An error follows the path in a message, and leaves no file that
// was not there before. `cause`, if not null, gets the error of opening, making or mapping it.
// `first_bytes` and `cause` stay valid until the task ends.
Task<std::expected<std::unique_ptr<Image>, std::string>> map_image(
    Executor& home, std::string path, std::uint64_t byte_count,
    std::span<const std::byte> first_bytes, Error* cause);

// The board, which gets `first_bytes` if it is blank.
std::unique_ptr<Image> board_image(Executor& home, SimulatedBoard& board,
                                   std::span<const std::byte> first_bytes);

}  // namespace sandbay::nvram
