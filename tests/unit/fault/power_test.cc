// Power, batteries and NVRAM: what the engine does to whoever registered, and drives whose power is
// cut under load, that lie about flushes or reorder.
#include "bench.h"

namespace sandbay::fault {
namespace {

using std::chrono::milliseconds;

class FakeNvram final : public NvramFaultTarget {
 public:
  std::uint64_t byte_count() const noexcept override { return 10'000; }
  void lose_content() override { told.push_back("lost"); }
  void damage_page(std::uint64_t offset, std::uint64_t length, std::uint64_t /*seed*/) override {
    CHECK(offset % 4096 == 0);
    CHECK(offset + length <= byte_count());
    CHECK(length > 0);
    told.push_back("page");
  }
  void remember_content() override { told.push_back("remembered"); }
  void return_to_earlier_content() override { told.push_back("stale"); }
  void flip_bit(std::uint64_t byte_offset, unsigned bit_number) override {
    CHECK(byte_offset < byte_count());
    CHECK(bit_number < 8);
    told.push_back("bit");
  }
  void set_battery_low(bool low) override { told.push_back(low ? "low" : "charged"); }

  std::vector<std::string> told;
};

Task<void> nvram_faults(Executor& home) {
  FakeNvram a;
  FakeNvram b;
  Bench bench(home);
  bench.engine.add_nvram("A", a);
  bench.engine.add_nvram("B", b);
  bench.add("at=nvram:A do=nvram.loss");
  bench.add("at=nvram:A do=nvram.page");
  bench.add("at=nvram:A do=nvram.stale");
  bench.add("at=nvram do=nvram.bitrot");
  bench.add("at=nvram:A do=battery.low for=5ms");
  CHECK(a.told == std::vector<std::string>{"lost", "page", "remembered", "stale", "bit", "low"});
  CHECK(b.told == std::vector<std::string>{"bit"});
  co_await home.sleep_for(milliseconds(6));
  CHECK(a.told.back() == "charged");
  CHECK(bench.log.size() == 6);
  const auto refused = bench.engine.add("at=nvram:C do=nvram.loss");
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error() == "at=nvram: unknown NVRAM; NVRAMs are: A, B");

  // The loss of a page goes with the loss of power.
  bench.add("at=nvram:B event=power.cut do=nvram.page");
  bench.add("at=enclosure op=write after=1 do=power.cut");
  Error error = co_await write_value(bench.layer(0), 0, 1);
  CHECK(error == Error::kNone);
  CHECK(b.told.size() == 1);
  error = co_await write_value(bench.layer(1), 0, 1);
  CHECK(error == Error::kNotReady);
  CHECK(b.told.back() == "page");
  bench.engine.remove_nvram("A");
  bench.engine.remove_nvram("B");
  for (const Drive& drive : bench.drives) co_await drive.cache->settled();
}

Task<void> cuts(Executor& home) {
  int told = 0;
  Bench bench(home, {.on_power_cut = [&told](const Rule& /*rule*/) { ++told; }});
  for (std::size_t i = 0; i < 3; ++i) {
    Error error = co_await write_value(bench.layer(i), 0, 1);
    error = co_await do_plainly(bench.layer(i), Operation::kFlush);
    error = co_await write_value(bench.layer(i), 0, 2);
    CHECK(error == Error::kNone);
  }
  bench.add("id=cut at=enclosure:front do=power.cut loss=all");
  CHECK(told == 1);
  int value = co_await read_value(bench.layer(0), 0);
  CHECK(value == 1);
  value = co_await read_value(bench.layer(1), 0);
  CHECK(value == 1);
  value = co_await read_value(bench.layer(2), 0);
  CHECK(value == 2);

  // Again while recovering: three operations after the next cut.
  bench.add("id=again at=enclosure:front after=2 do=power.cut.again loss=all");
  Error error = co_await write_value(bench.layer(0), 0, 3);
  error = co_await write_value(bench.layer(0), 0, 4);
  error = co_await write_value(bench.layer(0), 0, 5);
  CHECK(error == Error::kNone);
  CHECK(bench.counters("again").fired == 0);
  bench.add("id=cut2 at=enclosure:front do=power.cut loss=none");
  error = co_await write_value(bench.layer(0), 0, 6);
  error = co_await write_value(bench.layer(0), 0, 7);
  CHECK(error == Error::kNone);
  error = co_await write_value(bench.layer(0), 0, 8);
  CHECK(error == Error::kNotReady);
  CHECK(bench.counters("again").fired == 1);
  CHECK(told == 3);
  value = co_await read_value(bench.layer(0), 0);
  CHECK(value == 5);  // What the cut without loss kept.
  for (const Drive& drive : bench.drives) co_await drive.cache->settled();
}

Task<void> hold_then_cut(BlockDevice& device, Error& error) {
  error = co_await do_plainly(device, Operation::kFlush);
}

Task<void> in_flight(Executor& home) {
  Bench bench(home);
  bench.add("at=drive:d0 op=flush count=1 do=hang");
  Error error = Error::kNone;
  spawn(hold_then_cut(bench.layer(), error));
  bench.add("at=drive:d0 do=power.cut");
  co_await home.sleep_for(milliseconds(1));
  CHECK(error == Error::kNotReady);
  co_await bench.drives[0].cache->settled();
}

Task<void> lies(Executor& home) {
  Bench bench(home);
  const std::string id = bench.add("at=drive:d0 do=noflush");
  Error error = co_await write_value(bench.layer(0), 0, 1);
  error = co_await write_value(bench.layer(0), 1, 1, 1, true);
  error = co_await do_plainly(bench.layer(0), Operation::kFlush);
  CHECK(error == Error::kNone);
  CHECK(bench.counters(id).struck == 2);
  bench.add("at=drive:d0 do=power.cut loss=all");
  int value = co_await read_value(bench.layer(0), 0);
  CHECK(value == 0);
  value = co_await read_value(bench.layer(0), 1);
  CHECK(value == 0);
  bench.engine.clear(id);
  error = co_await write_value(bench.layer(0), 0, 1);
  error = co_await do_plainly(bench.layer(0), Operation::kFlush);
  bench.add("at=drive:d0 do=power.cut loss=all");
  value = co_await read_value(bench.layer(0), 0);
  CHECK(value == 1);
  co_await bench.drives[0].cache->settled();
}

// With order=, the newest survive only after all older; reordered, also without.
Task<void> order(Executor& home, std::uint64_t seed, bool reordered, bool& gap) {
  Bench bench(home, {.seed = seed});
  if (reordered) bench.add("at=drive:d0 do=reorder");
  for (Lba lba = 0; lba < 8; ++lba) {
    const Error error = co_await write_value(bench.layer(), lba, 1);
    CHECK(error == Error::kNone);
  }
  bench.add("at=drive:d0 do=power.cut loss=order");
  bool missing = false;
  for (Lba lba = 0; lba < 8; ++lba) {
    const int value = co_await read_value(bench.layer(), lba);
    if (value == 0) missing = true;
    if (value == 1 && missing) gap = true;
  }
  co_await bench.drives[0].cache->settled();
}

}  // namespace

TEST_CASE("NVRAM and battery faults reach who registered", "[fault][power]") {
  run_bench(1, [](Executor& home) { return nvram_faults(home); });
}

TEST_CASE("power.cut and power.cut.again cut all drives of an enclosure", "[fault][power]") {
  run_bench(1, [](Executor& home) { return cuts(home); });
}

TEST_CASE("What waits in a drive when the power goes fails", "[fault][power]") {
  run_bench(1, [](Executor& home) { return in_flight(home); });
}

TEST_CASE("noflush: a drive that lies about flushes loses what it promised", "[fault][power]") {
  run_bench(1, [](Executor& home) { return lies(home); });
}

TEST_CASE("reorder: un-flushed writes persist in any order", "[fault][power]") {
  bool gap = false;
  bool reordered_gap = false;
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    run_bench(1, [&](Executor& home) { return order(home, seed, false, gap); });
    run_bench(1, [&](Executor& home) { return order(home, seed, true, reordered_gap); });
  }
  CHECK_FALSE(gap);
  CHECK(reordered_gap);
}

}  // namespace sandbay::fault
