// Sections [management] and [[management.token]]: what is read, and what is refused.
#include "group/management_configuration.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "group/configuration.h"
#include "tests/unit/block/scratch_directory.h"

namespace sandbay::group {
namespace {

const std::string kGroupHead =
    "[group]\nname = \"t\"\nstate = \"s\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n[management]\n";
const std::string kSecret = "0123456789abcdef";

class Folder {
 public:
  Folder() { put("token", kSecret + "\r\nsecond line\n", S_IRUSR | S_IWUSR); }

  void put(const std::string& name, const std::string& text, mode_t mode) const {
    std::ofstream(scratch_.file(name)) << text;
    ::chmod(scratch_.file(name).c_str(), mode);
  }
  ConfigurationResult read(const std::string& section) const {
    return parse_configuration(kGroupHead + section, scratch_.file("x.toml"));
  }
  // The first mistake, without the file's folder.
  std::string mistake(const std::string& section) const {
    const auto result = read(section);
    if (result) return "none";
    std::string text = result.error().front();
    const std::string folder = scratch_.file("");
    for (auto at = text.find(folder); at != std::string::npos; at = text.find(folder)) {
      text.erase(at, folder.size());
    }
    return text;
  }

 private:
  sandbay::testing::ScratchDirectory scratch_;
};

std::string token(const std::string& name, const std::string& role, const std::string& file) {
  return fmt::format("[[management.token]]\nname = \"{}\"\nrole = \"{}\"\nfile = \"{}\"\n", name,
                     role, file);
}

TEST_CASE("Tokens are read as digests, with their roles", "[configuration][management]") {
  const Folder folder;
  folder.put("other", "fedcba9876543210", S_IRUSR);
  const auto result =
      folder.read("certificate = \"c.pem\"\nkey = \"/etc/k.pem\"\n" +
                  token("alice", "operate", "token") + token("chaos", "inject", "other"));
  INFO((result ? std::string() : result.error().front()));
  REQUIRE(result.has_value());
  const ManagementConfiguration& management = result->management;
  REQUIRE(management.tokens.size() == 2);
  CHECK(management.tokens[0].name == "alice");
  CHECK(management.tokens[0].role == Role::kOperate);
  CHECK(management.tokens[0].digest == digest_of(kSecret));
  CHECK(management.tokens[1].role == Role::kInject);
  CHECK(management.certificate.filename() == "c.pem");
  CHECK(management.certificate.is_absolute());
  CHECK(management.key == "/etc/k.pem");
}

TEST_CASE("A token that is not secret, or none, is refused", "[configuration][management]") {
  const Folder folder;
  folder.put("open", kSecret, S_IRUSR | S_IRGRP);
  folder.put("short", "0123456789abcde\n", S_IRUSR);
  folder.put("spaced", "0123456789 abcdef\n", S_IRUSR);
  folder.put("copy", kSecret, S_IRUSR);
  CHECK(folder.mistake(token("a", "read", "open")) ==
        "x.toml:10: management.token[1].file: open can be used by others than its owner; chmod "
        "600 it");
  CHECK_THAT(folder.mistake(token("a", "read", "short")), Catch::Contains("holds no token"));
  CHECK_THAT(folder.mistake(token("a", "read", "spaced")), Catch::Contains("holds no token"));
  CHECK_THAT(folder.mistake(token("a", "read", "absent")), Catch::Contains("cannot be read"));
  CHECK_THAT(folder.mistake(token("a", "admin", "token")),
             Catch::Contains("unknown role \"admin\"; use \"read\", \"operate\" or \"inject\""));
  CHECK_THAT(folder.mistake(token("a", "read", "token") + token("a", "read", "short")),
             Catch::Contains("short holds no token"));
  CHECK_THAT(folder.mistake(token("a", "read", "token") + token("b", "read", "copy")),
             Catch::Contains("token[2].file: holds the token of \"a\""));
  folder.put("second", "fedcba9876543210", S_IRUSR);
  CHECK_THAT(folder.mistake(token("a", "read", "token") + token("a", "read", "second")),
             Catch::Contains("token[2].name: \"a\" occurs twice"));
  CHECK_THAT(folder.mistake("[[management.token]]\nname = \"a\"\nfile = \"token\"\n"),
             Catch::Contains("role"));
  CHECK_THAT(folder.mistake("certificate = \"c\"\n"),
             Catch::Contains("management.key: is missing"));
}

TEST_CASE("Other machines reach management with tokens and TLS, or where the file says so",
          "[configuration][management]") {
  const Folder folder;
  const std::string remote = "listen = \"0.0.0.0:8260\"\n";
  const std::string tls = "certificate = \"c\"\nkey = \"k\"\n";
  const std::string alice = token("alice", "read", "token");
  CHECK_THAT(folder.mistake(remote), Catch::Contains("management asks for no password"));
  CHECK_THAT(folder.mistake(remote + tls), Catch::Contains("management asks for no password"));
  CHECK_THAT(folder.mistake(remote + alice), Catch::Contains("in plain text"));
  CHECK(folder.mistake(remote + tls + alice) == "none");
  CHECK(folder.mistake(remote + "allow_remote = true\n") == "none");
  CHECK(folder.mistake(remote + "allow_remote = true\n" + alice) == "none");
  CHECK(folder.mistake(alice) == "none");
}

TEST_CASE("Management uses the state directory, or what volume_paths names",
          "[G-S6][configuration][management]") {
  const Folder folder;
  auto result = folder.read("");
  REQUIRE(result.has_value());
  result->state = "/var/lib/other";  // As --state has it.
  CHECK(allowed_volume_paths(*result) == std::vector<std::filesystem::path>{"/var/lib/other"});
  result = folder.read("volume_paths = [\"/srv/images\", \"/dev/vdb\"]\n");
  REQUIRE(result.has_value());
  CHECK(allowed_volume_paths(*result) ==
        std::vector<std::filesystem::path>{"/srv/images", "/dev/vdb"});
  CHECK(folder.mistake("volume_paths = [\"images\"]\n") ==
        "x.toml:7: management.volume_paths: \"images\" is not an absolute path; write one such as "
        "\"/srv/images\"");
  CHECK_THAT(folder.mistake("volume_paths = []\n"), Catch::Contains("is empty"));
  CHECK_THAT(folder.mistake("volume_paths = \"/srv\"\n"), Catch::Contains("volume_paths"));
}

}  // namespace
}  // namespace sandbay::group
