// Reading .icf files: a cursor over lines, and a function for each section.
#include "lab/iometer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

namespace sandbay::lab {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::string_view kSpace = " \t\r";

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(trim(text.substr(0, at)));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

// Numbers stand apart by tabs, spaces or commas.
std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> found;
  constexpr std::string_view kBetween = " \t\r,";
  for (std::size_t at = text.find_first_not_of(kBetween); at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    found.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kBetween, end);
  }
  return found;
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view name) : text_(text), name_(name) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
    advance();
  }

  std::expected<IometerFile, std::string> read() {
    version();
    while (error_.empty() && !at_end_ && !starts_with("Version")) section();
    if (error_.empty() && at_end_) fail_here("the file ends before its last line, Version");
    if (error_.empty() && file_.specifications.empty() && file_.workers.empty()) {
      fail_here("there is neither an access specification nor a worker");
    }
    if (error_.empty()) check_assignments();
    if (!error_.empty()) return std::unexpected(error_);
    return std::move(file_);
  }

 private:
  // ---- lines ----
  void advance() {
    do {
      if (rest_ >= text_.size()) {
        at_end_ = true;
        line_ = {};
        return;
      }
      const std::size_t end = std::min(text_.find('\n', rest_), text_.size());
      line_ = trim(text_.substr(rest_, end - rest_));
      rest_ = end + 1;
      ++number_;
    } while (line_.empty());
  }
  bool starts_with(std::string_view begin) const { return line_.starts_with(begin); }
  bool comment() const { return line_.starts_with('\''); }
  bool going_on() const { return error_.empty() && !at_end_; }

  void fail(std::size_t line, std::string_view what) {
    if (error_.empty()) error_ = fmt::format("{}:{}: {}", name_, line, what);
  }
  void fail_here(std::string_view what) { fail(number_, what); }

  // The value below the line that names it.
  std::string_view value(std::string_view of) {
    advance();
    if (at_end_ || comment()) {
      fail_here(fmt::format("\"{}\" has no value", of));
      return {};
    }
    const std::string_view found = line_;
    value_line_ = number_;
    advance();
    return found;
  }

  std::uint64_t number(std::string_view text, std::string_view what, std::uint64_t most) {
    std::uint64_t result = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), result);
    if (problem == std::errc() && end == text.data() + text.size() && result <= most) {
      return result;
    }
    fail(value_line_,
         fmt::format("{} is \"{}\"; a whole number from 0 to {} is accepted", what, text, most));
    return 0;
  }

  // Exactly so many numbers.
  template <std::size_t kCount>
  std::array<std::uint64_t, kCount> numbers(std::string_view text,
                                            const std::array<std::string_view, kCount>& names) {
    std::array<std::uint64_t, kCount> result{};
    const auto found = words(text);
    if (found.size() != kCount) {
      fail(value_line_, fmt::format("{} numbers stand here; there must be {}: {}", found.size(),
                                    kCount, fmt::join(names, ", ")));
      return result;
    }
    for (std::size_t i = 0; i < kCount; ++i) result[i] = number(found[i], names[i], kMostNumber);
    return result;
  }

  // ---- sections ----
  void version() {
    if (!starts_with("Version")) {
      return fail_here("an IOMeter configuration begins with a line \"Version …\"");
    }
    file_.version = trim(line_.substr(7));
    advance();
  }

  void section() {
    if (starts_with("'TEST SETUP")) {
      has_setup_ = true;
      return until("'END test setup", &Reader::setup_entry);
    }
    if (starts_with("'RESULTS DISPLAY")) return until("'END results display", &Reader::skip_entry);
    if (starts_with("'ACCESS SPECIFICATIONS")) {
      return until("'END access specifications", &Reader::access_entry);
    }
    if (starts_with("'MANAGER LIST")) {
      has_managers_ = true;
      return until("'END manager list", &Reader::manager_entry);
    }
    fail_here(fmt::format(
        "\"{}\" begins no section; TEST SETUP, RESULTS DISPLAY, ACCESS SPECIFICATIONS and MANAGER "
        "LIST do",
        line_));
  }

  void until(std::string_view end, void (Reader::*entry)()) {
    const std::string_view begin = line_;
    advance();
    while (going_on() && !starts_with(end)) (this->*entry)();
    if (error_.empty() && at_end_) {
      fail_here(fmt::format("the file ends within {}, before {}",
                            begin.substr(1, begin.find('=') - 2), end));
    }
    advance();
  }

  void skip_entry() { advance(); }

  void setup_entry() {
    if (starts_with("'Test Description")) {
      description();
    } else if (starts_with("'Run Time")) {
      run_time();
    } else if (starts_with("'Ramp Up Time")) {
      file_.ramp_up = seconds(number(value("Ramp Up Time"), "the ramp-up time", kMostSeconds));
    } else if (starts_with("'Queue Depth Cycling")) {
      queue_depth_cycling();
    } else if (starts_with("'Test Type")) {
      test_type();
    } else {
      advance();
    }
  }

  // The next line, whatever is in it: it may be empty, and begin as names of values do.
  void description() {
    const std::size_t end = std::min(text_.find('\n', rest_), text_.size());
    const std::string_view next = text_.substr(std::min(rest_, end), end - std::min(rest_, end));
    if (!next.starts_with('\'')) {
      file_.description = trim(next);
      rest_ = end + 1;
      ++number_;
    }
    advance();
  }

  void run_time() {
    advance();  // To the names of the columns.
    const auto [hours, minutes, rest] =
        numbers<3>(value("Run Time"), {"hours", "minutes", "seconds"});
    const std::uint64_t total = hours * 3600 + minutes * 60 + rest;
    if (total > kMostSeconds) fail(value_line_, "a run of more than a year");
    file_.run_time = seconds(std::min<std::uint64_t>(total, kMostSeconds));
  }

  void queue_depth_cycling() {
    advance();
    const auto found = words(value("Queue Depth Cycling"));
    if (found.size() != 4) {
      return fail(value_line_, "start, end, step and step type must stand here");
    }
    constexpr std::uint64_t kMostDepth = 65536;
    file_.outstanding.start = narrow(number(found[0], "the start", kMostDepth));
    file_.outstanding.end = narrow(number(found[1], "the end", kMostDepth));
    file_.outstanding.step = narrow(number(found[2], "the step", kMostDepth));
    if (found[3] != "LINEAR" && found[3] != "EXPONENTIAL") {
      return fail(value_line_, fmt::format("the step type is \"{}\"; LINEAR and EXPONENTIAL are "
                                           "accepted",
                                           found[3]));
    }
    file_.outstanding.type =
        found[3] == "LINEAR" ? Cycle::Step::kLinear : Cycle::Step::kExponential;
    const std::string wrong = cycle_error(file_.outstanding);
    if (!wrong.empty()) fail(value_line_, "the queue depth's cycle has " + wrong);
  }

  void test_type() {
    static constexpr std::pair<std::string_view, IometerTest> kTypes[] = {
        {"NORMAL", IometerTest::kNormal},
        {"CYCLE_TARGETS", IometerTest::kCycleTargets},
        {"CYCLE_WORKERS", IometerTest::kCycleWorkers},
        {"CYCLE_OUTSTANDING_IOS", IometerTest::kCycleOutstanding},
        {"CYCLE_OUTSTANDING_IOS_AND_TARGETS", IometerTest::kCycleOutstandingAndTargets},
        {"CYCLE_OUTSTANDING_IOS_AND_WORKERS", IometerTest::kCycleOutstandingAndWorkers}};
    const std::string_view text = value("Test Type");
    for (const auto& [word, type] : kTypes) {
      if (word != text) continue;
      file_.test = type;
      return;
    }
    std::string known;
    for (const auto& [word, type] : kTypes) known += fmt::format(" {}", word);
    fail(value_line_, fmt::format("the test type is \"{}\"; accepted are{}", text, known));
  }

  void access_entry() {
    if (!starts_with("'Access specification name")) {
      return fail_here(fmt::format("\"{}\" stands where an access specification begins", line_));
    }
    const std::string_view text = value("Access specification name");
    const std::size_t comma = text.rfind(',');
    const std::string name(trim(text.substr(0, comma)));
    if (comma == std::string_view::npos || name.empty()) {
      return fail(value_line_, "name and default assignment must stand here");
    }
    if (file_.find(name) != nullptr) {
      return fail(value_line_, fmt::format("\"{}\" is there already", name));
    }
    if (!starts_with("'size"))
      return fail_here("the line with the names of the columns is missing");
    AccessSpecification specification{.name = name, .lines = {}};
    const std::size_t began = value_line_;
    advance();
    while (going_on() && !comment()) specification.lines.push_back(access_line());
    if (!error_.empty()) return;
    if (at_end_) return;  // Said by until().
    const std::string wrong = access_error(specification);
    if (!wrong.empty()) fail(began, fmt::format("\"{}\" has {}", name, wrong));
    file_.specifications.push_back(std::move(specification));
  }

  AccessLine access_line() {
    value_line_ = number_;
    const auto [size, share, reads, random, delay, burst, align, reply] = numbers<8>(
        line_, {"size", "% of size", "% reads", "% random", "delay", "burst", "align", "reply"});
    AccessLine line{.bytes = size,
                    .share_percent = narrow(share),
                    .read_percent = narrow(reads),
                    .random_percent = narrow(random),
                    .delay = milliseconds(std::min(delay, kMostDelay)),
                    .burst = narrow(burst),
                    .align_bytes = align};
    if (delay > kMostDelay) fail(value_line_, "a delay of more than a year");
    if (reply != 0) fail(value_line_, "replies are for networks; 0 is accepted");
    const std::string wrong = access_error(line);
    if (!wrong.empty()) fail(value_line_, "the line has " + wrong);
    advance();
    return line;
  }

  void manager_entry() {
    if (starts_with("'Manager ID")) {
      const auto parts = split(value("Manager ID"), ',');
      manager_ = parts.size() > 1 ? parts[1] : parts[0];
    } else if (line_ == "'Worker") {
      file_.workers.push_back({.manager = manager_, .name = std::string(value("Worker"))});
    } else if (starts_with("'Manager") || starts_with("'End manager") || !comment()) {
      advance();
    } else if (file_.workers.empty()) {
      fail_here(fmt::format("\"{}\" stands outside of a worker", line_));
    } else {
      worker_entry(file_.workers.back());
    }
  }

  void worker_entry(IometerWorker& worker) {
    if (starts_with("'Worker type")) {
      worker.type = value("Worker type");
    } else if (starts_with("'Number of outstanding IOs")) {
      const auto parts = split(value("Number of outstanding IOs"), ',');
      worker.outstanding = narrow(number(parts[0], "the number of outstanding I/Os", 65536));
      if (error_.empty() && worker.outstanding == 0) {
        fail(value_line_, "0 outstanding I/Os; at least 1 is accepted");
      }
    } else if (starts_with("'Disk maximum size")) {
      disk_part(worker);
    } else if (starts_with("'Assigned access specs")) {
      advance();
      assigned_from_ = number_;
      while (going_on() && !comment()) {
        worker.specifications.emplace_back(line_);
        advance();
      }
    } else if (line_ == "'Target") {
      worker.targets.emplace_back(value("Target"));
    } else {
      advance();
    }
  }

  // From IOMeter 1.1.0 on with a data pattern, which is nothing to an array without data.
  void disk_part(IometerWorker& worker) {
    const std::string_view text = value("Disk maximum size");
    const auto found = words(text);
    if (found.size() != 2 && found.size() != 3) {
      return fail(value_line_,
                  fmt::format("{} numbers stand here; there must be maximum size, starting sector "
                              "and, since 1.1.0, data pattern",
                              found.size()));
    }
    worker.maximum_sectors = number(found[0], "the maximum size", kMostNumber);
    worker.starting_sector = number(found[1], "the starting sector", kMostNumber);
  }

  void check_assignments() {
    for (const IometerWorker& worker : file_.workers) {
      for (const std::string& name : worker.specifications) {
        if (file_.find(name) != nullptr || name == "Idle") continue;
        return fail(assigned_from_, fmt::format("worker \"{}\" is assigned \"{}\", which is no "
                                                "access specification of this file",
                                                worker.name, name));
      }
    }
    if (has_managers_ && file_.workers.empty()) return fail(number_, "there is no worker");
    if (has_setup_ && file_.run_time == Duration{}) {
      fail(number_, "the run time is 0; at least a second is needed");
    }
  }

  static std::uint32_t narrow(std::uint64_t number) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(number, UINT32_MAX));
  }

  static constexpr std::uint64_t kMostNumber = std::uint64_t{1} << 53;
  static constexpr std::uint64_t kMostSeconds = 366ULL * 24 * 3600;
  static constexpr std::uint64_t kMostDelay = 1000 * kMostSeconds;  // Milliseconds.

  std::string_view text_;
  std::string_view name_;
  std::size_t rest_ = 0;
  std::string_view line_;
  std::size_t number_ = 0;
  std::size_t value_line_ = 0;
  std::size_t assigned_from_ = 0;
  bool at_end_ = false;
  bool has_setup_ = false;  // Of the file's parts each may be saved without the others.
  bool has_managers_ = false;
  std::string manager_;
  std::string error_;
  IometerFile file_;
};

}  // namespace

const AccessSpecification* IometerFile::find(std::string_view name) const {
  const auto found = std::ranges::find(specifications, name, &AccessSpecification::name);
  return found == specifications.end() ? nullptr : &*found;
}

std::vector<std::uint32_t> IometerFile::outstanding_of(const IometerWorker& worker) const {
  switch (test) {
    case IometerTest::kCycleOutstanding:
    case IometerTest::kCycleOutstandingAndTargets:
    case IometerTest::kCycleOutstandingAndWorkers:
      return steps_of(outstanding);
    default:
      return {worker.outstanding};
  }
}

std::expected<IometerFile, std::string> read_iometer_file(std::string_view text,
                                                          std::string_view name) {
  return Reader(text, name).read();
}

}  // namespace sandbay::lab
