// Goal: a map that an export listed is not used once its pages may have other owners.
// Method: the entries that were listed while the log was held replace all later ones, as an import
// replaces them, and the pool is opened on its stores again.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>

#include "tests/unit/block/test_devices.h"
#include "tests/unit/pool/older_map.h"

namespace sandbay::pool::store_stamps_test {
namespace {

constexpr std::string_view kRefusal =
    "store 0: its pages may have other owners: the map is older than it";

Task<std::string> why_not(Rig* rig) {
  const std::string wrong = co_await rig->start();
  if (wrong.empty()) co_await rig->stop();
  if (!wrong.empty()) co_await rig->end();
  co_return wrong;
}

Task<void> refuse_after(Executor& home, bool delete_volume) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  const auto older = co_await list_map(&rig);
  if (delete_volume) {
    const Error removed = co_await rig.pool->remove(branch, {});
    REQUIRE(removed == Error::kNone);
    co_await rig.sweep_all();
  } else {
    co_await move_first_page(&rig, branch);
  }
  const auto newer = co_await list_map(&rig);
  co_await close_rig(&rig);
  co_await bring_back(&home, older);
  const std::string wrong = co_await why_not(&rig);
  CHECK(wrong == kRefusal);
  // Nothing was changed by that.
  co_await bring_back(&home, newer);
  const std::string right = co_await why_not(&rig);
  CHECK(right == "");
}

// New pages and snapshots take nothing from anybody.
Task<void> accept_without_moves(Executor& home) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  const auto older = co_await list_map(&rig);
  (void)co_await provision(&rig);
  const auto taken = co_await rig.pool->snapshot({{.branch = branch, .label = "s"}}, {});
  REQUIRE(taken.has_value());
  co_await close_rig(&rig);
  co_await bring_back(&home, older);
  const std::string wrong = co_await why_not(&rig);
  CHECK(wrong == "");
}

// Two maps go on from one export; each is refused where the other has moved pages.
Task<void> tell_branches_apart(Executor& home) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  const auto older = co_await list_map(&rig);
  (void)co_await provision(&rig);
  const auto abandoned = co_await list_map(&rig);
  co_await close_rig(&rig);
  co_await bring_back(&home, older);
  co_await begin(&rig);
  co_await move_first_page(&rig, branch);
  co_await close_rig(&rig);
  co_await bring_back(&home, abandoned);
  const std::string wrong = co_await why_not(&rig);
  CHECK(wrong == kRefusal);
}

// A store that was missing while pages were freed gets the stamp before it is used.
Task<void> stamp_what_returns(Executor& home) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  const auto older = co_await list_map(&rig);
  for (const StoreIndex store : {0, 1}) rig.pool->set_device(store, nullptr);
  const Error removed = co_await rig.pool->remove(branch, {});
  REQUIRE(removed == Error::kNone);
  co_await rig.sweep_all();
  for (const StoreIndex store : {0, 1}) {
    CHECK(rig.pool->device(store) == nullptr);
    const Error admitted = co_await rig.pool->admit(store, rig.devices[store].get());
    CHECK(admitted == Error::kNone);
    CHECK(rig.pool->device(store) == rig.devices[store].get());
  }
  co_await close_rig(&rig);
  co_await bring_back(&home, older);
  const std::string wrong = co_await why_not(&rig);
  CHECK(wrong == kRefusal);
}

// Every start ends an era, and stamps are written once in each.
Task<void> survive_starts(Executor& home) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  for (int start = 0; start < 3; ++start) {
    co_await move_first_page(&rig, branch);
    CHECK(rig.pool->log().counters().failed_groups == 0);
    // As after a kill.
    co_await rig.stop();
    co_await begin(&rig);
  }
  co_await close_rig(&rig);
}

// A store of metadata that can refuse stamps.
class StampRefusingStore final : public metadata::Store {
 public:
  explicit StampRefusingStore(std::unique_ptr<metadata::Store> below) : below_(std::move(below)) {}

  bool refusing = false;

  Executor& home() const noexcept override { return below_->home(); }
  Task<Result<std::optional<std::string>>> get(std::string key) override {
    return below_->get(std::move(key));
  }
  Task<Result<std::vector<metadata::Entry>>> list(std::string prefix, std::string after,
                                                  std::size_t limit) override {
    return below_->list(std::move(prefix), std::move(after), limit);
  }
  Task<Error> commit(metadata::Batch batch) override {
    const bool stamps = batch.changes().front().key.ends_with("/e");
    if (refusing && stamps) co_return Error::kNoSpace;
    co_return co_await below_->commit(std::move(batch));
  }
  bool in_doubt() const noexcept override { return below_->in_doubt(); }
  Task<void> close() override { return below_->close(); }

 private:
  std::unique_ptr<metadata::Store> below_;
};

// Puts a layer over a store of a rig that is not open.
template <class L>
struct Over {
  Over(Rig* rig, StoreIndex store) : below(std::move(rig->devices[store])) {
    auto made = std::make_unique<L>(*below);
    layer = made.get();
    rig->devices[store] = std::move(made);
  }
  std::unique_ptr<BlockDevice> below;
  L* layer = nullptr;
};

Task<void> make_devices(Rig* rig) {
  co_await begin(rig);
  co_await close_rig(rig);
}

constexpr Lba kFirstStampBlock = 48 * kTestPageBytes / 512;
constexpr std::uint64_t kSlotBlocks = StoreStamps::kSlotBytes / 512;

Task<void> free_all_pages(Rig* rig, BranchId branch) {
  const Error removed = co_await rig->pool->remove(branch, {});
  REQUIRE(removed == Error::kNone);
  co_await rig->sweep_all();
}

// One store comes back after the stamp that it was to get could not be named.
Task<void> repeat_after_failure(Executor& home) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  co_await rig.pool->stop();
  rig.pool.reset();
  auto refusing = std::make_unique<StampRefusingStore>(std::move(rig.store));
  StampRefusingStore* const metadata = refusing.get();
  rig.store = std::move(refusing);
  const std::string opened = co_await rig.open_pool();
  REQUIRE(opened == "");
  metadata->refusing = true;
  const Place from = rig.pool->map().find(branch)->pages.at(0).place();
  const Error moved =
      co_await rig.pool->move_page(branch, 0, static_cast<StoreIndex>(1 - from.store));
  CHECK(moved == Error::kNoSpace);
  metadata->refusing = false;
  rig.pool->set_device(0, nullptr);
  const Error admitted = co_await rig.pool->admit(0, rig.devices[0].get());
  CHECK(admitted == Error::kNone);
  co_await rig.stop();
  const std::string wrong = co_await why_not(&rig);
  CHECK(wrong == "");
}

Task<void> read_one_slot(Executor& home, std::uint64_t bad_slot) {
  Rig rig(home, stamped_options());
  co_await make_devices(&rig);
  const Over<testing::FaultyDevice> faulty(&rig, 0);
  const testing::FaultyDevice::Rule rule{
      .operation = Operation::kRead,
      .extent = {.first = kFirstStampBlock + bad_slot * kSlotBlocks, .block_count = kSlotBlocks},
      .error = Error::kMediumError};
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  const auto older = co_await list_map(&rig);
  faulty.layer->fail(rule);
  co_await move_first_page(&rig, branch);
  CHECK(rig.pool->device(0) == rig.devices[0].get());
  const auto newer = co_await list_map(&rig);
  co_await close_rig(&rig);
  std::string wrong = co_await why_not(&rig);
  CHECK(wrong == "");
  // The other slot tells the age of a map.
  co_await bring_back(&home, older);
  wrong = co_await why_not(&rig);
  CHECK(wrong == kRefusal);
  // Each start has written the bad slot.
  co_await bring_back(&home, newer);
  wrong = co_await why_not(&rig);
  CHECK(wrong == "");
  faulty.layer->clear();
  faulty.layer->fail({.operation = Operation::kRead,
                      .extent = {.first = kFirstStampBlock + (1 - bad_slot) * kSlotBlocks,
                                 .block_count = kSlotBlocks},
                      .error = Error::kMediumError});
  wrong = co_await why_not(&rig);
  CHECK(wrong == "");
}

Task<void> lose_both_slots(Executor& home) {
  Rig rig(home, stamped_options());
  co_await make_devices(&rig);
  const Over<testing::FaultyDevice> faulty(&rig, 0);
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  const auto older = co_await list_map(&rig);
  co_await move_first_page(&rig, branch);
  const auto newer = co_await list_map(&rig);
  co_await close_rig(&rig);
  faulty.layer->fail({.operation = Operation::kRead,
                      .extent = {.first = kFirstStampBlock, .block_count = 2 * kSlotBlocks},
                      .error = Error::kDataCorrupt});
  rig.options().missing = true;
  co_await begin(&rig);
  rig.options().missing = false;
  int told = 0;
  rig.pool->observe([&told](const PoolEvent& event) {
    if (event.kind == PoolEvent::Kind::kStampLost && event.store == 0) ++told;
  });
  const Error admitted = co_await rig.pool->admit(0, rig.devices[0].get());
  CHECK(admitted == Error::kNone);
  CHECK(told == 1);
  co_await close_rig(&rig);
  // It has a stamp again.
  faulty.layer->clear();
  co_await bring_back(&home, older);
  std::string wrong = co_await why_not(&rig);
  CHECK(wrong == kRefusal);
  co_await bring_back(&home, newer);
  wrong = co_await why_not(&rig);
  CHECK(wrong == "");
}

Task<void> move_and_tell(Rig* rig, BranchId branch, bool* moved) {
  co_await move_first_page(rig, branch);
  *moved = true;
}

// As an export does that waits for another pool.
Task<void> settle_while_held(Executor& home) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  const Error held = co_await rig.pool->hold();
  REQUIRE(held == Error::kNone);
  bool moved = false;
  spawn(move_and_tell(&rig, branch, &moved));
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK_FALSE(moved);
  auto listed = co_await rig.store->list("", "", std::numeric_limits<std::size_t>::max());
  REQUIRE(listed.has_value());
  rig.pool->release();
  co_await home.sleep_for(std::chrono::seconds(1));
  REQUIRE(moved);
  co_await close_rig(&rig);
  co_await bring_back(&home, *listed);
  const std::string wrong = co_await why_not(&rig);
  CHECK(wrong == kRefusal);
}

Task<void> return_in_next_era(Executor& home) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  const auto older = co_await list_map(&rig);
  for (const StoreIndex store : {0, 1}) rig.pool->set_device(store, nullptr);
  co_await free_all_pages(&rig, branch);
  const auto newer = co_await list_map(&rig);
  for (const StoreIndex store : {0, 1}) {
    const Error admitted = co_await rig.pool->admit(store, rig.devices[store].get());
    CHECK(admitted == Error::kNone);
  }
  co_await close_rig(&rig);
  co_await bring_back(&home, older);
  std::string wrong = co_await why_not(&rig);
  CHECK(wrong == kRefusal);
  co_await bring_back(&home, newer);
  wrong = co_await why_not(&rig);
  CHECK(wrong == "");
}

// A store that hangs is missing, and nobody waits for it longer than that takes.
Task<void> leave_out_what_hangs(Executor& home) {
  Rig rig(home, stamped_options());
  co_await make_devices(&rig);
  const Over<testing::HungDevice> hung(&rig, 0);
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  hung.layer->hang();
  const TimePoint before = home.now();
  co_await free_all_pages(&rig, branch);
  CHECK(home.now() - before < StoreStamps::kPatience + std::chrono::seconds(1));
  CHECK(rig.pool->device(0) == nullptr);
  CHECK(rig.pool->device(1) == rig.devices[1].get());
  Error admitted = co_await rig.pool->admit(0, rig.devices[0].get());
  CHECK(admitted == Error::kTimedOut);
  CHECK(hung.layer->held() == 1);
  hung.layer->release();
  admitted = co_await rig.pool->admit(0, rig.devices[0].get());
  CHECK(admitted == Error::kNone);
  CHECK(rig.pool->device(0) == rig.devices[0].get());
  co_await close_rig(&rig);
  const std::string wrong = co_await why_not(&rig);
  CHECK(wrong == "");
}

Task<void> admit_and_tell(Rig* rig, StoreIndex store, Error* result) {
  *result = co_await rig->pool->admit(store, rig->devices[store].get());
}

Task<void> open_beside_what_hangs(Executor& home) {
  Rig rig(home, stamped_options());
  co_await make_devices(&rig);
  const Over<testing::HungDevice> hung(&rig, 0);
  hung.layer->hang();
  rig.options().missing = true;
  co_await begin(&rig);
  Error first = Error::kNone;
  spawn(admit_and_tell(&rig, 0, &first));
  co_await home.sleep_for(std::chrono::milliseconds(1));
  const TimePoint before = home.now();
  const Error second = co_await rig.pool->admit(1, rig.devices[1].get());
  CHECK(second == Error::kNone);
  CHECK(home.now() - before < std::chrono::seconds(1));
  co_await home.sleep_for(StoreStamps::kPatience);
  CHECK(first == Error::kTimedOut);
  hung.layer->release();
  // The admission was given up.
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(rig.pool->device(0) == nullptr);
  co_await close_rig(&rig);
}

Task<void> shrink_and_tell(Rig* rig, BranchId branch, bool* ended) {
  const Error error = co_await rig->pool->shrink(branch, kTestPageBytes, {});
  CHECK(error == Error::kNone);
  *ended = true;
}

// The second page keeps its place until the volume is cut off.
Task<void> shrink_beside_what_hangs(Executor& home) {
  Rig rig(home, stamped_options());
  co_await make_devices(&rig);
  const Over<testing::HungDevice> hung(&rig, 0);
  co_await begin(&rig);
  const auto branch = co_await rig.pool->create(
      {.byte_count = 2 * kTestPageBytes, .thick = true, .fixed_store = 1}, {});
  REQUIRE(branch.has_value());
  auto volume = rig.pool->attach(*branch);
  hung.layer->hang();
  bool ended = false;
  spawn(shrink_and_tell(&rig, *branch, &ended));
  co_await home.sleep_for(std::chrono::seconds(1));
  const TimePoint before = home.now();
  Random random{1};
  const Error error = co_await write_cells(*volume, 0, 1, 1, random);
  CHECK(error == Error::kNone);
  CHECK(home.now() - before < std::chrono::seconds(1));
  CHECK_FALSE(ended);
  co_await home.sleep_for(StoreStamps::kPatience);
  CHECK(ended);
  hung.layer->release();
  volume.reset();
  co_await close_rig(&rig);
}

// The shrink has the directory while it waits for the store, which is dropped then.
Task<void> change_what_hangs(Executor& home) {
  Rig rig(home, stamped_options());
  co_await make_devices(&rig);
  const Over<testing::HungDevice> hung(&rig, 0);
  co_await begin(&rig);
  const auto branch = co_await rig.pool->create(
      {.byte_count = 2 * kTestPageBytes, .thick = true, .fixed_store = 1}, {});
  REQUIRE(branch.has_value());
  hung.layer->hang();
  bool ended = false;
  spawn(shrink_and_tell(&rig, *branch, &ended));
  co_await home.sleep_for(std::chrono::seconds(1));
  StoreConfig config = rig.config_of(0);
  config.record.state = StoreState::kVacating;
  const Error put = co_await rig.pool->put_store(std::move(config), {});
  CHECK(put == Error::kNone);
  CHECK(ended);
  CHECK(rig.pool->map().stores().at(0).record.state == StoreState::kVacating);
  CHECK(rig.pool->device(0) == nullptr);
  hung.layer->release();
  const Error admitted = co_await rig.pool->admit(0, rig.devices[0].get());
  CHECK(admitted == Error::kNone);
  co_await close_rig(&rig);
}

// A flush would answer with losses that concern others.
Task<void> stamp_without_flush(Executor& home) {
  Rig rig(home, stamped_options());
  co_await make_devices(&rig);
  const Over<testing::RecordingDevice> recording(&rig, 0);
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  recording.layer->clear();
  co_await free_all_pages(&rig, branch);
  CHECK(recording.layer->count(Operation::kFlush) == 0);
  CHECK(recording.layer->count(Operation::kWrite) == 2);
  for (const testing::SeenRequest& seen : recording.layer->seen()) {
    CHECK(seen.force_unit_access == (seen.operation == Operation::kWrite));
  }
  co_await close_rig(&rig);
}

}  // namespace

TEST_CASE("A map older than the move of a page is refused", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, [](Executor& home) { return refuse_after(home, false); });
}

TEST_CASE("A map older than the end of a volume is refused", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, [](Executor& home) { return refuse_after(home, true); });
}

TEST_CASE("An older map is accepted when no page has another owner since", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, accept_without_moves);
}

TEST_CASE("A map is refused when another one from the same export has moved pages",
          "[pool][stamps][G-S2]") {
  testing::run_in_world(7, tell_branches_apart);
}

TEST_CASE("A store that was missing is stamped when it returns", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, stamp_what_returns);
}

TEST_CASE("A pool opens after each kill with the stamps that it wrote", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, survive_starts);
}

TEST_CASE("A store bears no stamp that the metadata have failed to name", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, repeat_after_failure);
}

TEST_CASE("A store is used when one slot of its stamp cannot be read", "[pool][stamps][G-S2]") {
  const std::uint64_t bad_slot = GENERATE(0U, 1U);
  CAPTURE(bad_slot);
  testing::run_in_world(7, [&](Executor& home) { return read_one_slot(home, bad_slot); });
}

TEST_CASE("A store is stamped anew when neither slot of its stamp can be read",
          "[pool][stamps][G-S2]") {
  testing::run_in_world(7, lose_both_slots);
}

TEST_CASE("A map listed while a change waits is refused after that change",
          "[pool][stamps][G-S2]") {
  testing::run_in_world(7, settle_while_held);
}

TEST_CASE("A store is stamped when it returns after the era that it has missed",
          "[pool][stamps][G-S2]") {
  testing::run_in_world(7, return_in_next_era);
}

TEST_CASE("A store that hangs is left out when an era is settled", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, leave_out_what_hangs);
}

TEST_CASE("A store is admitted beside one that hangs", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, open_beside_what_hangs);
}

TEST_CASE("A volume takes writes while its shrink waits for a stamp", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, shrink_beside_what_hangs);
}

TEST_CASE("A store stays missing when it is dropped while its record changes",
          "[pool][stamps][G-I8]") {
  testing::run_in_world(7, change_what_hangs);
}

TEST_CASE("A stamp is written with force unit access and without a flush", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, stamp_without_flush);
}

}  // namespace sandbay::pool::store_stamps_test
