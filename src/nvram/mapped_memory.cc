// The handler of SIGBUS finds the mapping by its address, in a table of fixed size that it reads
// without a lock, and does nothing but what signal(7) allows: fstat(2), and mmap(2), which is a
// plain call into the kernel. Other bus errors go to whoever handled them before.
//
// Everything behind the file's end is replaced at once, so that the kernel, too, can use it, and
// never twice: what was stored there since belongs to writes on their way to the drives.
#include "nvram/mapped_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <mutex>

namespace sandbay::nvram {
namespace {

// `begin` is 0 where there is none; it is set last and cleared first.
struct Slot {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<std::uintptr_t> gone_from{0};  // From here to the end it is private memory.
  std::atomic<int> descriptor{-1};
  std::atomic<bool> broken{false};
};

constinit std::array<Slot, MappedMemory::kMost> slots;
constinit std::atomic_flag replacing;  // One at a time; held for two calls into the kernel.
std::mutex changing;                   // Of slots, outside the handler.
struct sigaction earlier_action;
std::uintptr_t page_bytes = 0;

bool put_private(std::uintptr_t from, std::uintptr_t end) {
  if (from >= end) return true;
  void* const mapped = ::mmap(reinterpret_cast<void*>(from), end - from, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  return mapped != MAP_FAILED;
}

std::uintptr_t end_of_file(const Slot& slot) {
  struct stat status{};
  if (::fstat(slot.descriptor.load(), &status) != 0) return slot.begin;
  const std::uintptr_t bytes = static_cast<std::uintptr_t>(std::max<off_t>(status.st_size, 0));
  const std::uintptr_t whole_pages = (bytes + page_bytes - 1) / page_bytes * page_bytes;
  return std::min(slot.begin + whole_pages, slot.end.load());
}

// `page`: one that cannot be had from the file; the end if none is known.
bool replace(Slot& slot, std::uintptr_t page) {
  while (replacing.test_and_set(std::memory_order_acquire)) {
  }
  const std::uintptr_t file_end = end_of_file(slot);
  const std::uintptr_t gone_from = slot.gone_from;
  bool done = true;
  if (file_end < gone_from) {
    done = put_private(file_end, gone_from);
    if (done) slot.gone_from = file_end;
    slot.broken = true;
  }
  // The file has it, and the disk does not give it.
  if (done && page < std::min(file_end, gone_from)) {
    done = put_private(page, page + page_bytes);
    slot.broken = true;
  }
  replacing.clear(std::memory_order_release);
  return done;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int kept_errno = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (Slot& slot : slots) {
    const std::uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= slot.end) continue;
    if (!replace(slot, address / page_bytes * page_bytes)) break;
    errno = kept_errno;
    return;
  }
  // As if this handler were not there: at the latest the same access, made again, ends it.
  if ((earlier_action.sa_flags & SA_SIGINFO) != 0 && earlier_action.sa_sigaction != nullptr) {
    earlier_action.sa_sigaction(signal, info, context);
  } else if (earlier_action.sa_handler != SIG_DFL && earlier_action.sa_handler != SIG_IGN) {
    earlier_action.sa_handler(signal);
  } else {
    ::signal(SIGBUS, SIG_DFL);
  }
}

void install_handler() {
  if (page_bytes != 0) return;
  page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  const int installed = ::sigaction(SIGBUS, &action, &earlier_action);
  assert(installed == 0);
}

}  // namespace

std::expected<std::unique_ptr<MappedMemory>, Error> MappedMemory::map(const std::string& path,
                                                                      std::uint64_t byte_count) {
  const std::lock_guard lock(changing);
  install_handler();
  const auto slot =
      std::ranges::find_if(slots, [](const Slot& each) { return each.begin.load() == 0; });
  if (slot == slots.end()) return std::unexpected(Error::kNoMemory);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return std::unexpected(error_from_errno(errno));
  void* const memory =
      ::mmap(nullptr, byte_count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (memory == MAP_FAILED) {
    const int failed = errno;
    ::close(descriptor);
    return std::unexpected(error_from_errno(failed));
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  slot->descriptor = descriptor;
  slot->broken = false;
  slot->end = begin + byte_count;
  slot->gone_from = slot->end.load();
  slot->begin.store(begin, std::memory_order_release);
  return std::unique_ptr<MappedMemory>(
      new MappedMemory(std::span(static_cast<std::byte*>(memory), byte_count),
                       static_cast<std::size_t>(slot - slots.begin())));
}

MappedMemory::~MappedMemory() {
  const std::lock_guard lock(changing);
  Slot& slot = slots[slot_];
  slot.begin = 0;
  ::munmap(bytes_.data(), bytes_.size());
  ::close(slot.descriptor);
}

bool MappedMemory::broken() const noexcept {
  return slots[slot_].broken.load(std::memory_order_relaxed);
}

bool MappedMemory::cut_short() const noexcept {
  return slots[slot_].gone_from.load() < slots[slot_].end.load();
}

void MappedMemory::replace_gone() { (void)replace(slots[slot_], slots[slot_].end); }

}  // namespace sandbay::nvram
