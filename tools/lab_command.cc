// sandbay lab run|influences|list: reads the options; src/lab does the work.
#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lab/lab.h"
#include "lab/report.h"
#include "tools/commands.h"

namespace sandbay::cli {

namespace {

struct LabArguments {
  lab::LabOptions options;
  bool csv = false;
  std::string folder = "conf/lab";
  double time_scale = 1;
  double seconds = 0;
  double ramp = 0;
};

// CLI::Range alone takes what is no number for one that is within.
CLI::Validator a_number(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        double number = 0;
        const bool good = CLI::detail::lexical_cast(text, number);
        if (good && number >= least && number <= most) return std::string();
        return fmt::format("{} is no number from {} to {}", text, least, most);
      },
      fmt::format("FLOAT in [{} - {}]", least, most));
}

Duration seconds_of(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

void add_choice(CLI::App& verb, LabArguments& a) {
  verb.add_option(
          "--only", a.options.choice.only,
          "Run this experiment, row or case alone, such as \"r5x4, read, volumes 2/64KiB\"; "
          "may have * and ?, and be given several times")
      ->type_name("NAME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  constexpr double kLongestSeconds = 86400;
  verb.add_option("--seconds", a.seconds, "Measure so long, instead of as long as the file says")
      ->type_name("N")
      ->check(a_number(0.001, kLongestSeconds));
  verb.add_option("--ramp", a.ramp, "Ramp up so long before that")
      ->type_name("N")
      ->check(a_number(0, kLongestSeconds));
}

void add_live(CLI::App& verb, LabArguments& a) {
  verb.add_option("--live", a.options.live_options.urls,
                  "Run over iSCSI in real time: against the experiments' system, which is made for "
                  "it, or against a logical unit elsewhere; given again for each volume")
      ->type_name("[iscsi://[user%password@]host[:port][,host[:port]...]/target-name/lun]")
      ->expected(0, 1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  verb.add_flag("--write", a.options.live_options.write,
                "Yes, destroy what is on these logical units: needed where experiments write");
  verb.add_option("--time-scale", a.time_scale,
                  "Seconds that a second of a live system takes; with a URL, as it is behind that")
      ->type_name("N")
      ->check(a_number(1, lab::kLargestTimeScale));
}

// What was given, as options; what stands behind --live and is no URL is the file.
lab::LabOptions options_of(const CLI::App& verb, const LabArguments& a, bool json) {
  lab::LabOptions options = a.options;
  const auto given = [&verb](const char* name) {
    const CLI::Option* const option = verb.get_option_no_throw(name);
    return option != nullptr && option->count() != 0;
  };
  options.live = given("--live");
  auto& urls = options.live_options.urls;
  std::erase(urls, "");
  if (options.file.starts_with("iscsi://")) {
    urls.push_back(std::move(options.file));
    options.file.clear();
  }
  const auto file = std::ranges::find_if(
      urls, [](const std::string& url) { return !url.starts_with("iscsi://"); });
  if (options.file.empty() && file != urls.end()) {
    options.file = *file;
    urls.erase(file);
  }
  if (options.file.empty()) throw CLI::RequiredError("FILE");
  if (given("--time-scale")) options.time_scale = a.time_scale;
  if (given("--seconds")) options.choice.run_time = seconds_of(a.seconds);
  if (given("--ramp")) options.choice.ramp_up = seconds_of(a.ramp);
  if (json && a.csv) {
    throw CLI::ValidationError("--csv", "stands beside --json; one of them is accepted");
  }
  struct winsize window{};
  ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window);  // Of what is no terminal it leaves 0.
  options.columns = lab::text_columns(std::getenv("COLUMNS"), window.ws_col);
  options.progress = ::isatty(STDERR_FILENO) == 1;
  options.form = json    ? lab::ReportForm::kJson
                 : a.csv ? lab::ReportForm::kCsv
                         : lab::ReportForm::kText;
  return options;
}

CLI::Option* add_common(CLI::App& verb, LabArguments& a) {
  CLI::Option* file =
      verb.add_option("FILE", a.options.file, "Experiments, such as conf/lab/istor-gigastor.toml");
  verb.add_option("--threads", a.options.threads, "Cases that run side by side")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  return file;
}

}  // namespace

void add_lab_commands(CLI::App& app, Settings& settings) {
  const auto a = std::make_shared<LabArguments>();
  a->options.threads = std::clamp(std::thread::hardware_concurrency(), 1U, 64U);
  CLI::App* noun = app.add_subcommand(
      "lab", "Run experiments on modelled systems, and compare them with what documents say");
  noun->require_subcommand(1);

  CLI::App* run =
      noun->add_subcommand("run", "Run the experiments of a file in virtual time, or live");
  add_common(*run, *a);
  add_choice(*run, *a);
  run->add_flag("--until-steady", a->options.choice.until_steady,
                "End a run after half of its time or later, once half of the 95 per cent interval "
                "of each of its figures is under a quarter of the figure's tolerance");
  run->add_flag("--csv", a->csv, "Print the figures as comma-separated values");
  run->add_option("--html", a->options.html_folder, "Write a page with plots there as well")
      ->type_name("DIR")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return text.empty() ? std::string("is empty; a folder is accepted") : std::string();
          },
          ""));
  add_live(*run, *a);
  run->footer(
      "Exit code 1 if a figure is outside of its tolerance or was not run, 2 if the file is "
      "wrong.");
  run->callback([&settings, a, run] {
    settings.exit_code = lab::run_lab(options_of(*run, *a, settings.json), stdout, stderr);
  });

  CLI::App* influences = noun->add_subcommand(
      "influences", "What 20 per cent more and less of each fitted parameter do to the figures");
  add_common(*influences, *a)->required();
  add_choice(*influences, *a);
  influences->callback([&settings, a, influences] {
    settings.exit_code =
        lab::run_influences(options_of(*influences, *a, settings.json), stdout, stderr);
  });

  CLI::App* list =
      noun->add_subcommand("list", "List the experiment files of a folder, or the cases of a file");
  list->add_option("PATH", a->folder, "The folder or file")->capture_default_str();
  list->callback(
      [&settings, a] { settings.exit_code = lab::list_labs(a->folder, stdout, stderr); });
}

}  // namespace sandbay::cli
