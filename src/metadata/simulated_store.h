// SimulatedStore: a store over one File of an Executor, for simulations: there the file loses,
// tears and reorders un-synced writes at a power cut, and a store is judged by what it has
// afterwards.
//
// All entries stand in memory; the file is a log of checksummed records, one for all batches that
// were committed together, synced before they count. Opening replays the log up to the first
// record that is not whole, and cuts the rest off. So does a commit that failed, or the one after
// it.
#pragma once

#include <expected>
#include <memory>
#include <string>

#include "metadata/store.h"
#include "runtime/io.h"

namespace sandbay::metadata {

// Called on `home`. Makes the file if it is not there. Fails with one line that names it.
Task<std::expected<std::unique_ptr<Store>, std::string>> open_simulated_store(Executor& home,
                                                                              std::string path);
// The same on a file that is open; `path` is only its name in messages.
Task<std::expected<std::unique_ptr<Store>, std::string>> open_simulated_store(
    Executor& home, std::unique_ptr<File> file, std::string path);

}  // namespace sandbay::metadata
