// Every fault of a drive on a drive in memory: what the host of the drive sees, and what the device
// below stores.
#include <algorithm>

#include "bench.h"

namespace sandbay::fault {
namespace {

using std::chrono::milliseconds;

// Runs an operation by itself and keeps its end.
struct Background {
  bool ended = false;
  Error error = Error::kNone;
  TimePoint at{};
};

Task<void> in_background(BlockDevice& device, Operation operation, Extent extent,
                         Cancellation* cancellation, Background& end) {
  const Completion done = co_await do_without_data(device, operation, extent, cancellation);
  end = {.ended = true, .error = done.error, .at = device.home().now()};
}

Task<void> fail_and_return(Executor& home) {
  Bench bench(home);
  Error error = co_await write_value(bench.layer(), 5, 1);
  CHECK(error == Error::kNone);
  const std::string id = bench.add("at=drive:d0 do=fail");
  CHECK(bench.layer().health() == Health::kFailed);
  error = co_await write_value(bench.layer(), 5, 2);
  CHECK(error == Error::kHardware);
  error = co_await read_error(bench.layer(), {5, 1});
  CHECK(error == Error::kHardware);
  error = co_await do_plainly(bench.layer(), Operation::kFlush);
  CHECK(error == Error::kHardware);
  CHECK(bench.layer(1).health() == Health::kGood);
  CHECK(bench.engine.clear(id));
  CHECK(bench.layer().health() == Health::kGood);
  int value = co_await read_value(bench.layer(), 5);
  CHECK(value == 1);
  CHECK(bench.healths == std::vector<std::string>{"d0 3", "d0 0"});
  CHECK(bench.log == std::vector<std::string>{"drive d0: fault r1 fired: fail"});

  bench.add("id=t at=disk:1 after=1 do=fail.transient for=20ms");
  error = co_await read_error(bench.layer(1), {0, 1});
  CHECK(error == Error::kNone);
  error = co_await read_error(bench.layer(1), {0, 1});
  CHECK(error == Error::kHardware);
  co_await home.sleep_for(milliseconds(19));
  error = co_await read_error(bench.layer(1), {0, 1});
  CHECK(error == Error::kHardware);
  co_await home.sleep_for(milliseconds(2));
  error = co_await read_error(bench.layer(1), {0, 1});
  CHECK(error == Error::kNone);
  CHECK(bench.counters("t").fired == 1);
}

Task<void> pull_and_insert(Executor& home) {
  auto other = MemoryDevice::create(home, {.byte_count = kBlocks / 2 * 512});
  REQUIRE(other.has_value());
  BlockDevice* const content = other->get();
  Bench bench(home, {.other_content = [content](const std::string& drive) -> BlockDevice* {
                return drive == "d0" ? content : nullptr;
              }});
  Error error = co_await write_value(bench.layer(), 5, 1);
  bench.add("id=out at=drive:d0 do=pull");
  CHECK(bench.layer().health() == Health::kMissing);
  CHECK_FALSE(bench.layer().present());
  error = co_await read_error(bench.layer(), {5, 1});
  CHECK(error == Error::kNotReady);
  bench.add("at=drive:d0 do=insert");
  CHECK(bench.layer().present());
  error = co_await read_error(bench.layer(), {5, 1});
  CHECK(error == Error::kNotReady);  // Once: it may be another drive.
  int value = co_await read_value(bench.layer(), 5);
  CHECK(value == 1);

  bench.add("at=drive:d0 do=pull");
  bench.add("at=drive:d0 do=insert content=other");
  CHECK(bench.layer().geometry().block_count == kBlocks / 2);
  Result<ProvisioningRun> run = co_await bench.layer().provisioning(0, 8);
  CHECK((!run && run.error() == Error::kNotReady));  // A question meets it, too.
  run = co_await bench.layer().provisioning(0, 8);
  CHECK(run.has_value());
  bench.add("at=drive:d0 do=pull");
  bench.add("at=drive:d0 do=insert content=other");
  error = co_await write_value(bench.layer(), 5, 3);
  CHECK(error == Error::kNotReady);
  value = co_await read_value(bench.layer(), 5);
  CHECK(value == 0);
  error = co_await read_error(bench.layer(), {kBlocks - 1, 1});  // Of somebody who has not looked.
  CHECK(error == Error::kOutOfRange);

  bench.add("at=enclosure:front do=shelf.loss for=10ms");
  CHECK_FALSE(bench.layer(0).present());
  CHECK_FALSE(bench.layer(1).present());
  CHECK(bench.layer(2).present());
  co_await home.sleep_for(milliseconds(11));
  CHECK(bench.layer(0).present());
  CHECK(bench.layer(1).present());
  error = co_await read_error(bench.layer(1), {5, 1});
  CHECK(error == Error::kNotReady);
  error = co_await read_error(bench.layer(1), {5, 1});
  CHECK(error == Error::kNone);
  bench.drives[0].layer.reset();  // Before the content that was inserted.
}

Task<void> latent_errors(Executor& home) {
  Bench bench(home);
  bench.add("at=drive:d0 lba=100+4 do=lse");
  Random random(1);
  Completion done = co_await read_blocks(bench.layer(), {96, 8}, Cut::kAligned, random);
  CHECK(done.error == Error::kMediumError);
  CHECK(done.first_bad_lba == 100);
  CHECK(done.data.byte_count() == 8 * 512);
  CHECK(bench.layer().status().unreadable_blocks == 4);
  Error error = co_await read_error(bench.layer(), {96, 4});
  CHECK(error == Error::kNone);
  error = co_await write_value(bench.layer(), 100, 7, 2);
  CHECK(error == Error::kNone);
  done = co_await read_blocks(bench.layer(), {96, 8}, Cut::kAligned, random);
  CHECK(done.error == Error::kMediumError);
  CHECK(done.first_bad_lba == 102);
  error = co_await do_plainly(bench.layer(), Operation::kWriteZeroes, {102, 2});
  CHECK(error == Error::kNone);
  error = co_await read_error(bench.layer(), {96, 8});
  CHECK(error == Error::kNone);

  // Without an extent: what the operation reads.
  bench.add("id=on-read at=drive:d1 op=read after=1 count=1 do=lse");
  error = co_await read_error(bench.layer(1), {8, 2});
  CHECK(error == Error::kNone);
  error = co_await read_error(bench.layer(1), {8, 2});
  CHECK(error == Error::kMediumError);
  error = co_await read_error(bench.layer(1), {10, 1});
  CHECK(error == Error::kNone);
  CHECK(bench.counters("on-read") == Counters{.matched = 3, .fired = 1, .struck = 1});
}

Task<void> growing_errors(Executor& home) {
  Bench bench(home);
  bench.add("id=grow at=drive:d0 lba=1000+500 do=lse.growing rate=100 threshold=20 for=500ms");
  co_await home.sleep_for(milliseconds(105));
  Error error = co_await read_error(bench.layer(), {0, 1000});
  CHECK(error == Error::kNone);
  const std::uint64_t early = bench.layer().status().unreadable_blocks;
  CHECK(early > 0);
  CHECK(early <= 10);
  CHECK(bench.layer().health() == Health::kGood);
  co_await home.sleep_for(milliseconds(2000));
  const std::uint64_t late = bench.layer().status().unreadable_blocks;
  CHECK(late >= 20);
  CHECK(late <= 50);
  CHECK(bench.layer().health() == Health::kPredictedFailure);
  error = co_await read_error(bench.layer(), {1000, 500});
  CHECK(error == Error::kMediumError);
  error = co_await read_error(bench.layer(), {1500, 500});
  CHECK(error == Error::kNone);
  CHECK(bench.engine.heal("0") == "d0");
  CHECK(bench.layer().health() == Health::kGood);
}

Task<void> errors_of_writes(Executor& home) {
  Bench bench(home);
  bench.add("id=w at=drive:d0 lba=10+2 count=1 do=write.error");
  Error error = co_await write_value(bench.layer(), 4, 3, 4);
  CHECK(error == Error::kNone);
  Random random(1);
  Completion done = co_await write_blocks(bench.layer(), 8, blocks_of(9, 4), Cut::kAligned, random);
  CHECK(done.error == Error::kMediumError);
  CHECK(done.first_bad_lba == 10);
  int value = co_await read_value(bench.layer(), 8);
  CHECK(value == 0);
  bench.add("id=rec at=drive:d0 op=read count=2 do=recovered");
  for (int i = 0; i < 3; ++i) {
    value = co_await read_value(bench.layer(), 4);
    CHECK(value == 3);
  }
  CHECK(bench.layer().status().recovered_errors == 2);
  CHECK(bench.counters("rec") == Counters{.matched = 3, .fired = 2, .struck = 2});

  bench.add("id=full at=drive:d1 do=full");
  error = co_await write_value(bench.layer(1), 0, 1);
  CHECK(error == Error::kNoSpace);
  error = co_await do_plainly(bench.layer(1), Operation::kUnmap, {0, 1});
  CHECK(error == Error::kNone);
  bench.engine.clear("full");
  bench.add("id=ro at=drive:d1 do=readonly");
  CHECK(bench.layer(1).geometry().read_only);
  error = co_await write_value(bench.layer(1), 0, 1);
  CHECK(error == Error::kReadOnly);
  error = co_await do_plainly(bench.layer(1), Operation::kUnmap, {0, 1});
  CHECK(error == Error::kReadOnly);
  value = co_await read_value(bench.layer(1), 0);
  CHECK(value == 0);
  bench.engine.clear("ro");
  CHECK_FALSE(bench.layer(1).geometry().read_only);
}

Task<void> slowness(Executor& home) {
  Bench bench(home);
  bench.add("id=s at=drive:d0 op=read do=slow latency=10ms lanes=2");
  std::vector<Background> ends(4);
  const TimePoint start = home.now();
  for (Background& end : ends) {
    spawn(in_background(bench.layer(), Operation::kAdvise, {0, 1}, nullptr, end));
    CHECK(end.ended);  // Not a read.
    end.ended = false;
  }
  bench.engine.clear("s");
  bench.add("id=s at=drive:d0 do=slow latency=10ms lanes=2");
  for (Background& end : ends) {
    spawn(in_background(bench.layer(), Operation::kAdvise, {0, 1}, nullptr, end));
  }
  co_await home.sleep_for(milliseconds(50));
  CHECK(ends[0].at - start == milliseconds(10));
  CHECK(ends[1].at - start == milliseconds(10));
  CHECK(ends[2].at - start == milliseconds(20));
  CHECK(ends[3].at - start == milliseconds(20));

  bench.add("id=b at=drive:d1 op=write do=slow bandwidth=512kB/s");
  const TimePoint before = home.now();
  Error error = co_await write_value(bench.layer(1), 0, 1, 10);
  CHECK(error == Error::kNone);
  CHECK(home.now() - before == milliseconds(10));
  bench.add("id=u at=drive:d2 do=slow latency=1ms..9ms");
  bench.add("id=e at=drive:d2 do=slow latency=exp:1ms count=5");
  for (int i = 0; i < 20; ++i) {
    const TimePoint at = home.now();
    error = co_await read_error(bench.layer(2), {0, 1});
    CHECK(error == Error::kNone);
    CHECK(home.now() - at >= milliseconds(1));
  }
  // Nobody waits for an operation that is cancelled.
  Background end;
  Cancellation cancellation;
  spawn(in_background(bench.layer(2), Operation::kFlush, {}, &cancellation, end));
  CHECK_FALSE(end.ended);
  cancellation.cancel();
  co_await home.sleep_for(milliseconds(0));
  co_await home.yield();
  co_await home.sleep_for(Duration(1));
  CHECK(end.error == Error::kCancelled);
}

Task<void> stalls(Executor& home) {
  Bench bench(home);
  std::vector<std::size_t> order;
  for (int round = 0; round < 4; ++round) {
    const std::string id = bench.add("at=drive:d0 do=stall for=30ms");
    std::vector<Background> ends(8);
    const TimePoint start = home.now();
    for (Background& end : ends) {
      spawn(in_background(bench.layer(), Operation::kFlush, {}, nullptr, end));
    }
    co_await home.sleep_for(milliseconds(29));
    CHECK(std::ranges::none_of(ends, &Background::ended));
    co_await home.sleep_for(milliseconds(2));
    for (const Background& end : ends) {
      CHECK(end.ended);
      CHECK(end.error == Error::kNone);
      CHECK(end.at - start == milliseconds(30));
    }
    CHECK(bench.counters(id).struck == 8);
  }
}

Task<void> hangs(Executor& home) {
  Bench bench(home);
  const std::string id = bench.add("at=drive:d0 op=flush count=3 do=hang");
  std::vector<Background> ends(4);
  std::vector<Cancellation> cancellations(4);
  for (std::size_t i = 0; i < 4; ++i) {
    spawn(in_background(bench.layer(), Operation::kFlush, {}, &cancellations[i], ends[i]));
  }
  co_await home.sleep_for(std::chrono::minutes(30));
  CHECK(ends[3].ended);
  CHECK(ends[3].error == Error::kNone);
  CHECK(bench.engine.list()[0].held == 3);
  CHECK(bench.engine.list()[0].active);
  cancellations[0].cancel();
  co_await home.sleep_for(milliseconds(1));
  CHECK(ends[0].error == Error::kCancelled);
  CHECK_FALSE(ends[1].ended);
  bench.engine.clear(id);
  co_await home.sleep_for(milliseconds(1));
  CHECK(ends[1].error == Error::kTimedOut);
  CHECK(ends[2].error == Error::kTimedOut);

  // A drive that is pulled ends what hung in it.
  bench.add("at=drive:d1 op=flush count=1 do=hang");
  Background end;
  spawn(in_background(bench.layer(1), Operation::kFlush, {}, nullptr, end));
  CHECK_FALSE(end.ended);
  bench.add("at=drive:d1 do=pull");
  co_await home.sleep_for(milliseconds(1));
  CHECK(end.error == Error::kNotReady);
}

Task<void> breakpoints(Executor& home) {
  Bench bench(home);
  const std::string id = bench.add("at=drive:d0 op=write_zeroes do=hold");
  Error error = co_await write_value(bench.layer(), 4, 6);
  CHECK(error == Error::kNone);
  Background end;
  spawn(in_background(bench.layer(), Operation::kWriteZeroes, {4, 1}, nullptr, end));
  co_await home.sleep_for(milliseconds(100));
  CHECK_FALSE(end.ended);
  int value = co_await read_value(bench.layer(), 4);
  CHECK(value == 6);
  CHECK(bench.engine.release(id) == 1);
  CHECK(bench.engine.release("nobody") == -1);
  co_await home.sleep_for(milliseconds(1));
  CHECK(end.error == Error::kNone);
  CHECK(end.ended);
  value = co_await read_value(bench.layer(), 4);
  CHECK(value == 0);
  bench.engine.clear(id);
  bench.add("at=drive:d0 op=flush count=1 do=hold for=7ms");
  const TimePoint start = home.now();
  error = co_await do_plainly(bench.layer(), Operation::kFlush);
  CHECK(error == Error::kNone);
  CHECK(home.now() - start == milliseconds(7));
}

// How many bits differ from `expected` in what the device returns.
Task<int> wrong_bits(BlockDevice& device, Extent extent, unsigned expected) {
  Random random(1);
  const Completion done = co_await read_blocks(device, extent, Cut::kAnywhere, random);
  REQUIRE(done.error == Error::kNone);
  int count = 0;
  for (const std::byte byte : content_of(done.data)) {
    count += std::popcount(static_cast<unsigned>(byte) ^ expected);
  }
  co_return count;
}

Task<void> flips(Executor& home) {
  Bench bench(home);
  Error error = co_await write_value(bench.layer(), 0, 0x55, 16);
  bench.add("at=drive:d0 lba=0+16 do=flip bits=5");
  int wrong = co_await wrong_bits(bench.layer(), {0, 16}, 0x55);
  CHECK(wrong == 5);
  wrong = co_await wrong_bits(*bench.drives[0].cache, {0, 16}, 0x55);
  CHECK(wrong == 0);  // What is below stays pristine.
  wrong = co_await wrong_bits(bench.layer(), {0, 16}, 0x55);
  CHECK(wrong == 5);
  error = co_await write_value(bench.layer(), 0, 0x66, 16);
  CHECK(error == Error::kNone);
  wrong = co_await wrong_bits(bench.layer(), {0, 16}, 0x66);
  CHECK(wrong == 0);

  bench.add("at=drive:d0 where=read count=1 do=flip bits=3");
  wrong = co_await wrong_bits(bench.layer(), {0, 16}, 0x66);
  CHECK(wrong == 3);
  wrong = co_await wrong_bits(bench.layer(), {0, 16}, 0x66);
  CHECK(wrong == 0);

  bench.add("id=stuck at=drive:d0 where=read count=1 do=flip bits=2 sticky=yes");
  for (int i = 0; i < 2; ++i) {
    wrong = co_await wrong_bits(bench.layer(), {0, 16}, 0x66);
    CHECK(wrong == 2);
  }
  error = co_await write_value(bench.layer(), 0, 0x77, 16);
  wrong = co_await wrong_bits(bench.layer(), {0, 16}, 0x77);
  CHECK(wrong == 2);
  bench.engine.heal("d0");

  bench.add("at=drive:d0 where=write count=1 do=flip");
  Random random(1);
  Completion done =
      co_await write_blocks(bench.layer(), 0, blocks_of(0x11, 16), Cut::kAnywhere, random);
  CHECK(content_of(done.data) == blocks_of(0x11, 16));  // The caller's bytes are not touched.
  wrong = co_await wrong_bits(bench.layer(), {0, 16}, 0x11);
  CHECK(wrong == 1);
  wrong = co_await wrong_bits(*bench.drives[0].cache, {0, 16}, 0x11);
  CHECK(wrong == 0);

  // Written through, the device below is damaged, too.
  error = co_await write_value(bench.layer(1), 0, 0x22, 4);
  bench.add("at=drive:d1 lba=0+4 overlay=no do=flip bits=4");
  co_await bench.layer(1).drain();
  wrong = co_await wrong_bits(*bench.drives[1].cache, {0, 4}, 0x22);
  CHECK(wrong == 4);
  wrong = co_await wrong_bits(bench.layer(1), {0, 4}, 0x22);
  CHECK(wrong == 4);
}

Task<void> misdirections(Executor& home, bool overlay) {
  Bench bench(home);
  const std::string how = overlay ? "" : " overlay=no";
  Error error = co_await write_value(bench.layer(0), 10, 1);
  error = co_await write_value(bench.layer(0), 20, 2);
  error = co_await write_value(bench.layer(1), 30, 3);
  bench.add("id=a at=drive:d0 lba=10 count=1 do=misdirect.write to=20" + how);
  error = co_await write_value(bench.layer(0), 10, 9);
  CHECK(error == Error::kNone);
  int value = co_await read_value(bench.layer(0), 10);
  CHECK(value == 1);
  value = co_await read_value(bench.layer(0), 20);
  CHECK(value == 9);
  value = co_await read_value(*bench.drives[0].cache, 10);
  CHECK(value == (overlay ? 9 : 1));
  value = co_await read_value(*bench.drives[0].cache, 20);
  CHECK(value == (overlay ? 2 : 9));

  bench.add("id=b at=drive:d0 lba=10 count=1 do=misdirect.write to=drive:d1@30" + how);
  error = co_await write_value(bench.layer(0), 10, 8);
  value = co_await read_value(bench.layer(1), 30);
  CHECK(value == 8);
  value = co_await read_value(bench.layer(0), 10);
  CHECK(value == 1);
  bench.add("id=c at=drive:d0 lba=10 count=1 do=misdirect.read to=drive:d1@30");
  value = co_await read_value(bench.layer(0), 10);
  CHECK(value == 8);
  bench.add("id=d at=drive:d0 lba=10 count=1 do=misdirect.read to=20");
  value = co_await read_value(bench.layer(0), 10);
  CHECK(value == 9);
  value = co_await read_value(bench.layer(0), 10);
  CHECK(value == 1);
  // Writing the block again heals it.
  error = co_await write_value(bench.layer(0), 10, 7);
  value = co_await read_value(bench.layer(0), 10);
  CHECK(value == 7);
}

Task<void> lost_and_torn(Executor& home, bool overlay) {
  Bench bench(home);
  const std::string how = overlay ? "" : " overlay=no";
  Error error = co_await write_value(bench.layer(), 0, 1, 8);
  bench.add("id=l at=drive:d0 count=1 do=lost" + how);
  error = co_await write_value(bench.layer(), 2, 2, 2);
  CHECK(error == Error::kNone);
  int value = co_await read_value(bench.layer(), 2);
  CHECK(value == 1);
  value = co_await read_value(*bench.drives[0].cache, 2);
  CHECK(value == (overlay ? 2 : 1));

  const struct {
    std::string keep;
    std::string kept;
  } cases[] = {{"first:3", "77711111"},
               {"last:2", "11111177"},
               {"1,4,99", "17117111"},
               {"first:0", "11111111"},
               {"first:99", "77777777"}};
  for (const auto& each : cases) {
    error = co_await write_value(bench.layer(), 0, 1, 8);
    const std::string id = bench.add("at=drive:d0 count=1 do=torn keep=" + each.keep + how);
    error = co_await write_value(bench.layer(), 0, 7, 8);
    CHECK(error == Error::kNone);
    std::string seen;
    for (Lba lba = 0; lba < 8; ++lba) {
      value = co_await read_value(bench.layer(), lba);
      seen += static_cast<char>('0' + value);
    }
    INFO(each.keep);
    CHECK(seen == each.kept);
    bench.engine.clear(id);
  }
  bench.add("at=drive:d0 count=1 do=torn" + how);
  error = co_await write_value(bench.layer(), 100, 5, 64);
  int kept = 0;
  for (Lba lba = 100; lba < 164; ++lba) {
    value = co_await read_value(bench.layer(), lba);
    kept += value == 5 ? 1 : 0;
  }
  CHECK(kept > 10);
  CHECK(kept < 54);
}

Task<void> stale(Executor& home, bool overlay) {
  Bench bench(home);
  Error error = co_await write_value(bench.layer(), 10, 1, 4);
  bench.add("id=st at=drive:d0 lba=11+2 event=then do=stale" +
            std::string(overlay ? "" : " overlay=no"));
  bench.add("id=go at=drive:d0 event=go do=nothing then=rule:st");
  error = co_await write_value(bench.layer(), 10, 2, 4);
  error = co_await write_value(bench.layer(), 10, 3, 2);
  CHECK(error == Error::kNone);
  bench.engine.notify("go");
  co_await bench.layer().drain();
  std::string seen;
  std::string below;
  for (Lba lba = 10; lba < 14; ++lba) {
    int value = co_await read_value(bench.layer(), lba);
    seen += static_cast<char>('0' + value);
    value = co_await read_value(*bench.drives[0].cache, lba);
    below += static_cast<char>('0' + value);
  }
  CHECK(seen == "3112");
  CHECK(below == (overlay ? "3322" : "3112"));
  error = co_await write_value(bench.layer(), 11, 4);
  const int value = co_await read_value(bench.layer(), 11);
  CHECK(value == 4);
}

Task<void> reports(Executor& home) {
  Bench bench(home);
  bench.add("id=p at=drive:d0 do=smart wear=97 temperature=61");
  CHECK(bench.layer().health() == Health::kPredictedFailure);
  CHECK(bench.layer().status().wear_percent == 97);
  CHECK(bench.layer().status().temperature_celsius == 61);
  Error error = co_await write_value(bench.layer(), 0, 1);
  CHECK(error == Error::kNone);

  bench.add("id=w at=drive:d1 do=wrong.id serial=FAKE blocks=1000");
  CHECK(bench.layer(1).status().serial == "FAKE");
  CHECK(bench.layer(1).geometry().block_count == 1000);
  // Whoever uses it hears once that it may be another drive.
  error = co_await read_error(bench.layer(1), {999, 1});
  CHECK(error == Error::kNotReady);
  error = co_await read_error(bench.layer(1), {1000, 1});
  CHECK(error == Error::kOutOfRange);
  error = co_await read_error(bench.layer(1), {999, 1});
  CHECK(error == Error::kNone);
  bench.engine.clear("w");
  CHECK(bench.layer(1).status().serial == "S1");
  error = co_await read_error(bench.layer(1), {999, 1});
  CHECK(error == Error::kNotReady);
  error = co_await write_value(bench.layer(1), 8, 9, 8);
  bench.add("id=w at=drive:d1 do=wrong.id block=4096");
  CHECK(bench.layer(1).geometry().block_bytes == 4096);
  CHECK(bench.layer(1).geometry().block_count == kBlocks / 8);
  error = co_await read_error(bench.layer(1), {1, 1});
  CHECK(error == Error::kNotReady);
  const int value = co_await read_value(bench.layer(1), 1);
  CHECK(value == 9);
  bench.engine.clear("w");
  bench.add("id=w at=drive:d1 do=wrong.id blocks=9999");
  error = co_await read_error(bench.layer(1), {5000, 1});
  CHECK(error == Error::kNotReady);
  error = co_await read_error(bench.layer(1), {5000, 1});
  CHECK(error == Error::kOutOfRange);

  for (const auto& [rule, fault] :
       {std::pair{"at=enclosure:front do=fan for=1ms", Fault::kFan},
        std::pair{"at=enclosure:front do=psu for=1ms", Fault::kPsu},
        std::pair{"at=enclosure:front do=temp for=1ms", Fault::kTemp}}) {
    INFO(rule);
    CHECK_FALSE(bench.engine.enclosure_has(fault));
    bench.add(rule);
    CHECK(bench.engine.enclosure_has(fault, "front"));
    CHECK_FALSE(bench.engine.enclosure_has(fault, "rear"));
    co_await home.sleep_for(milliseconds(2));
    CHECK_FALSE(bench.engine.enclosure_has(fault, "front"));
  }
}

}  // namespace

#define DRIVE_FAULT_TEST(name, call)                   \
  TEST_CASE(name, "[fault][drive]") {                  \
    run_bench(1, [](Executor& home) { return call; }); \
  }

DRIVE_FAULT_TEST("fail and fail.transient fail every command", fail_and_return(home))
DRIVE_FAULT_TEST("pull, insert and shelf.loss", pull_and_insert(home))
DRIVE_FAULT_TEST("lse: unreadable until rewritten", latent_errors(home))
DRIVE_FAULT_TEST("lse.growing: more and more, up to a predicted failure", growing_errors(home))
DRIVE_FAULT_TEST("write.error, recovered, full and readonly", errors_of_writes(home))
DRIVE_FAULT_TEST("slow: latency, lanes and bandwidth", slowness(home))
DRIVE_FAULT_TEST("stall: nothing completes, then all at once", stalls(home))
DRIVE_FAULT_TEST("hang: never completes, but can be aborted", hangs(home))
DRIVE_FAULT_TEST("hold: a breakpoint", breakpoints(home))
DRIVE_FAULT_TEST("flip: at rest and on the way, once and sticky", flips(home))
DRIVE_FAULT_TEST("misdirect beside the device", misdirections(home, true))
DRIVE_FAULT_TEST("misdirect through to the device", misdirections(home, false))
DRIVE_FAULT_TEST("lost and torn beside the device", lost_and_torn(home, true))
DRIVE_FAULT_TEST("lost and torn through to the device", lost_and_torn(home, false))
DRIVE_FAULT_TEST("stale beside the device", stale(home, true))
DRIVE_FAULT_TEST("stale through to the device", stale(home, false))
DRIVE_FAULT_TEST("smart, wrong.id and the enclosure's status", reports(home))

}  // namespace sandbay::fault
