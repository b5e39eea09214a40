// A transport for tests: commands whose data stand in memory, a target device with one unit over
// any block device, and the few words that conformance cases are written in.
//
// Everything runs on one executor, or, for the crossing cases, on two of one simulated world, where
// the fake carries its answers home by message as a real transport does.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../block/on_executor.h"
#include "../block/test_devices.h"
#include "block/memory_device.h"
#include "runtime/byte_order.h"
#include "runtime/sync.h"
#include "scsi/logical_unit.h"
#include "scsi/task_router.h"
#include "scsi/unit_store.h"

namespace sandbay::testing {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(std::initializer_list<unsigned> values) {
  Bytes result;
  for (const unsigned value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

inline Bytes filled(std::size_t byte_count, unsigned value) {
  return Bytes(byte_count, static_cast<std::byte>(value));
}

// A CDB by its leading bytes.
inline std::array<std::byte, 16> cdb_of(std::initializer_list<unsigned> values) {
  std::array<std::byte, 16> result{};
  std::size_t at = 0;
  for (const unsigned value : values) result[at++] = static_cast<std::byte>(value);
  return result;
}

// What an initiator saw of a command.
struct Reply {
  scsi::Status status = scsi::Status::kGood;
  bool silent = false;
  Bytes data;
  std::uint64_t data_in_bytes = 0;
  std::uint64_t data_out_bytes = 0;
  Bytes sense;

  bool good() const { return status == scsi::Status::kGood && !silent; }
  bool descriptor_format() const { return (byte(0) & 0x7FU) >= 0x72; }
  scsi::SenseKey key() const {
    if (sense.empty()) return scsi::SenseKey::kNoSense;
    return static_cast<scsi::SenseKey>(byte(descriptor_format() ? 1 : 2) & 0x0FU);
  }
  unsigned additional() const {
    if (sense.empty()) return 0;
    return big_endian<std::uint16_t>(sense, descriptor_format() ? 2 : 12);
  }
  bool failed_with(scsi::SenseKey wanted, scsi::Additional code) const {
    return status == scsi::Status::kCheckCondition && key() == wanted &&
           additional() == static_cast<unsigned>(code);
  }
  bool illegal(scsi::Additional code) const {
    return failed_with(scsi::SenseKey::kIllegalRequest, code);
  }
  bool attention(scsi::Additional code) const {
    return failed_with(scsi::SenseKey::kUnitAttention, code);
  }
  // Fixed format: INFORMATION and the field pointer.
  std::optional<std::uint32_t> information() const {
    if ((byte(0) & 0x80U) == 0) return std::nullopt;
    return big_endian<std::uint32_t>(sense, 3);
  }
  unsigned field_byte() const { return big_endian<std::uint16_t>(sense, 16); }
  unsigned byte(std::size_t at) const {
    return at < sense.size() ? std::to_integer<unsigned>(sense[at]) : 0;
  }
  unsigned in(std::size_t at) const { return std::to_integer<unsigned>(data.at(at)); }
};

class FakeCommand final : public scsi::Command {
 public:
  FakeCommand() : home_(Executor::current()) {}

  Bytes data_out;
  bool stall_data_in = false;   // The peer reads nothing.
  bool stall_data_out = false;  // The peer sends nothing.
  bool delay_data_out = false;  // It sends when it is let go.
  bool obey_cancellation = true;
  Reply reply;
  bool answered = false;  // complete() was called,
  bool released = false;  // and release().

  Task<Error> send_data_in(BufferList data) override {
    if (stall_data_in) {
      const Error error = co_await wait_for_cancellation();
      co_return error;
    }
    if (completed) co_return Error::kCancelled;
    Bytes piece(data.byte_count());
    data.copy_to(piece);
    reply.data.insert(reply.data.end(), piece.begin(), piece.end());
    assert(reply.data.size() <= data_in_length);
    co_return Error::kNone;
  }

  Task<Result<BufferList>> receive_data_out(std::size_t byte_count) override {
    if (stall_data_out) {
      const Error error = co_await wait_for_cancellation();
      co_return std::unexpected(error);
    }
    if (delay_data_out && !let_go_.is_set()) co_await let_go_.wait();
    if (completed) co_return std::unexpected(Error::kCancelled);
    assert(received_ + byte_count <= data_out_length);
    BufferList list = co_await Executor::current().buffers().allocate(byte_count);
    Bytes padded = data_out;
    padded.resize(data_out_length);
    list.copy_from(std::span(padded).subspan(received_, byte_count));
    received_ += byte_count;
    co_return list;
  }

  void complete(scsi::Outcome outcome) override {
    assert(!answered && !released);
    answered = true;
    reply.status = outcome.status;
    reply.silent = outcome.silent;
    reply.data_in_bytes = outcome.data_in_bytes;
    reply.data_out_bytes = outcome.data_out_bytes;
    reply.sense.assign(outcome.sense.bytes().begin(), outcome.sense.bytes().end());
    tell_home(answering_);
  }

  void release() override {
    assert(answered && !released);
    released = true;
    tell_home(releasing_);
  }

  Task<Reply> answer() {
    co_await answered_.wait();
    co_return reply;
  }
  Task<void> gone() { co_await released_.wait(); }
  void let_go() { let_go_.set(); }  // Ends a stall.

 private:
  struct Note : Message {
    Event* event = nullptr;
  };

  void tell_home(Note& note) {
    Event& event = &note == &answering_ ? answered_ : released_;
    if (Executor::current_or_null() == &home_) return event.set();
    note.event = &event;
    note.run = [](Message& message) { static_cast<Note&>(message).event->set(); };
    home_.send(note);
  }

  Task<Error> wait_for_cancellation() {
    struct Wake : Cancellation::Hook {
      Wake(Cancellation* cancellation, Event& to_set)
          : Hook(cancellation, [](Hook& hook) { static_cast<Wake&>(hook).event.set(); }),
            event(to_set) {}
      Event& event;
    };
    if (cancellation.cancelled() && obey_cancellation) co_return Error::kCancelled;
    const Wake wake(obey_cancellation ? &cancellation : nullptr, let_go_);
    if (!let_go_.is_set()) co_await let_go_.wait();
    co_return Error::kCancelled;
  }

  Executor& home_;
  std::size_t received_ = 0;
  Note answering_;
  Note releasing_;
  Event answered_;
  Event released_;
  Event let_go_;
};

// How a command is sent; the expected lengths follow the data unless they are given.
struct Sending {
  Bytes out;
  std::optional<std::uint32_t> out_length;
  std::optional<std::uint32_t> in_length;
  std::uint64_t lun = 0;
  std::uint64_t tag = 0;
  scsi::TaskAttribute attribute = scsi::TaskAttribute::kSimple;
};

inline std::unique_ptr<FakeCommand> make_command(scsi::Nexus& nexus, std::array<std::byte, 16> cdb,
                                                 Sending how) {
  auto command = std::make_unique<FakeCommand>();
  command->nexus = &nexus;
  command->cdb = cdb;
  command->lun = how.lun;
  command->tag = how.tag;
  command->attribute = how.attribute;
  command->data_out_length = how.out_length.value_or(static_cast<std::uint32_t>(how.out.size()));
  command->data_in_length = how.in_length.value_or(how.out.empty() ? 1U << 26U : 0);
  command->data_out = std::move(how.out);
  return command;
}

// One command from start to release.
inline Task<Reply> send(scsi::TaskRouter& router, scsi::Nexus& nexus, std::array<std::byte, 16> cdb,
                        Sending how = {}) {
  const std::unique_ptr<FakeCommand> command = make_command(nexus, cdb, std::move(how));
  router.execute(*command);
  co_await command->gone();
  co_return command->reply;
}

inline constexpr std::uint64_t kBenchBlocks = 8192;

// A target with one unit at LUN 0 over any device, and an initiator's nexus to it.
class ServedUnit {
 public:
  explicit ServedUnit(BlockDevice& device, scsi::LogicalUnitOptions options = {})
      : unit(device, named(std::move(options))), router(device.home().peers()) {}

  Task<void> start() {
    const Error error = co_await router.add(0, &unit);
    assert(error == Error::kNone);
    nexus = co_await login("iqn.2026-11.org.example:one,i,0x1");
  }
  // A nexus that has already seen its POWER ON.
  Task<std::unique_ptr<scsi::Nexus>> login(std::string initiator) {
    auto made = router.attach({.initiator_port = std::move(initiator),
                               .target_port = "iqn.2026-11.org.sandbay:test,t,0x0001"});
    const Reply reply = co_await send(router, *made, {});
    assert(reply.attention(scsi::Additional::kPowerOnResetOrBusDeviceReset));
    co_return made;
  }
  Task<void> stop() {
    if (nexus != nullptr) co_await router.detach(*nexus);
    const bool closed = co_await unit.close(unit.home().now() + std::chrono::seconds(10));
    assert(closed);
    co_await router.close();
  }
  Task<Reply> send_to_unit(std::array<std::byte, 16> cdb, Sending how = {}) {
    return send(router, *nexus, cdb, std::move(how));
  }
  Task<scsi::TaskManagementResponse> manage(scsi::TaskManagementFunction function,
                                            std::uint64_t tag = 0) {
    return router.manage(*nexus, {.function = function, .lun = 0, .tag = tag});
  }

  scsi::LogicalUnit unit;
  scsi::TaskRouter router;
  std::unique_ptr<scsi::Nexus> nexus;

 private:
  static scsi::LogicalUnitOptions named(scsi::LogicalUnitOptions options) {
    for (std::size_t i = 0; i < options.uuid.size(); ++i) {
      if (options.uuid[i] == 0) options.uuid[i] = static_cast<std::uint8_t>(0x11 * i);
    }
    return options;
  }
};

// A store with what a unit has kept. Each change needs a millisecond.
class Shelf final : public scsi::UnitStore {
 public:
  std::optional<Error> fails;
  scsi::KeptOfUnit kept;

  Task<Error> keep_reservations(scsi::PersistentReservations reservations) override {
    const Error error = co_await change();
    if (error != Error::kNone) co_return error;
    kept.reservations = std::move(reservations);
    kept.reservations.generation = 0;
    co_return error;
  }
  Task<Error> keep_sanitize(std::optional<scsi::SanitizeOperation> operation) override {
    const Error error = co_await change();
    if (error == Error::kNone) kept.sanitize = std::move(operation);
    co_return error;
  }
  Task<Error> keep_blocks(scsi::BlocksBefore before) override {
    const Error error = co_await change();
    if (error == Error::kNone) kept.blocks.push_back(std::move(before));
    most_blocks = std::max(most_blocks, kept.blocks.size());
    co_return error;
  }
  Task<Error> drop_blocks(Lba first) override {
    const Error error = co_await change();
    const auto is_it = [first](const scsi::BlocksBefore& each) { return each.first == first; };
    if (error == Error::kNone) std::erase_if(kept.blocks, is_it);
    co_return error;
  }
  void note_torn(Extent /*extent*/, Error /*error*/) override { ++torn; }
  std::size_t most_blocks = 0;
  unsigned torn = 0;

 private:
  Task<Error> change() {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(1));
    co_return fails.value_or(Error::kNone);
  }
};

// A memory device with test layers on it.
struct BenchDevices {
  BenchDevices(Executor& home, MemoryDeviceOptions options)
      : memory(*MemoryDevice::create(home, options)), faulty(*memory), hung(faulty), device(hung) {}

  Shelf shelf;  // For a unit that is led to it.
  std::unique_ptr<MemoryDevice> memory;
  FaultyDevice faulty;
  HungDevice hung;
  RecordingDevice device;
};

class Bench : public BenchDevices, public ServedUnit {
 public:
  explicit Bench(Executor& home, scsi::LogicalUnitOptions options = {},
                 MemoryDeviceOptions memory_options = {.byte_count = kBenchBlocks * 512})
      : BenchDevices(home, memory_options), ServedUnit(device, std::move(options)) {}

  Task<void> stop() {
    hung.release();
    co_await ServedUnit::stop();
  }
};

// Runs a case against a fresh bench in a simulated world.
inline void on_bench(Task<void> (*body)(Bench& bench), scsi::LogicalUnitOptions options = {},
                     MemoryDeviceOptions memory = {.byte_count = kBenchBlocks * 512}) {
  struct Run {
    static Task<void> go(Executor& home, Task<void> (*body)(Bench&), scsi::LogicalUnitOptions with,
                         MemoryDeviceOptions memory_options) {
      Bench bench(home, std::move(with), memory_options);
      co_await bench.start();
      co_await body(bench);
      co_await bench.stop();
    }
  };
  run_in_world(1, [&](Executor& home) { return Run::go(home, body, options, memory); });
}

// CDBs --------------------------------------------------------------------------------------------

inline std::array<std::byte, 16> cdb_10(unsigned opcode, std::uint32_t lba, unsigned length,
                                        unsigned flags = 0) {
  std::array<std::byte, 16> cdb = cdb_of({opcode, flags});
  put_big_endian(std::span<std::byte>(cdb), 2, lba);
  put_big_endian(std::span<std::byte>(cdb), 7, static_cast<std::uint16_t>(length));
  return cdb;
}

inline std::array<std::byte, 16> cdb_12(unsigned opcode, std::uint32_t lba, std::uint32_t length,
                                        unsigned flags = 0) {
  std::array<std::byte, 16> cdb = cdb_of({opcode, flags});
  put_big_endian(std::span<std::byte>(cdb), 2, lba);
  put_big_endian(std::span<std::byte>(cdb), 6, length);
  return cdb;
}

inline std::array<std::byte, 16> cdb_16(unsigned opcode, std::uint64_t lba, std::uint32_t length,
                                        unsigned flags = 0) {
  std::array<std::byte, 16> cdb = cdb_of({opcode, flags});
  put_big_endian(std::span<std::byte>(cdb), 2, lba);
  put_big_endian(std::span<std::byte>(cdb), 10, length);
  return cdb;
}

inline std::array<std::byte, 16> inquiry(unsigned length, std::optional<unsigned> page = {}) {
  return cdb_of({0x12, page ? 1U : 0U, page.value_or(0), length >> 8U, length & 0xFFU});
}

inline constexpr auto kTestUnitReady = std::array<std::byte, 16>{};

}  // namespace sandbay::testing
