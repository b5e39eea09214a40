// Client: the command line's side of the REST interface. One request, one answer; a refusal comes
// back as the daemon's own sentence.
#pragma once

#include <expected>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace sandbay::cli {

inline constexpr const char* kDefaultManagement = "http://127.0.0.1:8260";

// How the program ends, which tells a script what kind of failure it was. man/sandbay.1 lists them.
enum class Exit : int {
  kDone = 0,
  kFailed = 1,       // None of the following.
  kUsage = 2,        // The command line is wrong.
  kUnreachable = 3,  // No daemon answers.
  kNotFound = 4,     // An object does not exist.
  kConflict = 5,     // An object exists already, is in use, or its state forbids it.
  kForbidden = 6,    // No token, an unknown one, or a role that does not allow it.
  kInvalid = 7,      // The daemon rejects a value.
  kUnavailable = 8,  // The daemon is ending, or has no room for the request now.
  kNotRun = 125,     // sandbay run could not run its command; as env(1) and timeout(1) have it.
};
// "not_found": how refusals in JSON call it.
std::string_view word_of(Exit exit);
// The kind of a refusal, by its status of HTTP.
Exit exit_of_status(int status);

// How a verb fails: one line, and how the program ends.
struct Failure : std::runtime_error {
  explicit Failure(const std::string& message, Exit how = Exit::kFailed)
      : std::runtime_error(message), exit(how) {}
  Exit exit;
};

struct Refused {
  std::string message;
  Exit exit = Exit::kFailed;
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

  // The answer's body, null if there is none; or what is wrong, as one line.
  using Answer = std::expected<nlohmann::json, Refused>;
  Answer get(const std::string& path) const;
  // `*created`: whether the object is new.
  Answer post(const std::string& path, const nlohmann::json& body, bool* created = nullptr) const;
  // The answer as it is.
  std::expected<std::string, Refused> post_for_text(const std::string& path,
                                                    const nlohmann::json& body) const;
  Answer patch(const std::string& path, const nlohmann::json& body) const;
  Answer remove(const std::string& path) const;

  // A name as a part of a path. Throws Failure for an empty one.
  static std::string escape(const std::string& name);

 private:
  // Parts of an answer beside its body.
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

// Where members, pools and volumes are.
inline constexpr const char* kMembers = "/api/v1/members";
inline constexpr const char* kPools = "/api/v1/pools";
inline constexpr const char* kVolumes = "/api/v1/volumes";
std::string member_path(const std::string& name);
std::string pool_path(const std::string& name);
std::string volume_path(const std::string& name);

}  // namespace sandbay::cli
