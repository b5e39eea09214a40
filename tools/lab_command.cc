// sandbay lab run|influences|list: reads the options; src/lab does the work.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

#include "lab/lab.h"
#include "tools/commands.h"

namespace sandbay::cli {

namespace {

struct LabArguments {
  lab::LabOptions options;
  bool csv = false;
  std::string folder = "conf/lab";
};

void add_common(CLI::App& verb, LabArguments& a) {
  verb.add_option("FILE", a.options.file, "Experiments, such as conf/lab/istor-gigastor.toml")
      ->required();
  verb.add_option("--threads", a.options.threads, "Cases that run side by side")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
}

}  // namespace

void add_lab_commands(CLI::App& app, Settings& settings) {
  const auto a = std::make_shared<LabArguments>();
  a->options.threads = std::clamp(std::thread::hardware_concurrency(), 1U, 64U);
  CLI::App* noun = app.add_subcommand(
      "lab", "Run experiments on modelled systems, and compare them with what documents say");
  noun->require_subcommand(1);

  CLI::App* run = noun->add_subcommand("run", "Run the experiments of a file in virtual time");
  add_common(*run, *a);
  run->add_flag("--csv", a->csv, "Print the figures as comma-separated values");
  run->add_option("--html", a->options.html_folder, "Write a page with plots there as well")
      ->type_name("DIR");
  run->footer(
      "Exit code 1 if a figure is outside of its tolerance or was not run, 2 if the file is "
      "wrong.");
  run->callback([&settings, a] {
    a->options.progress = ::isatty(STDERR_FILENO) == 1;
    a->options.form = settings.json ? lab::ReportForm::kJson
                      : a->csv      ? lab::ReportForm::kCsv
                                    : lab::ReportForm::kText;
    settings.exit_code = lab::run_lab(a->options, stdout, stderr);
  });

  CLI::App* influences = noun->add_subcommand(
      "influences", "What 20 per cent more and less of each fitted parameter do to the figures");
  add_common(*influences, *a);
  influences->callback([&settings, a] {
    a->options.progress = ::isatty(STDERR_FILENO) == 1;
    settings.exit_code = lab::run_influences(a->options, stdout, stderr);
  });

  CLI::App* list = noun->add_subcommand("list", "List the experiment files of a folder");
  list->add_option("DIR", a->folder, "The folder")->capture_default_str();
  list->callback(
      [&settings, a] { settings.exit_code = lab::list_labs(a->folder, stdout, stderr); });
}

}  // namespace sandbay::cli
