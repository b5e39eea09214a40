// What a load refuses to begin with, and what its report looks like.
#include <catch2/catch.hpp>

#include <functional>
#include <nlohmann/json.hpp>

#include "iscsi/initiator_url.h"
#include "lab/load.h"

namespace sandbay::lab {
namespace {

LoadOptions good() {
  LoadOptions options;
  options.urls = {"iscsi://127.0.0.1/iqn.2026-11.org.sandbay:quickstart/0"};
  return options;
}

}  // namespace

TEST_CASE("The defaults read and are accepted", "[lab][load]") {
  CHECK(check(good()).empty());
  CHECK(good().read_percent == 100);
  CHECK_FALSE(good().write);
}

TEST_CASE("Writing has to be allowed", "[lab][load]") {
  LoadOptions options = good();
  options.read_percent = 99;
  CHECK(check(options).find("destroys") != std::string::npos);
  options.write = true;
  CHECK(check(options).empty());
  options.verify = true;
  CHECK(check(options).empty());
  options.read_percent = 100;
  CHECK(check(options).find("needs writes") != std::string::npos);
}

TEST_CASE("No message shows the password of a URL", "[lab][load]") {
  CHECK(without_password("iscsi://u%p@127.0.0.1/t/0") == "iscsi://127.0.0.1/t/0");
  CHECK(without_password("iscsi://127.0.0.1/t/0") == "iscsi://127.0.0.1/t/0");
  CHECK(without_password("iscsi://u%p@q@127.0.0.1/t/0") == "iscsi://127.0.0.1/t/0");
  for (const char* url : {"iscsi://me%topsecret@127.0.0.1", "iscsi://me%topsecret@127.0.0.1/x/0",
                          "iscsi://me%topsecret@nowhere.example/iqn.2026-11.org.sandbay:q/0",
                          "iscsi://me%topsecret/x@127.0.0.1/iqn.2026-11.org.sandbay:q/0",
                          "scsi://me%topsecret@127.0.0.1/iqn.2026-11.org.sandbay:q/0",
                          "iscsi://me%topsecret@127.0.0.1/iqn.2026-11.org.sandbay:q/x"}) {
    LoadOptions options = good();
    options.urls = {url};
    const std::string wrong = check(options);
    INFO(wrong);
    CHECK_FALSE(wrong.empty());
    CHECK(wrong.find("topsecret") == std::string::npos);
  }
}

TEST_CASE("A secret from a file is the password of the URL's user", "[X9][lab][load]") {
  const std::string place = "127.0.0.1/iqn.2026-11.org.sandbay:quickstart/0";
  for (const std::string secret : {"abcdefghijkl", "12%34/@:% \xc3\xb6", "%41%42"}) {
    const auto url = with_password("iscsi://user@" + place, secret);
    REQUIRE(url.has_value());
    const auto parsed = iscsi::parse_url(*url);
    REQUIRE(parsed.has_value());
    CHECK(parsed->chap->user == "user");
    CHECK(parsed->chap->secret == secret);
    CHECK(without_password(*url) == "iscsi://" + place);
  }
  for (const std::string front : {"", "@", "user%password@"}) {
    CAPTURE(front);
    const auto url = with_password("iscsi://" + front + place, "abcdefghijkl");
    REQUIRE_FALSE(url.has_value());
    CHECK_THAT(url.error(), Catch::Contains("needs a user and no password") &&
                                !Catch::Contains("user%password"));
  }
}

TEST_CASE("Options out of range are named", "[lab][load]") {
  struct Case {
    std::function<void(LoadOptions&)> spoil;
    const char* part;
  };
  const Case cases[] = {
      {[](LoadOptions& o) { o.urls.clear(); }, "no URL"},
      {[](LoadOptions& o) { o.urls = {"iscsi://127.0.0.1"}; }, "names no target"},
      {[](LoadOptions& o) { o.offset_bytes = 1000; }, "--offset"},
      {[](LoadOptions& o) { o.span_bytes = 512; }, "--span"},
      {[](LoadOptions& o) { o.memory_limit_bytes = 1024; }, "--memory-limit"},
      {[](LoadOptions& o) { o.initiator_name = "host"; }, "--initiator-name"},
      {[](LoadOptions& o) { o.keys["HeaderDigset"] = "None"; }, "--key HeaderDigset"},
      {[](LoadOptions& o) { o.urls = {"http://x"}; }, "iscsi://"},
      {[](LoadOptions& o) { o.block_bytes = 100; }, "block size"},
      {[](LoadOptions& o) { o.block_bytes = 0; }, "block size"},
      {[](LoadOptions& o) { o.block_bytes = 32U << 20U; }, "block size"},
      {[](LoadOptions& o) { o.read_percent = 101; }, "share of reads"},
      {[](LoadOptions& o) { o.queue_depth = 0; }, "queue depth"},
      {[](LoadOptions& o) { o.queue_depth = 4097; }, "queue depth"},
      {[](LoadOptions& o) { o.connections = 33; }, "connections"},
      {[](LoadOptions& o) { o.sessions = 0; }, "sessions"},
      {[](LoadOptions& o) { o.duration = Duration{}; }, "--duration"},
      {[](LoadOptions& o) { o.duration = std::chrono::hours(25); }, "1ms to 24h"},
      {[](LoadOptions& o) { o.reconnect = std::chrono::hours(2); }, "--reconnect"},
      {[](LoadOptions& o) { o.reactors = 0; }, "reactors"},
  };
  for (const Case& one : cases) {
    LoadOptions options = good();
    one.spoil(options);
    INFO(one.part);
    CHECK(check(options).find(one.part) != std::string::npos);
  }
}

TEST_CASE("The report as JSON has every figure, and no password", "[lab][load]") {
  LoadOptions options = good();
  options.urls = {"iscsi://anna%secret-word@127.0.0.1/iqn.2026-11.org.sandbay:quickstart/0"};
  LoadReport report;
  report.seconds = 2;
  for (std::uint64_t value = 1; value <= 1000; ++value) {
    report.reads.latency.record(value * 1000);
    ++report.reads.requests;
    report.reads.bytes += 4096;
  }
  const std::string text = to_json(options, report);
  CHECK(text.find("secret-word") == std::string::npos);
  const nlohmann::json json = nlohmann::json::parse(text);
  CHECK(json["iops"] == 500.0);
  CHECK(json["bytes_per_second"] == 4096.0 * 500);
  CHECK(json["read"]["requests"] == 1000);
  CHECK(json["write"]["requests"] == 0);
  const auto& latency = json["read"]["latency_ns"];
  CHECK(latency["mean"] == 500'500.0);
  CHECK(latency["max"] == 1'000'000);
  CHECK(latency["min"] == 1000);
  CHECK(latency["p50"].get<double>() == Approx(500'000).epsilon(0.02));
  CHECK(latency["p99"].get<double>() == Approx(990'000).epsilon(0.02));
  CHECK(latency["p99.9"].get<double>() == Approx(999'000).epsilon(0.02));
}

TEST_CASE("The report as text names rates and latencies", "[lab][load]") {
  LoadReport report;
  report.seconds = 1;
  report.sessions = 1;
  report.reads.requests = 250;
  report.reads.bytes = 250 * 4096;
  report.reads.latency.record(100'000);
  report.errors = 3;
  report.first_error = "read of 8 blocks at LBA 8: reset";
  const std::string text = to_text(good(), report);
  CHECK(text.find("250 IOPS") != std::string::npos);
  CHECK(text.find("p99.9") != std::string::npos);
  CHECK(text.find("errors 3, the first: read of 8 blocks at LBA 8: reset") != std::string::npos);
  CHECK(text.find("write") == std::string::npos);
}

}  // namespace sandbay::lab
