// Files of a simulated world: operations with latency, cancellation and power cuts.
#include <algorithm>
#include <cassert>

#include "runtime/simulated_disks.h"
#include "runtime/simulated_executor.h"

namespace sandbay::sim {

namespace {

constexpr std::uint64_t kSectorBytes = 512;
constexpr std::uint64_t kMostCancelDelay = 10'000;                 // ns
constexpr std::size_t kMostUnsyncedBytes = std::size_t{64} << 20;  // Of one file.
constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 44;     // 16 TiB, as on ext4.

void apply(SparseImage& image, const FileChange& change) {
  switch (change.kind) {
    case FileChange::Kind::kWrite:
      return image.write(change.offset, change.data);
    case FileChange::Kind::kZero:
      return image.punch(change.offset, change.byte_count);
    case FileChange::Kind::kResize:
      return image.resize(change.offset);
    case FileChange::Kind::kGrow:
      return image.grow_to(change.offset);
  }
}

// The part of a change in [first, end).
FileChange part_of(const FileChange& change, std::uint64_t first, std::uint64_t end) {
  FileChange part{.kind = change.kind, .offset = first, .byte_count = end - first, .data = {}};
  if (change.kind == FileChange::Kind::kWrite) {
    const auto begin = change.data.begin() + static_cast<std::ptrdiff_t>(first - change.offset);
    part.data.assign(begin, begin + static_cast<std::ptrdiff_t>(end - first));
  }
  return part;
}

}  // namespace

// One operation on its way. It stands in the frame of the coroutine that awaits it, takes effect
// when its latency has passed, and resumes the coroutine through the ready set.
class FileOperation : Cancellation::Hook {
 public:
  enum class Kind : std::uint8_t { kRead, kChange, kSync, kSize, kRunAt };

  FileOperation(Disks& disks, Executor& home, const std::string& path, FileState& file,
                Cancellation* cancellation)
      : Hook(cancellation,
             [](Hook& hook) {
               auto& self = static_cast<FileOperation&>(hook);
               self.disks_.cancel(self);
             }),
        disks_(disks),
        home_(home),
        path_(path),
        file_(file) {
    timer_.owner = this;
    timer_.fire = [](Timer& timer) {
      auto& self = *static_cast<FileOperation*>(timer.owner);
      self.disks_.finish(self);
    };
  }

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiting) {
    handle_ = waiting;
    disks_.start(*this);
  }
  void await_resume() const noexcept {}

  // What a change does to the file, with a copy of its data.
  std::shared_ptr<FileChange> copy_change() const {
    auto copy = std::make_shared<FileChange>(change);
    if (change.kind != FileChange::Kind::kWrite) return copy;
    copy->data.reserve(change.byte_count);
    for (const IoSlice& slice : slices) {
      copy->data.insert(copy->data.end(), slice.data, slice.data + slice.byte_count);
    }
    return copy;
  }

  Kind kind = Kind::kRead;
  std::span<const IoSlice> slices;
  FileChange change;           // Without its data; its offset and byte count serve reads as well.
  Error error = Error::kNone;  // Set before it starts: it fails, after a while, without effect.
  std::uint64_t size = 0;
  File::Run run;

 private:
  friend class Disks;
  Disks& disks_;
  Executor& home_;
  const std::string& path_;
  FileState& file_;
  Timer timer_;
  std::coroutine_handle<> handle_;
  std::uint64_t sequence_at_start_ = 0;
  bool cancelled_ = false;
  bool in_flight_ = false;
};

class SimulatedFile final : public File {
 public:
  SimulatedFile(Disks& disks, Executor& home, const std::string& path, FileState& file,
                FileOptions options)
      : disks_(disks),
        home_(home),
        path_(path),
        file_(file),
        options_(options),
        power_cycle_(disks.power_cycle_) {}
  ~SimulatedFile() override { assert(in_flight_ == 0); }

  Executor& home() const noexcept override { return home_; }
  bool direct() const noexcept override { return options_.direct; }
  std::size_t alignment() const noexcept override { return options_.direct ? kSectorBytes : 1; }
  bool is_block_device() const noexcept override { return false; }

  Task<Error> read(std::uint64_t offset, std::span<const IoSlice> target,
                   Cancellation* cancellation) override;
  Task<Error> write(std::uint64_t offset, std::span<const IoSlice> source,
                    Cancellation* cancellation) override;
  Task<Error> sync(Cancellation* cancellation) override;
  Task<Result<std::uint64_t>> size() override;
  Task<Error> resize(std::uint64_t byte_count) override {
    return change(FileChange::Kind::kResize, byte_count, 0);
  }
  Task<Error> allocate(std::uint64_t offset, std::uint64_t byte_count) override {
    return change(FileChange::Kind::kGrow, offset, byte_count);
  }
  Task<Error> punch_hole(std::uint64_t offset, std::uint64_t byte_count) override {
    return change(FileChange::Kind::kZero, offset, byte_count);
  }
  // On ext4 a zeroed range becomes an unwritten extent, which reads and seeks as a hole.
  Task<Error> write_zeroes(std::uint64_t offset, std::uint64_t byte_count) override {
    return change(FileChange::Kind::kZero, offset, byte_count);
  }
  Task<Result<Run>> run_at(std::uint64_t offset) override;

 private:
  Task<Error> change(FileChange::Kind kind, std::uint64_t offset, std::uint64_t byte_count);
  Task<void> carry_out(FileOperation& operation);  // Awaited at once.
  Error check(bool changes) const;
  bool aligned(std::uint64_t offset, std::span<const IoSlice> slices) const;

  Disks& disks_;
  Executor& home_;
  const std::string& path_;
  FileState& file_;
  FileOptions options_;
  std::uint64_t power_cycle_;
  std::size_t in_flight_ = 0;
};

Error SimulatedFile::check(bool changes) const {
  assert(Executor::current_or_null() == &home_);
  if (power_cycle_ != disks_.power_cycle_) return Error::kHardware;
  if (changes && !options_.writable) return Error::kReadOnly;
  return Error::kNone;
}

bool SimulatedFile::aligned(std::uint64_t offset, std::span<const IoSlice> slices) const {
  if (!options_.direct) return true;
  return offset % kSectorBytes == 0 && std::ranges::all_of(slices, [](const IoSlice& slice) {
           return slice.byte_count % kSectorBytes == 0 &&
                  reinterpret_cast<std::uintptr_t>(slice.data) % kSectorBytes == 0;
         });
}

Task<void> SimulatedFile::carry_out(FileOperation& operation) {
  ++in_flight_;
  co_await operation;
  --in_flight_;
}

Task<Error> SimulatedFile::read(std::uint64_t offset, std::span<const IoSlice> target,
                                Cancellation* cancellation) {
  if (cancellation != nullptr && cancellation->cancelled()) co_return Error::kCancelled;
  FileOperation operation(disks_, home_, path_, file_, cancellation);
  operation.kind = FileOperation::Kind::kRead;
  operation.slices = target;
  operation.change.offset = offset;
  operation.change.byte_count = byte_count_of(target);
  operation.error = check(false);
  if (!aligned(offset, target)) operation.error = Error::kInvalid;
  co_await carry_out(operation);
  co_return operation.error;
}

Task<Error> SimulatedFile::write(std::uint64_t offset, std::span<const IoSlice> source,
                                 Cancellation* cancellation) {
  if (cancellation != nullptr && cancellation->cancelled()) co_return Error::kCancelled;
  FileOperation operation(disks_, home_, path_, file_, cancellation);
  operation.kind = FileOperation::Kind::kChange;
  operation.slices = source;
  operation.change.kind = FileChange::Kind::kWrite;
  operation.change.offset = offset;
  operation.change.byte_count = byte_count_of(source);
  operation.error = check(true);
  if (!aligned(offset, source)) operation.error = Error::kInvalid;
  if (offset > kLargestFile || operation.change.byte_count > kLargestFile - offset) {
    operation.error = Error::kOutOfRange;
  }
  co_await carry_out(operation);
  co_return operation.error;
}

Task<Error> SimulatedFile::sync(Cancellation* cancellation) {
  if (cancellation != nullptr && cancellation->cancelled()) co_return Error::kCancelled;
  FileOperation operation(disks_, home_, path_, file_, cancellation);
  operation.kind = FileOperation::Kind::kSync;
  operation.error = check(false);
  co_await carry_out(operation);
  co_return operation.error;
}

Task<Result<std::uint64_t>> SimulatedFile::size() {
  FileOperation operation(disks_, home_, path_, file_, nullptr);
  operation.kind = FileOperation::Kind::kSize;
  operation.error = check(false);
  co_await carry_out(operation);
  if (operation.error != Error::kNone) co_return std::unexpected(operation.error);
  co_return operation.size;
}

Task<Error> SimulatedFile::change(FileChange::Kind kind, std::uint64_t offset,
                                  std::uint64_t byte_count) {
  FileOperation operation(disks_, home_, path_, file_, nullptr);
  operation.kind = FileOperation::Kind::kChange;
  operation.change.kind = kind;
  operation.change.offset = kind == FileChange::Kind::kGrow ? offset + byte_count : offset;
  operation.change.byte_count = byte_count;
  operation.error = check(true);
  if (kind != FileChange::Kind::kResize && byte_count == 0) operation.error = Error::kInvalid;
  if (offset > kLargestFile || byte_count > kLargestFile - offset) {
    operation.error = Error::kOutOfRange;
  }
  co_await carry_out(operation);
  co_return operation.error;
}

Task<Result<File::Run>> SimulatedFile::run_at(std::uint64_t offset) {
  FileOperation operation(disks_, home_, path_, file_, nullptr);
  operation.kind = FileOperation::Kind::kRunAt;
  operation.change.offset = offset;
  operation.error = check(false);
  co_await carry_out(operation);
  if (operation.error != Error::kNone) co_return std::unexpected(operation.error);
  co_return operation.run;
}

// Disks --------------------------------------------------------------------------------------

Disks::Disks(Scheduler& scheduler, Random random, FileLatency latency,
             const FilesSnapshot* snapshot)
    : scheduler_(scheduler), random_(random), latency_(latency) {
  assert(latency.least <= latency.most);
  if (snapshot != nullptr) files_ = snapshot->files;
}

Duration Disks::draw_latency() {
  return Duration(random_.between(static_cast<std::uint64_t>(latency_.least.count()),
                                  static_cast<std::uint64_t>(latency_.most.count())));
}

Task<Result<std::unique_ptr<File>>> Disks::open(Executor& home, std::string path,
                                                FileOptions options) {
  co_await home.sleep_for(draw_latency());
  auto found = files_.find(path);
  if (found == files_.end()) {
    if (!options.create) co_return std::unexpected(Error::kNotFound);
    found = files_.try_emplace(path).first;
  } else if (options.create && options.exclusive) {
    co_return std::unexpected(Error::kExists);
  }
  co_return std::make_unique<SimulatedFile>(*this, home, found->first, found->second, options);
}

Task<Error> Disks::remove(Executor& home, std::string path) {
  co_await home.sleep_for(draw_latency());
  const auto found = files_.find(path);
  if (found == files_.end()) co_return Error::kNotFound;
  tell_observer(path);
  removed_.push_back(files_.extract(found));
  co_return Error::kNone;
}

void Disks::start(FileOperation& operation) {
  if (std::exchange(untouched_, false)) {
    for (auto& [path, file] : files_) file.in_flight_at_snapshot.clear();
  }
  operation.in_flight_ = true;
  operation.sequence_at_start_ = operation.file_.sequence;
  in_flight_.push_back(&operation);
  operation.timer_.deadline = scheduler_.now() + draw_latency();
  scheduler_.arm_hardware(operation.timer_);
}

void Disks::cancel(FileOperation& operation) {
  if (!operation.in_flight_ || !operation.timer_.armed()) return;
  operation.cancelled_ = true;
  scheduler_.disarm_hardware(operation.timer_);
  operation.timer_.deadline = scheduler_.now() + Duration(random_.below(kMostCancelDelay));
  scheduler_.arm_hardware(operation.timer_);
}

void Disks::finish(FileOperation& operation) {
  const bool effect = !operation.cancelled_ || random_.chance(0.5);
  if (effect && operation.error == Error::kNone) take_effect(operation);
  if (operation.cancelled_) operation.error = Error::kCancelled;
  complete(operation);
}

void Disks::complete(FileOperation& operation) {
  operation.in_flight_ = false;
  const auto place = std::ranges::find(in_flight_, &operation);
  assert(place != in_flight_.end());
  *place = in_flight_.back();
  in_flight_.pop_back();
  scheduler_.make_ready(operation.home_.index(), operation.handle_);
}

void Disks::take_effect(FileOperation& operation) {
  FileState& file = operation.file_;
  std::uint64_t offset = operation.change.offset;
  switch (operation.kind) {
    case FileOperation::Kind::kRead:
      if (offset > file.visible.size() ||
          operation.change.byte_count > file.visible.size() - offset) {
        operation.error = Error::kOutOfRange;
        return;
      }
      for (const IoSlice& slice : operation.slices) {
        file.visible.read(offset, {slice.data, slice.byte_count});
        offset += slice.byte_count;
      }
      return;
    case FileOperation::Kind::kChange:
      apply_visible(operation);
      return;
    case FileOperation::Kind::kSync:
      write_back(file, operation.sequence_at_start_, ~std::size_t{0});
      return;
    case FileOperation::Kind::kSize:
      operation.size = file.visible.size();
      return;
    case FileOperation::Kind::kRunAt:
      if (offset >= file.visible.size()) {
        operation.error = Error::kOutOfRange;
        return;
      }
      operation.run = file.visible.run_at(offset);
      return;
  }
}

void Disks::tell_observer(const std::string& path) {
  if (!observer_) return;
  observing_ = true;
  observer_(path);
  observing_ = false;
}

void Disks::apply_visible(FileOperation& operation) {
  tell_observer(operation.path_);
  FileState& file = operation.file_;
  std::shared_ptr<FileChange> change = operation.copy_change();
  change->sequence = ++file.sequence;
  apply(file.visible, *change);
  file.unsynced_bytes += change->data.size();
  file.unsynced.push_back(std::move(change));
  if (file.unsynced_bytes > kMostUnsyncedBytes) {
    write_back(file, file.sequence, file.unsynced_bytes - kMostUnsyncedBytes / 2);
  }
}

// Makes the oldest changes durable, in order: those up to a sequence, until so many bytes are.
void Disks::write_back(FileState& file, std::uint64_t up_to_sequence, std::size_t most_bytes) {
  std::size_t written = 0;
  while (!file.unsynced.empty() && file.unsynced.front()->sequence <= up_to_sequence &&
         written < most_bytes) {
    const FileChange& change = *file.unsynced.front();
    apply(file.durable, change);
    written += change.data.size();
    file.unsynced_bytes -= change.data.size();
    file.unsynced.pop_front();
  }
}

// What of an un-synced change has reached the platters when the power goes.
void Disks::keep_some(FileState& file, const FileChange& change) {
  switch (random_.below(3)) {
    case 0:
      return;
    case 1:
      return apply(file.durable, change);
    default:
      break;
  }
  const bool sizes =
      change.kind == FileChange::Kind::kResize || change.kind == FileChange::Kind::kGrow;
  if (sizes) return;  // One number is there or not.
  const std::uint64_t end = change.offset + change.byte_count;
  // A write loses any of its sectors; a long run of zeros is cut short on both sides.
  if (change.kind == FileChange::Kind::kZero) {
    const std::uint64_t one = change.offset + random_.below(change.byte_count + 1);
    const std::uint64_t other = change.offset + random_.below(change.byte_count + 1);
    const std::uint64_t first =
        std::max(std::min(one, other) / kSectorBytes * kSectorBytes, change.offset);
    const std::uint64_t last =
        std::min((std::max(one, other) + kSectorBytes - 1) / kSectorBytes * kSectorBytes, end);
    if (first < last) apply(file.durable, part_of(change, first, last));
    return;
  }
  for (std::uint64_t first = change.offset; first < end;) {
    const std::uint64_t last = std::min(end, first / kSectorBytes * kSectorBytes + kSectorBytes);
    if (random_.chance(0.5)) apply(file.durable, part_of(change, first, last));
    first = last;
  }
}

bool Disks::is_change_of(const FileOperation& operation, const FileState& file) const {
  return operation.kind == FileOperation::Kind::kChange && operation.error == Error::kNone &&
         &operation.file_ == &file;
}

void Disks::cut_power() {
  assert(!observing_);
  ++power_cycle_;
  for (auto& [path, file] : files_) {
    std::vector<std::shared_ptr<const FileChange>> changes(file.unsynced.begin(),
                                                           file.unsynced.end());
    changes.insert(changes.end(), file.in_flight_at_snapshot.begin(),
                   file.in_flight_at_snapshot.end());
    for (const FileOperation* operation : in_flight_) {
      if (is_change_of(*operation, file)) changes.push_back(operation->copy_change());
    }
    for (std::size_t left = changes.size(); left > 0; --left) {
      std::swap(changes[random_.below(left)], changes[left - 1]);
      keep_some(file, *changes[left - 1]);
    }
    file.visible = file.durable;
    file.unsynced.clear();
    file.unsynced_bytes = 0;
    file.in_flight_at_snapshot.clear();
  }
  while (!in_flight_.empty()) {
    FileOperation& operation = *in_flight_.back();
    scheduler_.disarm_hardware(operation.timer_);
    operation.error = Error::kHardware;
    complete(operation);
  }
}

std::shared_ptr<const FilesSnapshot> Disks::snapshot() const {
  auto snapshot = std::make_shared<FilesSnapshot>();
  snapshot->files = files_;
  for (const FileOperation* operation : in_flight_) {
    const auto found = files_.find(operation->path_);  // Removed, perhaps, and made anew.
    if (found == files_.end() || !is_change_of(*operation, found->second)) continue;
    snapshot->files[operation->path_].in_flight_at_snapshot.push_back(operation->copy_change());
  }
  return snapshot;
}

std::vector<std::byte> Disks::content(const std::string& path) const {
  const auto found = files_.find(path);
  if (found == files_.end()) return {};
  std::vector<std::byte> content(found->second.visible.size());
  found->second.visible.read(0, content);
  return content;
}

void Disks::set_content(const std::string& path, std::vector<std::byte> content) {
  FileState& file = files_[path];
  file.visible = SparseImage();
  file.visible.write(0, content);
  file.durable = file.visible;
  file.unsynced.clear();
  file.unsynced_bytes = 0;
  file.in_flight_at_snapshot.clear();
}

}  // namespace sandbay::sim
