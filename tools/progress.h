// Progress: how far long work is. On a terminal one line is drawn over itself; elsewhere a line is
// written every 10 s. It goes to standard error, so that standard output holds the result alone.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace sandbay::cli {

class Progress {
 public:
  Progress();
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(const std::string& what, double done);  // 0 to 1.
  void update(const std::string& what);               // Nobody knows how much is left.
  void end();                                         // Clears the line on a terminal.

 private:
  bool line_is_due();

  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_line_;
};

// Runs `work` on a thread and shows how long it takes meanwhile. Throws what `work` throws.
void show_time_of(const std::string& what, const std::function<void()>& work);

}  // namespace sandbay::cli
