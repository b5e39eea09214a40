// Primary commands: sense, unit attentions, mode pages, reservations, supported commands (SPC-4,
// SPC-2).
#include <rapidcheck.h>

#include <set>

#include "fake_transport.h"
#include "scsi/command_table.h"

namespace sandbay::testing {
namespace {

using scsi::Additional;
using scsi::SenseKey;
using scsi::Status;

// The pages of MODE SENSE(6) data, by code.
Bytes find_page(const Reply& reply, unsigned code, std::size_t header = 4) {
  std::size_t at = header + reply.in(header - 1);
  while (at < reply.data.size()) {
    const std::size_t length = reply.in(at + 1) + 2;
    const auto first = reply.data.begin() + static_cast<std::ptrdiff_t>(at);
    if ((reply.in(at) & 0x3FU) == code) {
      return Bytes(first, first + static_cast<std::ptrdiff_t>(length));
    }
    at += length;
  }
  return {};
}

unsigned value(const Bytes& page, std::size_t at) { return std::to_integer<unsigned>(page.at(at)); }

Task<Reply> select_page(Bench& bench, Bytes page) {
  Bytes list = filled(4, 0);
  list.insert(list.end(), page.begin(), page.end());
  const auto length = static_cast<unsigned>(list.size());
  co_return co_await bench.send_to_unit(cdb_of({0x15, 0x10, 0, 0, length}),
                                        {.out = std::move(list)});
}

Task<void> sense_of_nothing(Bench& bench) {
  const Reply fixed = co_await bench.send_to_unit(cdb_of({0x03, 0, 0, 0, 252}));
  CHECK(fixed.good());
  REQUIRE(fixed.data.size() == 18);
  CHECK(fixed.in(0) == 0x70);
  CHECK((fixed.in(2) & 0x0FU) == 0);
  const Reply descriptor = co_await bench.send_to_unit(cdb_of({0x03, 1, 0, 0, 252}));
  CHECK(descriptor.in(0) == 0x72);
}

Task<void> ready_while_there(Bench& bench) {
  bench.device.go_away(true);
  const Reply away = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(away.failed_with(SenseKey::kNotReady, Additional::kNotReadyCauseNotReportable));
  const Reply reported = co_await bench.send_to_unit(cdb_of({0x03, 0, 0, 0, 252}));
  CHECK(reported.good());
  REQUIRE(reported.data.size() == 18);
  CHECK((reported.in(2) & 0x0FU) == 2);
  CHECK((reported.in(12) << 8U | reported.in(13)) == 0x0400);
  bench.device.go_away(false);
  const Reply there = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(there.good());
}

// A unit that was taken offline says that it waits for somebody, and its inquiries go on.
Task<void> not_ready_while_offline(Bench& bench) {
  bench.unit.set_offline(true);
  bench.device.go_away(true);
  const Reply tested = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(tested.failed_with(SenseKey::kNotReady, Additional::kManualInterventionRequired));
  const Reply reported = co_await bench.send_to_unit(cdb_of({0x03, 0, 0, 0, 252}));
  REQUIRE(reported.data.size() == 18);
  CHECK((reported.in(12) << 8U | reported.in(13)) == 0x0403);
  const Reply inquiry = co_await bench.send_to_unit(cdb_of({0x12, 0, 0, 0, 36}));
  CHECK(inquiry.good());
  CHECK(inquiry.in(0) == 0);  // Connected, as before.
  const Reply luns = co_await bench.send_to_unit(cdb_of({0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 64}));
  CHECK(luns.good());
  bench.unit.set_offline(false);
  bench.device.go_away(false);
  const Reply there = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(there.good());
}

Task<void> sense_takes_attention(Bench& bench) {
  bench.unit.capacity_changed();
  const Reply sense = co_await bench.send_to_unit(cdb_of({0x03, 0, 0, 0, 252}));
  CHECK(sense.good());
  CHECK(sense.in(2) == 0x06);
  CHECK(big_endian<std::uint16_t>(sense.data, 12) == 0x2A09);
  const Reply ready = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(ready.good());
}

Task<void> attentions(Bench& bench) {
  bench.unit.capacity_changed();
  bench.unit.capacity_changed();
  bench.unit.establish(scsi::UnitAttention::kReportedLunsChanged);
  const Reply described = co_await bench.send_to_unit(inquiry(96));
  CHECK(described.good());
  const Reply first = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(first.attention(Additional::kCapacityDataHasChanged));
  const Reply luns = co_await bench.send_to_unit(cdb_12(0xA0, 0, 256));
  CHECK(luns.good());
  const Reply second = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(second.good());
  bench.unit.establish(scsi::UnitAttention::kReportedLunsChanged);
  const Reply third = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(third.attention(Additional::kReportedLunsDataHasChanged));
}

Task<void> all_pages(Bench& bench) {
  const Reply reply = co_await bench.send_to_unit(cdb_of({0x1A, 0, 0x3F, 0, 255}));
  CHECK(reply.good());
  CHECK(reply.in(0) + 1 == reply.data.size());
  CHECK(reply.data.size() <= 255);
  CHECK((reply.in(2) & 0x10U) != 0);  // DPOFUA
  for (const unsigned code : {0x01U, 0x08U, 0x0AU, 0x1CU}) {
    CHECK(!find_page(reply, code).empty());
    const Reply one = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, code, 0, 255}));
    CHECK(find_page(one, code) == find_page(reply, code));
    const Reply subpages = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, code, 0xFF, 255}));
    CHECK(subpages.data == one.data);
  }
  const Reply subpages = co_await bench.send_to_unit(cdb_of({0x1A, 0, 0x3F, 0xFF, 255}));
  CHECK(subpages.data == reply.data);
  const Reply unknown = co_await bench.send_to_unit(cdb_of({0x1A, 0, 0x02, 0, 255}));
  CHECK(unknown.illegal(Additional::kInvalidFieldInCdb));
  const Reply saved = co_await bench.send_to_unit(cdb_of({0x1A, 0, 0xC8, 0, 255}));
  CHECK(saved.illegal(Additional::kSavingParametersNotSupported));
}

Task<void> tiny_allocation(Bench& bench) {
  for (unsigned length = 0; length < 70; ++length) {
    const Reply six = co_await bench.send_to_unit(cdb_of({0x1A, 0, 0x3F, 0, length}));
    CHECK(six.good());
    CHECK(six.data.size() == std::min<std::size_t>(length, 68));
    const Reply ten = co_await bench.send_to_unit(cdb_10(0x5A, 0x3F00'0000, length));
    CHECK(ten.good());
    CHECK(ten.data_in_bytes == length);
  }
}

Task<void> block_descriptors(Bench& bench) {
  const Reply six = co_await bench.send_to_unit(cdb_of({0x1A, 0, 0x08, 0, 255}));
  CHECK(six.in(3) == 8);
  CHECK(big_endian<std::uint32_t>(six.data, 4) == kBenchBlocks);
  CHECK((big_endian<std::uint32_t>(six.data, 8) & 0xFF'FFFFU) == 512);
  const Reply ten = co_await bench.send_to_unit(cdb_10(0x5A, 0x0800'0000, 255, 0x10));
  CHECK((ten.in(4) & 1U) == 1);
  CHECK(ten.in(7) == 16);
  CHECK(big_endian<std::uint64_t>(ten.data, 8) == kBenchBlocks);
  CHECK(big_endian<std::uint32_t>(ten.data, 20) == 512);
  const Reply none = co_await bench.send_to_unit(cdb_10(0x5A, 0x0800'0000, 255, 0x08));
  CHECK(none.in(7) == 0);
  CHECK(none.in(8) == 0x08);
}

Task<void> write_cache(Bench& bench) {
  const Reply before = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, 0x08, 0, 255}));
  Bytes page = find_page(before, 0x08);
  CHECK((value(page, 2) & 0x04U) != 0);
  page[2] &= ~std::byte{0x04};
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x1");
  const Reply selected = co_await select_page(bench, page);
  CHECK(selected.good());
  CHECK(selected.data_out_bytes == 24);
  CHECK(bench.device.count(Operation::kFlush) == 1);
  const Reply told = co_await send(bench.router, *other, kTestUnitReady);
  CHECK(told.attention(Additional::kModeParametersChanged));
  const Reply own = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(own.good());
  bench.device.clear();
  const Reply written = co_await bench.send_to_unit(cdb_10(0x2A, 0, 1), {.out = filled(512, 1)});
  CHECK(written.good());
  CHECK(bench.device.seen().at(0).force_unit_access);
  const Reply defaults = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, 0x88, 0, 255}));
  CHECK((value(find_page(defaults, 0x08), 2) & 0x04U) != 0);
  const Reply now = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, 0x08, 0, 255}));
  CHECK((value(find_page(now, 0x08), 2) & 0x04U) == 0);
  const Reply mask = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, 0x48, 0, 255}));
  CHECK(value(find_page(mask, 0x08), 2) == 0x05);
  co_await bench.router.detach(*other);
}

std::unique_ptr<FakeCommand> start(Bench& bench, std::array<std::byte, 16> cdb, Sending how) {
  auto command = make_command(*bench.nexus, cdb, std::move(how));
  bench.router.execute(*command);
  return command;
}

std::unique_ptr<FakeCommand> start_select(Bench& bench, const Bytes& page) {
  Bytes list = filled(4, 0);
  list.insert(list.end(), page.begin(), page.end());
  const auto length = static_cast<unsigned>(list.size());
  return start(bench, cdb_of({0x15, 0x10, 0, 0, length}), {.out = std::move(list), .tag = 50});
}

Task<Bytes> current_page(Bench& bench, unsigned code) {
  const Reply reply = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, code, 0, 255}));
  co_return find_page(reply, code);
}

// No write slips through between the flush and the end of the cache.
Task<void> write_cache_goes_while_writing(Bench& bench) {
  Executor& home = bench.unit.home();
  Bytes page = co_await current_page(bench, 0x08);
  page[2] &= ~std::byte{0x04};
  bench.device.clear();
  bench.hung.hang_only(Operation::kWrite);
  const auto early = start(bench, cdb_10(0x2A, 0, 1), {.out = filled(512, 1), .tag = 1});
  const auto select = start_select(bench, page);
  const auto late = start(bench, cdb_10(0x2A, 8, 1), {.out = filled(512, 2), .tag = 2});
  const auto longer =
      start(bench, cdb_16(0x8A, 4096, 4096), {.out = filled(std::size_t{4096} * 512, 3), .tag = 3});
  co_await home.sleep_for(std::chrono::milliseconds(10));
  CHECK(bench.device.count(Operation::kFlush) == 0);
  CHECK(!select->answered);
  REQUIRE(bench.device.seen().size() == 3);
  CHECK_FALSE(bench.device.seen()[0].force_unit_access);
  CHECK(bench.device.seen()[1].force_unit_access);
  CHECK(bench.device.seen()[2].force_unit_access);
  bench.hung.release();
  const Reply selected = co_await select->answer();
  CHECK(selected.good());
  CHECK(bench.device.count(Operation::kFlush) == 1);
  co_await early->gone();
  co_await late->gone();
  co_await longer->gone();
  co_await select->gone();
}

// Neither an abort nor a failed flush takes the cache away.
Task<void> write_cache_stays(Bench& bench) {
  Bytes page = co_await current_page(bench, 0x08);
  page[2] &= ~std::byte{0x04};
  bench.hung.hang_only(Operation::kWrite);
  const auto early = start(bench, cdb_10(0x2A, 0, 1), {.out = filled(512, 1), .tag = 1});
  const auto aborted = start_select(bench, page);
  const auto done = co_await bench.manage(scsi::TaskManagementFunction::kAbortTask, 50);
  CHECK(done == scsi::TaskManagementResponse::kComplete);
  co_await aborted->gone();
  bench.hung.release();
  co_await early->gone();
  bench.faulty.fail({.operation = Operation::kFlush, .error = Error::kHardware, .times = 1});
  const Reply failed = co_await select_page(bench, page);
  CHECK(failed.status == Status::kCheckCondition);
  const Bytes now = co_await current_page(bench, 0x08);
  CHECK((value(now, 2) & 0x04U) != 0);
  bench.device.clear();
  const Reply written = co_await bench.send_to_unit(cdb_10(0x2A, 0, 1), {.out = filled(512, 1)});
  CHECK(written.good());
  CHECK_FALSE(bench.device.seen().at(0).force_unit_access);
}

// Two at a time, of different pages: neither undoes the other.
Task<void> two_mode_selects(Bench& bench) {
  Bytes caching = co_await current_page(bench, 0x08);
  caching[2] &= ~std::byte{0x04};
  Bytes control = co_await current_page(bench, 0x0A);
  control[2] |= std::byte{0x04};  // D_SENSE
  bench.hung.hang_only(Operation::kFlush);
  const auto slow = start_select(bench, caching);
  const Reply quick = co_await select_page(bench, control);
  CHECK(quick.good());
  bench.hung.release();
  const Reply selected = co_await slow->answer();
  CHECK(selected.good());
  co_await slow->gone();
  const Bytes caching_now = co_await current_page(bench, 0x08);
  const Bytes control_now = co_await current_page(bench, 0x0A);
  CHECK((value(caching_now, 2) & 0x04U) == 0);
  CHECK((value(control_now, 2) & 0x04U) != 0);
}

Task<void> descriptor_sense(Bench& bench) {
  const Reply before = co_await bench.send_to_unit(cdb_16(0x88, ~std::uint64_t{0}, 1));
  CHECK(!before.descriptor_format());
  const Reply current = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, 0x0A, 0, 255}));
  Bytes page = find_page(current, 0x0A);
  page[2] |= std::byte{0x04};
  co_await select_page(bench, page);
  const Reply after = co_await bench.send_to_unit(cdb_16(0x88, ~std::uint64_t{0}, 1));
  CHECK(after.descriptor_format());
  CHECK(after.illegal(Additional::kLbaOutOfRange));
}

Task<void> software_write_protect(Bench& bench) {
  const Reply current = co_await bench.send_to_unit(cdb_of({0x1A, 0x08, 0x0A, 0, 255}));
  Bytes page = find_page(current, 0x0A);
  page[4] |= std::byte{0x08};
  const Reply selected = co_await select_page(bench, page);
  CHECK(selected.good());
  const Reply write = co_await bench.send_to_unit(cdb_10(0x2A, 0, 1), {.out = filled(512, 1)});
  CHECK(write.failed_with(SenseKey::kDataProtect, Additional::kSoftwareWriteProtected));
  const Reply read = co_await bench.send_to_unit(cdb_10(0x28, 0, 1));
  CHECK(read.good());
  page[4] &= ~std::byte{0x08};
  co_await select_page(bench, page);
  const Reply again = co_await bench.send_to_unit(cdb_10(0x2A, 0, 1), {.out = filled(512, 1)});
  CHECK(again.good());
}

Task<void> bad_mode_select(Bench& bench) {
  const Bytes good = bytes_of({0x0A, 0x0A, 0x02, 0x10, 0, 0, 0, 0, 0, 0, 0, 0});
  Bytes unchangeable = good;
  unchangeable[3] = std::byte{0x20};
  const Reply first = co_await select_page(bench, unchangeable);
  CHECK(first.illegal(Additional::kInvalidFieldInParameterList));
  CHECK(first.field_byte() == 4 + 3);
  Bytes unknown = good;
  unknown[0] = std::byte{0x02};
  const Reply second = co_await select_page(bench, unknown);
  CHECK(second.illegal(Additional::kInvalidFieldInParameterList));
  const Reply third = co_await select_page(bench, Bytes(good.begin(), good.begin() + 7));
  CHECK(third.illegal(Additional::kParameterListLengthError));
  const Reply saving =
      co_await bench.send_to_unit(cdb_of({0x15, 0x11, 0, 0, 16}), {.out = filled(16, 0)});
  CHECK(saving.illegal(Additional::kInvalidFieldInCdb));
  const Reply nothing = co_await bench.send_to_unit(cdb_of({0x15, 0x10, 0, 0, 0}));
  CHECK(nothing.good());
  const Reply shorter =
      co_await bench.send_to_unit(cdb_of({0x15, 0x10, 0, 0, 16}), {.out = filled(8, 0)});
  CHECK(shorter.illegal(Additional::kInvalidFieldInInformationUnit));
  CHECK(bench.unit.mode_parameters() == scsi::ModeParameters{});
}

Task<void> reservation(Bench& bench) {
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x1");
  for (const unsigned opcode : {0x16U, 0x56U}) {
    const Reply reserved = co_await bench.send_to_unit(cdb_of({opcode}));
    CHECK(reserved.good());
    const Reply again = co_await bench.send_to_unit(cdb_of({opcode}));
    CHECK(again.good());
    for (const auto& cdb : {cdb_of({opcode}), kTestUnitReady, cdb_10(0x28, 0, 1),
                            cdb_10(0x2A, 0, 1), cdb_of({0x1A, 0, 0x3F, 0, 255})}) {
      const Reply conflict = co_await send(bench.router, *other, cdb);
      CHECK(conflict.status == Status::kReservationConflict);
    }
    for (const auto& cdb :
         {inquiry(96), cdb_12(0xA0, 0, 256), cdb_of({0x03, 0, 0, 0, 18}), cdb_of({opcode + 1})}) {
      const Reply served = co_await send(bench.router, *other, cdb);
      CHECK(served.good());
    }
    const Reply still = co_await send(bench.router, *other, kTestUnitReady);
    CHECK(still.status == Status::kReservationConflict);
    const Reply released = co_await bench.send_to_unit(cdb_of({opcode + 1}));
    CHECK(released.good());
    const Reply theirs = co_await send(bench.router, *other, cdb_of({opcode}));
    CHECK(theirs.good());
    co_await send(bench.router, *other, cdb_of({opcode + 1}));
  }
  co_await bench.router.detach(*other);
}

Task<Reply> report(Bench& bench, unsigned options, unsigned opcode = 0, unsigned action = 0) {
  auto cdb = cdb_of({0xA3, 0x0C, options, opcode, 0, action, 0, 0, 0xFF, 0xFF});
  return bench.send_to_unit(cdb);
}

Task<void> supported_opcodes(Bench& bench) {
  bench.unit.restore(bench.shelf, {});
  const Reply all = co_await report(bench, 0);
  const Reply timed = co_await report(bench, 0x80);
  CHECK(big_endian<std::uint32_t>(all.data, 0) + 4 == all.data.size());
  CHECK((all.data.size() - 4) / 8 == scsi::command_table().size());
  CHECK((timed.data.size() - 4) / 20 == scsi::command_table().size());
  for (std::size_t at = 4; at < all.data.size(); at += 8) {
    const unsigned opcode = all.in(at);
    const bool actions = (all.in(at + 5) & 1U) != 0;
    const unsigned action = all.in(at + 3);
    CHECK((actions || action == 0));
    const Reply wrong = co_await report(bench, actions ? 1 : 2, opcode, action);
    CHECK(wrong.illegal(Additional::kInvalidFieldInCdb));
    for (const unsigned options : {actions ? 2U : 1U, 3U}) {
      const Reply one = co_await report(bench, options, opcode, action);
      CHECK(one.good());
      CHECK((one.in(1) & 0x07U) == 3);
      const auto length = big_endian<std::uint16_t>(one.data, 2);
      CHECK(one.data.size() == 4U + length);
      CHECK(one.in(4) == opcode);
    }
    const Reply with_time = co_await report(bench, actions ? 0x82 : 0x81, opcode, action);
    CHECK((with_time.in(1) & 0x80U) != 0);
    CHECK(with_time.data.size() == 16U + big_endian<std::uint16_t>(with_time.data, 2));
  }
  for (std::size_t at = 4; at < timed.data.size(); at += 20) {
    CHECK((timed.in(at + 5) & 2U) != 0);
    CHECK(big_endian<std::uint16_t>(timed.data, at + 8) == 10);
  }
}

Task<void> later_commands(Bench& bench) {
  struct Case {
    unsigned opcode;
    unsigned action;
  };
  // EXTENDED COPY; service actions that do not exist.
  for (const Case& each : {Case{0x83, 0}, Case{0x84, 3}, Case{0x5E, 4}, Case{0x5F, 9},
                           Case{0xA3, 0x0B}, Case{0x48, 3}, Case{0x7F, 0}, Case{0xFF, 0}}) {
    const Reply reply = co_await bench.send_to_unit(cdb_of({each.opcode, each.action}));
    const bool known =
        each.opcode == 0x48 || each.opcode == 0x5E || each.opcode == 0x5F || each.opcode == 0xA3;
    CHECK(
        reply.illegal(known ? Additional::kInvalidFieldInCdb : Additional::kInvalidOperationCode));
    const Reply asked = co_await report(bench, 3, each.opcode, each.action);
    CHECK(asked.good());
    CHECK((asked.in(1) & 0x07U) == 1);
  }
}

// Every bit that a row does not allow is refused, and the field pointer shows it.
Task<void> reserved_bits(Bench& bench) {
  bench.unit.restore(bench.shelf, {});
  for (const scsi::CommandRow& row : scsi::command_table()) {
    for (std::size_t byte = 1; byte < row.cdb_bytes; ++byte) {
      for (unsigned bit = 0; bit < 8; ++bit) {
        if ((row.usage[byte - 1] >> bit & 1U) != 0) continue;
        auto cdb = cdb_of({row.opcode, row.service_action});
        cdb[byte] |= static_cast<std::byte>(1U << bit);
        CAPTURE(row.name, byte, bit);
        const Reply reply = co_await bench.send_to_unit(cdb);
        CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
        CHECK(reply.field_byte() == byte);
        CHECK((reply.byte(15) & 0xCFU) == (0xC8U | bit));
      }
    }
  }
}

Task<void> supported_tmfs(Bench& bench) {
  const Reply brief = co_await bench.send_to_unit(cdb_of({0xA3, 0x0D, 0, 0, 0, 0, 0, 0, 0, 16}));
  CHECK(brief.data == bytes_of({0xD8, 0, 0, 0}));
  const Reply longer =
      co_await bench.send_to_unit(cdb_of({0xA3, 0x0D, 0x80, 0, 0, 0, 0, 0, 0, 16}));
  CHECK(longer.data.size() == 16);
  CHECK(longer.in(3) == 12);
}

// Any bytes at all: an answer, and nothing worse.
Task<void> random_cdbs(Bench& bench) {
  Random& random = bench.unit.home().random();
  const auto rows = scsi::command_table();
  for (unsigned i = 0; i < 20000; ++i) {
    std::array<std::byte, 16> cdb{};
    for (std::byte& byte : cdb) {
      if (random.chance(0.4)) byte = static_cast<std::byte>(random.next());
    }
    if (random.chance(0.9)) {
      const scsi::CommandRow& row = rows[random.below(rows.size())];
      for (std::size_t at = 1; at < row.cdb_bytes; ++at) cdb[at] &= std::byte{row.usage[at - 1]};
      cdb[0] = std::byte{row.opcode};
      if (row.is(scsi::CommandFlags::kHasServiceAction)) cdb[1] = std::byte{row.service_action};
    }
    Bytes out(random.chance(0.5) ? random.below(5000) : 512 * random.below(20));
    for (std::byte& byte : out) {
      if (random.chance(0.2)) byte = static_cast<std::byte>(random.next());
    }
    const auto attribute = static_cast<scsi::TaskAttribute>(random.below(4));
    const Reply reply = co_await bench.send_to_unit(
        cdb, {.out = std::move(out),
              .in_length = static_cast<std::uint32_t>(random.below(1U << 20U)),
              .lun = random.chance(0.9) ? 0 : random.next(),
              .attribute = attribute});
    CHECK(!reply.silent);
    CHECK((reply.status == Status::kCheckCondition) == !reply.sense.empty());
  }
}

}  // namespace

TEST_CASE("TEST UNIT READY: a unit whose storage is away is not ready, and comes back", "[scsi]") {
  on_bench(ready_while_there);
}
TEST_CASE("TEST UNIT READY: a unit that was taken offline waits for somebody", "[scsi]") {
  on_bench(not_ready_while_offline);
}
TEST_CASE("REQUEST SENSE: nothing to report", "[scsi]") { on_bench(sense_of_nothing); }
TEST_CASE("REQUEST SENSE: reports and clears a unit attention", "[scsi]") {
  on_bench(sense_takes_attention);
}
TEST_CASE("Unit attentions: once each, in order, and not for INQUIRY or REPORT LUNS", "[scsi]") {
  on_bench(attentions);
}
TEST_CASE("MODE SENSE: all pages", "[scsi]") { on_bench(all_pages); }
TEST_CASE("Linux: there is a caching mode page", "[scsi]") { on_bench(all_pages); }
TEST_CASE("Windows: MODE SENSE with a tiny allocation length", "[scsi]") {
  on_bench(tiny_allocation);
}
TEST_CASE("MODE SENSE: short and long block descriptors", "[scsi]") { on_bench(block_descriptors); }
TEST_CASE("MODE SELECT: without WCE every write is to stable storage", "[scsi]") {
  on_bench(write_cache);
}
TEST_CASE("MODE SELECT: WCE goes when every write before it is safe", "[scsi]") {
  on_bench(write_cache_goes_while_writing);
}
TEST_CASE("MODE SELECT: WCE stays if it is aborted or the flush fails", "[scsi]") {
  on_bench(write_cache_stays);
}
TEST_CASE("MODE SELECT: two at a time both take effect", "[scsi]") { on_bench(two_mode_selects); }
TEST_CASE("MODE SELECT: D_SENSE chooses the sense format", "[scsi]") { on_bench(descriptor_sense); }
TEST_CASE("MODE SELECT: SWP protects the unit", "[scsi]") { on_bench(software_write_protect); }
TEST_CASE("MODE SELECT: what cannot be accepted changes nothing", "[scsi]") {
  on_bench(bad_mode_select);
}
TEST_CASE("Windows and ESXi: RESERVE and RELEASE while formatting", "[scsi]") {
  on_bench(reservation);
}
TEST_CASE("REPORT SUPPORTED OPERATION CODES: all, one, and with timeouts", "[scsi]") {
  on_bench(supported_opcodes);
}
TEST_CASE("Linux: sd finds WRITE SAME through REPORT SUPPORTED OPERATION CODES", "[scsi]") {
  on_bench([](Bench& bench) -> Task<void> {
    for (const unsigned opcode : {0x12U, 0x41U, 0x93U}) {
      const Reply reply = co_await report(bench, 1, opcode);
      CHECK((reply.in(1) & 0x07U) == 3);
    }
  });
}
TEST_CASE("ESX: later commands are not offered", "[scsi]") { on_bench(later_commands); }
TEST_CASE("CDB: every reserved bit is an invalid field with its pointer", "[scsi]") {
  on_bench(reserved_bits);
}
TEST_CASE("REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", "[scsi]") { on_bench(supported_tmfs); }
TEST_CASE("CDB: twenty thousand random ones", "[scsi]") { on_bench(random_cdbs); }

TEST_CASE("Sense data: fixed and descriptor format agree", "[scsi]") {
  REQUIRE(rc::check([](std::uint8_t key, std::uint16_t code, std::uint32_t information) {
    const scsi::Sense sense{.key = static_cast<SenseKey>(key & 0x0FU),
                            .additional = static_cast<Additional>(code),
                            .information = information};
    for (const bool descriptors : {false, true}) {
      const scsi::SenseData data = scsi::SenseData::encode(sense, descriptors);
      Reply reply;
      reply.sense.assign(data.bytes().begin(), data.bytes().end());
      RC_ASSERT(reply.key() == sense.key);
      RC_ASSERT(reply.additional() == code);
      RC_ASSERT(data.bytes().size() == 8U + std::to_integer<std::size_t>(data.bytes()[7]));
      if (descriptors) {
        RC_ASSERT(big_endian<std::uint64_t>(data.bytes(), 12) == information);
      } else {
        RC_ASSERT(reply.information() == information);
      }
    }
  }));
}

}  // namespace sandbay::testing
