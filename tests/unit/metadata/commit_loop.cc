// A process that commits batches until it is killed: what the kill test of RocksDB runs.
//
// commit-loop DIRECTORY FIRST COMMITTERS: commits batches FIRST, FIRST + 1, … and writes the number
// of each to standard output, eight bytes, once it is acknowledged. With 0 committers it only holds
// the store open and writes one zero.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "commit_history.h"
#include "metadata/rocksdb_store.h"
#include "runtime/reactor.h"
#include "runtime/sync.h"

namespace sandbay::metadata::testing {
namespace {

void report(std::uint64_t number) {
  if (write(STDOUT_FILENO, &number, sizeof number) != sizeof number) std::exit(1);
}

Task<void> commit_for_ever(Store& store, std::uint64_t& next, Gate& gate) {
  const GateHold hold(gate);
  while (true) {
    const std::uint64_t number = next++;
    const Error error = co_await store.commit(history_batch(number, 3000));
    if (error != Error::kNone) std::exit(1);
    report(number);
  }
}

Task<void> run(Executor& home, std::string path, std::uint64_t first, unsigned committers) {
  auto store = co_await open_rocksdb_store(home, {.path = std::move(path)});
  if (!store.has_value()) {
    std::fprintf(stderr, "%s\n", store.error().c_str());
    std::exit(1);
  }
  Gate gate;
  std::uint64_t next = first;
  for (unsigned i = 0; i < committers; ++i) {
    if (gate.enter()) spawn(commit_for_ever(**store, next, gate));
  }
  if (committers == 0) {
    report(0);
    co_await home.sleep_for(std::chrono::hours(1));
  }
  co_await gate.close();
  co_await (*store)->close();
}

}  // namespace
}  // namespace sandbay::metadata::testing

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  auto group = sandbay::ReactorGroup::create({.memory_limit_bytes = std::size_t{64} << 20});
  if (!group.has_value()) return 2;
  sandbay::Executor& home = *(*group)->executors()[0];
  (*group)->run([&] {
    return sandbay::metadata::testing::run(home, argv[1], std::strtoull(argv[2], nullptr, 10),
                                           static_cast<unsigned>(std::atoi(argv[3])));
  });
  return 0;
}
