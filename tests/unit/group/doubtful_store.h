// A metadata store whose commits fail from a chosen one on, and a group that runs on it.
#pragma once

#include <fmt/core.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "group/group.h"
#include "group/records.h"
#include "group/state_directory.h"
#include "metadata/rocksdb_store.h"
#include "runtime/reactor.h"
#include "tests/unit/metadata/forwarding_store.h"

namespace sandbay::group {

// From the n-th commit on, counted from arm(): the n-th fails, all later ones too, until disarm().
class DoubtfulStore final : public sandbay::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Task<Error> commit(metadata::Batch batch) override { return do_commit(this, std::move(batch)); }
  bool in_doubt() const noexcept override { return in_doubt_; }

  // `there_after_all`: what failed has reached the disk, and nobody knows.
  void arm(unsigned good_commits, bool there_after_all) {
    good_commits_ = good_commits;
    there_after_all_ = there_after_all;
    armed_ = true;
  }
  void disarm() { armed_ = in_doubt_ = false; }
  Error error = Error::kHardware;  // What it fails with.

  // Keeps commits of keys with this prefix waiting, until release().
  void hold(std::string prefix) { held_ = std::move(prefix); }
  void release() {
    held_.reset();
    released_.notify_all();
  }

 private:
  // The log of events commits when it likes, and is not on trial.
  static bool is_event(const metadata::Batch& batch) {
    return batch.changes().front().key.starts_with(kEventPrefix);
  }
  static Task<Error> do_commit(DoubtfulStore* self, metadata::Batch batch) {
    const std::string key = batch.changes().front().key;
    while (self->held_ && key.starts_with(*self->held_)) co_await self->released_.wait();
    const bool good = !self->armed_ || is_event(batch) || self->good_commits_ > 0;
    if (self->armed_ && self->good_commits_ > 0 && !is_event(batch)) --self->good_commits_;
    const bool first = !good && !self->in_doubt_;
    if (good || (first && self->there_after_all_)) {
      const Error error = co_await self->below_.commit(std::move(batch));
      if (good || error != Error::kNone) co_return error;
    }
    self->in_doubt_ = true;
    co_return self->error;
  }

  std::optional<std::string> held_;
  Condition released_;
  bool armed_ = false;
  bool there_after_all_ = false;
  bool in_doubt_ = false;
  unsigned good_commits_ = 0;
};

using DoubtfulTest =
    std::function<Task<void>(Group& group, DoubtfulStore& store, bool there_after_all)>;

inline Task<void> serve_doubtfully(Configuration configuration, std::string metadata,
                                   DoubtfulTest test, bool there_after_all) {
  auto opened = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  if (!opened) FAIL(opened.error());
  DoubtfulStore store(**opened);
  auto group = co_await Group::start(std::move(configuration), store);
  if (!group) FAIL(group.error().text);
  co_await test(**group, store, there_after_all);
  co_await (*group)->shutdown();
  co_await store.close();
}

// `sections` stands behind a [group] and a [[portal]].
inline void run_doubtfully(const std::filesystem::path& path, const std::string& sections,
                           DoubtfulTest test, bool there_after_all) {
  auto configuration = parse_configuration(
      fmt::format("[group]\nname = \"test\"\nstate = \"{}\"\n[[portal]]\nlisten = "
                  "\"127.0.0.1:0\"\n{}",
                  path.string(), sections),
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

}  // namespace sandbay::group
