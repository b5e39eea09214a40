// A directory of its own for a test that needs real files; gone with everything in it afterwards.
// It lies where the system keeps temporary files, so what its filesystem can do (direct I/O, holes)
// differs from host to host: tests may not depend on that.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace sandbay::testing {

class ScratchDirectory {
 public:
  ScratchDirectory() {
    const std::string unique(6, 'X');  // What mkdtemp() replaces.
    std::string name =
        (std::filesystem::temp_directory_path() / ("sandbay-test-" + unique)).string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + name);
    path_ = name;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace sandbay::testing
