// Reports: what a page and JSON have, and where output goes.
#include "lab/report.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/influences.h"
#include "lab/lab.h"
#include "small_system.h"

namespace sandbay::lab {
namespace {

using nlohmann::json;

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

// The first tag that ends nothing that is open, or is not ended; empty: there is none.
std::string unbalanced(const std::string& page) {
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const std::string tag = page.substr(at + 1, page.find('>', at) - at - 1);
    if (tag.starts_with("!") || tag.ends_with("/")) continue;
    if (!tag.starts_with("/")) {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else if (open.empty() || open.back() != tag.substr(1)) {
      return tag;
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? std::string() : open.back();
}

// So many I/Os a second for so many seconds, each of 4 KiB and 2 ms.
CaseResult result_of(std::uint64_t rate, std::size_t seconds) {
  CaseResult result{.seconds = static_cast<double>(seconds)};
  result.layers = {.host = std::chrono::seconds(1),
                   .link = std::chrono::seconds(2),
                   .controller = std::chrono::seconds(3),
                   .storage = std::chrono::seconds(4)};
  result.drives = {.seeking = 0.25, .rotating = 0.125, .transferring = 0.5};
  VolumeResult volume{.requests = rate * seconds, .bytes = rate * seconds * 4096};
  volume.requests_by_second.assign(seconds, rate);
  volume.requests_by_second.push_back(0);
  for (std::uint64_t i = 0; i < rate; ++i) volume.latency.record(2'000'000);
  result.volumes.push_back(std::move(volume));
  return result;
}

// Records of 32, 64 and 128 on one node and two, in IOPS and ms; and a row that varies nothing.
struct Fixture {
  Plan plan;
  PlanResult result;

  Fixture() {
    plan.name = "test";
    plan.system = small_system();
    plan.system.parameters = {
        {.name = "drive.rate", .value = "7", .origin = "fitted", .source = "s"}};
    plan.figures.document = "a paper";
    for (const std::uint64_t nodes : {1U, 2U}) {
      for (const std::uint64_t record : {32U, 64U, 128U}) {
        const std::string id = fmt::format("{}k-{}", record, nodes);
        add_figure(id + "-iops", "IOPS", 100);
        add_figure(id + "-ms", "ms", 2);
        plan.rows.push_back({.experiment = "streams",
                             .variation = {{"nodes", nodes}, {"record", record}},
                             .wanted = {{.figure = id + "-iops", .metric = Metric::kIops},
                                        {.figure = id + "-ms", .metric = Metric::kMilliseconds}}});
      }
    }
    add_figure("alone", "MB/s", 0.3);
    plan.figures.figures.back().note = "as <they> say";
    plan.rows.push_back({.experiment = "alone",
                         .wanted = {{.figure = "alone", .metric = Metric::kMegabytes}},
                         .sweep = {4096, 8192}});
    for (Row& row : plan.rows) {
      row.groups = {VolumeGroup{.outstanding = 8}};
      result.rows.push_back({.row = &row, .cases = {result_of(100, 5)}});
    }
    result.rows.back().cases.push_back(result_of(50, 40));
  }

  void add_figure(const std::string& id, const std::string& unit, double value) {
    plan.figures.figures.push_back({.id = id,
                                    .what = "what it is",
                                    .unit = unit,
                                    .value = value,
                                    .role = Role::kFit,
                                    .tolerance = 3});
    result.measured[id] = value;
  }
  Report report() const { return make_report(plan, result); }
};

std::string plot_with(const std::string& page, const std::string& title) {
  const std::size_t at = page.find("<figcaption>" + title + "</figcaption>");
  if (at == std::string::npos) return {};
  return page.substr(at, page.find("</figure>", at) - at);
}

std::filesystem::path fresh_folder(const std::string& name) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("{}-{}", name, ::getpid());
  std::filesystem::remove_all(folder);
  return folder;
}

struct Output {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::tmpfile(), &std::fclose};

  std::string text() const {
    std::rewind(file.get());
    std::string all;
    for (int letter = std::fgetc(file.get()); letter != EOF; letter = std::fgetc(file.get())) {
      all += static_cast<char>(letter);
    }
    return all;
  }
};

// A tenth of a second of one drive.
LabOptions short_run() {
  LabOptions options{.file = "conf/lab/istor-gigastor.toml"};
  options.choice.only = {"one drive, write/64KiB"};
  options.choice.ramp_up = Duration{};
  options.choice.run_time = std::chrono::milliseconds(100);
  return options;
}

}  // namespace

TEST_CASE("A page has a plot for each unit, over what is varied most, and a line for the rest",
          "[lab][report]") {
  const std::string page = to_html(Fixture().report());
  CHECK(unbalanced(page) == "");
  for (const char* const unit : {"IOPS", "ms"}) {
    const std::string plot = plot_with(page, fmt::format("streams: {} by record", unit));
    CHECK(count(plot, "class=\"whisker s") == 6);
    CHECK(count(plot, ">nodes 1</text>") == 1);
    CHECK(count(plot, ">nodes 2</text>") == 1);
    CHECK(count(plot, "<title>document: ") == 6);
    CHECK(count(plot, fmt::format(", {}</title>", 100)) == 0);
  }
  CHECK(count(plot_with(page, "streams: IOPS by record"), " ms<") == 0);
  const std::string bars = plot_with(page, "Ours and the document's: MB/s");
  CHECK(count(bars, ">alone</text>") == 1);
  CHECK(count(bars, "<title>document: 0.3<") == 1);
  CHECK(count(plot_with(page, "alone: MB/s by transfer size"), "class=\"level s0") == 1);
  // The same number is outstanding in all rows.
  const std::string latency = plot_with(page, "Mean latency (with so many I/Os outstanding)");
  CHECK(count(latency, ">streams, nodes 1, record 32 (8)</text>") == 1);
  CHECK(count(latency, ">alone/4KiB (8)</text>") == 1);
  CHECK(count(latency, "<title>ours: 2<") == 7);
}

TEST_CASE("Latency over outstanding I/Os has a line for each of what does not change them",
          "[lab][report]") {
  Fixture test;
  for (Row& row : test.plan.rows) {
    for (const auto& [key, value] : row.variation) {
      if (key == "nodes") row.groups[0].outstanding = 8 * static_cast<unsigned>(value);
    }
  }
  const std::string plot = plot_with(to_html(test.report()), "Mean latency over outstanding I/Os");
  CHECK(count(plot, "<title>streams, record 32: 8, 2 ms<") == 1);
  CHECK(count(plot, "<title>streams, record 32: 16, 2 ms<") == 1);
  CHECK(count(plot, "class=\"line s") == 6);  // And as many in the legend.
}

TEST_CASE("What was not run is left out of plots, which say so", "[lab][report]") {
  Fixture test;
  test.result.rows.erase(test.result.rows.begin() + 2);
  test.result.measured.erase("128k-1-iops");
  test.result.measured.erase("128k-1-ms");
  // Run, but nothing ended.
  test.result.measured.erase("alone");
  for (CaseResult& result : test.result.rows.back().cases) {
    result.volumes[0].requests = result.volumes[0].bytes = 0;
  }
  const std::string page = to_html(test.report());
  CHECK(unbalanced(page) == "");
  const std::string plot =
      plot_with(page, "streams: IOPS by record (not run: nodes 1, record 128)");
  CHECK(count(plot, "<title>nodes 1: 128") == 0);
  CHECK(count(plot, "<title>nodes 1: 64") == 1);
  CHECK(count(plot, "<title>document: ") == 6);
  const std::string bars = plot_with(page, "Ours and the document's: MB/s");
  CHECK(count(bars, "<title>ours: ") == 0);
  CHECK(count(bars, ">not measured</text>") == 1);
  CHECK(count(plot_with(page, "alone: MB/s by transfer size"), "<circle") == 0);
  const std::string latency = plot_with(page, "Mean latency (with so many I/Os outstanding)");
  CHECK(count(latency, ">alone/4KiB (8)</text>") == 0);
}

TEST_CASE("A row that was run for too short a time to say anything is told from one that was not",
          "[lab][report]") {
  LabOptions options = short_run();
  options.choice.run_time = std::chrono::microseconds(10);
  const std::string why =
      "one drive, write: no request ended in the 1e-05 s measured; measure longer";
  const Output text;
  const Output errors;
  CHECK(run_lab(options, text.file.get(), errors.file.get()) == 1);
  CHECK_THAT(text.text(), Catch::Contains(" too short, ") &&
                              Catch::Contains("0 passed, 0 failed, 0 not run, 1 too short.") &&
                              Catch::Contains("Not complete: " + why + ".\n"));
  CHECK(errors.text() == "sandbay: the report is partial: " + why + "\n");
  options.form = ReportForm::kJson;
  const Output structured;
  CHECK(run_lab(options, structured.file.get(), errors.file.get()) == 1);
  const json whole = json::parse(structured.text());
  CHECK(whole["complete"] == false);
  CHECK(whole["reason"] == why);
  CHECK(whole["figures"][0]["verdict"] == "too short");
  CHECK_THAT(why, Catch::EndsWith(whole["rows"][0]["too_short"].get<std::string>()));
}

TEST_CASE("What is computed from a row that was too short is so, too, and other rows are counted",
          "[lab][report]") {
  Fixture test;
  test.plan.figures.figures.push_back({.id = "ratio",
                                       .value = 1,
                                       .role = Role::kCheck,
                                       .tolerance = 3,
                                       .formula = Formula::kRatio,
                                       .terms = {"32k-1-ms", "64k-1-ms"}});
  for (const std::size_t row : {0U, 1U}) {
    for (const Wanted& wanted : test.plan.rows[row].wanted) {
      test.result.measured.erase(wanted.figure);
    }
    test.result.rows[row].too_short = "<none>";
  }
  const Report report = test.report();
  CHECK(std::ranges::count(report.findings, Verdict::kTooShort, &Finding::verdict) == 5);
  CHECK(report.findings.back().verdict == Verdict::kTooShort);
  CHECK(report.partial == "streams, nodes 1, record 32: <none>; other rows likewise: 1");
  const std::string page = to_html(report);
  CHECK(count(page, "0 not run, 5 too short.") == 1);
  CHECK(count(page, "This report is partial: streams, nodes 1, record 32: &lt;none&gt;;") == 1);
  test.result.complete = false;
  test.result.wrong = "alone: it was stopped";
  CHECK(test.report().partial == "alone: it was stopped; " + report.partial);
}

TEST_CASE("Shares of the drives' time are of all of it at most", "[lab][report]") {
  CaseResult result = result_of(100, 5);
  result.drives = {.seeking = 1.25, .rotating = 0.25, .transferring = 1};
  const TimeShares shares = time_shares(result);
  CHECK(shares.seeking == Approx(50));
  CHECK(shares.rotating == Approx(10));
  CHECK(shares.transferring == Approx(40));
  CHECK(shares.idle == 0);
}

TEST_CASE("Lines go through rows that have no figure", "[lab][report]") {
  Fixture test;
  test.plan.rows[1].wanted.clear();
  test.result.measured.erase("64k-1-ms");
  const std::string plot = plot_with(to_html(test.report()), "streams: ms by record");
  CHECK(count(plot, "<title>nodes 1: 64, 2 ms<") == 1);
  CHECK(count(plot, "<title>document: ") == 5);
}

TEST_CASE("What has but one value of what is varied is drawn as bars, each quantity once",
          "[lab][report]") {
  Fixture test;
  std::erase_if(test.plan.rows, [](const Row& row) {
    return row.name() != "streams, nodes 1, record 32" && row.experiment != "alone";
  });
  Row& alone = test.plan.rows.back();
  alone.wanted.insert(alone.wanted.begin(), {.figure = "summary", .metric = Metric::kMegabytes});
  test.plan.figures.figures.push_back({.id = "summary", .unit = "MB/s"});
  test.result.measured["summary"] = 0.4;
  test.result.rows.clear();
  for (const Row& row : test.plan.rows) {
    test.result.rows.push_back({.row = &row, .cases = {result_of(100, 5)}});
    if (!row.sweep.empty()) test.result.rows.back().cases.push_back(result_of(100, 5));
  }
  const std::string page = to_html(test.report());
  CHECK(count(plot_with(page, "streams: IOPS"), ">32k-1-iops, nodes 1, record 32</text>") == 1);
  const std::string bars = plot_with(page, "Ours and the document's: MB/s");
  CHECK(count(bars, "<title>ours: ") == 1);
  CHECK(count(bars, "<title>document: 0.3<") == 1);
  CHECK(count(bars, ">alone</text>") == 1);
}

TEST_CASE("IOPS over time are of whole seconds, or of tens of them, and of a sweep's first size",
          "[lab][report]") {
  Fixture test;
  test.result.rows.back().best = 1;
  test.result.rows.back().cases = {result_of(50, 40), result_of(100, 5)};
  const std::string page = to_html(test.report());
  const std::string brief = plot_with(page, "streams");
  CHECK(count(brief, "<title>nodes 1, record 32: ") == 5);
  CHECK(count(brief, "<title>nodes 1, record 32: 5, 100 IOPS<") == 1);
  const std::string lasting = plot_with(page, "alone/4KiB");
  CHECK(count(lasting, "<title>ours: ") == 4);
  CHECK(count(lasting, "<title>ours: 40, 50 IOPS<") == 1);
}

TEST_CASE("Page and JSON say where the time of each run went, but of targets elsewhere",
          "[lab][report]") {
  Fixture test;
  test.result.complete = false;
  test.result.wrong = "streams: it was stopped";
  const std::string page = to_html(test.report());
  CHECK(count(page, "<td>alone/4KiB</td>") == 1);
  CHECK(count(page, "<td>alone/8KiB</td>") == 1);
  CHECK(count(page,
              "<td class=\"n\">10.0</td><td class=\"n\">20.0</td><td class=\"n\">30.0</td>"
              "<td class=\"n\">40.0</td>") == 8);
  CHECK(count(page, "<td class=\"n\">3 %</td>") == 13);
  CHECK(count(page, "<td>as &lt;they&gt; say</td>") == 1);
  CHECK(count(page, "<td>drive.rate</td><td>7</td><td>fitted</td>") == 1);
  CHECK(count(page, "This report is partial: streams: it was stopped.") == 1);
  const json whole = json::parse(to_json(test.report()));
  CHECK(whole["reason"] == "streams: it was stopped");
  REQUIRE(whole["rows"].size() == 7);
  CHECK(whole["rows"][0]["row"] == "streams, nodes 1, record 32");
  const json& runs = whole["rows"][6]["runs"];
  REQUIRE(runs.size() == 2);
  CHECK(runs[1]["transfer_bytes"] == 8192);
  CHECK(runs[0]["layers_pct"]["port"] == 20.0);
  CHECK(runs[0]["drives_pct"]["idle"] == 12.5);
  CHECK(runs[0]["iops"] == 100.0);
  test.result.targets = {"iscsi://elsewhere/iqn/0"};
  CHECK(count(to_html(test.report()), "Where the time went") == 0);
  CHECK_FALSE(json::parse(to_json(test.report()))["rows"][0]["runs"][0].contains("layers_pct"));
}

TEST_CASE("Of what was chosen, what was not run stays in the report", "[lab][report]") {
  Fixture test;
  test.plan.rows.pop_back();
  test.result.rows.pop_back();
  test.plan.figures.figures.push_back({.id = "ratio",
                                       .value = 1,
                                       .role = Role::kCheck,
                                       .tolerance = 3,
                                       .formula = Formula::kRatio,
                                       .terms = {"32k-1-ms", "32k-2-ms"}});
  test.plan.figures.figures.push_back({.id = "other",
                                       .value = 1,
                                       .role = Role::kCheck,
                                       .tolerance = 3,
                                       .formula = Formula::kRatio,
                                       .terms = {"32k-1-ms", "alone"}});
  test.result.rows.erase(test.result.rows.begin() + 3);
  test.result.measured.erase("32k-2-ms");
  test.result.measured.erase("alone");
  Report report = test.report();
  keep_chosen(report);
  std::vector<std::string> not_run;
  for (const Finding& finding : report.findings) {
    if (finding.verdict == Verdict::kNotRun) not_run.push_back(finding.figure->id);
  }
  CHECK(not_run == std::vector<std::string>{"32k-2-ms", "ratio"});
  CHECK(report.findings.size() == 13);
  CHECK(figures_not_measured(report) == "32k-2-ms: no experiment measures it");
  CHECK(figures_not_measured(Fixture().report()) == "");
}

TEST_CASE("Influences that are interrupted are what was done, as text or JSON", "[lab][report]") {
  const LabOptions options = short_run();
  std::atomic<bool> stop = false;
  std::size_t runs = 0;
  const PlanHooks hooks{.progress = [&](std::size_t, std::size_t) { stop = ++runs == 3; },
                        .stop = &stop};
  const auto table = find_influences(options.file, options.choice, 1, hooks);
  REQUIRE(table.has_value());
  CHECK_FALSE(table->complete);
  REQUIRE(std::ranges::count(table->influences, true, &Influence::possible) == 2);
  CHECK_THAT(to_text(*table), Catch::Contains("Not complete: one drive, write: it was"));
  const json whole = json::parse(to_json(*table));
  CHECK(whole["complete"] == false);
  CHECK(whole["reason"] == table->wrong);
  CHECK(whole["influences"].size() == table->influences.size());
  CHECK(whole["influences"][0]["parameter"] == table->influences[0].parameter);
}

TEST_CASE("Least and variation of what has no value are not measured", "[lab][report]") {
  auto plan = read_experiments("conf/lab/istor-gigastor.toml");
  REQUIRE(plan.has_value());
  REQUIRE(choose(*plan, short_run().choice) == "");
  Wanted& wanted = plan->rows[0].wanted[0];
  plan->rows[0].wanted.resize(1);
  CaseResult result{.seconds = 70,
                    .volumes = {{.requests = 5, .bytes = 5, .requests_by_second = {}},
                                {.number = 1, .requests_by_second = {}}}};
  result.volumes[0].requests_by_second.resize(70);
  const PlanHooks hooks{.run = [&result](const ArrayProfile&, const Case&) { return result; }};
  CHECK(run_plan(*plan, 1, hooks).measured.size() == 1);
  wanted.least = true;
  CHECK(run_plan(*plan, 1, hooks).rows[0].too_short ==
        "no request of a volume ended in the 70 s measured; measure longer");
  wanted.least = false;
  wanted.metric = Metric::kVariation;
  CHECK(run_plan(*plan, 1, hooks).rows[0].too_short ==
        "no request ended in whole 10 s; measure longer");
}

TEST_CASE("Influences on figures that have no value are not told as none", "[lab][report]") {
  LabOptions options = short_run();
  options.choice.run_time = std::chrono::microseconds(10);
  const auto table = find_influences(options.file, options.choice, 1, {});
  REQUIRE(table.has_value());
  CHECK_FALSE(table->complete);
  CHECK_THAT(table->wrong, Catch::Contains("no request ended in the 1e-05 s measured"));
}

TEST_CASE("Text has columns as wide as needed, and is broken between words where it is shown",
          "[lab][report]") {
  Fixture test;
  Figure& alone = test.plan.figures.figures.back();
  alone.id = "a-figure-with-a-name-that-is-long";
  alone.note = "a note of more than forty letters, in words";
  alone.value = 0.5;
  alone.tolerance = 5;
  alone.tolerance_in_points = true;
  test.plan.figures.figures[0].note = alone.note;
  test.plan.system.parameters[0].source = "a source that has more than forty letters as well";
  test.result.measured[alone.id] = 2.5;
  const std::string whole = to_text(test.report());
  CHECK_THAT(whole, Catch::Contains(fmt::format(
                        "\n{:<33}    100.0 100.0 IOPS  +0.0 %  3 % pass, fit\n", "32k-1-iops")));
  CHECK_THAT(whole, Catch::Contains("\na-figure-with-a-name-that-is-long     0.50  2.50 MB/s "
                                    "+2.0 pt 5 pt pass, fit\n"));
  CHECK_THAT(whole, Catch::Contains("\n  32k-1-iops, a-figure-with-a-name-that-is-long: a note of "
                                    "more than forty letters, in words\n"));
  CHECK_THAT(whole, Catch::Contains("  drive.rate 7 fitted a source that has more"));
  const std::string narrow = to_text(test.report(), 40);
  CHECK_THAT(narrow, Catch::Contains("\n  32k-1-iops,\n      a-figure-with-a-name-that-is-long:\n"
                                     "      a note of more than forty letters,\n      in words\n"));
  CHECK_THAT(narrow,
             Catch::Contains("  drive.rate 7 fitted\n      a source that has more than forty\n"
                             "      letters as well\n"));
  CHECK_THAT(to_text(test.report(), 80),
             Catch::Contains("  drive.rate 7 fitted a source that has"));
}

TEST_CASE("Text is as wide as the user says, else as the terminal, and no less than 60 columns",
          "[lab][report]") {
  CHECK(text_columns("80", 120) == 80);
  CHECK(text_columns("80", 0) == 80);
  CHECK(text_columns("7", 120) == 60);
  CHECK(text_columns(nullptr, 120) == 120);
  CHECK(text_columns(nullptr, 30) == 60);
  CHECK(text_columns(nullptr, 0) == 0);
  for (const char* wrong : {"", "0", "wide", "80x", "-1", "99999999999999999999999"}) {
    CHECK(text_columns(wrong, 120) == 120);
    CHECK(text_columns(wrong, 0) == 0);
  }
}

TEST_CASE("A page stays in its folder, whatever the plan is called", "[lab][report]") {
  CHECK(page_file_name("istor-gigastor") == "istor-gigastor.html");
  CHECK(page_file_name("../../../x") == "-.-..-..-x.html");
  CHECK(page_file_name("x\ny z") == "x-y-z.html");
  CHECK(page_file_name("") == "lab.html");
  CHECK(page_file_name(std::string(5000, 'a')).size() < 255);
}

TEST_CASE("A page that cannot be written is told before the run, with the reason",
          "[lab][report]") {
  const std::filesystem::path folder = fresh_folder("sandbay-no-page");
  std::ofstream(folder.string()) << "a file";
  LabOptions options = short_run();
  options.html_folder = (folder / "pages").string();
  const Output out;
  const Output errors;
  CHECK(run_lab(options, out.file.get(), errors.file.get()) == 2);
  CHECK(out.text() == "");
  CHECK_THAT(errors.text(), Catch::Contains("--html " + options.html_folder) &&
                                Catch::Contains("Not a directory"));
  std::filesystem::remove(folder);
}

TEST_CASE("Output that is full is one line, and the page is there all the same", "[lab][report]") {
  const std::filesystem::path folder = fresh_folder("sandbay-page");
  LabOptions options = short_run();
  options.html_folder = folder.string();
  const Output errors;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> full(std::fopen("/dev/full", "w"),
                                                             &std::fclose);
  CHECK(run_lab(options, full.get(), errors.file.get()) == 1);
  CHECK(errors.text() == "sandbay: the output cannot be written: No space left on device\n");
  std::ifstream page(folder / "istor-gigastor.html");
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  CHECK(unbalanced(text) == "");
  CHECK(count(text, "<h2>Where the time went</h2>") == 1);
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 1);
  std::filesystem::remove_all(folder);
  CHECK(list_labs("conf/lab/istor-gigastor.toml", full.get(), errors.file.get()) == 1);
}

}  // namespace sandbay::lab
