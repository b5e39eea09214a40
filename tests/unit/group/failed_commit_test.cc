// Management on metadata whose commits fail, and what the next start makes of it. The worst store
// is one in doubt whose failed batch is there after all: nobody who was told that a volume stays,
// or that nothing was changed for good, may find its data gone then.
#include <catch2/catch.hpp>
#include <filesystem>

#include "group/records.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group {
namespace {

// From the n-th commit on, counted from arm(): the n-th fails, all later ones too, until disarm().
class DoubtfulStore final : public metadata::Store {
 public:
  explicit DoubtfulStore(metadata::Store& below) : below_(below) {}
  Executor& home() const noexcept override { return below_.home(); }
  Task<Result<std::optional<std::string>>> get(std::string key) override {
    return below_.get(std::move(key));
  }
  Task<Result<std::vector<metadata::Entry>>> list(std::string prefix, std::string after,
                                                  std::size_t limit) override {
    return below_.list(std::move(prefix), std::move(after), limit);
  }
  Task<Error> commit(metadata::Batch batch) override { return do_commit(this, std::move(batch)); }
  bool in_doubt() const noexcept override { return in_doubt_; }
  Task<void> close() override { return below_.close(); }

  // `there_after_all`: what failed has reached the disk, and nobody knows.
  void arm(unsigned good_commits, bool there_after_all) {
    good_commits_ = good_commits;
    there_after_all_ = there_after_all;
    armed_ = true;
  }
  void disarm() { armed_ = in_doubt_ = false; }

 private:
  // The log of events commits when it likes, and is not on trial.
  static bool is_event(const metadata::Batch& batch) {
    return batch.changes().front().key.starts_with(kEventPrefix);
  }
  static Task<Error> do_commit(DoubtfulStore* self, metadata::Batch batch) {
    const bool good = !self->armed_ || is_event(batch) || self->good_commits_ > 0;
    if (self->armed_ && self->good_commits_ > 0 && !is_event(batch)) --self->good_commits_;
    const bool first = !good && !self->in_doubt_;
    if (good || (first && self->there_after_all_)) {
      const Error error = co_await self->below_.commit(std::move(batch));
      if (good || error != Error::kNone) co_return error;
    }
    self->in_doubt_ = true;
    co_return Error::kHardware;
  }

  metadata::Store& below_;
  bool armed_ = false;
  bool there_after_all_ = false;
  bool in_doubt_ = false;
  unsigned good_commits_ = 0;
};

using DoubtfulTest = Task<void> (*)(Group& group, DoubtfulStore& store, bool there_after_all);

Task<void> serve_doubtfully(Configuration configuration, std::string metadata, DoubtfulTest test,
                            bool there_after_all) {
  auto opened = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  if (!opened) FAIL(opened.error());
  DoubtfulStore store(**opened);
  auto group = co_await Group::start(std::move(configuration), store);
  if (!group) FAIL(group.error());
  co_await test(**group, store, there_after_all);
  co_await (*group)->shutdown();
  co_await store.close();
}

void run_doubtfully(const std::filesystem::path& path, DoubtfulTest test, bool there_after_all) {
  auto configuration = parse_configuration(
      fmt::format("[group]\nname = \"test\"\nstate = \"{}\"\n[[portal]]\nlisten = "
                  "\"127.0.0.1:0\"\n",
                  path.string()),
      "test.toml");
  REQUIRE(configuration);
  const auto state = StateDirectory::open(path);
  REQUIRE(state);
  auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{64} << 20});
  REQUIRE(reactors);
  (*reactors)->run([&] {
    return serve_doubtfully(*configuration, state->metadata().string(), test, there_after_all);
  });
}

Task<void> make_volume(Group& group) {
  CreateVolumeRequest request;
  request.specification.name = "v";
  request.specification.size_bytes = std::uint64_t{1} << 20;
  const auto made = co_await group.create_volume(request);
  CHECK(made.has_value());
}

Task<std::string> refusal_to_delete(Group& group) {
  const auto deleted = co_await group.delete_volume("v", false);
  co_return deleted ? "deleted" : deleted.error().message;
}

// Why it is not served; empty if it is.
Task<std::string> reason_of_volume(Group& group) {
  const auto volume = co_await group.show_volume("v");
  co_return volume ? volume->reason : volume.error().message;
}

std::size_t files_in(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator files(folder);
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

constexpr const char* kCannotBegin =
    "volume \"v\" stays: the metadata cannot be written: input/output error";

Task<void> cannot_begin(Group& group, DoubtfulStore& store, bool there_after_all) {
  co_await make_volume(group);
  store.arm(0, there_after_all);
  const std::string refusal = co_await refusal_to_delete(group);
  CHECK(refusal == kCannotBegin);
  const std::string reason = co_await reason_of_volume(group);
  CHECK(reason.empty());
}

Task<void> cannot_finish(Group& group, DoubtfulStore& store, bool there_after_all) {
  co_await make_volume(group);
  store.arm(1, there_after_all);
  const std::string refusal = co_await refusal_to_delete(group);
  CHECK(refusal.starts_with("volume \"v\" is not served any more: whether it is deleted shows"));
  const std::string reason = co_await reason_of_volume(group);
  CHECK(reason.starts_with("is not served any more"));
}

Task<void> finishes_later(Group& group, DoubtfulStore& store, bool there_after_all) {
  co_await cannot_finish(group, store, there_after_all);
  const std::string refusal = co_await refusal_to_delete(group);
  CHECK(refusal.starts_with("volume \"v\" is as it was: "));  // Which is not known.
  store.disarm();
  const std::string deleted = co_await refusal_to_delete(group);
  CHECK(deleted == "deleted");
}

Task<void> cannot_be_made(Group& group, DoubtfulStore& store, bool there_after_all) {
  CreateVolumeRequest request;
  request.specification.name = "v";
  request.specification.size_bytes = std::uint64_t{1} << 20;
  store.arm(1, there_after_all);
  const auto made = co_await group.create_volume(request);
  CHECK_FALSE(made.has_value());
  if (!made)
    CHECK(made.error().message.find("until they can nothing changes") != std::string::npos);
}

// After a restart: whether there is a volume, served, and how many files there are.
struct After {
  bool served = false;
  std::size_t files = 0;
};

After restart(const std::filesystem::path& state) {
  static std::string reason;
  const std::string error = run_group(
      state, "", 1, [](Group& group) -> Task<void> { reason = co_await reason_of_volume(group); });
  REQUIRE(error.empty());
  return {.served = reason.empty(), .files = files_in(state / "volumes")};
}

TEST_CASE("A volume that stays is there after a restart, whatever the disk has", "[group]") {
  const bool there_after_all = GENERATE(false, true);
  const testing::ScratchDirectory scratch;
  run_doubtfully(scratch.file("state"), cannot_begin, there_after_all);
  const After after = restart(scratch.file("state"));
  CHECK(after.served);
  CHECK(after.files == 1);
}

TEST_CASE("A volume of which it is not known whether it is deleted takes no writes", "[group]") {
  const bool there_after_all = GENERATE(false, true);
  const testing::ScratchDirectory scratch;
  run_doubtfully(scratch.file("state"), cannot_finish, there_after_all);
  const After after = restart(scratch.file("state"));
  CHECK(after.served == !there_after_all);
  CHECK(after.files == (there_after_all ? 0 : 1));
}

TEST_CASE("A deletion that was in doubt can be asked for again", "[group]") {
  const testing::ScratchDirectory scratch;
  run_doubtfully(scratch.file("state"), finishes_later, false);
  const After after = restart(scratch.file("state"));
  CHECK_FALSE(after.served);
  CHECK(after.files == 0);
}

TEST_CASE("A volume that may have been made is whole after a restart, or not there", "[group]") {
  const bool there_after_all = GENERATE(false, true);
  const testing::ScratchDirectory scratch;
  run_doubtfully(scratch.file("state"), cannot_be_made, there_after_all);
  const After after = restart(scratch.file("state"));
  CHECK(after.served == there_after_all);
  CHECK(after.files == (there_after_all ? 1 : 0));
}

}  // namespace
}  // namespace sandbay::group
