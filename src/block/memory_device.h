// MemoryDevice: a block device in anonymous memory, the fastest there is and the one that
// benchmarks use. Its content lives as long as the object.
//
// Memory is sparse: a page costs nothing until it is written (small devices take it in huge pages),
// and goes back to the system when it is unmapped. A bitmap of pages tells what is mapped; "mapped"
// means written or zeroed since it was last unmapped. Reads and writes complete without suspending,
// allocate nothing beside their coroutine frame and take no lock. Nothing is volatile while the
// object lives, so flush and FUA have nothing to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <string>

#include "block/block_device.h"

namespace sandbay {

struct MemoryDeviceOptions {
  std::uint64_t byte_count = 0;               // A positive multiple of block_bytes.
  std::uint32_t block_bytes = 512;            // 512 or 4096.
  std::uint32_t physical_block_bytes = 4096;  // block_bytes times a power of two.
};

class MemoryDevice final : public BlockDevice {
 public:
  // The granularity of unmapping and of provisioning().
  static constexpr std::size_t kPageBytes = 4096;

  // Fails with one line that says which option is wrong, or that the system refused the memory.
  static std::expected<std::unique_ptr<MemoryDevice>, std::string> create(
      Executor& home, MemoryDeviceOptions options);
  ~MemoryDevice() override;

  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Health health() const noexcept override { return Health::kGood; }
  std::string description() const override;

  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

  // Makes the device larger; what is there stays. Called on the home executor. Fails with
  // kInvalid if `byte_count` is less than now or no multiple of the block, kNoMemory if the system
  // refuses.
  Error grow(std::uint64_t byte_count);

 private:
  MemoryDevice(Executor& home, Geometry geometry) : home_(home), geometry_(geometry) {}

  Task<Completion> zero_or_unmap(Request request);
  void mark_mapped(std::uint64_t first_byte, std::uint64_t byte_count) noexcept;
  void unmap_bytes(std::uint64_t first_byte, std::uint64_t byte_count) noexcept;
  void zero_bytes(std::uint64_t first_byte, std::uint64_t byte_count) noexcept;
  void release_pages(std::uint64_t first_page, std::uint64_t end_page) noexcept;
  bool page_mapped(std::uint64_t page) const noexcept;
  std::uint64_t end_of_run(std::uint64_t page, std::uint64_t limit_page) const noexcept;
  std::uint64_t byte_count() const noexcept {
    return geometry_.block_count * geometry_.block_bytes;
  }

  Executor& home_;
  Geometry geometry_;
  std::byte* memory_ = nullptr;
  std::uint64_t* mapped_ = nullptr;  // One bit a page, itself in sparse memory.
};

}  // namespace sandbay
