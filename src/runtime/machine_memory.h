// How much memory this process may use: the machine's, or that of its control group if it is less
// (cgroups(7), version 1 or 2), as containers are limited.
#pragma once

#include <cstdint>
#include <filesystem>

namespace sandbay {

// Bytes. Reads a few files below `root` and may block, so it is not for reactors. A limit that
// cannot be read counts as none.
std::uint64_t memory_allowed(const std::filesystem::path& root = "/");

}  // namespace sandbay
