// Ctrl-C for what takes long: the first one asks it to come to its end, a second one ends the
// process.
#pragma once

#include <atomic>

namespace sandbay::lab {

// From now on SIGINT sets what is returned, once; it is false until then. Of the whole process.
const std::atomic<bool>& stop_at_interrupt();

}  // namespace sandbay::lab
