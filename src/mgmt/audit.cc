// Secrets are found by the names of their keys, at any depth that a body may have. "text" is a
// piece of an export, which has those of all access records. In a body that was not understood any
// text may be one.
#include "mgmt/audit.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "group/json_text.h"
#include "mgmt/json.h"

namespace sandbay::mgmt {

namespace {

using nlohmann::json;

constexpr std::size_t kLongestRequest = 512;
constexpr std::size_t kLargestBody = 16384;  // A larger one is told by its size.
constexpr int kDeepest = 8;

bool is_secret(std::string key) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  std::ranges::transform(key, key.begin(), lower);
  return key.find("secret") != std::string::npos || key.find("password") != std::string::npos ||
         key == "text";
}

void hide_secrets(json& value, bool understood, int depth) {
  if (depth > kDeepest) {
    value = "…";
    return;
  }
  if (value.is_object()) {
    for (auto& [key, member] : value.items()) {
      if (is_secret(key)) {
        member = "…";
      } else {
        hide_secrets(member, understood, depth + 1);
      }
    }
  } else if (value.is_array()) {
    for (json& element : value) hide_secrets(element, understood, depth + 1);
  } else if (value.is_string() && !understood) {
    value = "…";
  }
}

// Never in the middle of a character.
std::string cut(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) --most;
  text.resize(most);
  return text + "…";
}

std::string message_of(const Reply& reply) {
  const json body = group::parse_json(reply.body, kDeepest);
  const auto error = body.is_object() ? body.find("error") : body.end();
  if (!body.is_object() || error == body.end() || !error->is_object()) return "refused";
  return error->value("message", "refused");
}

group::AuditEntry begin_entry(std::string_view operation, std::string_view method,
                              std::string_view path, const Call& call) {
  std::string target = fmt::format("{} {}", method, path);
  char separator = '?';
  for (const auto& [name, value] : call.query) {
    target += fmt::format("{}{}={}", separator, name, value);
    separator = '&';
  }
  return {.caller = call.caller.name,
          .address = call.caller.address,
          .operation = std::string(operation),
          .target = cut(std::move(target), kLongestRequest)};
}

void finish(group::AuditEntry& entry, const Reply& reply) {
  entry.status = static_cast<std::uint32_t>(reply.status);
  if (reply.status >= 400) entry.refusal = cut(message_of(reply), kLongestRequest);
}

}  // namespace

std::string without_secrets(std::string_view body, bool understood) {
  if (body.empty()) return {};
  if (body.size() > kLargestBody) return fmt::format("({} bytes)", body.size());
  json value = group::parse_json(body, kDeepest);
  if (!value.is_object()) return {};
  hide_secrets(value, understood, 0);
  return cut(group::to_text(value), kLongestRequest);
}

group::AuditEntry audit_beginning(const Route& route, std::string_view path, const Call& call) {
  group::AuditEntry entry = begin_entry(route.operation, route.method, path, call);
  entry.request = without_secrets(call.body, false);
  return entry;
}

group::AuditEntry audit_entry(const Route& route, std::string_view path, const Call& call,
                              const Reply& reply) {
  group::AuditEntry entry = audit_beginning(route, path, call);
  entry.request = without_secrets(call.body, reply.status != 400);
  finish(entry, reply);
  return entry;
}

group::AuditEntry audit_refusal(const Route* route, std::string_view method, std::string_view path,
                                const Call& call, const Reply& reply) {
  group::AuditEntry entry =
      begin_entry(route != nullptr ? route->operation : "(none)", method, path, call);
  finish(entry, reply);
  return entry;
}

}  // namespace sandbay::mgmt
