// REST from end to end: a group on a real reactor, the HTTP server on loopback, and requests from a
// thread of the test. Every answer is compared with the schema that the OpenAPI document has for
// its route and status.
#include <fmt/core.h>
#include <httplib.h>

#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "mgmt/openapi.h"
#include "mgmt/route.h"
#include "tests/unit/mgmt/json_schema.h"
#include "tests/unit/mgmt/running_server.h"

namespace sandbay::mgmt {
namespace {

using nlohmann::json;

struct Answer {
  int status = 0;
  std::string text;
  json body;
  std::string location;
};

// Asks the daemon and checks the answer against the document.
class Rest {
 public:
  explicit Rest(int port) : port_(port), document_(openapi_document()) {}

  Answer ask(const std::string& method, const std::string& path, const std::string& body = "",
             httplib::Headers headers = {}) {
    httplib::Client client("127.0.0.1", port_);
    httplib::Request request;
    request.method = method;
    request.path = path;
    request.headers = std::move(headers);
    request.body = body;
    if (!body.empty() && !request.has_header("Content-Type")) {
      request.set_header("Content-Type", "application/json");
    }
    const auto result = client.send(request);
    if (!result) throw std::runtime_error("no answer: " + httplib::to_string(result.error()));
    Answer answer{.status = result->status,
                  .text = result->body,
                  .body = json::parse(result->body, nullptr, false),
                  .location = result->get_header_value("Location")};
    check(method, path, answer);
    return answer;
  }
  Answer get(const std::string& path) { return ask("GET", path); }
  int port() const { return port_; }

 private:
  void check(const std::string& method, const std::string& path, const Answer& answer) {
    std::map<std::string, std::string> parameters;
    bool known = false;
    const Route* route = find_route(method, path.substr(0, path.find('?')), &parameters, &known);
    INFO(method << " " << path << " " << answer.status << " " << answer.text);
    if (route == nullptr || answer.status == 403) {
      CHECK(schema_mismatch(answer.body, {{"$ref", "#/components/schemas/Error"}}, document_)
                .empty());
      return;
    }
    std::string verb = method;
    for (char& c : verb) c = static_cast<char>(std::tolower(c));
    const json& responses =
        document_.at("paths").at(std::string(route->path)).at(verb).at("responses");
    const std::string status = std::to_string(answer.status);
    REQUIRE(responses.contains(status));
    if (answer.status == 204) {
      CHECK(answer.text.empty());
      return;
    }
    const json& content = responses.at(status).at("content");
    if (!content.contains("application/json")) return;
    CHECK(schema_mismatch(answer.body, content.at("application/json").at("schema"), document_) ==
          "");
  }

  int port_;
  json document_;
};

using RestTest = std::function<void(Rest& rest)>;

void with_rest(const std::string& sections, const RestTest& test) {
  with_server(sections, [&](int port) {
    Rest rest(port);
    test(rest);
  });
}

constexpr const char* kDeclared =
    "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n[[volume.access]]\ninitiator = \"*\"\n"
    "chap_user = \"host\"\nchap_secret = \"very-secret-1\"\n";

constexpr const char* kHardware =
    "[[drive]]\nname = \"d0\"\nmemory = true\nsize = \"32MiB\"\n"
    "[[drive]]\nname = \"d1\"\nmemory = true\nsize = \"32MiB\"\n"
    "[[drive]]\nname = \"s\"\nmemory = true\nsize = \"32MiB\"\nspare = true\n"
    "[[raid]]\nname = \"r\"\nlevel = \"raid1\"\ndrives = [\"d0\", \"d1\"]\n"
    "[faults]\nenabled = true\n";

TEST_CASE("Fault rules come in sets, and are shown, enabled and released by their ids", "[rest]") {
  with_rest(kHardware, [](Rest& rest) {
    const auto add = [&](const json& rules) {
      return rest.ask("POST", "/api/v1/fault-sets", json{{"rules", rules}}.dump());
    };
    const Answer wrong = add({"id=a at=drive:s do=smart", "id=b at=drive:d9 do=fail"});
    CHECK(wrong.status == 400);
    CHECK_THAT(wrong.text, Catch::Contains("rule 2: at=drive:d9: unknown drive"));
    CHECK(rest.get("/api/v1/faults").body.at("faults").empty());
    CHECK(add(json::array()).status == 400);

    const json rules = {"id=a at=drive:d1 op=read do=hold", "id=b at=drive:s enabled=no do=smart"};
    for (int round = 0; round < 2; ++round) {
      const Answer added = add(rules);
      CHECK(added.status == 200);
      CHECK(added.body.at("faults").at(1).at("id") == "b");
    }
    CHECK(rest.get("/api/v1/faults").body.at("faults").size() == 2);
    const Answer other = add({"id=c at=drive:d0 do=smart", "id=a at=drive:d1 op=write do=hold"});
    CHECK(other.status == 409);
    CHECK_THAT(other.text, Catch::Contains("rule 2: fault rule"));
    const Answer twice = add({"at=drive:d0 p=0 do=smart", "id=r1 at=drive:d0 p=0 do=smart",
                              "id=r1 at=drive:d0 p=0 do=smart"});
    CHECK(twice.body.at("faults").at(0).at("id") == "r2");  // Another rule of the set has r1.
    CHECK(rest.ask("DELETE", "/api/v1/faults/r1").status == 204);
    CHECK(rest.ask("DELETE", "/api/v1/faults/r2").status == 204);
    // The number is the one in the set, also behind a rule that exists.
    CHECK_THAT(add({rules[0], "at=drive:x do=fail"}).text, Catch::Contains("rule 2: at=drive:x"));

    CHECK(rest.get("/api/v1/faults/b").body.at("active") == false);
    CHECK(rest.ask("POST", "/api/v1/faults/b/enable", "{}").body.at("active") == true);
    CHECK(rest.get("/api/v1/drives/s").body.at("health") == "predicted failure");
    const json off = rest.ask("POST", "/api/v1/faults/b/disable", "{}").body;
    CHECK(off.at("rule") == "rule id=b enabled=no at=drive:s do=smart");
    CHECK(off.at("active") == false);
    CHECK(rest.ask("POST", "/api/v1/faults/a/release", "{}").body.at("released") == 0);
    CHECK(rest.ask("POST", "/api/v1/faults/b/release", "{}").status == 409);
    for (const char* path : {"enable", "disable", "release"}) {
      CHECK(rest.ask("POST", std::string("/api/v1/faults/x/") + path, "{}").status == 404);
    }
    CHECK(rest.get("/api/v1/faults/x").status == 404);
    CHECK(rest.ask("POST", "/api/v1/faults/a/enable", R"({"x": 1})").status == 400);
    CHECK(rest.ask("DELETE", "/api/v1/faults", R"({"id": "a"})").status == 400);
    CHECK(rest.ask("POST", "/api/v1/faults/heal", R"({"drive": "d0"})").body.at("name") == "d0");
    CHECK(rest.ask("POST", "/api/v1/faults/heal", R"({"drive": "x"})").status == 404);
    CHECK(rest.ask("POST", "/api/v1/faults/heal", "{}").status == 400);

    const json firings = rest.get("/api/v1/fault-journal").body.at("firings");
    REQUIRE(firings.size() == 1);
    CHECK(firings[0].at("rule") == "b");
    CHECK(firings[0].at("fault") == "smart");
    CHECK(firings[0].at("target") == "drive s");
    CHECK(rest.get("/api/v1/fault-journal?since=1").body.at("firings").empty());
    const json replay = rest.get("/api/v1/fault-replay").body;
    CHECK(replay.at("rules").size() == 1);
    CHECK(replay.at("complete") == false);
    CHECK(rest.get("/api/v1/fault-journal?since=x").status == 400);
  });
}

TEST_CASE("Places and kinds of faults are listed", "[rest]") {
  with_rest(kHardware, [](Rest& rest) {
    json places = rest.get("/api/v1/fault-places").body.at("places");
    REQUIRE(places.size() == 6);
    CHECK(places.back().get<std::string>().starts_with("link:127.0.0.1:"));
    places.erase(5);
    CHECK(places == json({"drive:d0", "drive:d1", "drive:s", "member:array1", "meta"}));
    json kinds = rest.get("/api/v1/fault-kinds").body.at("kinds");
    const auto torn =
        std::ranges::find_if(kinds, [](const json& k) { return k.at("fault") == "torn"; });
    REQUIRE(torn != kinds.end());
    CHECK_THAT(torn->at("about").get<std::string>(), Catch::Contains("stored in part"));
    torn->erase("about");
    CHECK(*torn == json({{"fault", "torn"},
                         {"manner", "strike"},
                         {"places", {"drive", "enclosure"}},
                         {"operations", {"write"}},
                         {"words", {"overlay", "keep"}}}));
  });
  with_rest("", [](Rest& rest) {
    CHECK(rest.get("/api/v1/fault-kinds").status == 200);
    for (const char* path : {"fault-places", "fault-journal", "faults/a"}) {
      const Answer refused = rest.get(std::string("/api/v1/") + path);
      CHECK(refused.status == 409);
      CHECK_THAT(refused.text, Catch::Contains("faults are not enabled"));
    }
  });
}

TEST_CASE("Drives, sets, faults and events over REST", "[rest]") {
  with_rest(kHardware, [](Rest& rest) {
    CHECK(rest.get("/api/v1/drives").body.at("drives").size() == 3);
    CHECK(rest.get("/api/v1/drives/s").body.at("use") == "spare");
    CHECK(rest.get("/api/v1/drives/x").status == 404);
    CHECK(rest.get("/api/v1/raid-sets").body.at("sets").size() == 1);
    CHECK(rest.get("/api/v1/raid-sets/r").body.at("running") == true);
    CHECK(rest.ask("POST", "/api/v1/raid-sets/r/verify", "{}").status == 200);
    CHECK(rest.ask("POST", "/api/v1/raid-sets/x/verify", "{}").status == 404);
    const Answer volume =
        rest.ask("POST", "/api/v1/volumes", R"({"name": "v", "size": "4MiB", "raid": "r"})");
    CHECK(volume.status == 201);
    CHECK(volume.body.at("raid") == "r");
    const Answer fault = rest.ask("POST", "/api/v1/faults",
                                  R"({"rule": "at=drive:d1 op=read do=slow latency=1ms"})");
    CHECK(fault.status == 201);
    CHECK(rest.get("/api/v1/faults").body.at("faults").size() == 1);
    CHECK(rest.ask("POST", "/api/v1/faults", R"({"rule": "nonsense"})").status == 400);
    const auto waits_for = [&](const std::string& event) {
      return rest.ask("POST", "/api/v1/faults",
                      R"({"rule": "at=drive:d1 do=smart event=)" + event + "\"}");
    };
    const Answer never = waits_for("no.such.thing");
    CHECK(never.status == 400);
    CHECK_THAT(never.text, Catch::Contains("event=no.such.thing: there is no such event; "));
    for (const char* event : {"rebuild.start", "power.cut", "rule:x", "then", "map.write"}) {
      CAPTURE(event);
      const Answer waits = waits_for(event);
      CHECK(waits.status == 201);
      CHECK(rest.ask("DELETE", waits.location).status == 204);
    }
    CHECK(rest.ask("DELETE", fault.location).status == 204);
    CHECK(rest.ask("DELETE", fault.location).status == 404);
    CHECK(rest.ask("DELETE", "/api/v1/faults").status == 204);
    CHECK(rest.ask("POST", "/api/v1/drives/d0/fail", "{}").status == 200);
    CHECK(rest.ask("POST", "/api/v1/drives/d0/replace", R"({"by": "x"})").status == 404);
    CHECK(rest.ask("POST", "/api/v1/drives/d0/erase", "{}").body.at("use") == "blank");
    CHECK(rest.ask("POST", "/api/v1/drives/d1/erase", "{}").status == 409);
    CHECK(rest.ask("POST", "/api/v1/drives/x/erase", "{}").status == 404);
    const json events = rest.get("/api/v1/events").body.at("events");
    REQUIRE(!events.empty());
    const auto last = events.back().at("number").get<int>();
    CHECK(rest.get(fmt::format("/api/v1/events?since={}", last - 1)).body.at("events").size() >= 1);
    CHECK(rest.get("/api/v1/events?since=x").status == 400);
    const std::string metrics = rest.get("/metrics").text;
    CHECK(metrics.find("sandbay_raid_running{set=\"r\"} 1") != std::string::npos);
    for (const char* counter : {"corruptions", "false_entries", "entries_mended"}) {
      const std::string line = fmt::format("sandbay_raid_{}_total{{set=\"r\"}} 0", counter);
      CHECK(metrics.find(line) != std::string::npos);
      CHECK(rest.get("/api/v1/raid-sets/r").body.at("counters").at(counter) == 0);
    }
    CHECK(metrics.find("sandbay_drive_reads_total{drive=\"d0\"}") != std::string::npos);
  });
}

TEST_CASE("Everything that is there can be looked at", "[rest]") {
  with_rest(kDeclared, [](Rest& rest) {
    CHECK(rest.get("/api/v1/group").body.at("name") == "test");
    const Answer volumes = rest.get("/api/v1/volumes");
    CHECK(volumes.status == 200);
    REQUIRE(volumes.body.at("volumes").size() == 1);
    const Answer volume = rest.get("/api/v1/volumes/v");
    CHECK(volume.body.at("size") == 4 << 20);
    CHECK(volume.body == volumes.body.at("volumes")[0]);
    CHECK(rest.get("/api/v1/volumes/v/access").body.at("access")[0].at("chap_user") == "host");
    CHECK(rest.get("/api/v1/targets").body.at("targets").size() == 1);
    CHECK(rest.get("/api/v1/targets/iqn.2026-11.org.sandbay:v").body.at("luns")[0].at("volume") ==
          "v");
    CHECK(rest.get("/api/v1/targets/iqn.2026-11.org.sandbay%3Av").status == 200);
    CHECK(rest.get("/api/v1/sessions").body.at("sessions").empty());
    CHECK(rest.get("/api/v1/openapi.json").body == openapi_document());
    CHECK_THAT(rest.get("/metrics").text,
               Catch::Contains("sandbay_volume_size_bytes{volume=\"v\"} 4194304\n"));
  });
}

TEST_CASE("A volume is created with what its LUN says of itself", "[rest]") {
  with_rest("", [](Rest& rest) {
    json body = {{"name", "a"},
                 {"size", "4MiB"},
                 {"removable", true},
                 {"rotation", 10000},
                 {"unmap_limit", 8192},
                 {"write_same_limit", "1MiB"},
                 {"eui64", "0025BA0000000001"}};
    CHECK(rest.ask("POST", "/api/v1/volumes", body.dump()).status == 201);
    const json shown = rest.get("/api/v1/volumes/a").body;
    CHECK(shown.at("removable") == true);
    CHECK(shown.at("rotation") == 10000);
    CHECK(shown.at("unmap_limit") == 8192);
    CHECK(shown.at("write_same_limit") == 1 << 20);
    CHECK(shown.at("eui64") == "eui.0025ba0000000001");
    CHECK(rest.ask("POST", "/api/v1/volumes", body.dump()).status == 200);
    body["removable"] = false;
    const Answer other = rest.ask("POST", "/api/v1/volumes", body.dump());
    CHECK(other.status == 409);
    CHECK_THAT(other.text, Catch::Contains("with removable true, not false"));

    const json plain = rest.ask("POST", "/api/v1/volumes", R"({"name": "b", "size": "4MiB"})").body;
    CHECK(plain.at("removable") == false);
    CHECK(plain.at("rotation") == 0);
    CHECK(plain.at("unmap_limit") == 0);
    CHECK(plain.at("write_same_limit") == 0);
    CHECK(plain.at("eui64") == "");
  });
}

TEST_CASE("Volumes are created, changed and deleted", "[rest]") {
  with_rest("", [](Rest& rest) {
    const std::string body = R"({"name": "a", "size": "4MiB", "access": [{"initiator": "*"}]})";
    const Answer made = rest.ask("POST", "/api/v1/volumes", body);
    CHECK(made.status == 201);
    CHECK(made.location == "/api/v1/volumes/a");
    CHECK(made.body.at("size") == 4 << 20);
    CHECK(rest.ask("POST", "/api/v1/volumes", body).status == 200);
    CHECK(rest.ask("POST", "/api/v1/volumes", R"({"name": "a", "size": 4194304})").status == 200);
    CHECK(rest.ask("POST", "/api/v1/volumes", R"({"name": "a", "size": "5MiB"})").status == 409);
    CHECK(rest.ask("PATCH", "/api/v1/volumes/a", R"({"size": "6MiB"})").body.at("size") == 6 << 20);
    CHECK(rest.ask("PATCH", "/api/v1/volumes/a", R"({"name": "b"})").body.at("name") == "b");
    CHECK(rest.get("/api/v1/volumes/a").status == 404);
    const Answer access =
        rest.ask("POST", "/api/v1/volumes/b/access", R"({"initiator": "iqn.1993-08.org.x:*"})");
    CHECK(access.status == 201);
    CHECK(access.location == "/api/v1/volumes/b/access/2");
    const Answer again =
        rest.ask("POST", "/api/v1/volumes/b/access", R"({"initiator": "iqn.1993-08.org.x:*"})");
    CHECK(again.status == 200);
    CHECK(again.body == access.body);
    CHECK(again.location.empty());
    CHECK(rest.get("/api/v1/volumes/b/access").body.at("access").size() == 2);
    CHECK(rest.ask("DELETE", access.location).status == 204);
    CHECK(rest.ask("DELETE", access.location).status == 404);
    CHECK(rest.ask("DELETE", "/api/v1/volumes/b?force=true").status == 204);
    CHECK(rest.ask("DELETE", "/api/v1/volumes/b").status == 404);
  });
}

namespace {

struct WrongRequest {
  const char* method;
  const char* path;
  const char* body;
  int status;
  const char* message;
};
const WrongRequest kWrongRequests[] = {
    {"POST", "/api/v1/volumes", "{", 400, "the body is not JSON; write one object"},
    {"POST", "/api/v1/volumes", "[]", 400, "the body is not a JSON object; write one"},
    {"POST", "/api/v1/volumes", "[[[[[[[[[[[[]]]]]]]]]]]]", 400,
     "the body is nested too deeply; write one JSON object"},
    {"POST", "/api/v1/volumes", "{}", 400, "name: is missing; write the volume's name"},
    {"POST", "/api/v1/volumes", R"({"name": 5})", 400,
     "name: is a whole number; write a string in quotes"},
    {"POST", "/api/v1/volumes", R"({"name": "a", "siz": "1GiB"})", 400,
     "siz: is not a key here; did you mean size?"},
    {"POST", "/api/v1/volumes", R"({"name": "a", "size": "1G"})", 400,
     "size: \"1G\" has the unknown unit \"G\"; units are B, KiB MiB GiB TiB PiB (of 1024) and kB "
     "MB GB TB PB (of 1000)"},
    {"POST", "/api/v1/volumes", R"({"name": "a", "size": -1})", 400,
     "size: -1 is out of range; write a number of bytes, or a size such as \"100GiB\""},
    {"POST", "/api/v1/volumes", R"({"name": "a", "size": "1MiB", "access": {}})", 400,
     "access: is an object; write a list of objects"},
    {"POST", "/api/v1/volumes", R"({"name": "a", "size": "1MiB", "thin_limit": 50})", 400,
     "volume \"a\": thin_limit is of thin volumes on pools; write thin = true, or leave it out"},
    {"POST", "/api/v1/volumes", R"({"name": "a", "size": "1MiB", "bytes_limit": 50})", 400,
     "volume \"a\": bytes_limit means nothing without a pool; leave it out"},
    {"POST", "/api/v1/volumes", R"({"name": "a", "size": 1048577})", 400,
     "volume \"a\": size 1048577B is not a whole number of 512-byte blocks"},
    {"POST", "/api/v1/volumes", R"({"name": "a", "size": "1MiB", "eui64": "0"})", 400,
     "eui64: is not an EUI-64 identifier; write 16 hexadecimal digits, not all of them 0"},
    {"POST", "/api/v1/volumes", R"({"name": "a", "size": "1MiB", "rotation": 2})", 400,
     "volume \"a\": rotation 2 is not a rate; write 1025 to 65534 revolutions a minute, 1 or 0"},
    {"POST", "/api/v1/volumes", R"({"name": "a", "size": "1MiB", "unmap_limit": 1})", 400,
     "volume \"a\": unmap_limit 1B does not fit; write a multiple of 512 bytes, at most "
     "4294967295 blocks"},
    {"POST", "/api/v1/volumes", R"({"name": "a", "size": "1MiB", "file": "x"})", 400,
     "file: is not an absolute path; write one"},
    {"POST", "/api/v1/volumes", R"({"name": "a", "memory": true, "device": "/dev/x"})", 400,
     "device: a volume has one place; write one of pool, raid, file, device and memory"},
    {"POST", "/api/v1/volumes",
     R"({"name": "a", "size": "1MiB", "access": [{"initiator": "*", "chap_user": "u"}]})", 400,
     "access[1].chap_secret: is missing; CHAP needs both chap_user and chap_secret"},
    {"PATCH", "/api/v1/volumes/v", "{}", 400,
     "volume \"v\": nothing to change; give a size, a name, a cache mode, online, read_only or "
     "limits"},
    {"DELETE", "/api/v1/volumes/v", "", 409,
     "volume \"v\" is declared in test.toml, which would make it again; take it out there and "
     "restart first"},
    {"DELETE", "/api/v1/volumes/v?force=maybe", "", 400, "force is \"maybe\"; write true or false"},
    {"DELETE", "/api/v1/volumes/v?now=true", "", 400,
     "unknown query parameter \"now\" of DELETE /api/v1/volumes/{name}"},
    {"DELETE", "/api/v1/sessions/x", "", 400,
     "\"x\" is not a TSIH; write a number from 1 to 65535"},
    {"DELETE", "/api/v1/sessions/7", "", 404, "there is no session 7; see the session list"},
    {"DELETE", "/api/v1/sessions/7?logout_request=0", "", 400,
     "logout_request is \"0\"; write seconds from 1 to 300"},
    {"DELETE", "/api/v1/sessions/7/connections/x", "", 400,
     "\"x\" is not a CID; write a number from 0 to 65535"},
    {"DELETE", "/api/v1/sessions/7/connections/2?logout_request=5", "", 404,
     "there is no session 7 with a connection 2; see the session list"},
    {"POST", "/api/v1/sessions/7/negotiation-request", "{}", 404,
     "there is no session 7; see the session list"},
    {"POST", "/api/v1/sessions/7/negotiation-request?within=301", "{}", 400,
     "within is \"301\"; write seconds from 1 to 300"},
    {"GET", "/api/v1/nothing", "", 404,
     "there is nothing at /api/v1/nothing; see /api/v1/openapi.json"},
    {"GET", "/api/v1/volumes/", "", 404,
     "there is nothing at /api/v1/volumes/; see /api/v1/openapi.json"},
    {"PUT", "/api/v1/group", "{}", 405,
     "PUT is not offered for /api/v1/group; see /api/v1/openapi.json"},
};

}  // namespace

TEST_CASE("Wrong requests are refused with what would be accepted", "[rest]") {
  with_rest("[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n", [](Rest& rest) {
    for (const WrongRequest& c : kWrongRequests) {
      CAPTURE(c.method, c.path, c.body);
      const Answer answer = rest.ask(c.method, c.path, c.body);
      CHECK(answer.status == c.status);
      CHECK(answer.body.at("error").at("message") == c.message);
      CHECK(answer.body.at("error").at("code") == code_of(c.status));
    }
  });
}

TEST_CASE("A web page cannot reach it by a name of its own or with a form", "[rest]") {
  with_rest("", [](Rest& rest) {
    const std::string port = std::to_string(rest.port());
    CHECK(rest.ask("GET", "/api/v1/group", "", {{"Host", "attacker.example:" + port}}).status ==
          403);
    CHECK(rest.ask("GET", "/api/v1/group", "", {{"Host", "localhost:" + port}}).status == 200);
    CHECK(rest.ask("GET", "/api/v1/group", "", {{"Host", "[::1]:" + port}}).status == 200);
    const std::string body = R"({"name": "a", "size": "1MiB"})";
    CHECK(rest.ask("POST", "/api/v1/volumes", body, {{"Content-Type", "text/plain"}}).status ==
          415);
    CHECK(rest.ask("POST", "/api/v1/volumes", body,
                   {{"Content-Type", "application/x-www-form-urlencoded"}})
              .status == 415);
    CHECK(rest.ask("POST", "/api/v1/volumes", body,
                   {{"Content-Type", "application/json; charset=utf-8"}})
              .status == 201);
  });
}

TEST_CASE("A web page of another site changes nothing", "[X9][rest]") {
  with_rest("", [](Rest& rest) {
    const std::string body = R"({"name": "a", "size": "1MiB"})";
    const Answer refused =
        rest.ask("POST", "/api/v1/volumes", body, {{"Sec-Fetch-Site", "cross-site"}});
    CHECK(refused.status == 403);
    // A link may lead here; the page with the link cannot read the answer.
    for (const char* site : {"same-origin", "same-site", "cross-site"}) {
      CAPTURE(site);
      CHECK(rest.ask("GET", "/api/v1/group", "", {{"Sec-Fetch-Site", site}}).status == 200);
    }
  });
}

TEST_CASE("Bodies are bounded", "[rest]") {
  with_rest("", [](Rest& rest) {
    const std::string body = "{\"name\": \"" + std::string(2 << 20, 'a') + "\"}";
    const Answer answer = rest.ask("POST", "/api/v1/volumes", body);
    CHECK(answer.status == 413);
    CHECK(answer.body.at("error").at("code") == "too_large");
  });
}

TEST_CASE("Secrets never come out", "[rest]") {
  with_rest(kDeclared, [](Rest& rest) {
    const Answer added =
        rest.ask("POST", "/api/v1/volumes/v/access",
                 R"({"initiator": "*", "chap_user": "two", "chap_secret": "very-secret-2"})");
    CHECK(added.status == 201);
    std::string all = added.text;
    for (const Route& route : routes()) {
      std::string path(route.path);
      if (route.method != "GET") continue;
      const auto brace = path.find('{');
      // There is no drive, no RAID set, no pool, no snapshot and no member of that name.
      const bool named = path.find("/drives/") != std::string::npos ||
                         path.find("/members/") != std::string::npos ||
                         path.find("/raid") != std::string::npos ||
                         path.find("/pools/") != std::string::npos ||
                         path.find("/snapshots/") != std::string::npos;
      const bool absent = named && brace != std::string::npos;
      if (brace != std::string::npos) {
        const bool target = path.find("targets") != std::string::npos;
        path.replace(brace, path.find('}') - brace + 1, target ? "iqn.2026-11.org.sandbay:v" : "v");
      }
      const Answer answer = rest.get(path);
      const bool of_rules = path == "/api/v1/fault-journal" || path == "/api/v1/fault-places" ||
                            path == "/api/v1/fault-replay" ||
                            path == "/api/v1/faults/v";  // Faults are not enabled.
      CHECK(answer.status == (of_rules ? 409 : absent ? 404 : 200));
      all += answer.text;
    }
    CHECK(all.find("very-secret") == std::string::npos);
    CHECK(all.find("\"two\"") != std::string::npos);
  });
}

TEST_CASE("Many clients at once get their answers", "[rest]") {
  with_rest(kDeclared, [](Rest& rest) {
    std::atomic<int> good = 0;
    std::vector<std::thread> clients;
    for (int i = 0; i < 24; ++i) {
      clients.emplace_back([&] {
        for (int j = 0; j < 10; ++j) {
          httplib::Client client("127.0.0.1", rest.port());
          client.set_read_timeout(30);
          const auto result = client.Get("/api/v1/volumes");
          if (result && result->status == 200) ++good;
        }
      });
    }
    for (std::thread& client : clients) client.join();
    CHECK(good == 240);
  });
}

TEST_CASE("The cache is shown, flushed and changed as the document says", "[rest][cache]") {
  const std::string sections =
      "[[drive]]\nname = \"d\"\nmemory = true\nsize = \"64MiB\"\n"
      "[[raid]]\nname = \"r\"\nlevel = \"jbod\"\ndrives = [\"d\"]\n"
      "[cache]\nmemory = \"16MiB\"\n";
  with_rest(sections, [](Rest& rest) {
    const Answer made =
        rest.ask("POST", "/api/v1/volumes",
                 R"({"name": "v", "size": "4MiB", "raid": "r", "cache": "write-through"})");
    CHECK(made.status == 201);
    CHECK(made.body.at("cache") == "write-through");
    CHECK(rest.ask("POST", "/api/v1/volumes", R"({"name": "w", "size": "4MiB", "cache": "none"})")
              .status == 400);
    const json cache = rest.get("/api/v1/cache").body;
    CHECK(cache.at("configured") == true);
    CHECK(cache.at("volumes").at(0).at("cache") == "write-through");
    CHECK(cache.at("sets").at(0).at("name") == "r");
    const Answer changed = rest.ask("PATCH", "/api/v1/volumes/v", R"({"cache": "none"})");
    CHECK(changed.body.at("cache") == "none");
    CHECK(rest.get("/api/v1/cache").body.at("volumes").at(0).at("cache") == "none");
    CHECK(rest.ask("PATCH", "/api/v1/volumes/v", R"({"cache": "fast"})").status == 400);
    CHECK(rest.ask("POST", "/api/v1/cache/flush", "{}").status == 200);
    CHECK(rest.ask("POST", "/api/v1/cache/flush", R"({"set": "r"})").status == 200);
    CHECK(rest.ask("POST", "/api/v1/cache/flush", R"({"set": "x"})").status == 404);
    const std::string discard = "/api/v1/cache/sets/r/discard";
    CHECK(rest.ask("POST", discard, "{}").status == 400);
    CHECK(rest.ask("POST", discard, R"({"confirm": "q"})").status == 400);
    CHECK(rest.ask("POST", discard, R"({"confirm": "r"})").status == 409);  // Nothing has failed.
    const std::string of_older = "/api/v1/pools/p/accept-older-map";
    CHECK(rest.ask("POST", of_older, "{}").status == 400);
    CHECK(rest.ask("POST", of_older, R"({"confirm": "p"})").status == 404);
    const std::string of_pool = "/api/v1/pools/p/discard";
    CHECK(rest.ask("POST", of_pool, "{}")
              .body.at("error")
              .at("message")
              .get<std::string>()
              .ends_with("write the pool once more"));
    CHECK(rest.ask("POST", of_pool, R"({"confirm": "p"})").status == 404);
    CHECK(rest.ask("POST", "/api/v1/cache/sets/r/acknowledge", "{}").status == 409);
    CHECK(rest.ask("POST", "/api/v1/cache/sets/x/acknowledge", "{}").status == 404);
    CHECK(rest.get("/metrics").text.find("sandbay_cache_memory_limit_bytes 16777216") !=
          std::string::npos);
  });
}

TEST_CASE("The document and the routes are the same", "[openapi]") {
  const json document = openapi_document();
  std::set<std::string> in_document;
  for (const auto& [path, item] : document.at("paths").items()) {
    for (const auto& [verb, operation] : item.items()) in_document.insert(verb + " " + path);
  }
  std::set<std::string> in_table;
  std::set<std::string_view> operations;
  for (const Route& route : routes()) {
    std::string verb(route.method);
    for (char& c : verb) c = static_cast<char>(std::tolower(c));
    in_table.insert(verb + " " + std::string(route.path));
    CHECK(operations.insert(route.operation).second);
    CHECK(route.handle != nullptr);
    std::map<std::string, std::string> parameters;
    bool known = false;
    CHECK(find_route(route.method, route.path, &parameters, &known) == &route);
  }
  CHECK(in_document == in_table);
}

// What a generated client sends is what the daemon demands.
TEST_CASE("Whatever writes has a body in the document", "[openapi]") {
  const json document = openapi_document();
  for (const Route& route : routes()) {
    std::string verb(route.method);
    for (char& c : verb) c = static_cast<char>(std::tolower(c));
    const json& operation = document.at("paths").at(std::string(route.path)).at(verb);
    CAPTURE(route.operation);
    const bool writes = route.method == "POST" || route.method == "PATCH";
    CHECK(operation.contains("requestBody") == writes);
    CHECK(operation.at("responses").contains("415") == writes);
  }
}

// Every $ref of the document, and every schema.
void collect(const json& value, std::set<std::string>& references) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      if (key == "$ref") references.insert(member.get<std::string>());
      collect(member, references);
    }
  } else if (value.is_array()) {
    for (const json& element : value) collect(element, references);
  }
}

TEST_CASE("Every schema is there and is used", "[openapi]") {
  const json document = openapi_document();
  std::set<std::string> used;
  collect(document, used);
  std::set<std::string> defined;
  for (const auto& [name, schema] : document.at("components").at("schemas").items()) {
    defined.insert("#/components/schemas/" + name);
  }
  CHECK(used == defined);
}

}  // namespace
}  // namespace sandbay::mgmt
