// Starts a group on real reactors, with RocksDB, in a directory of its own; runs a test's coroutine
// against it and shuts it down. Starting it again on the same directory is a restart.
#pragma once

#include <fmt/core.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <string>

#include "group/group.h"
#include "group/state_directory.h"
#include "metadata/rocksdb_store.h"
#include "runtime/reactor.h"

namespace sandbay::group {

using GroupTest = std::function<Task<void>(Group& group)>;

inline Task<void> serve_once(Configuration configuration, std::string metadata, GroupTest test,
                             std::string* error) {
  auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  if (!store) {
    *error = store.error();
    co_return;
  }
  auto group = co_await Group::start(std::move(configuration), **store);
  if (group) {
    co_await test(**group);
    co_await (*group)->shutdown();
  } else {
    *error = group.error().text;
  }
  co_await (*store)->close();
}

// The refusal to start; empty if the group ran.
inline std::string run_configured(Configuration configuration, unsigned reactors,
                                  const GroupTest& test) {
  const auto state = StateDirectory::open(configuration.state);
  if (!state) return state.error().text;
  for (const MemberConfiguration& member : configuration.members) {
    if (const auto made = state->make_member(member.name); !made) return made.error().text;
  }
  auto group = ReactorGroup::create(
      {.count = reactors, .memory_limit_bytes = reactors * (std::size_t{64} << 20)});
  if (!group) return group.error().text;
  std::string error;
  (*group)->run(
      [&] { return serve_once(configuration, state->metadata().string(), test, &error); });
  return error;
}

// `sections` stands behind a [group] and a [[portal]] on a port that the system chooses.
inline std::string run_group(const std::filesystem::path& state, const std::string& sections,
                             unsigned reactors, const GroupTest& test) {
  const std::string text = fmt::format(
      "[group]\nname = \"test\"\nstate = \"{}\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n{}",
      state.string(), sections);
  auto configuration = parse_configuration(text, "test.toml");
  if (!configuration) return configuration.error().front();
  return run_configured(std::move(*configuration), reactors, test);
}

}  // namespace sandbay::group
