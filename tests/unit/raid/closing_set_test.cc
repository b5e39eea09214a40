// A set that is closed while its last repairs wait for room in the journal.
#include "set_rig.h"

namespace sandbay::raidtest::closing_set_test {
namespace {

// Has room for one update, and says that it is short of room only when somebody
// waits for some.
class TightJournal final : public Journal {
 public:
  std::size_t largest_payload_bytes() const noexcept override { return std::size_t{4} << 20; }
  Task<Result<std::uint64_t>> append(StripeUpdate) override {
    while (used_ > 0) {
      ++waiting_;
      if (on_pressure) on_pressure();
      co_await room_.wait();
      --waiting_;
    }
    ++used_;
    co_return ++tickets_;
  }
  void release(std::uint64_t) override {
    --used_;
    room_.notify_all();
  }
  void refuse_waiting(Error) override {}
  Task<Result<JournalRecovery>> recover() override { co_return JournalRecovery{}; }
  Task<Error> reset() override { co_return Error::kNone; }
  Task<Error> renew() override { co_return Error::kNone; }
  std::uint64_t used_bytes() const noexcept override { return used_; }
  std::uint64_t size_bytes() const noexcept override { return 1; }
  std::uint64_t written_bytes() const noexcept override { return tickets_; }
  bool under_pressure() const noexcept override { return waiting_ > 0; }
  unsigned waiting() const noexcept { return waiting_; }

 private:
  std::uint64_t used_ = 0;
  std::uint64_t tickets_ = 0;
  unsigned waiting_ = 0;
  Condition room_;
};

Task<void> close_over_repair(Executor* home) {
  SetRig rig(*home, {.level = Level::kRaid5, .drives = 4});
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  Error error = co_await rig.restart(std::make_unique<TightJournal>());
  REQUIRE(error == Error::kNone);
  error = co_await rig.write(240, 8, 5);  // Its record is not released before the next flush.
  REQUIRE(error == Error::kNone);
  const unsigned role = rig.set->layout().role(0, 0);
  rig.devices[role]->make_unreadable(rig.drives->data_offset());
  const std::string wrong = co_await rig.read(0, 8);
  CHECK(wrong == "");
  error = co_await rig.set->close(home->now() + std::chrono::seconds(60));
  CHECK(error == Error::kNone);
  CHECK(rig.set->counters().corrections > 0);
  CHECK(rig.devices[role]->state().unreadable.empty());
  const auto* journal = dynamic_cast<const TightJournal*>(rig.journal.get());
  REQUIRE(journal != nullptr);
  CHECK(journal->waiting() == 0);
  rig.set.reset();
  const bool idle = co_await rig.drives->wait_idle_until(kNever);
  CHECK(idle);
}

}  // namespace

TEST_CASE("A set that closes makes room in the journal for its last repairs", "[raid][R-B4]") {
  in_world(1, [](Executor& home) { return close_over_repair(&home); });
}

}  // namespace sandbay::raidtest::closing_set_test
