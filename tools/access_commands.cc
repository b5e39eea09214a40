// sandbay access add|list|remove
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/table.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

struct AccessArguments {
  std::string volume;
  std::string id;
  std::string initiator;
  std::string address;
  std::string chap_user;
  std::string chap_secret_file;
};

std::string access_path(const std::string& volume) {
  if (volume.empty()) throw CLI::ValidationError("VOLUME", "is empty; write a volume's name");
  return fmt::format("/api/v1/volumes/{}/access", Client::escape(volume));
}

// The first line of the file, which need not end. Secrets do not come from the command line, which
// everybody on the machine can read.
std::string read_secret(const std::string& path) {
  constexpr std::size_t kMostBytes = 4096;
  std::ifstream file(path, std::ios::binary);
  std::string secret(kMostBytes, '\0');
  file.read(secret.data(), static_cast<std::streamsize>(secret.size()));
  secret.resize(static_cast<std::size_t>(file.gcount()));
  if (secret.empty()) {
    throw Failure(
        fmt::format("{} cannot be read; name a file whose first line is the secret", path));
  }
  const std::size_t end = secret.find('\n');
  if (end == std::string::npos && secret.size() == kMostBytes) {
    throw Failure(fmt::format(
        "{} has no line end in its first {} bytes; name a file whose first line is the secret",
        path, kMostBytes));
  }
  secret.resize(std::min(end, secret.size()));
  if (secret.ends_with('\r')) secret.pop_back();
  return secret;
}

void list_access(const Settings& settings, const AccessArguments& arguments) {
  const json answer = expect(Client(settings.management).get(access_path(arguments.volume)));
  if (settings.json) return print_json(answer);
  Table table({{"ID"}, {"INITIATOR"}, {"ADDRESS"}, {"CHAP USER"}, {"DECLARED"}});
  for (const json& access : answer.at("access")) {
    const auto address = access.at("address").get<std::string>();
    table.add({access.at("id").get<std::string>(), access.at("initiator").get<std::string>(),
               address.empty() ? "any" : address, access.at("chap_user").get<std::string>(),
               yes_no(access.at("declared").get<bool>())});
  }
  if (table.empty()) {
    say("No initiator may use volume {}: sandbay access add {} --initiator NAME\n",
        arguments.volume, arguments.volume);
    return;
  }
  fmt::print("{}", table.text());
}

void add(const Settings& settings, const AccessArguments& arguments) {
  json body{{"initiator", arguments.initiator}};
  if (!arguments.address.empty()) body["address"] = arguments.address;
  if (!arguments.chap_user.empty()) {
    body["chap_user"] = arguments.chap_user;
    body["chap_secret"] = read_secret(arguments.chap_secret_file);
  }
  const json access = expect(Client(settings.management).post(access_path(arguments.volume), body));
  if (settings.json) return print_json(access);
  say("volume {}: access record {} for {}\n", arguments.volume, access.at("id").get<std::string>(),
      arguments.initiator);
}

void remove_access(const Settings& settings, const AccessArguments& arguments) {
  const std::string path =
      fmt::format("{}/{}", access_path(arguments.volume), Client::escape(arguments.id));
  expect(Client(settings.management).remove(path));
  print_done(settings,
             fmt::format("volume {}: access record {} removed", arguments.volume, arguments.id));
}

}  // namespace

void add_access_commands(CLI::App& app, Settings& settings) {
  const auto a = std::make_shared<AccessArguments>();
  CLI::App* noun = app.add_subcommand(
      "access", "Initiators that may use a volume: list, add, remove access records");
  noun->require_subcommand(1);
  noun->footer(
      "Access records belong to the volume's target and apply to all its LUNs. They apply "
      "at\nlogin: existing sessions stay. session drop ends one.");

  CLI::App* verb = noun->add_subcommand("list", "List a volume's access records");
  verb->add_option("VOLUME", a->volume)->required();
  verb->callback([&settings, a] { list_access(settings, *a); });

  verb = noun->add_subcommand("add", "Let initiators use a volume");
  verb->add_option("VOLUME", a->volume)->required();
  verb->add_option("--initiator", a->initiator,
                   "Initiator name; * and ? are wildcards, '*' alone is every initiator")
      ->required()
      ->type_name("PATTERN");
  verb->add_option("--address", a->address,
                   "Only from this address or network, such as 192.0.2.7 or 192.0.2.0/24")
      ->type_name("ADDRESS");
  auto* user = verb->add_option("--chap-user", a->chap_user, "Demand CHAP with this user name");
  auto* secret = verb->add_option("--chap-secret-file", a->chap_secret_file,
                                  "File whose first line is the secret, 12 to 255 bytes");
  user->type_name("NAME")->needs(secret);
  secret->type_name("FILE")->needs(user);
  verb->callback([&settings, a] { add(settings, *a); });

  verb = noun->add_subcommand("remove", "Remove an access record that was added");
  verb->add_option("VOLUME", a->volume)->required();
  verb->add_option("ID", a->id, "As access list shows it")->required();
  verb->callback([&settings, a] { remove_access(settings, *a); });
}

}  // namespace sandbay::cli
