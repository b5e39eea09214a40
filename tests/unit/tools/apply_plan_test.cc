// What sandbay apply plans, from what is wanted and what is there: that a second time there is
// nothing, and that nobody loses what somebody else in the document wants.
#include "tools/apply_plan.h"

#include <catch2/catch.hpp>

#include "tools/client.h"

namespace sandbay::cli {
namespace {

using nlohmann::json;

const std::string kTarget = "iqn.2026-11.org.sandbay:shared";
const std::string kNaa = "6025ba70a1b2c3d4e5f60718293a4b5c";

json access(const std::string& initiator) { return {{"initiator", initiator}}; }

json there_access(const std::string& id, const std::string& initiator) {
  return {{"id", id},
          {"initiator", initiator},
          {"address", ""},
          {"chap_user", ""},
          {"declared", false}};
}

json there_volume(const std::string& name) {
  return {{"name", name},      {"size", 1 << 20},      {"backing", "memory"},
          {"target", kTarget}, {"naa", "naa." + kNaa}, {"declared", false}};
}

WantedVolume wanted(const std::string& name, std::vector<json> records) {
  return {.name = name,
          .keys = {{"size", 1 << 20}, {"memory", true}, {"target", kTarget}},
          .access = std::move(records),
          .schedules = {}};
}

std::vector<std::string> lines(const std::vector<ApplyStep>& steps) {
  std::vector<std::string> result;
  for (const ApplyStep& step : steps) result.push_back(step.method + " " + step.path);
  return result;
}

TEST_CASE("Volumes that share a target share its access records", "[apply]") {
  ApplyDocument document;
  document.volumes = {wanted("a", {access("iqn.2026-11.org:one")}),
                      wanted("b", {access("iqn.2026-11.org:two"), access("iqn.2026-11.org:one")})};
  PresentGroup present;
  // Neither is there: the records of the second come once the first has made the target.
  auto steps = plan_apply(document, present, true);
  CHECK(lines(steps) == std::vector<std::string>{"POST /api/v1/volumes", "POST /api/v1/volumes",
                                                 "POST /api/v1/volumes/b/access"});
  CHECK(steps[0].body.contains("access"));
  CHECK_FALSE(steps[1].body.contains("access"));
  CHECK(steps[2].body.at("initiator") == "iqn.2026-11.org:two");
  // The first is there, or just the target.
  present.targets = {kTarget};
  present.access[kTarget] = {there_access("1", "iqn.2026-11.org:one")};
  present.volumes = {there_volume("a")};
  CHECK(lines(plan_apply(document, present, true)) ==
        std::vector<std::string>{"POST /api/v1/volumes", "POST /api/v1/volumes/b/access"});
  // All is there: nothing, and nothing to prune, though each volume names less than there is.
  present.volumes.push_back(there_volume("b"));
  present.access[kTarget].push_back(there_access("2", "iqn.2026-11.org:two"));
  CHECK(plan_apply(document, present, true).empty());
  document.volumes[1].access.clear();
  CHECK(lines(plan_apply(document, present, true)) ==
        std::vector<std::string>{"DELETE /api/v1/volumes/a/access/2"});
  // One that is wanted twice is made once.
  document.volumes[0].access.push_back(access("iqn.2026-11.org:three"));
  document.volumes[1].access.push_back(access("iqn.2026-11.org:three"));
  CHECK(lines(plan_apply(document, present, false)) ==
        std::vector<std::string>{"POST /api/v1/volumes/a/access"});
}

TEST_CASE("An identity is the same with and without its prefix", "[apply]") {
  PresentGroup present;
  present.targets = {kTarget};
  present.volumes = {there_volume("a")};
  for (const std::string& naa :
       {kNaa, "naa." + kNaa, std::string("6025BA70A1B2C3D4E5F60718293A4B5C")}) {
    ApplyDocument document;
    document.volumes = {wanted("a", {})};
    document.volumes[0].keys["naa"] = naa;
    CHECK(plan_apply(document, present, true).empty());
  }
  ApplyDocument other;
  other.volumes = {wanted("a", {})};
  other.volumes[0].keys["naa"] = "naa.6025ba70a1b2c3d4e5f60718293a4b5d";
  CHECK_THROWS_AS(plan_apply(other, present, true), Failure);

  present.volumes[0]["eui64"] = "eui.0025ba0000000001";
  for (const char* eui64 : {"0025BA0000000001", "eui.0025ba0000000001"}) {
    ApplyDocument document;
    document.volumes = {wanted("a", {})};
    document.volumes[0].keys["eui64"] = eui64;
    CHECK(plan_apply(document, present, true).empty());
    present.volumes[0]["eui64"] = "";
    CHECK_THROWS_AS(plan_apply(document, present, true), Failure);
    present.volumes[0]["eui64"] = "eui.0025ba0000000001";
  }
}

TEST_CASE("What the daemon does one after the other are several requests", "[apply]") {
  PresentGroup present;
  present.targets = {kTarget};
  present.volumes = {there_volume("a")};
  present.volumes[0].update({{"online", true}, {"thin_warning", 80}, {"thin_limit", 100}});
  ApplyDocument document;
  document.volumes = {wanted("a", {})};
  document.volumes[0].keys.update(
      {{"size", 2 << 20}, {"online", false}, {"thin_warning", 50}, {"thin_limit", 90}});
  const auto steps = plan_apply(document, present, false);
  REQUIRE(steps.size() == 3);
  CHECK(steps[0].body == json{{"online", false}});
  CHECK(steps[1].body == json{{"thin_warning", 50}, {"thin_limit", 90}});
  CHECK(steps[2].body == json{{"size", 2 << 20}});
}

TEST_CASE("A pool gets members, and gives them up where it is pruned", "[apply]") {
  ApplyDocument document;
  document.pools = {{{"name", "p"}, {"members", {"b", "a"}}}};
  PresentGroup present;
  present.pools = {
      {{"name", "p"}, {"members", {"a", "b"}}, {"leaving", json::array()}, {"declared", false}}};
  CHECK(plan_apply(document, present, true).empty());
  document.pools[0]["members"] = {"c", "a"};
  auto steps = plan_apply(document, present, false);
  REQUIRE(steps.size() == 1);
  CHECK(lines(steps) == std::vector<std::string>{"POST /api/v1/members/c/pool"});
  CHECK(steps[0].body == json{{"pool", "p"}});
  CHECK(lines(plan_apply(document, present, true)) ==
        std::vector<std::string>{"POST /api/v1/members/c/pool", "DELETE /api/v1/members/b/pool"});
  // One that is on its way out goes on, and one that is wanted again stays.
  present.pools[0]["leaving"] = {"a", "b"};
  CHECK(lines(plan_apply(document, present, true)) ==
        std::vector<std::string>{"POST /api/v1/members/a/pool", "POST /api/v1/members/c/pool"});
}

TEST_CASE("A file that names nothing prunes nothing, and a directory is no file", "[apply]") {
  PresentGroup present;
  present.targets = {kTarget};
  present.volumes = {there_volume("a")};
  CHECK(plan_apply({}, present, false).empty());
  CHECK_THROWS_WITH(plan_apply({}, present, true), Catch::Contains("--prune would delete every"));
  CHECK_THROWS_WITH(read_apply_document("/"), Catch::Contains("/ is a directory; name a file"));
}

TEST_CASE("A volume whose target a renamed one has kept is told before anything is done",
          "[apply]") {
  const std::string target = "iqn.2026-11.org.sandbay:db1";
  PresentGroup present;
  present.targets = {target};
  present.volumes = {there_volume("db1x")};
  present.volumes[0]["target"] = target;
  ApplyDocument document;
  document.volumes = {wanted("db1", {})};
  document.volumes[0].keys.erase("target");
  CHECK_THROWS_WITH(plan_apply(document, present, false),
                    Catch::Contains(target + " is that of volume \"db1x\"; write \"db1x\" if"));
  // One that names it is one more volume there.
  document.volumes[0].keys["target"] = target;
  CHECK(lines(plan_apply(document, present, false)) ==
        std::vector<std::string>{"POST /api/v1/volumes"});
  // Nor can it have the target that another of the document comes with.
  document.volumes.push_back(wanted("db1", {}));
  document.volumes[0].name = "other";
  document.volumes[1].keys.erase("target");
  CHECK_THROWS_WITH(plan_apply(document, {}, false), Catch::Contains("write a target of its own"));
}

TEST_CASE("What is told of a plan says what changes, what stays and where it stopped", "[apply]") {
  PresentGroup present;
  present.volumes = {there_volume("disk"), there_volume("gone")};
  present.volumes[0].update({{"backing", "file"}, {"path", "/srv/disk.img"}});
  ApplyDocument document;
  document.volumes = {wanted("a", {})};
  document.volumes[0].keys.update({{"online", false}, {"operations_limit", 100}});
  const auto steps = plan_apply(document, present, true);
  REQUIRE(steps.size() == 4);
  CHECK(steps[1].text == "volume a: online false");
  CHECK(steps[2].text == "volume disk: 1MiB; /srv/disk.img stays");
  CHECK(steps[3].text == "volume gone and its data: 1MiB");
  CHECK(stopped_words(steps, 1, "no") ==
        "~ volume a: online false: no; 1 of 4 changes were made before that");
  CHECK_THAT(stopped_words(steps, 3, "it is in use"),
             Catch::Contains("in use (apply forces nothing; sandbay volume delete can); 3 of 4"));
  CHECK(stopped_words({steps[0]}, 0, "no").ends_with(": no"));
}

}  // namespace
}  // namespace sandbay::cli
