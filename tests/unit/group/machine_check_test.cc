// Names and addresses that the text of a file cannot judge, and this machine can.
#include "group/machine_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/unit/block/scratch_directory.h"

namespace sandbay::group {
namespace {

std::vector<std::string> mistakes_of(const std::string& text) {
  const auto configuration = parse_configuration(text, "test.toml");
  if (!configuration) return configuration.error();
  return mistakes_on_this_machine(*configuration);
}

std::string group_in(const std::string& state, const std::string& address = "127.0.0.1:0") {
  return fmt::format("[group]\nname = \"test\"\nstate = \"{}\"\n[[portal]]\nlisten = \"{}\"\n",
                     state, address);
}

bool says(const std::vector<std::string>& mistakes, std::string_view words) {
  return mistakes.size() == 1 && mistakes.front().find(words) != std::string::npos;
}

TEST_CASE("What is as it is meant, or not there yet, is no mistake", "[group][check]") {
  const sandbay::testing::ScratchDirectory scratch;
  std::ofstream(scratch.file("v.img")) << "x";
  const std::string text = group_in(scratch.file("state")) +
                           "[nvram]\n[[drive]]\nname = \"d\"\nfile = \"d.img\"\nsize = \"64MiB\"\n"
                           "[[volume]]\nname = \"v\"\nfile = \"" +
                           scratch.file("v.img") + "\"\n";
  CHECK(mistakes_of(text).empty());
  CHECK(mistakes_of(group_in(scratch.file("state"), "0.0.0.0:3260")).empty());
}

TEST_CASE("What is something else than is meant is told", "[group][check]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string state = scratch.file("state");
  std::ofstream(scratch.file("plain")) << "x";
  CHECK(says(mistakes_of(group_in(scratch.file("plain"))),
             "test.toml: group.state: " + scratch.file("plain") + " is a file; write the path of"));
  CHECK(says(mistakes_of(group_in(state) + "[nvram]\nfile = \"/\"\n"),
             "test.toml:6: file: / is a directory"));
  CHECK(says(mistakes_of(group_in(state) + "[[volume]]\nname = \"v\"\nfile = \"/dev/null\"\n"),
             "test.toml:6: file: /dev/null is a character device"));
  CHECK(says(mistakes_of(group_in(state) + "[[drive]]\nname = \"d\"\ndevice = \"" +
                         scratch.file("plain") + "\"\n"),
             "is a file; write that of a block device, or file for a file"));
  CHECK(says(mistakes_of(group_in(state, "192.0.2.77:3260")),
             "test.toml:4: listen: no interface of this machine has the address 192.0.2.77"));
}

}  // namespace
}  // namespace sandbay::group
