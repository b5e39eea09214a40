// How the C library manages memory in simulations. They build and drop thousands of worlds whose
// drives and boards are large blocks. By default the library returns each such block to the system
// at once, and half of the CPU time goes into fresh pages. With these limits it keeps the memory.
#include <malloc.h>

namespace sandbay::simtest {
namespace {

constexpr int kMib = 1 << 20;
constexpr int kLargestKeptBlock = 32 * kMib;  // The most that the library accepts.
constexpr int kKeptAtTheTop = 256 * kMib;

[[maybe_unused]] const bool kMemoryIsKept = mallopt(M_MMAP_THRESHOLD, kLargestKeptBlock) != 0 &&
                                            mallopt(M_TRIM_THRESHOLD, kKeptAtTheTop) != 0;

}  // namespace
}  // namespace sandbay::simtest
