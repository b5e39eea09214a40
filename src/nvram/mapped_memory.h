// MappedMemory: a file mapped shared, which stays usable when the file does not.
//
// Whoever may write a file may cut it short, and its disk may fail. Touching a page that is gone
// then ends a process (SIGBUS). Here the page becomes private memory, zeros, and broken() says so
// from then on: what is stored in such a page is in no file. The kernel, when it is to move data
// from or to such a page, fails with EFAULT until somebody has touched it or called replace_gone().
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <string>

#include "runtime/error.h"

namespace sandbay::nvram {

class MappedMemory {
 public:
  static constexpr std::size_t kMost = 64;  // In a process, at a time.

  // The first `byte_count` bytes of the file, which is that long. Populated: no store reads from a
  // disk. kNoMemory: there are kMost already.
  static std::expected<std::unique_ptr<MappedMemory>, Error> map(const std::string& path,
                                                                 std::uint64_t byte_count);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::span<std::byte> bytes() noexcept { return bytes_; }
  bool broken() const noexcept;
  bool cut_short() const noexcept;  // The file, as far as anybody has noticed.
  // What lies behind the file's end becomes private memory.
  void replace_gone();

 private:
  MappedMemory(std::span<std::byte> bytes, std::size_t slot) : bytes_(bytes), slot_(slot) {}

  std::span<std::byte> bytes_;
  std::size_t slot_;
};

}  // namespace sandbay::nvram
