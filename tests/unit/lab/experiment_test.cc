// Experiment files: those that come with Sandbay, and what is refused.
#include "lab/experiment.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "group/drive_file.h"

namespace sandbay::lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kArray = R"([group]
name = "small"
state = "state"
[[portal]]
count = 2
listen = "127.0.0.1:{3260+1}"
rate = { value = "1Gbit/s", from = "assumed", source = "a test" }
[[drive]]
name = "d"
count = 4
file = "{}.img"
profile = "maxtor-7l250s0"
)";

constexpr const char* kBed = R"(array = "small.toml"
[[host]]
name = "fast"
request_time = { value = "1us", from = "fitted", source = "a test" }
)";

constexpr const char* kFigures = R"(document = "a paper"
[[figure]]
id = "one"
unit = "IOPS"
value = 100
role = "fit"
tolerance_percent = 5
)";

constexpr const char* kExperiment = R"(name = "small"
bed = "bed.toml"
figures = "figures.toml"
[[experiment]]
name = "reads"
vary = { sets = [1, 2] }
run_time = "1s"
sweep = ["4KiB", "8KiB"]
[[experiment.group]]
level = "raid0"
drives = 2
sets = "sets"
host = "fast"
outstanding = 4
[[experiment.figure]]
id = "one"
metric = "IOPS"
when = { sets = [1] }
)";

// A folder with the four files, of which any text may be replaced.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / fs::path("lab-experiment-test")) {
    fs::remove_all(path_);
    fs::create_directories(path_ / "iometer");
    fs::copy("conf/drives", path_ / "drives");
    REQUIRE(::mkfifo((path_ / "pipe").c_str(), 0600) == 0);
    fs::copy_file("conf/lab/iometer/compellent-64k.icf", path_ / "iometer" / "c.icf");
    write("small.toml", kArray);
    write("bed.toml", kBed);
    write("figures.toml", kFigures);
    write("lab.toml", kExperiment);
  }
  ~Folder() { fs::remove_all(path_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
  }
  std::string text(const std::string& name) const {
    std::ifstream file(path_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void change(const std::string& name, const std::string& from, const std::string& to) const {
    std::string text = this->text(name);
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    write(name, text.replace(at, from.size(), to));
  }
  std::expected<Plan, std::string> read(const Scales& scales = {}) const {
    return read_experiments((path_ / "lab.toml").string(), scales);
  }
  std::string error() const {
    const auto plan = read();
    return plan ? std::string("no error") : plan.error();
  }

 private:
  fs::path path_;
};

}  // namespace

TEST_CASE("Each combination of what is varied is a row", "[lab][experiment]") {
  const Folder folder;
  const auto plan = folder.read();
  INFO((plan ? std::string() : plan.error()));
  REQUIRE(plan.has_value());
  REQUIRE(plan->rows.size() == 2);
  CHECK(plan->rows[0].name() == "reads, sets 1");
  CHECK(plan->rows[1].groups[0].sets == 2);
  CHECK(plan->rows[1].groups[0].requests() == 4);
  CHECK(plan->rows[1].groups_with(8192)[0].access.lines[0].bytes == 8192);
  CHECK(plan->rows[0].wanted[0].metric == Metric::kIops);
  CHECK(plan->rows[1].number == 1);
  CHECK(plan->time_scale == 1);
}

TEST_CASE("A file says how far time is stretched where its experiments are live",
          "[lab][experiment]") {
  const Folder folder;
  folder.change("lab.toml", "figures =", "time_scale = 2.5\nfigures =");
  const auto plan = folder.read();
  REQUIRE(plan.has_value());
  CHECK(plan->time_scale == 2.5);
}

TEST_CASE("An experiment says whether its sessions are real", "[lab][experiment]") {
  const Folder folder;
  const auto modelled = folder.read();
  REQUIRE(modelled.has_value());
  CHECK_FALSE(modelled->rows[0].real_sessions);
  folder.change("lab.toml", "run_time =", "sessions = \"modelled\"\nrun_time =");
  CHECK(folder.error() == "no error");
  folder.change("lab.toml", "\"modelled\"", "\"real\"");
  const auto real = folder.read();
  REQUIRE(real.has_value());
  CHECK(real->rows[1].real_sessions);
  folder.change("lab.toml", "\"real\"", "\"true\"");
  CHECK_THAT(folder.error(),
             Catch::Contains("lab.toml:7: experiment.sessions: is \"true\"; \"modelled\" and "
                             "\"real\" are accepted"));
}

TEST_CASE("Sessions are real where our initiator and target can have them", "[lab][experiment]") {
  const Folder folder;
  folder.change("lab.toml", "run_time =", "sessions = \"real\"\nrun_time =");
  folder.change("lab.toml", "outstanding = 4", "outstanding = 4097");
  CHECK_THAT(folder.error(),
             Catch::Contains("lab.toml:15: experiment.group.outstanding: reads, sets 1: has 4097 "
                             "requests outstanding in a session; one that is no model has at most "
                             "4096"));
  folder.change("lab.toml", "outstanding = 4097", "outstanding_per_connection = 4097");
  CHECK_THAT(folder.error(),
             Catch::Contains("lab.toml:15: experiment.group.outstanding_per_connection: reads"));
  folder.change("lab.toml", "outstanding_per_connection = 4097",
                "outstanding = 4\nconnections = 33");
  folder.change("small.toml", "count = 2", "count = 40");
  CHECK_THAT(folder.error(),
             Catch::Contains("lab.toml:16: experiment.group.connections: reads, sets 1: has "
                             "sessions of 33 connections; one that is no model has at most 32"));
  folder.change("lab.toml", "\nconnections = 33", "");
  folder.change("bed.toml", "[[host]]", "front_end = \"Fibre Channel\"\n[[host]]");
  CHECK_THAT(folder.error(),
             Catch::Contains("lab.toml:7: experiment.sessions: is \"real\", but the system's front "
                             "end is Fibre Channel"));
  folder.change("bed.toml", "Fibre Channel", "SCSI");
  CHECK_THAT(folder.error(),
             Catch::Contains("bed.toml:2: front_end: is \"SCSI\"; accepted are iSCSI, Fibre "
                             "Channel, NFS"));
}

TEST_CASE("Sizes may be varied, and a figure is of the rows that it names", "[lab][experiment]") {
  const Folder folder;
  folder.change("lab.toml", "vary = { sets = [1, 2] }",
                "vary = { sets = [1, 2], record = [4, 8] }");
  folder.change("lab.toml", "sweep = [\"4KiB\", \"8KiB\"]\n", "");
  folder.change("lab.toml", "outstanding = 4",
                "size_kib = \"record\"\nworkers = 3\nspread = \"sets\"");
  folder.change("lab.toml", "metric = \"IOPS\"",
                "metric = \"IOPS\"\nleast = true\ndivide_by = 0.5");
  folder.change("lab.toml", "when = { sets = [1]", "when = { sets = [1], record = [2, 8]");
  const auto plan = folder.read();
  INFO((plan ? std::string() : plan.error()));
  REQUIRE(plan.has_value());
  REQUIRE(plan->rows.size() == 4);
  CHECK(plan->rows[0].groups[0].access.lines[0].bytes == 4096);
  CHECK(plan->rows[3].groups[0].access.lines[0].bytes == 8192);
  CHECK(plan->rows[3].groups[0].volume_count() == 1);
  CHECK(plan->rows[3].groups[0].workers == 3);
  for (const Row& row : plan->rows) {
    INFO(row.name());
    CHECK(row.wanted.size() == (row.name() == "reads, record 8, sets 1" ? 1U : 0U));
  }
  REQUIRE(plan->rows[2].wanted.size() == 1);
  CHECK(plan->rows[2].wanted[0].least);
  CHECK(plan->rows[2].wanted[0].divide_by == 0.5);
}

TEST_CASE("A parameter that exists can be scaled, and no other", "[lab][experiment]") {
  const Folder folder;
  const auto plan = folder.read({{"host.fast.request_time", 1.2}});
  REQUIRE(plan.has_value());
  CHECK(plan->system.hosts[0].profile.request_times[0] == std::chrono::nanoseconds(1200));
  CHECK(folder.read({{"host.slow.request_time", 1.2}}).error().find("no parameter") !=
        std::string::npos);
  folder.change("bed.toml", "[[host]]",
                "[layout]\ncontrollers = { value = 1, from = \"fitted\", source = \"a test\" }\n"
                "[[host]]");
  CHECK(folder.read({{"layout.controllers", 1.2}}).error().find("no other number") !=
        std::string::npos);
  // The array's own values, of all sections that are counted.
  const auto slower = folder.read({{"portal.rate", 0.8}});
  REQUIRE(slower.has_value());
  CHECK(slower->system.port.rate == 100'000'000);
  CHECK(slower->system.port_count == 2);
}

TEST_CASE("What a bed says of an array counts more than the array's file", "[lab][experiment]") {
  const Folder folder;
  folder.change(
      "small.toml", "[[drive]]",
      "[cache]\nmemory = { value = \"512MiB\", from = \"document\", source = \"array\" }\n"
      "drive_write = \"1MiB\"\n[[drive]]");
  const auto plain = folder.read();
  INFO((plain ? std::string() : plain.error()));
  REQUIRE(plain.has_value());
  CHECK(plain->system.cache_bytes == 512U << 20);
  CHECK(plain->system.dirty_bytes == 128U << 20);
  CHECK(plain->system.drive_write_bytes == 1U << 20);
  folder.change("bed.toml", "[[host]]",
                "[cache]\nmemory = { value = \"1GiB\", from = \"assumed\", source = \"bed\" }\n"
                "dirty = \"32MiB\"\n[[host]]");
  const auto plan = folder.read();
  INFO((plan ? std::string() : plan.error()));
  REQUIRE(plan.has_value());
  CHECK(plan->system.cache_bytes == 1U << 30);
  CHECK(plan->system.dirty_bytes == 32U << 20);
  CHECK(plan->system.drive_write_bytes == 1U << 20);
  const auto memory = std::ranges::find(plan->system.parameters, "cache.memory", &Parameter::name);
  REQUIRE(memory != plan->system.parameters.end());
  CHECK(memory->source == "bed");
  CHECK(std::ranges::count(plan->system.parameters, "cache.memory", &Parameter::name) == 1);
}

TEST_CASE("A test bed may be the experiments' own", "[lab][experiment]") {
  const Folder folder;
  folder.change("lab.toml", "bed = \"bed.toml\"", "array = \"small.toml\"");
  folder.change("lab.toml", "[[experiment]]", "[[host]]\nname = \"fast\"\n[[experiment]]");
  const auto plan = folder.read();
  INFO((plan ? std::string() : plan.error()));
  REQUIRE(plan.has_value());
  CHECK(plan->system.name == "small");
  CHECK(plan->system.hosts.size() == 1);
  folder.change("lab.toml", "array = \"small.toml\"\n", "");
  CHECK_THAT(folder.error(),
             Catch::Contains("array: is missing; write a file of conf/arrays, or bed"));
}

TEST_CASE("An experiment may be of an array that stands beside the file's", "[lab][experiment]") {
  const Folder folder;
  folder.write("other.toml", folder.text("small.toml"));
  folder.change(
      "other.toml", "count = 4",
      "count = 4\nbegin = { value = \"100GiB\", from = \"fitted\", source = \"a test\" }");
  folder.change("bed.toml", "[[host]]",
                "[[beside]]\narray = \"other.toml\"\n[[beside.host]]\nname = \"fast\"\n"
                "request_time = \"1us\"\n[[host]]");
  folder.change("lab.toml", "run_time", "system = \"other\"\nrun_time");
  const auto plan = folder.read({{"other.drive.begin", 1.2}, {"host.fast.request_time", 0.8}});
  INFO((plan ? std::string() : plan.error()));
  REQUIRE(plan.has_value());
  const ArrayProfile& other = plan->system_of(plan->rows[0]);
  CHECK(other.name == "other");
  CHECK(other.first_byte == std::uint64_t{120} << 30);
  CHECK(other.hosts[0].profile.request_times[0] == std::chrono::nanoseconds(1000));
  CHECK(plan->system.first_byte == 0);
  // What it has is among the parameters, and so in tables of them.
  CHECK(std::ranges::count(plan->system.parameters, "other.drive.begin", &Parameter::name) == 1);

  folder.change("other.toml", "100GiB", "158GiB");
  const auto nearer = folder.read({{"other.drive.begin", 0.8}});
  REQUIRE(nearer.has_value());
  CHECK(nearer->system_of(nearer->rows[0]).first_byte ==
        (std::uint64_t{158} << 30) * 4 / 5 / 4096 * 4096);
  CHECK_THAT(folder.read({{"other.drive.end", 1.2}}).error(),
             Catch::Contains("drive.end: is no parameter"));
  CHECK_THAT(folder.read({{"other.drive.begin", 3}}).error(), Catch::Contains("other.toml:"));
  folder.change("lab.toml", "drives = 2", "drives = 3");
  CHECK_THAT(folder.error(), Catch::Contains("6 drives are needed, but the system has 4"));
  folder.change("lab.toml", "system = \"other\"", "system = \"third\"");
  CHECK_THAT(folder.error(), Catch::Contains("is \"third\"; beside small there is \"other\""));
  folder.change("bed.toml", "\"other.toml\"", "\"none.toml\"");
  CHECK_THAT(folder.error(), Catch::Contains("bed.toml:3: beside.array: ") &&
                                 Catch::Contains("none.toml cannot be opened"));
  folder.change("bed.toml", "\"none.toml\"", "\"small.toml\"");
  CHECK_THAT(folder.error(), Catch::Contains("is \"small\", and an array of that name"));
  // An array beside has none itself.
  folder.change("bed.toml", "\"small.toml\"\n[[beside.host]]",
                "\"other.toml\"\n[[beside.beside]]\narray = \"small.toml\"\n[[beside.host]]");
  CHECK_THAT(folder.error(), Catch::Contains("beside.beside"));
}

TEST_CASE("A specification comes from an IOMeter file, whose mistakes are told with its line",
          "[lab][experiment]") {
  const Folder folder;
  folder.change("lab.toml", "sweep = [\"4KiB\", \"8KiB\"]\n", "");
  folder.change("lab.toml", "outstanding = 4",
                "iometer = \"iometer/c.icf\"\n"
                "specification = \"64K Data Random Split\"");
  const auto plan = folder.read();
  REQUIRE(plan.has_value());
  CHECK(plan->rows[0].groups[0].access.lines[0].read_percent == 50);
  CHECK(plan->rows[0].groups[0].outstanding == 10);
  folder.change("iometer/c.icf", "\tDISK", "\tNETWORK,TCP");
  CHECK_THAT(folder.error(), Catch::Contains("lab.toml:") && Catch::Contains("of type DISK"));
  folder.change("iometer/c.icf", "\tNETWORK,TCP", "\tDISK");
  folder.change("iometer/c.icf", "\t0,0\r", "\t0,4096\r");
  CHECK_THAT(folder.error(), Catch::Contains("part of their disks; say volume_size"));
  folder.change("iometer/c.icf", "\t0,4096\r", "\t0,0\r");
  folder.change("lab.toml", "run_time", "sweep = [\"4KiB\"]\nrun_time");
  CHECK_THAT(folder.error(), Catch::Contains("contradicts sweep"));
  folder.change("lab.toml", "sweep = [\"4KiB\"]\n", "");
  folder.change("iometer/c.icf", "CYCLE_TARGETS", "CYCLE_OUTSTANDING_IOS");
  CHECK(folder.error().find("6 queue depths") != std::string::npos);
  folder.change("lab.toml", "Random Split", "Random Splat");
  CHECK(folder.error().find("Random Splat") != std::string::npos);
  folder.change("iometer/c.icf", "'END manager list", "");
  CHECK(folder.error().find("c.icf:") != std::string::npos);
}

namespace {

struct {
  const char* file;
  const char* from;
  const char* to;
  const char* line;
  const char* part;
} const kRefused[] = {
    {"small.toml", "rate =", "mtu = \"40B\"\nrate =", "small.toml:7: portal[1].mtu: ", "40B"},
    {"small.toml", "count = 4", "count = 0", "small.toml:10: drive[1].count: ", ""},
    {"small.toml", "profile = \"maxtor-7l250s0\"", "size = \"1GiB\"",
     "small.toml:8: drive.profile: ", "is missing"},
    {"small.toml", "[[drive]]",
     "[[drive]]\nname = \"e\"\nfile = \"e\"\nprofile = \"intel-p3700-800\"\n[[drive]]",
     "small.toml:12: drive.profile: ", "is not that of the first drive"},
    {"bed.toml", "small.toml", "none.toml", "bed.toml:1: array: ", "cannot be opened"},
    {"bed.toml", "[[host]]", "colour = 1\n[[host]]", "bed.toml:2: colour: ", "is not a key here"},
    {"bed.toml", "[[host]]",
     "[cache]\nmemory = \"512MiB\"\ndirty = { value = \"1GiB\", from = \"assumed\", source = "
     "\"a test\" }\n[[host]]",
     "bed.toml:4: cache.dirty", "all of the cache's memory"},
    {"bed.toml", "[[host]]", "[cache]\nmemory = \"1KiB\"\n[[host]]", "bed.toml:3: cache.memory",
     "all of the cache's memory"},
    {"bed.toml", "array = \"small.toml\"", "bed = \"bed.toml\"",
     "bed.toml:1: bed: ", "name the file that has the array"},
    {"bed.toml", "[[host]]", "[cache]\nflush_mark = 100\n[[host]]", "bed.toml:3: cache.flush_mark",
     "99"},
    {"bed.toml", "[[host]]", "[layout]\ncontrollers = 0\n[[host]]",
     "bed.toml:3: layout.controllers", "64"},
    {"bed.toml", "[[host]]", "[layout]\npage = \"8192PiB\"\n[[host]]", "bed.toml:3: layout.page",
     "8192PiB"},
    {"bed.toml", "[[host]]", "[layout]\npage = \"5000B\"\n[[host]]", "bed.toml:3: layout.page",
     "multiple of 4096"},
    {"bed.toml", "[[host]]", "[session]\nmax_burst = \"0B\"\n[[host]]",
     "bed.toml:3: session.max_burst", ""},
    {"bed.toml", "[[host]]", "[background]\nread_percent = 101\n[[host]]",
     "bed.toml:3: background.read_percent", "100"},
    {"bed.toml", "[[host]]", "[[host]]\nname = \"fast\"\n[[host]]",
     "bed.toml:5: host.fast.name: ", "another host is called"},
    {"bed.toml", "name = \"fast\"", "name = \"fast\"\nprocessors = 9223372036854775807",
     "bed.toml:4: host.fast.processors", "65536"},
    {"bed.toml", "\"1us\"", "\"2h\"", "bed.toml:4: host.fast.request_time", "to 1h"},
    {"bed.toml", "\"1us\"", "\"1 second\"", "bed.toml:4: host.fast.request_time", ""},
    {"bed.toml", "\"fitted\"", "\"guessed\"", "bed.toml:4: ", "\"guessed\""},
    {"lab.toml", "id = \"one\"", "id = \"two\"", "lab.toml:16: ", "\"two\" is no figure"},
    {"lab.toml", "drives = 2", "drives = 3", "lab.toml:4: ", "6 drives are needed"},
    {"lab.toml", "raid0", "raid6", "lab.toml:4: ", "raid6"},
    {"lab.toml", "raid0", "raid9", "lab.toml:10: ", "\"raid9\""},
    {"lab.toml", "outstanding = 4", "connections = 3", "lab.toml:4: ", "2 ports"},
    {"lab.toml", "outstanding = 4", "path = \"fastest\"\noutstanding = 4",
     "experiment.group.path: ",
     "is \"fastest\"; \"least-queue-depth\" and \"round-robin\" are accepted"},
    {"lab.toml", "host = \"fast\"", "host = \"slow\"", "lab.toml:13: ", "hosts of this system"},
    {"lab.toml", "sets = \"sets\"", "sets = \"volumes\"", "lab.toml:12: ", "or \"sets\""},
    {"lab.toml", "outstanding = 4", "size = \"4KiB\"", "lab.toml:14: ", "contradicts sweep"},
    {"lab.toml", "outstanding = 4", "volume_size = \"1TiB\"", "lab.toml:4: ", "larger than their"},
    {"lab.toml", "outstanding = 4", "offset = \"4KiB\"", "lab.toml:", "volume_size"},
    {"lab.toml", "outstanding = 4",
     "spread = \"sets\"\nvolume_size = \"16MiB\"\noffset = \"16MiB\"",
     "lab.toml:16: ", "not within"},
    {"lab.toml", "sets = \"sets\"", "members = 2", "lab.toml:12: ", "small is no group of arrays"},
    {"lab.toml", "sets = \"sets\"", "sets = 0", "lab.toml:12: ", "is 0; a whole number from 1"},
    {"lab.toml", "host = \"fast\"\n", "",
     "lab.toml:9: experiment.group.host: is missing; write the type of the hosts, such as \"fast\"",
     ""},
    {"lab.toml", "outstanding = 4", "colour = 4", "lab.toml:14: experiment.group.colour",
     "used, host, hosts, adapters, connections, path, outstanding, "
     "outstanding_per_connection"},
    {"lab.toml", "outstanding = 4", "outstanding = 4\noutstanding_per_connection = 2",
     "lab.toml:15: ", "stands beside outstanding"},
    {"lab.toml", "outstanding = 4", "volumes = 65536", "lab.toml:4: experiment.group.volumes",
     "each of 65536 volumes"},
    {"lab.toml", "outstanding = 4", "align = \"100B\"", "lab.toml:14: experiment.group.align",
     "multiple of 512"},
    {"lab.toml", "bed.toml", "iometer", "lab.toml:2: bed", "is a folder; name a file"},
    {"lab.toml", "bed.toml", "pipe", "lab.toml:2: bed", "is a pipe; name a file"},
    {"lab.toml", "figures.toml", "/dev/zero", "lab.toml:3: figures", "more than 4MiB"},
    {"lab.toml", "outstanding = 4", "used = 2", "lab.toml:14: ", "a set has 1 volumes"},
    {"lab.toml", "outstanding = 4", "controllers = 2", "lab.toml:14: ", "the system has 1"},
    {"lab.toml", "outstanding = 4", "spread = 2", "lab.toml:14: ", "1 sets are no multiple"},
    {"lab.toml", "outstanding = 4", "workers = 60000", "lab.toml:4: ", "needs 16.0 MiB"},
    {"lab.toml", "outstanding = 4", "volumes = 50\noutstanding = 65536",
     "lab.toml:4: ", "more than 4GiB of requests outstanding"},
    {"lab.toml", "outstanding = 4", "workers = 20000",
     "lab.toml:4: ", "has 40000 workers in all; at most 32768"},
    {"lab.toml", "metric = \"IOPS\"", "metric = \"IOPS\"\ndivide_by = 0",
     "lab.toml:18: ", "above 0"},
    {"lab.toml", "when = { sets", "when = { set", "lab.toml:18: ", "is not varied"},
    {"lab.toml", "when = { sets = [1] }\n", "", "lab.toml:16: ", "\"reads, sets 1\" already"},
    {"lab.toml", "metric = \"IOPS\"", "metric = \"ms\"", "lab.toml:17: ", "does not give \"IOPS\""},
    {"lab.toml", "metric = \"IOPS\"", "metric = \"IOPS\"\nvolume = 2",
     "lab.toml:18: ", "reads, sets 1 has 1"},
    {"lab.toml", "sets = [1, 2]", "sets = [1, 2, 1]", "lab.toml:6: ", "has 1 twice"},
    {"lab.toml", "\"8KiB\"]", "\"4096B\"]", "lab.toml:8: ", "has 4096B twice"},
    {"lab.toml", "[[experiment.figure]]", "[[experiment]]\nname = \"reads\"\n[[experiment.figure]]",
     "lab.toml:16: ", "another"},
    {"lab.toml", "outstanding = 4", "adapters = 17", "lab.toml:14: ", "16 at most"},
    {"figures.toml", "value = 100", "value = inf", "figures.toml:5: ", "is no number"},
    {"figures.toml", "_percent = 5", "_percent = nan", "figures.toml:7: ", "is no number"},
    {"figures.toml", "_percent = 5", "_percent = -5", "figures.toml:7: ", "above 0"},
    {"figures.toml", "_percent = 5", "_percent = 5\nminimum = true",
     "figures.toml:7: ", "stands beside minimum"},
    {"figures.toml", "role = \"fit\"", "role = \"fit\"\nsum_of = [\"one\"]\nweights = [\"x\"]",
     "figures.toml:8: ", "are numbers"},
    {"figures.toml", "role = \"fit\"", "role = \"fit\"\nsum_of = [\"one\"]",
     "figures.toml:2: ", "is computed itself"},
    {"figures.toml", "role = \"fit\"\ntolerance_percent = 5",
     "role = \"shape\"\nrule = \"within\"\nat_least = 2\nat_most = 1",
     "figures.toml:7: ", "above its at_most"},
    {"figures.toml", "role = \"fit\"\ntolerance_percent = 5",
     "role = \"shape\"\nrule = \"rising\"\nfigures = [\"one\", \"one\"]\nat_least = -1",
     "figures.toml:7: ", "above 0"},
    {"figures.toml", "tolerance_percent = 5\n",
     "tolerance_percent = 5\n[[figure]]\nid = \"two\"\nrole = \"check\"\nvalue = 1\n"
     "sum_of = [\"three\"]\n[[figure]]\nid = \"three\"\nrole = \"check\"\nvalue = 1\n"
     "sum_of = [\"one\"]\n",
     "figures.toml:8: ", "\"three\", which is computed itself"},
    {"lab.toml", "outstanding = 4", "volumes = 8192\nvolume_size = \"1024PiB\"",
     "lab.toml:4: ", "larger than their"},
    {"figures.toml", "role = \"fit\"", "role = \"fit\"\nmean_of = [\"two\"]",
     "figures.toml:", "\"two\", which is not here"},
    {"figures.toml", "role = \"fit\"", "role = \"fit\"\nratio_of = [\"one\"]",
     "figures.toml:7: ", "needs two figures"},
    {"figures.toml", "role = \"fit\"", "role = \"fit\"\nsum_of = [\"one\"]\nweights = [1, 2]",
     "figures.toml:8: ", "one for each figure"},
    {"lab.toml", "figures =", "time_scale = 0.5\nfigures =", "lab.toml:3: ", "from 1 to 1000"},
    {"lab.toml", "run_time", "runtime", "lab.toml:7: ", "run_time"},
    {"lab.toml", "metric = \"IOPS\"", "metric = \"ops\"", "lab.toml:17: ", "\"ops\""},
    {"lab.toml", "bed.toml", "nothing.toml", "lab.toml:2: bed: ", "cannot be opened"},
    {"figures.toml", "value = 100\n", "value = 100\nrule = \"straight\"\n",
     "figures.toml:", "near-linear"},
    {"figures.toml", "value = 100\n", "value = 100\nat_most = 3\n",
     "figures.toml:", "goes with a rule"},
    {"figures.toml", "role = \"fit\"", "role = \"shape\"\nrule = \"rising\"\nat_least = 1",
     "figures.toml:", "needs two figures"},
    {"figures.toml", "value = 100\n", "value = 100\npercent_above = [\"two\", \"one\"]\n",
     "figures.toml:2: ", "\"two\""},
    {"figures.toml", "value = 100\n", "value = 100\nbase = 2\n",
     "figures.toml:", "goes with percent_of"},
    {"figures.toml", "\"fit\"", "\"fitted\"", "figures.toml:6: ", "\"fitted\""},
    {"figures.toml", "value = 100\n", "", "figures.toml:3: ", "needs a value"},
};

}  // namespace

TEST_CASE("What cannot be is refused in one line with file and line", "[lab][experiment]") {
  for (const auto& [file, from, to, line, part] : kRefused) {
    const Folder folder;
    folder.change(file, from, to);
    const std::string error = folder.error();
    INFO(error);
    CHECK(error.find(line) != std::string::npos);
    CHECK(error.find(part) != std::string::npos);
    CHECK(error.find('\n') == std::string::npos);
  }
}

TEST_CASE("Members are as many as the system's group has at most", "[lab][experiment]") {
  const Folder folder;
  folder.write("small.toml", folder.text("small.toml") +
                                 "[[raid]]\nname = \"r\"\nlevel = \"raid0\"\n"
                                 "drives = [\"d0\", \"d1\"]\n[[pool]]\nname = \"p\"\n"
                                 "[[member]]\nname = \"two\"\n[[member.drive]]\nname = \"e\"\n"
                                 "file = \"e\"\nprofile = \"maxtor-7l250s0\"\n");
  folder.change("lab.toml", "sets = \"sets\"", "members = \"sets\"");
  const auto plan = folder.read();
  INFO((plan ? std::string() : plan.error()));
  REQUIRE(plan.has_value());
  CHECK(plan->rows[1].groups[0].members == 2);
  folder.change("lab.toml", "members = \"sets\"", "members = \"sets\"\nspread = 1");
  CHECK_THAT(folder.error(), Catch::Contains("lab.toml:13: ") && Catch::Contains("contradicts"));
  folder.change("lab.toml", "\nspread = 1", "");
  folder.change("lab.toml", "sets = [1, 2]", "sets = [1, 3]");
  CHECK_THAT(folder.error(), Catch::Contains("lab.toml:12: ") && Catch::Contains("has 2 at most"));
}

TEST_CASE("A drive's values have their source and how sure it is, and errors their line",
          "[lab][experiment]") {
  const auto error_with = [](const std::string& from, const std::string& to) {
    std::ifstream file("conf/drives/maxtor-7l250s0.toml");
    std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    const auto drive = group::read_drive_file(text.replace(at, from.size(), to), "d.toml");
    return drive ? std::string("no error") : drive.error();
  };
  CHECK(error_with("rpm", "rpm") == "no error");
  CHECK_THAT(error_with("7200, sure = \"read\"", "7200"),
             Catch::Contains("d.toml:8: values.rpm.sure: is missing; write how sure it is: read"));
  CHECK_THAT(error_with("7200, sure = \"read\"", "7200, sure = \"banana\""),
             Catch::Contains("d.toml:8: values.rpm.sure: is \"banana\"; accepted are read, "));
  CHECK_THAT(error_with("7200,", "7200, foo = 1,"),
             Catch::Contains("d.toml:8: values.rpm.foo: is not a key here"));
  CHECK_THAT(error_with("{ value = 7200", "7200 # "),
             Catch::Contains("d.toml:8: values.rpm: has no"));
  CHECK_THAT(error_with("7200,", "72,"), Catch::Contains("d.toml:8: values.rpm is 72; it must be"));
  CHECK_THAT(error_with("\"disk\"", "\"tape\""), Catch::Contains("d.toml:4: kind: is \"tape\""));
}

TEST_CASE("Too many combinations are refused before they are made", "[lab][experiment]") {
  const Folder folder;
  std::string values = "1";
  for (int i = 2; i < 30; ++i) values += fmt::format(", {}", i);
  std::string vary = "vary = { sets = [1, 2]";
  for (char name = 'a'; name < 'n'; ++name) vary += fmt::format(", {} = [{}]", name, values);
  folder.change("lab.toml", "vary = { sets = [1, 2]", vary);
  CHECK_THAT(folder.error(), Catch::Contains("lab.toml:4: experiment.vary: makes more than 10000"));
}

TEST_CASE("The experiments that come with Sandbay are in order", "[lab][experiment]") {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator("conf/lab")) {
    if (entry.path().extension() != ".toml") continue;
    const auto plan = read_experiments(entry.path().string());
    INFO((plan ? std::string() : plan.error()));
    REQUIRE(plan.has_value());
    ++count;
    // Every figure that is scored is measured, or computed from one that is.
    std::map<std::string, double> measured;
    for (const Row& row : plan->rows) {
      for (const Wanted& wanted : row.wanted) measured[wanted.figure] = 1;
    }
    for (const Finding& finding : judge(plan->figures, measured)) {
      INFO(finding.figure->id);
      CHECK(finding.verdict != Verdict::kNotRun);
    }
  }
  CHECK(count > 0);
}

}  // namespace sandbay::lab
