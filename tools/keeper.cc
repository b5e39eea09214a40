// Signals are blocked and waited for, never handled: no code runs between two others.
#include "tools/keeper.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <thread>

#include "tools/client.h"

namespace sandbay::cli {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kKeeperDied = SIGPWR;
// A process that does not end at SIGTERM is killed after the first time; one that cannot be killed
// is left after the second.
constexpr milliseconds kTimeToEnd{2000};
constexpr milliseconds kTimeToDie{5000};
constexpr milliseconds kGlanceEvery{5};

// All but those that stop and continue a job, and those of a fault of the program itself.
sigset_t taken_signals() {
  sigset_t set;
  sigfillset(&set);
  for (const int signal : {SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT, SIGSEGV, SIGBUS, SIGFPE, SIGILL,
                           SIGABRT, SIGTRAP, SIGSYS}) {
    sigdelset(&set, signal);
  }
  return set;
}

bool sent_by_a_process(const siginfo_t& info) { return info.si_code <= 0; }

// Whether a signal waits that asks this program to end.
bool end_is_pending() {
  sigset_t pending;
  ::sigpending(&pending);
  return std::ranges::any_of(std::array{SIGINT, SIGTERM, SIGHUP, SIGQUIT},
                             [&](int signal) { return sigismember(&pending, signal) == 1; });
}

int code_of(int status) {
  return WIFSIGNALED(status) ? kSignalled + WTERMSIG(status) : WEXITSTATUS(status);
}

using Ended = std::vector<std::pair<pid_t, int>>;

void reap(Ended& ended) {
  int status = 0;
  pid_t id = 0;
  while ((id = ::waitpid(-1, &status, WNOHANG)) > 0) ended.emplace_back(id, code_of(status));
}

std::optional<int> find(const Ended& ended, pid_t process) {
  for (const auto& [id, code] : ended) {
    if (id == process) return code;
  }
  return std::nullopt;
}

// "PID (NAME) STATE PARENT …" of proc(5); the name may hold anything. 0: it is gone.
pid_t parent_of(const std::string& process) {
  std::array<char, 512> text{};
  const int file = ::open(("/proc/" + process + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = ::read(file, text.data(), text.size());
  ::close(file);
  const std::string_view stat(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  const std::size_t name_end = stat.rfind(')');
  constexpr std::size_t kBetween = 4;  // ") S "
  pid_t parent = 0;
  if (name_end == std::string_view::npos || name_end + kBetween > stat.size()) return parent;
  std::from_chars(stat.data() + name_end + kBetween, stat.data() + stat.size(), parent);
  return parent;
}

// /proc may be of another PID namespace, or absent.
bool proc_is_ours() {
  std::array<char, 32> text{};
  const ssize_t length = ::readlink("/proc/self", text.data(), text.size());
  return length > 0 && std::string_view(text.data(), static_cast<std::size_t>(length)) ==
                           std::to_string(::getpid());
}

std::vector<pid_t> own_children() {
  std::vector<pid_t> children;
  DIR* const folder = ::opendir("/proc");
  if (folder == nullptr) return children;
  while (const dirent* const entry = ::readdir(folder)) {
    pid_t id = 0;
    const std::string_view name = entry->d_name;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc{} || end != name.data() + name.size()) continue;
    if (parent_of(entry->d_name) == ::getpid()) children.push_back(id);
  }
  ::closedir(folder);
  return children;
}

// Orphans become children of this process, so that in the end all are. `started` are the children
// that are known without /proc. One of them is asked to end already.
void end_children(Ended& ended, const std::vector<pid_t>& started, pid_t spared,
                  pid_t already_asked = 0) {
  const bool sees_all = proc_is_ours();
  std::vector<pid_t> asked;
  const auto began = Clock::now();
  while (true) {
    reap(ended);
    std::vector<pid_t> children = sees_all ? own_children() : started;
    std::erase_if(children, [&](pid_t child) { return child == spared || find(ended, child); });
    const auto spent = Clock::now() - began;
    if (children.empty() || spent > kTimeToEnd + kTimeToDie) return;
    for (const pid_t child : children) {
      if (spent > kTimeToEnd) {
        ::kill(child, SIGKILL);
      } else if (std::ranges::find(asked, child) == asked.end()) {
        if (child != already_asked) ::kill(child, SIGTERM);
        ::kill(child, SIGCONT);
        asked.push_back(child);
      }
    }
    std::this_thread::sleep_for(kGlanceEvery);
  }
}

[[noreturn]] void become(const Process& process, pid_t worker, const sigset_t& signals, int failed,
                         EndsWithWorker& ends_with_worker) {
  if (process.death_signal == SIGTERM) ends_with_worker = ::getpid();
  ::prctl(PR_SET_PDEATHSIG, process.death_signal);
  if (::getppid() != worker) ::_exit(kSignalled + process.death_signal);
  if (process.own_session) {
    ::setsid();
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  }
  if (process.output >= 0) ::dup2(process.output, STDOUT_FILENO);
  if (process.error >= 0) ::dup2(process.error, STDERR_FILENO);
  if (process.inherited >= 0) ::fcntl(process.inherited, F_SETFD, 0);
  for (const auto& [name, value] : process.environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> words;
  for (const std::string& word : process.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  ::execvp(words.front(), words.data());
  const int error = errno;
  (void)!::write(failed, &error, sizeof error);
  ::_exit(kSignalled - 1);
}

}  // namespace

std::expected<pid_t, int> Worker::start(const Process& process) {
  int failed[2];
  if (::pipe2(failed, O_CLOEXEC) != 0) return std::unexpected(errno);
  const pid_t worker = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) become(process, worker, signals_, failed[1], ends_with_worker_);
  int error = child < 0 ? errno : 0;
  ::close(failed[1]);
  if (child > 0 && ::read(failed[0], &error, sizeof error) > 0) ::waitpid(child, nullptr, 0);
  ::close(failed[0]);
  if (error != 0) return std::unexpected(error);
  started_.push_back(child);
  return child;
}

std::expected<int, int> Worker::run(const Process& command) {
  const sigset_t taken = taken_signals();
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &taken, &before);
  follow_keeper();
  std::expected<int, int> code = start(command);
  if (code) code = follow_command(*code);
  // Signals that came for the command do not count any more.
  constexpr timespec kNow{};
  while (::sigtimedwait(&taken, nullptr, &kNow) > 0) continue;
  follow_keeper();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return code;
}

// What a terminal sends to the whole process group the command has already, unless it has left the
// group; and so it may be with SIGINT and SIGQUIT that a process sends, which must not come twice.
// The keeper passes on what a process sends to it, and that may be the same signal once more.
int Worker::follow_command(pid_t command) {
  constexpr milliseconds kSameSignal{200};
  const sigset_t taken = taken_signals();
  int last = 0;
  Clock::time_point last_came;
  while (true) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&taken, &info);
    follow_keeper();
    const bool recently = Clock::now() - last_came < kSameSignal;
    if (const auto code = ended(command)) {
      if (recently)
        std::this_thread::sleep_for(kSameSignal);  // The keeper's copy may be on its way.
      return *code;
    }
    if (signal <= 0 || signal == SIGCHLD) continue;
    if (sent_by_a_process(info) && info.si_pid == keeper_) {
      if (signal != last || !recently) ::kill(command, signal);
      continue;
    }
    last = signal;
    last_came = Clock::now();
    const bool for_all = !sent_by_a_process(info) || signal == SIGINT || signal == SIGQUIT;
    if (!for_all || ::getpgid(command) != ::getpgrp()) ::kill(command, signal);
  }
}

int Worker::wait(pid_t process, milliseconds patience) {
  const auto end = Clock::now() + patience;
  while (true) {
    if (const auto code = ended(process)) return *code;
    follow_keeper();
    if (Clock::now() > end) ::kill(process, SIGKILL);
    std::this_thread::sleep_for(kGlanceEvery);
  }
}

std::optional<int> Worker::ended(pid_t process) {
  reap(ended_);
  return find(ended_, process);
}

void Worker::end_all(pid_t spared) { end_children(ended_, started_, spared); }

void Worker::follow_keeper() {
  if (::getppid() == keeper_) return;
  end_all(0);
  clean_();
  ::_exit(kSignalled + SIGKILL);
}

int keep(const std::function<void()>& prepare, const std::function<int(Worker&)>& work,
         const std::function<void()>& clean) {
  int spare = 0;  // No descriptor of ours shall be one of the three that programs begin with.
  while ((spare = ::open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0 && spare <= STDERR_FILENO) continue;
  if (spare > STDERR_FILENO) ::close(spare);
  ::signal(SIGCHLD, SIG_DFL);  // Ignored, the kernel would not say how children ended.
  const sigset_t taken = taken_signals();
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &taken, &before);
  try {
    prepare();
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  if (end_is_pending()) {
    clean();
    ::pthread_sigmask(SIG_SETMASK, &before,
                      nullptr);  // It ends here, unless it ignores that signal.
    return static_cast<int>(Exit::kNotRun);
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::fflush(stdout);
  void* const shared = ::mmap(nullptr, sizeof(EndsWithWorker), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::bad_alloc();
  EndsWithWorker& ends_with_worker = *::new (shared) EndsWithWorker(0);
  const pid_t keeper = ::getpid();
  const pid_t worker = ::fork();
  if (worker == 0) {
    ::prctl(PR_SET_PDEATHSIG, kKeeperDied);
    sigset_t mask = before;
    for (const int signal : {SIGCHLD, SIGPIPE, kKeeperDied}) sigaddset(&mask, signal);
    ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    Worker self(keeper, before, clean, ends_with_worker);
    const int code = work(self);
    self.end_all(0);
    self.follow_keeper();
    std::fflush(stdout);
    ::_exit(code);
  }
  if (worker < 0) {
    const int error = errno;
    clean();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Failure(std::string("cannot start a process: ") + std::strerror(error), Exit::kNotRun);
  }
  Ended ended;
  std::optional<int> code;
  bool interrupted = false;  // By a terminal.
  while (!(code = find(ended, worker))) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&taken, &info);
    reap(ended);
    if (signal <= 0 || signal == SIGCHLD) continue;
    if (sent_by_a_process(info)) ::kill(worker, signal);
    interrupted = interrupted || (signal == SIGINT && !sent_by_a_process(info));
  }
  end_children(ended, {}, 0, ends_with_worker);
  clean();
  sigset_t pipe;  // Nobody read what clean() said.
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  constexpr timespec kNow{};
  while (::sigtimedwait(&pipe, nullptr, &kNow) > 0) continue;
  if (interrupted && *code == kSignalled + SIGINT) ::raise(SIGINT);  // A shell ends its loop then.
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return *code;
}

}  // namespace sandbay::cli
