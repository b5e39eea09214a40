// Fuzzes recovery of the drive journal: the rings of three drives hold what the input says, raw
// bytes and records with right checksums but any fields. Whatever is there, recovery ends, returns
// only what its own rules allow, and the journal works afterwards as a new one does.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "../unit/raid/crash_drives.h"
#include "raid/drive_journal.h"
#include "runtime/simulation.h"

namespace sandbay::raid::testing {
namespace {

constexpr std::uint64_t kUnits = 32;
constexpr unsigned kDrives = 3;

void require(bool held) {
  if (!held) std::abort();
}

class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto value = std::to_integer<std::uint8_t>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return value;
  }
  // Mostly small, sometimes anything.
  std::uint64_t number() {
    const std::uint8_t first = byte();
    if (first < 0xf0) return first;
    std::uint64_t value = 0;
    for (unsigned i = 0; i < 8; ++i) value = value << 8U | byte();
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
};

JournalRing ring() {
  return {.set = {1},
          .first_block = 0,
          .block_count = kUnits,
          .block_bytes = 512,
          .unit_bytes = 512,
          .copies = 2,
          .role_count = kDrives};
}

void put_record(Input& input, std::span<std::byte> drive) {
  std::vector<JournalWrite> writes(input.byte() % 4);
  for (JournalWrite& write : writes) {
    write = {.role = input.byte(),
             .zeroes = (input.byte() & 1U) != 0,
             .extent = {.first = input.number(), .block_count = input.number() & 0xffffffffU}};
  }
  JournalHeader header{.set = {static_cast<std::uint8_t>(input.byte() % 4 == 3 ? 2 : 1)},
                       .tail_only = writes.empty(),
                       .write_count = static_cast<std::uint16_t>(writes.size()),
                       .sequence = input.number(),
                       .tail = input.number(),
                       .batch = input.number(),
                       .position = input.number(),
                       .stripe = input.number()};
  header.payload_bytes =
      input.byte() % 8 == 7 ? input.number() : journal_payload_bytes(writes, 512).value_or(0);
  const std::uint64_t unit =
      input.byte() % 8 == 7 ? input.byte() % kUnits : header.position % kUnits;
  const std::uint64_t payload_unit = unit + 1;
  if (payload_unit * 512 + header.payload_bytes <= drive.size() &&
      header.payload_bytes <= drive.size()) {
    Crc32c crc;
    crc.update(drive.subspan(payload_unit * 512, header.payload_bytes));
    header.payload_crc = crc.value();
  }
  encode_journal_header(header, writes, drive.subspan(unit * 512, 512));
}

CrashDrives::Image image_of(Input& input) {
  CrashDrives::Image image{.drives = {}, .live = input.byte() % 7 + 1U};
  image.drives.resize(kDrives);
  for (auto& drive : image.drives) drive.durable.resize(kUnits * 512);
  while (!input.empty()) {
    const std::uint8_t what = input.byte();
    auto& drive = image.drives[what % kDrives];
    const std::uint64_t at = input.byte() % kUnits;
    if (what >= 0xe0) {
      drive.durable[at * 512 + input.byte()] ^= std::byte{input.byte()};
    } else if (what >= 0xd0) {
      drive.unreadable.insert(at);
    } else if (what >= 0xb0) {
      image.drives[(what + 1U) % kDrives].durable = drive.durable;
    } else {
      put_record(input, drive.durable);
    }
  }
  return image;
}

Task<void> append_one(Executor* home, DriveJournal* journal) {
  const JournalWrite write{.role = 1, .extent = {.first = 9, .block_count = 1}};
  BufferList payload = home->buffers().try_allocate(512);
  payload.fill_zero();
  const auto ticket =
      co_await journal->append({.stripe = 42, .writes = {&write, 1}, .payload = &payload});
  require(ticket.has_value());
}

Task<void> run(Executor* home, Input input) {
  CrashDrives drives(*home, image_of(input));
  DriveJournal journal(drives, ring(), *home);
  const auto found = co_await journal.recover();
  if (!found.has_value()) co_return;
  require(journal.used_bytes() <= journal.size_bytes());
  for (const RecoveredUpdate& update : found->updates) {
    std::uint64_t bytes = 0;
    for (const JournalWrite& write : update.writes) {
      require(write.role < kDrives && write.extent.block_count > 0);
      if (!write.zeroes) bytes += write.extent.byte_count(512);
    }
    require(bytes == update.payload.size());
  }
  const Error reset = co_await journal.reset();
  require(reset == Error::kNone && journal.used_bytes() == 0);
  co_await append_one(home, &journal);
  DriveJournal second(drives, ring(), *home);
  const auto again = co_await second.recover();
  require(again.has_value() && again->updates.size() == 1);
  require(again->updates[0].stripe == 42);
  require(again->lost.empty());
}

}  // namespace
}  // namespace sandbay::raid::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sandbay;
  const auto world = sim::World::create({.seed = 1});
  Executor* const home = world->executors()[0];
  raid::testing::Input input(std::as_bytes(std::span(data, size)));
  const bool ended = world->run([&] { return raid::testing::run(home, input); });
  if (!ended) std::abort();
  return 0;
}
