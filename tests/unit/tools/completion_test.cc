// [G-C13] The completion of bash, run by bash.
#include "tools/completion.h"

#include <CLI/CLI.hpp>
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <memory>

namespace sandbay::cli {
namespace {

// The words that bash offers for the last of `words`.
std::string offered(const std::string& script, const std::string& words, int at) {
  const std::string command = "bash -c '" +
                              [&] {
                                std::string quoted;
                                for (const char c : script)
                                  quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
                                return quoted;
                              }() +
                              "\nCOMP_WORDS=(" + words + "); COMP_CWORD=" + std::to_string(at) +
                              "; _demo; echo \"${COMPREPLY[*]}\"'";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> text{};
  const std::size_t count = std::fread(text.data(), 1, text.size() - 1, pipe.get());
  std::string line(text.data(), count);
  if (line.ends_with('\n')) line.pop_back();
  return line;
}

TEST_CASE("Bash completes nouns, verbs and options", "[G-C13][completion]") {
  CLI::App app("A program", "demo");
  bool flag = false;
  app.add_flag("--json", flag);
  CLI::App* const volume = app.add_subcommand("volume");
  CLI::App* const create = volume->add_subcommand("create");
  create->add_flag("--thin", flag);
  volume->add_subcommand("delete");
  app.add_subcommand("pool");
  app.add_subcommand("secret")->group("");
  const std::string script = bash_completion(app);
  INFO(script);
  CHECK(offered(script, "demo \"\"", 1) == "--help --json volume pool");
  CHECK(offered(script, "demo vo", 1) == "volume");
  CHECK(offered(script, "demo volume \"\"", 2) == "--help --json create delete");
  CHECK(offered(script, "demo --json volume cr", 3) == "create");
  CHECK(offered(script, "demo volume create name --t", 4) == "--thin");
  CHECK(offered(script, "demo volume create name --th delete --js", 6) == "--json");
}

}  // namespace
}  // namespace sandbay::cli
