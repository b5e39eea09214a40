// A process that appends records until it is killed: what the kill test of a real image runs.
//
// nvram-append-loop PATH FIRST DURABILITY: recovers, releases what it finds, appends records FIRST,
// FIRST + 1, … and writes the number of each to standard output, eight bytes, once it is
// acknowledged. Before it appends a record it releases the one 20 before it.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "nvram/nvram.h"
#include "nvram/record_log.h"
#include "record_content.h"
#include "runtime/reactor.h"

namespace sandbay::nvram {
namespace {

constexpr std::uint64_t kImageBytes = 256 * 1024;

Task<void> append_for_ever(RecordLog& log, std::uint64_t first) {
  std::map<std::uint64_t, RecordId> ids;
  for (std::uint64_t number = first;; ++number) {
    if (ids.contains(number - 20)) log.release(ids.extract(number - 20).mapped());
    const Result<RecordId> id = co_await append(log, number);
    if (!id.has_value()) std::exit(1);
    ids[number] = *id;
    if (write(STDOUT_FILENO, &number, sizeof number) != sizeof number) std::exit(1);
  }
}

Task<void> run(Executor& home, std::string path, std::uint64_t first, Durability durability) {
  auto nvram = co_await Nvram::open(home, {.path = std::move(path),
                                           .byte_count = kImageBytes,
                                           .durability = durability,
                                           .boot_id = "one"});
  if (!nvram.has_value()) {
    std::fprintf(stderr, "%s\n", nvram.error().c_str());
    std::exit(1);
  }
  auto region = co_await (*nvram)->claim("journal", 64 * 1024);
  if (!region.has_value()) std::exit(1);
  RecordLog log(**region, {});
  const Recovery recovery = log.recover();
  Error error = co_await log.accept();
  if (error == Error::kNone) error = co_await (*region)->settle();
  if (error != Error::kNone) std::exit(1);
  for (const Record& record : recovery.records) log.release(record.id);
  co_await append_for_ever(log, first);
}

}  // namespace
}  // namespace sandbay::nvram

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  auto group = sandbay::ReactorGroup::create({.memory_limit_bytes = std::size_t{64} << 20});
  if (!group.has_value()) return 2;
  const auto durability = std::string(argv[3]) == "host" ? sandbay::nvram::Durability::kHost
                                                         : sandbay::nvram::Durability::kProcess;
  const std::string path = argv[1];
  const std::uint64_t first = std::strtoull(argv[2], nullptr, 10);
  sandbay::Executor& home = *(*group)->executors()[0];
  (*group)->run([&] { return sandbay::nvram::run(home, path, first, durability); });
  return 0;
}
