// Fuzzes the CDB decoder and everything behind it: each input is a program of commands, with nexus,
// LUN, task attribute, expected lengths, CDB and Data-Out, against a unit in memory.
//
// Nothing an initiator sends may reach an assertion, and every command ends with a status.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "../unit/scsi/fake_transport.h"
#include "scsi/command_table.h"

namespace sandbay::testing {
namespace {

constexpr std::size_t kMostCommands = 64;

class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return at_ >= bytes_.size(); }
  unsigned byte() { return empty() ? 0 : bytes_[at_++]; }
  unsigned word() {
    const unsigned high = byte();
    return high << 8U | byte();
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

std::array<std::byte, 16> next_cdb(Input& input, unsigned shape) {
  std::array<std::byte, 16> cdb{};
  const auto rows = scsi::command_table();
  // Mostly commands that exist, else the fuzzer spends its time on operation codes.
  const scsi::CommandRow* row = (shape & 0x80U) != 0 ? nullptr : &rows[input.byte() % rows.size()];
  const std::size_t length = row == nullptr ? cdb.size() : row->cdb_bytes;
  for (std::size_t i = 0; i < length; ++i) cdb[i] = static_cast<std::byte>(input.byte());
  if (row == nullptr) return cdb;
  if ((shape & 0x40U) == 0) {
    for (std::size_t i = 1; i < length; ++i) cdb[i] &= std::byte{row->usage[i - 1]};
  }
  cdb[0] = std::byte{row->opcode};
  if (row->is(scsi::CommandFlags::kHasServiceAction)) cdb[1] = std::byte{row->service_action};
  return cdb;
}

Task<void> run(Executor& home, Input input) {
  Bench bench(home, {.removable = true}, {.byte_count = 4096 * 512});
  co_await bench.start();
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x1");
  for (std::size_t count = 0; count < kMostCommands && !input.empty(); ++count) {
    const unsigned shape = input.byte();
    scsi::Nexus& nexus = (shape & 1U) != 0 ? *other : *bench.nexus;
    const std::array<std::byte, 16> cdb = next_cdb(input, shape);
    Sending how{.in_length = input.word() << 4U,
                .lun = (shape & 2U) != 0 ? std::uint64_t{input.word()} << 48U : 0,
                .attribute = static_cast<scsi::TaskAttribute>(shape >> 2U & 3U)};
    const unsigned out_bytes = (shape & 0x10U) != 0 ? input.byte() * 512 : input.byte();
    how.out = filled(out_bytes, 0);
    const std::size_t random_bytes = std::min<std::size_t>(out_bytes, 64);
    for (std::size_t i = 0; i < random_bytes; ++i)
      how.out[i] = static_cast<std::byte>(input.byte());
    const Reply reply = co_await send(bench.router, nexus, cdb, std::move(how));
    if (reply.silent) std::abort();
    if ((reply.status == scsi::Status::kCheckCondition) != !reply.sense.empty()) std::abort();
  }
  co_await bench.router.detach(*other);
  co_await bench.stop();
}

}  // namespace
}  // namespace sandbay::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sandbay;
  const auto world = sim::World::create({.seed = 1});
  Executor& home = *world->executors()[0];
  const bool ended = world->run([&] { return testing::run(home, testing::Input({data, size})); });
  if (!ended) std::abort();
  return 0;
}
