// Each noun and verb is one row of a case statement: the words that may follow it.
#include "tools/completion.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

namespace sandbay::cli {

namespace {

std::string options_of(const CLI::App& app, bool help) {
  std::string words;
  for (const CLI::Option* option : app.get_options()) {
    if (!help && option == app.get_help_ptr()) continue;
    for (const std::string& name : option->get_lnames()) words += " --" + name;
  }
  return words;
}

std::vector<const CLI::App*> verbs_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

void add_rows(const CLI::App& app, const std::string& path, const std::string& common,
              std::string& rows) {
  std::string words = options_of(app, true) + common;
  for (const CLI::App* next : verbs_of(app)) {
    if (next->get_group().empty()) continue;  // Hidden.
    words += " " + next->get_name();
  }
  rows += fmt::format("    '{}') words='{}' ;;\n", path, words.substr(1));
  for (const CLI::App* next : verbs_of(app)) {
    add_rows(*next, path + " " + next->get_name(), common, rows);
  }
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::string rows;
  // The program's own options may also follow a verb.
  const std::string common = options_of(app, false);
  std::string first;
  for (const CLI::App* noun : verbs_of(app)) {
    if (!noun->get_group().empty()) first += " " + noun->get_name();
    add_rows(*noun, app.get_name() + " " + noun->get_name(), common, rows);
  }
  rows = fmt::format("    '{}') words='{}' ;;\n", app.get_name(),
                     (options_of(app, true) + first).substr(1)) +
         rows;
  return fmt::format(R"(# bash completion of {0}: source <({0} completion bash)
_{0}() {{
  local path={0} words='' word i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${{COMP_WORDS[i]}}
    if _{0}_words "$path" && [[ $word != -* && " $words " == *" $word "* ]]; then
      path="$path $word"
    fi
  done
  _{0}_words "$path"
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
_{0}_words() {{
  words=''
  case $1 in
{1}  esac
}}
complete -o default -F _{0} {0}
)",
                     app.get_name(), rows);
}

}  // namespace sandbay::cli
