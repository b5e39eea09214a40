// Large pools at no cost: stores without content, metadata in memory; no time passes. A beat looks
// at the pool once in every turn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "metadata/store.h"
#include "pool/check.h"
#include "pool/pool.h"
#include "pool/pool_volume.h"
#include "tests/unit/block/on_executor.h"
#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool {

// Answers each request in the next turn, and keeps nothing.
class EmptyDevice final : public BlockDevice {
 public:
  EmptyDevice(Executor& home, std::uint64_t byte_count) : home_(home) {
    geometry_.block_count = byte_count / geometry_.block_bytes;
  }

  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Health health() const noexcept override { return Health::kGood; }
  std::string description() const override { return "nothing"; }
  Task<Completion> submit(Request request) override {
    co_await home_.yield();
    co_return Completion{.data = std::move(request.data)};
  }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    co_return ProvisioningRun{.block_count = limit - first, .mapped = true};
  }

 private:
  Executor& home_;
  Geometry geometry_;
};

// Answers in the next turn.
class MemoryStore final : public metadata::Store {
 public:
  explicit MemoryStore(Executor& home) : home_(home) {}

  // The commit after the next `commits` ones fails and changes nothing.
  void fail_after(int commits) { fails_in_ = commits; }
  const std::map<std::string, std::string>& content() const { return content_; }
  void set_content(std::map<std::string, std::string> content) { content_ = std::move(content); }
  std::size_t most_changes() const { return most_changes_; }

  Executor& home() const noexcept override { return home_; }
  bool in_doubt() const noexcept override { return false; }
  Task<void> close() override { co_return; }
  Task<Result<std::optional<std::string>>> get(std::string key) override {
    co_await home_.yield();
    const auto found = content_.find(key);
    if (found == content_.end()) co_return std::nullopt;
    co_return found->second;
  }
  Task<Result<std::vector<metadata::Entry>>> list(std::string prefix, std::string after,
                                                  std::size_t limit) override {
    co_await home_.yield();
    std::vector<metadata::Entry> entries;
    auto at = after.empty() ? content_.lower_bound(prefix) : content_.upper_bound(after);
    for (; at != content_.end() && entries.size() < limit; ++at) {
      if (!at->first.starts_with(prefix)) break;
      entries.emplace_back(*at);
    }
    co_return entries;
  }
  Task<Error> commit(metadata::Batch batch) override {
    co_await home_.yield();
    if (fails_in_ >= 0 && fails_in_-- == 0) co_return Error::kHardware;
    most_changes_ = std::max(most_changes_, batch.changes().size());
    for (const auto& change : batch.changes()) {
      switch (change.kind) {
        case metadata::Batch::Kind::kPut:
          content_[change.key] = change.value;
          break;
        case metadata::Batch::Kind::kErase:
          content_.erase(change.key);
          break;
        case metadata::Batch::Kind::kErasePrefix:
          std::erase_if(content_,
                        [&](const auto& entry) { return entry.first.starts_with(change.key); });
          break;
      }
    }
    co_return Error::kNone;
  }

 private:
  Executor& home_;
  std::map<std::string, std::string> content_;
  std::size_t most_changes_ = 0;
  int fails_in_ = -1;
};

// Opened with start(), ended with stop().
struct LargePool {
  LargePool(Executor& to_home, std::uint32_t pages) : home(to_home), store_pages(pages) {
    for (int i = 0; i < 2; ++i) {
      devices.push_back(std::make_unique<EmptyDevice>(home, store_pages * kTestPageBytes));
    }
    store = std::make_unique<MemoryStore>(home);
    options.group_pages = PoolOptions{}.group_pages;
  }

  Task<void> start() {
    std::vector<StoreConfig> stores;
    for (std::uint32_t i = 0; i < devices.size(); ++i) {
      stores.push_back({.record = {.index = static_cast<StoreIndex>(i), .page_count = store_pages},
                        .device = devices[i].get()});
      stores.back().record.uuid[0] = static_cast<std::uint8_t>(i + 1);
    }
    auto opened = co_await Pool::open(home, *store, nullptr, options, std::move(stores));
    if (!opened.has_value()) FAIL(opened.error());
    pool = std::move(*opened);
  }
  Task<void> stop() {
    co_await pool->stop();
    pool.reset();
  }
  // Like a kill and a start.
  Task<void> restart() {
    co_await stop();
    auto again = std::make_unique<MemoryStore>(home);
    again->set_content(store->content());
    store = std::move(again);
    co_await start();
  }
  std::uint64_t used() const { return pool->space().pages - pool->space().free_pages; }

  Executor& home;
  std::uint32_t store_pages;
  PoolOptions options = test_options();
  std::unique_ptr<MemoryStore> store;
  std::vector<std::unique_ptr<EmptyDevice>> devices;
  std::unique_ptr<Pool> pool;
};

// Calls `look` once in every turn, until it is stopped.
class Beat {
 public:
  Beat(Executor& home, std::function<void()> look) : home_(home), look_(std::move(look)) {
    spawn(run());
  }
  Task<void> stop() {
    stopping_ = true;
    co_await ended_.wait();
    if (look_) look_();
  }
  std::uint64_t turns() const { return turns_; }

 private:
  Task<void> run() {
    while (!stopping_) {
      ++turns_;
      if (look_) look_();
      co_await home_.turn_end();
    }
    ended_.set();
  }

  Executor& home_;
  std::function<void()> look_;
  std::uint64_t turns_ = 0;
  bool stopping_ = false;
  Event ended_;
};

}  // namespace sandbay::pool
