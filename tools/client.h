// Client: the command line's side of the REST interface. One request, one answer; a refusal comes
// back as the daemon's own sentence.
#pragma once

#include <expected>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

namespace sandbay::cli {

inline constexpr const char* kDefaultManagement = "http://127.0.0.1:8260";

// How a verb fails: its one line.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Where the daemon's management is, and what it is shown.
struct Management {
  std::string url = kDefaultManagement;  // A bare "ADDRESS:PORT" is one of http.
  std::string token_file;                // Empty: SANDBAY_TOKEN holds it, if there is one.
  std::string ca_file;                   // Of https; empty: whom this machine trusts.
  bool plain = false;                    // A token may cross a network that everybody can read.
};

class Client {
 public:
  // Throws Failure if the token cannot be had.
  explicit Client(const Management& management);

  // The answer's body, null where there is none; or what is wrong, as one line.
  using Answer = std::expected<nlohmann::json, std::string>;
  Answer get(const std::string& path) const;
  // `created` is told whether there is something now that was not there before.
  Answer post(const std::string& path, const nlohmann::json& body, bool* created = nullptr) const;
  // The answer as it is.
  std::expected<std::string, std::string> post_for_text(const std::string& path,
                                                        const nlohmann::json& body) const;
  Answer patch(const std::string& path, const nlohmann::json& body) const;
  Answer remove(const std::string& path) const;

  // A name as a part of a path. Throws Failure for an empty one.
  static std::string escape(const std::string& name);

 private:
  // What is wanted of an answer beside its body.
  struct Extra {
    std::string* text = nullptr;  // The body as it is, instead.
    bool* created = nullptr;
  };
  Answer send(const char* method, const std::string& path, const std::string* body,
              Extra extra) const;

  std::string url_;
  std::string token_;
  std::string ca_file_;
  bool plain_;
};

}  // namespace sandbay::cli
