// Tokens and roles: whom the listener lets in, what each role may do, and what the audit keeps.
#include <fmt/core.h>
#include <httplib.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "mgmt/audit.h"
#include "mgmt/authority.h"
#include "mgmt/refusal_budget.h"
#include "tests/unit/mgmt/running_server.h"

namespace sandbay::mgmt {
namespace {

using group::Role;
using nlohmann::json;

const std::string kReader = "reader-0123456789";
const std::string kOperator = "operator-0123456789";
const std::string kBreaker = "breaker-0123456789";

std::vector<group::ManagementToken> three_tokens() {
  return {{.name = "monitor", .role = Role::kRead, .digest = group::digest_of(kReader)},
          {.name = "alice", .role = Role::kOperate, .digest = group::digest_of(kOperator)},
          {.name = "chaos", .role = Role::kInject, .digest = group::digest_of(kBreaker)}};
}

TEST_CASE("A token counts behind its scheme alone, and whole", "[authority]") {
  const Authority authority(three_tokens());
  CHECK(authority.demanded());
  for (const char* scheme : {"Bearer ", "bearer ", "BEARER  "}) {
    const auto* const token = authority.bearer(scheme + kOperator);
    REQUIRE(token != nullptr);
    CHECK(token->name == "alice");
  }
  for (const std::string& wrong :
       {std::string(), std::string("Bearer"), std::string("Bearer "), kOperator,
        "Basic " + kOperator, "Bearer" + kOperator, "Bearer " + kOperator + "x",
        "Bearer " + kOperator.substr(1), "Bearer " + kOperator + " ", "Bearer x" + kOperator}) {
    CAPTURE(wrong);
    CHECK(authority.bearer(wrong) == nullptr);
  }
  CHECK_FALSE(Authority({}).demanded());
  CHECK(Authority({}).bearer("Bearer " + kOperator) == nullptr);
}

TEST_CASE("Looking needs read, changing operate, and breaking inject", "[authority]") {
  unsigned breaking = 0;
  for (const Route& route : routes()) {
    CAPTURE(route.operation);
    const bool breaks = route.method != "GET" && route.path.starts_with("/api/v1/fault");
    breaking += breaks ? 1 : 0;
    CHECK(needed_role(route) == (breaks                  ? Role::kInject
                                 : route.method == "GET" ? Role::kRead
                                                         : Role::kOperate));
    CHECK(is_audited(route) == (route.method != "GET"));
  }
  CHECK(breaking == 8);
}

TEST_CASE("The audit keeps no secret and nothing endless", "[audit]") {
  CHECK(without_secrets("").empty());
  CHECK(without_secrets("not JSON").empty());
  CHECK(without_secrets("[1]").empty());
  CHECK(without_secrets(R"({"name": "v", "size": 5})") == R"({"name":"v","size":5})");
  const std::string hidden = without_secrets(
      R"({"access": [{"chap_user": "u", "chap_secret": "s3cret"}], "a_secret": {"a": "s3cret"}})");
  CHECK(hidden.find("s3cret") == std::string::npos);
  CHECK(hidden.find("chap_user") != std::string::npos);
  CHECK(without_secrets(R"({"chapSecret": "abc", "PassWord": "abc"})") ==
        R"({"PassWord":"…","chapSecret":"…"})");
  CHECK(without_secrets(R"({"chap": {"sekret": "abc", "n": 1}, "names": ["abc"]})", false) ==
        R"({"chap":{"n":1,"sekret":"…"},"names":["…"]})");
  const std::string longer = without_secrets(json{{"name", std::string(5000, 'x')}}.dump());
  CHECK(longer.size() < 600);
  CHECK(without_secrets(json{{"name", std::string(20000, 'x')}}.dump()) == "(20011 bytes)");
  std::string deep = "{\"a\":";
  for (int i = 0; i < 1000; ++i) deep += "[";
  CHECK(without_secrets(deep).empty());
}

TEST_CASE("The audit keeps nothing of an export that is imported", "[audit]") {
  const std::string text = "\"value\":{\"chap_secret\":\"s3cret-s3cret\"}";
  const std::string kept =
      without_secrets(json{{"text", text}, {"offset", 300}, {"force", true}}.dump());
  CHECK(kept.find("s3cret") == std::string::npos);
  CHECK(kept.find(R"("offset":300)") != std::string::npos);
}

TEST_CASE("What a role forbids is kept some times an hour, and then counted", "[audit]") {
  RefusalBudget budget;
  const RefusalBudget::Time begin{};
  for (unsigned i = 0; i < RefusalBudget::kMostAnHour; ++i) {
    CHECK(budget.take("monitor", begin) == 0U);
  }
  for (int i = 0; i < 5; ++i) CHECK_FALSE(budget.take("monitor", begin + std::chrono::minutes(59)));
  CHECK(budget.take("other", begin) == 0U);
  CHECK(budget.take("monitor", begin + std::chrono::hours(1)) == 5U);
  CHECK(budget.take("monitor", begin + std::chrono::hours(1)) == 0U);
}

struct Asked {
  int status = 0;
  std::string challenge;
  json body;
};

Asked ask(int port, const std::string& token, const std::string& method, const std::string& path,
          const std::string& body = "", const std::string& host = "") {
  httplib::Client client("127.0.0.1", port);
  httplib::Request request;
  request.method = method;
  request.path = path;
  request.body = body;
  if (!body.empty()) request.set_header("Content-Type", "application/json");
  if (!token.empty()) request.set_header("Authorization", "Bearer " + token);
  if (!host.empty()) request.set_header("Host", host);
  const auto result = client.send(request);
  if (!result) throw std::runtime_error("no answer: " + httplib::to_string(result.error()));
  return {.status = result->status,
          .challenge = result->get_header_value("WWW-Authenticate"),
          .body = json::parse(result->body, nullptr, false)};
}

void with_tokens(const PortTest& test) {
  ServerOptions options;
  options.tokens = three_tokens();
  with_server("[faults]\nenabled = true\n", test, std::move(options));
}

std::string message_of(const Asked& asked) {
  return asked.body.at("error").at("message").get<std::string>();
}

TEST_CASE("Where tokens are demanded, nobody gets anything without one", "[authority][rest]") {
  with_tokens([](int port) {
    for (const char* path : {"/api/v1/group", "/metrics", "/api/v1/openapi.json", "/", "/x"}) {
      CAPTURE(path);
      const Asked without = ask(port, "", "GET", path);
      CHECK(without.status == 401);
      CHECK(without.challenge == "Bearer realm=\"sandbay\"");
      CHECK(without.body.at("error").at("code") == "unauthenticated");
      const Asked wrong = ask(port, kReader + "x", "GET", path);
      CHECK(wrong.status == 401);
      CHECK(wrong.challenge == "Bearer realm=\"sandbay\", error=\"invalid_token\"");
    }
    CHECK(ask(port, "", "OPTIONS", "/api/v1/group").status == 401);
    CHECK(ask(port, "", "POST", "/api/v1/volumes", R"({"name": "v", "size": "1MiB"})").status ==
          401);
    CHECK(ask(port, kReader, "GET", "/api/v1/group").status == 200);
    CHECK(ask(port, kReader, "GET", "/metrics").status == 200);
    // Whoever has a token is no web page, so the daemon may have a name.
    CHECK(ask(port, kReader, "GET", "/api/v1/group", "", "san.example").status == 200);
    // Strangers leave no trace in the audit: they could fill it.
    CHECK(ask(port, kReader, "GET", "/api/v1/audit").body.at("changes").empty());
  });
}

TEST_CASE("Who may only look pushes nothing out of the audit", "[authority][rest]") {
  with_tokens([](int port) {
    for (unsigned i = 0; i < 2 * RefusalBudget::kMostAnHour; ++i) {
      CHECK(ask(port, kReader, "DELETE", "/api/v1/volumes/v?force=true").status == 403);
    }
    const json changes = ask(port, kReader, "GET", "/api/v1/audit").body.at("changes");
    CHECK(changes.size() == RefusalBudget::kMostAnHour);
    CHECK(changes.front().at("target") == "DELETE /api/v1/volumes/v?force=true");
  });
}

// A request that the listener refuses before a route is asked.
int ask_wrongly(int port, const std::string& token, const std::string& method,
                const std::string& path, const httplib::Headers& fields,
                const std::string& body = "") {
  httplib::Client client("127.0.0.1", port);
  httplib::Request request;
  request.method = method;
  request.path = path;
  request.headers = fields;
  request.body = body;
  if (!token.empty()) request.set_header("Authorization", "Bearer " + token);
  const auto result = client.send(request);
  if (!result) throw std::runtime_error("no answer: " + httplib::to_string(result.error()));
  return result->status;
}

// One of each kind; those that only look leave no entry.
void ask_all_wrongly(int port, const std::string& token, bool known) {
  const std::string volumes = "/api/v1/volumes";
  const httplib::Headers as_json{{"Content-Type", "application/json"}};
  const std::string large(std::size_t{2} << 20, ' ');
  CHECK(ask_wrongly(port, token, "POST", volumes, {{"Content-Type", "text/plain"}}, "{}") == 415);
  CHECK(ask_wrongly(port, token, "POST", volumes, {{"Transfer-Encoding", "chunked"}}) == 413);
  CHECK(ask_wrongly(port, token, "POST", volumes, as_json, large) == (known ? 413 : 401));
  CHECK(ask_wrongly(port, token, "PUT", "/api/v1/group?x=1", {}) == (known ? 405 : 401));
  CHECK(ask_wrongly(port, token, "DELETE", "/api/v1/group", {}) == (known ? 405 : 401));
  CHECK(ask_wrongly(port, token, "GET", volumes, {{"Transfer-Encoding", "chunked"}}) == 413);
}

TEST_CASE("The audit names who asked for a change in a way that the listener refuses",
          "[X9][authority][rest]") {
  with_tokens([](int port) {
    ask_all_wrongly(port, kOperator, true);
    const json changes = ask(port, kReader, "GET", "/api/v1/audit").body.at("changes");
    REQUIRE(changes.size() == 5);
    const std::vector<int> statuses{415, 413, 413, 405, 405};
    for (std::size_t i = 0; i < statuses.size(); ++i) {
      CAPTURE(i);
      CHECK(changes[i].at("caller") == "alice");
      CHECK(changes[i].at("address") == "127.0.0.1");
      CHECK(changes[i].at("status") == statuses[i]);
      CHECK(changes[i].at("operation") == (i < 3 ? "createVolume" : "(none)"));
    }
    CHECK(changes[0].at("refusal") ==
          "the body is not declared as JSON; send Content-Type: application/json");
    CHECK(changes[2].at("refusal") == "the body is too large; at most 1048576 bytes are taken");
    CHECK(changes[3].at("target") == "PUT /api/v1/group?x=1");
  });
}

TEST_CASE("Refusals of the listener fill no audit", "[X9][authority][rest]") {
  with_tokens([](int port) {
    for (const std::string& stranger : {std::string(), kReader + "x"}) {
      ask_all_wrongly(port, stranger, false);
    }
    CHECK(ask(port, kReader, "GET", "/api/v1/audit").body.at("changes").empty());
    for (unsigned i = 0; i < 2 * RefusalBudget::kMostAnHour; ++i) {
      CHECK(ask_wrongly(port, kReader, "PUT", "/api/v1/group", {}) == 405);
    }
    const json changes = ask(port, kReader, "GET", "/api/v1/audit").body.at("changes");
    CHECK(changes.size() == RefusalBudget::kMostAnHour);
  });
}

TEST_CASE("Each role does what it may, and the audit says who did what", "[authority][rest]") {
  with_tokens([](int port) {
    const std::string volume = R"({"name": "v", "size": "1MiB", "memory": true})";
    const Asked refused = ask(port, kReader, "POST", "/api/v1/volumes", volume);
    CHECK(refused.status == 403);
    CHECK(message_of(refused) ==
          "the token \"monitor\" has the role read; POST /api/v1/volumes needs operate");
    CHECK(ask(port, kOperator, "POST", "/api/v1/volumes", volume).status == 201);
    CHECK(ask(port, kOperator, "POST", "/api/v1/volumes", volume).status == 200);
    const std::string rule = R"({"rule": "at=nowhere do=fail"})";
    CHECK(ask(port, kOperator, "POST", "/api/v1/faults", rule).status == 403);
    CHECK(ask(port, kBreaker, "POST", "/api/v1/faults", rule).status != 403);
    CHECK(ask(port, kBreaker, "DELETE", "/api/v1/volumes/v?force=true").status == 204);
    const json changes = ask(port, kReader, "GET", "/api/v1/audit").body.at("changes");
    REQUIRE(changes.size() == 6);
    CHECK(changes[0].at("caller") == "monitor");
    CHECK(changes[0].at("address") == "127.0.0.1");
    CHECK(changes[0].at("status") == 403);
    CHECK(changes[0].at("refusal") == message_of(refused));
    CHECK(changes[1].at("operation") == "createVolume");
    CHECK(changes[1].at("caller") == "alice");
    CHECK(changes[1].at("status") == 201);
    CHECK(changes[1].at("request") == R"({"memory":true,"name":"v","size":"1MiB"})");
    CHECK(changes[2].at("status") == 200);
    CHECK(changes[5].at("target") == "DELETE /api/v1/volumes/v?force=true");
    CHECK(changes[5].at("caller") == "chaos");
    CHECK(changes[5].at("number") == 6);
    CHECK(ask(port, kReader, "GET", "/api/v1/audit?since=5").body.at("changes").size() == 1);
    CHECK(ask(port, kReader, "GET", "/api/v1/audit?since=x").status == 400);
  });
}

}  // namespace
}  // namespace sandbay::mgmt
