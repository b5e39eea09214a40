// Helpers of all commands: answers, sizes and words.
#include "tools/commands.h"

#include <nlohmann/json.hpp>

#include "group/units.h"

namespace sandbay::cli {

nlohmann::json expect(Client::Answer answer) {
  if (!answer) throw Failure(answer.error().message, answer.error().exit);
  return std::move(*answer);
}

std::string expect(std::expected<std::string, Refused> answer) {
  if (!answer) throw Failure(answer.error().message, answer.error().exit);
  return std::move(*answer);
}

void print_json(const nlohmann::json& value) {
  fmt::print("{}\n", value.dump(2, ' ', true, nlohmann::json::error_handler_t::replace));
}

void print_done(const Settings& settings, std::string_view text) {
  if (settings.json) return print_json({{"done", true}});
  say("{}\n", text);
}

std::string human_size(const nlohmann::json& bytes) {
  return group::format_size_rounded(bytes.get<std::uint64_t>());
}

std::string yes_no(bool value) { return value ? "yes" : "no"; }

std::string text_of(const nlohmann::json& value) { return value.get<std::string>(); }

std::string joined(const nlohmann::json& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + text_of(name);
  return text;
}

}  // namespace sandbay::cli
