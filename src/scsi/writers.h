// Writers: which hosts must hear that a flush could not keep what they wrote. A device below that
// has lost acknowledged writes says so once, to the flush that comes first, whichever host sends
// it. The unit notes whose changes were not flushed then, and fails the next flush of each of these
// hosts. A host is an initiator with all its ports and sessions, and stays known without any.
// Touched on the unit's home executor only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/error.h"

namespace sandbay::scsi {

class Writers {
 public:
  // Hosts without a session that are remembered for what they wrote; the oldest give way.
  static constexpr std::size_t kMostDeparted = 256;

  struct Writer {
    std::uint64_t last_change = 0;
    bool lost = false;  // Its next flush fails.
  };

  // The host of an initiator port ("NAME,i,0xISID"). It stays known while the caller holds it.
  std::shared_ptr<Writer> host_of(std::string_view initiator_port);

  // A change of this host has ended well, and need not be stable.
  void note_change(Writer& writer) noexcept { writer.last_change = ++changes_; }

  // Which changes a flush covers that begins now, and which were settled before it.
  struct Flush {
    std::uint64_t covered = 0;
    std::uint64_t settled = 0;
  };
  Flush begin_flush(bool of_all_blocks) const noexcept {
    return {.covered = of_all_blocks ? changes_ : 0, .settled = settled_};
  }
  // It has ended with `error`. Its sender hears it; null: nobody does.
  void flush_ended(Error error, const Flush& flush, const Writer* sender) noexcept;

 private:
  void forget_departed();
  bool owed(const Writer& writer) const noexcept {
    return writer.lost || writer.last_change > settled_;
  }

  std::map<std::string, std::shared_ptr<Writer>, std::less<>> hosts_;
  std::uint64_t changes_ = 0;
  std::uint64_t settled_ = 0;  // Changes up to here are flushed, or their hosts hear of them.
};

}  // namespace sandbay::scsi
