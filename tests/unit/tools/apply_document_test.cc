// [G-C10] What sandbay apply says to documents that are wrong: one line each, and never an abort.
#include "tools/apply_document.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include "tests/unit/block/scratch_directory.h"
#include "tools/client.h"

namespace sandbay::cli {
namespace {

// Empty: the document is good.
std::string mistake_in(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
  try {
    (void)read_apply_document(file);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return {};
}

constexpr const char* kGood =
    "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n[[volume]]\nname = \"v\"\nsize = \"10GiB\"\n"
    "pool = \"p\"\nthin = true\nsnapshot_reserve = \"20%\"\n[[volume.access]]\ninitiator = \"*\"\n"
    "[[volume.schedule]]\nname = \"daily\"\nevery = \"24h\"\nkeep = 3\n"
    "[[volume]]\nname = \"w\"\nfile = \"images/w.img\"\nsize = \"1GiB\"\n";

TEST_CASE("An empty path is one line, and no abort", "[G-C10][apply]") {
  const testing::ScratchDirectory scratch;
  const std::filesystem::path file = scratch.file("x.toml");
  CHECK(mistake_in(file, kGood).empty());
  for (const char* key : {"file", "device"}) {
    const std::string text = std::string("[[volume]]\nname = \"x\"\n") + key;
    CHECK_THAT(mistake_in(file, text + " = \"\"\n"), Catch::Contains("write a path"));
    CHECK_THAT(mistake_in(file, text + " = \"a\\u0000b\"\n"), Catch::Contains("write a path"));
  }
}

TEST_CASE("A document says how a LUN presents itself, with sizes in bytes", "[apply]") {
  const testing::ScratchDirectory scratch;
  const std::filesystem::path file = scratch.file("x.toml");
  const std::string volume = "[[volume]]\nname = \"v\"\n";
  std::ofstream(file) << volume
                      << "removable = true\nrotation = 7200\neui64 = \"0025ba0000000001\"\n"
                         "unmap_limit = \"1MiB\"\nwrite_same_limit = 4096\n";
  const ApplyDocument document = read_apply_document(file);
  REQUIRE(document.volumes.size() == 1);
  CHECK(document.volumes[0].keys == nlohmann::json{{"removable", true},
                                                   {"rotation", 7200},
                                                   {"eui64", "0025ba0000000001"},
                                                   {"unmap_limit", 1 << 20},
                                                   {"write_same_limit", 4096}});
  CHECK_FALSE(mistake_in(file, volume + "removable = \"yes\"\n").empty());
  CHECK_FALSE(mistake_in(file, volume + "unmap_limit = \"1M\"\n").empty());
}

// Any exception but Failure ends the test.
TEST_CASE("No document makes apply abort", "[G-C10][apply]") {
  const testing::ScratchDirectory scratch;
  const std::string good = kGood;
  std::mt19937 random(GENERATE(1U, 2U, 3U));
  constexpr std::string_view kPieces[] = {"\"\"",
                                          "[",
                                          "]",
                                          "=",
                                          "{}",
                                          "-1",
                                          "1e400",
                                          "\\u0000",
                                          "\xff",
                                          "[[",
                                          "\n",
                                          "'",
                                          "99999999999999999999",
                                          "nan"};
  for (int i = 0; i < 400; ++i) {
    std::string text = good;
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text.erase(at, 1 + random() % 12);
          break;
        case 1:
          text.insert(at, kPieces[random() % std::size(kPieces)]);
          break;
        default:
          text[at] = static_cast<char>(random());
      }
      if (text.empty()) text = "x";
    }
    CAPTURE(text);
    CHECK_NOTHROW(mistake_in(scratch.file("x.toml"), text));
    CHECK_NOTHROW(mistake_in(scratch.file("x.json"), text));
  }
  for (const char* text :
       {"", "[]", "null", "{\"volume\": 1}", "{\"volume\": [1]}", "{\"volume\": [[]]}",
        "{\"volume\": [{\"name\": {}}]}", "{\"volume\": [{\"file\": \"\"}]}",
        "{\"pool\": [{\"name\": null}]}", "{\"volume\": {\"name\": \"v\"}}"}) {
    CAPTURE(text);
    CHECK_NOTHROW(mistake_in(scratch.file("x.json"), text));
  }
  CHECK_FALSE(mistake_in(scratch.file(""), "").empty());  // A directory.
}

}  // namespace
}  // namespace sandbay::cli
