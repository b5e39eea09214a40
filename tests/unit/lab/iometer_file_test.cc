// IOMeter files: the one that comes with Sandbay as it is, and what becomes of it when it is
// damaged.
#include "lab/iometer_file.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

namespace sandbay::lab {
namespace {

std::string compellent() {
  std::ifstream file("conf/lab/iometer/compellent-64k.icf", std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The file with the first `from` replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string text = compellent();
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text) {
  const auto read = read_iometer_file(text, "test.icf");
  return read ? std::string("no error") : read.error();
}

std::size_t line_of(const std::string& text, const std::string& part) {
  const std::string before = text.substr(0, text.find(part));
  return 1 + static_cast<std::size_t>(std::ranges::count(before, '\n'));
}

}  // namespace

TEST_CASE("The Compellent paper's file is read as it is", "[lab][iometer]") {
  const auto file = read_iometer_file(compellent(), "compellent-64k.icf");
  REQUIRE(file.has_value());
  CHECK(file->version == "2006.07.27");
  CHECK(file->description == "Compellent 2007-0723 64K IO Testing");
  CHECK(file->run_time == std::chrono::minutes(5));
  CHECK(file->ramp_up == Duration{});
  CHECK(file->test == IometerTest::kCycleTargets);
  CHECK(file->outstanding ==
        Cycle{.start = 1, .end = 32, .step = 2, .type = Cycle::Step::kExponential});
  REQUIRE(file->workers.size() == 1);
  const IometerWorker& worker = file->workers[0];
  CHECK(worker.manager == "DB5");
  CHECK(worker.name == "Worker 1");
  CHECK(worker.outstanding == 10);
  CHECK(worker.targets == std::vector<std::string>{"D:Db5 swap"});
  CHECK(worker.specifications ==
        std::vector<std::string>{"64K Data Streaming Read", "64K Data Streaming Write",
                                 "64K Data Random Read", "64K Data Random Write"});
  // Targets are cycled through, so the depth is the worker's own.
  CHECK(file->outstanding_of(worker) == std::vector<std::uint32_t>{10});
}

TEST_CASE("Its specifications have all of their lines", "[lab][iometer]") {
  const auto file = read_iometer_file(compellent(), "compellent-64k.icf");
  REQUIRE(file.has_value());
  CHECK(file->specifications.size() == 30);
  const AccessSpecification* server = file->find("Web Server");
  REQUIRE(server != nullptr);
  REQUIRE(server->lines.size() == 10);
  CHECK(server->lines[9] == AccessLine{.bytes = 524288, .share_percent = 1, .random_percent = 100});
  const AccessSpecification* split = file->find("64K Data Random Split");
  REQUIRE(split != nullptr);
  CHECK(split->lines[0] == AccessLine{.bytes = 65536, .read_percent = 50, .random_percent = 100});
  CHECK(file->find("64K Data Random") == nullptr);
}

TEST_CASE("Where the queue depth is cycled, its steps count", "[lab][iometer]") {
  const auto file =
      read_iometer_file(with("CYCLE_TARGETS", "CYCLE_OUTSTANDING_IOS"), "compellent-64k.icf");
  REQUIRE(file.has_value());
  CHECK(file->outstanding_of(file->workers[0]) == std::vector<std::uint32_t>{1, 2, 4, 8, 16, 32});
}

TEST_CASE("A file that is cut short anywhere is refused in one line", "[lab][iometer]") {
  const std::string whole = compellent();
  const std::size_t last = whole.rfind("Version");
  for (std::size_t at = 0; at < last; at += 97) {
    const std::string error = error_of(whole.substr(0, at));
    INFO(at);
    CHECK(error.starts_with("test.icf:"));
    CHECK(error.find('\n') == std::string::npos);
  }
  CHECK(error_of(whole.substr(0, whole.find("'END access"))).find("ends within ACCESS SPECIF") !=
        std::string::npos);
}

TEST_CASE("What IOMeter saves is read: descriptions of any kind, parts of a file, data patterns",
          "[lab][iometer]") {
  const std::string description = "\tCompellent 2007-0723 64K IO Testing\r";
  for (const char* text : {"\t\r", "\r", "\t'tis a test\r"}) {
    const auto read = read_iometer_file(with(description, text), "test.icf");
    INFO((read ? std::string() : read.error()));
    REQUIRE(read.has_value());
    CHECK(read->description == (std::string(text).size() > 2 ? "'tis a test" : ""));
    CHECK(read->run_time == std::chrono::minutes(5));
  }
  CHECK(error_of("\xEF\xBB\xBF" + compellent()) == "no error");
  CHECK(error_of(with("\t0,0\r", "\t0,0,2\r")) == "no error");
  CHECK(error_of(with("\t0,0\r", "\t0\r")).find("data pattern") != std::string::npos);
  const std::string whole = compellent();
  const std::size_t from = whole.find("'ACCESS SPECIFICATIONS");
  const std::size_t until = whole.find("'MANAGER LIST");
  const auto part = read_iometer_file(
      "Version 1.1.0 \r\n" + whole.substr(from, until - from) + "Version 1.1.0 \r\n", "part.icf");
  INFO((part ? std::string() : part.error()));
  REQUIRE(part.has_value());
  CHECK(part->specifications.size() == 30);
  CHECK(part->workers.empty());
  CHECK(error_of("Version 1\r\nVersion 1\r\n").find("neither") != std::string::npos);
}

TEST_CASE("A bad line is named by its number", "[lab][iometer]") {
  struct {
    const char* from;
    const char* to;
    const char* part;
  } const cases[] = {
      {"65536,100,50,100,0,1,0,0", "65536,100,50,1OO,0,1,0,0", "% random is \"1OO\""},
      {"65536,100,50,100,0,1,0,0", "65536,100,50,100,0,1,0", "7 numbers stand here"},
      {"65536,100,50,100,0,1,0,0", "65536,100,150,100,0,1,0,0", "150 % of reads"},
      {"65536,100,50,100,0,1,0,0", "65537,100,50,100,0,1,0,0", "a size of 65537 bytes"},
      {"65536,100,50,100,0,1,0,0", "65536,100,50,100,0,1,1125899906842624,0",
       "an alignment of 1125899906842624 bytes"},
      {"65536,100,50,100,0,1,0,0", "65536,100,50,100,99999999999,1,0,0", "a delay of more than"},
      {"10,DISABLED,1", "ten,DISABLED,1", "\"ten\""},
      {"10,DISABLED,1", "0,DISABLED,1", "0 outstanding"},
      {"CYCLE_TARGETS", "CYCLE_EVERYTHING", "CYCLE_EVERYTHING"},
      {"0          5          0", "0          5", "2 numbers stand here"},
  };
  for (const auto& [from, to, part] : cases) {
    const std::string text = with(from, to);
    const std::string error = error_of(text);
    INFO(error);
    CHECK(error.starts_with("test.icf:" + std::to_string(line_of(text, to)) + ": "));
    CHECK(error.find(part) != std::string::npos);
  }
}

TEST_CASE("Contradictions are refused", "[lab][iometer]") {
  CHECK(error_of(with("1          32         2", "32          1         2"))
            .find("before the start") != std::string::npos);
  CHECK(error_of(with("10,80,100,0,1,0,0", "11,80,100,0,1,0,0")).find("101 % together") !=
        std::string::npos);
  // The first one stands among the specifications.
  const std::string assigned = "\t64K Data Streaming Read\r";
  CHECK(error_of(with(assigned, "\t64K Data Streaming Reed\r")).find("Streaming Reed") !=
        std::string::npos);
  CHECK(error_of("").find("begins with") != std::string::npos);
  CHECK(error_of("Version 1\r\n'NONSENSE\r\n").find("begins no section") != std::string::npos);
}

}  // namespace sandbay::lab
