// The shared AWS files (~/.aws/config and ~/.aws/credentials).
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/http/client/request.h"

namespace millrace::object::s3 {

/// What the standard chain asks of the outside world; tests supply their own.
struct Surroundings {
  /// Nothing when unset or empty. HOME is the user database's where the environment has none.
  std::function<std::optional<std::string>(const char*)> getenv;
  std::function<Result<std::string>(const std::filesystem::path&)> read_file;
  /// Replaces a file that its owner alone may read.
  std::function<Status(const std::filesystem::path&, std::string_view)> write_file;
  /// Runs a program without a shell and yields its standard output.
  std::function<Result<std::string>(std::vector<std::string> argv)> run;
  /// One HTTP request, not retried; blocks.
  std::function<Result<http::Response>(http::Request, http::Call)> fetch;
  Clock* clock = &SystemClock();

  /// The real ones; `fetch` is left for the caller to set.
  static Surroundings System();
};

/// Settings of a profile, by name in lower case. Nested ones (`s3 =` and indented lines) are named
/// "s3.addressing_style".
using Profile = std::map<std::string, std::string, std::less<>>;

/// Empty when the profile lacks it.
std::string Member(const Profile& profile, std::string_view name);

/// The profiles of both files; where both have a setting the credentials file's wins.
class Profiles {
 public:
  /// Files that do not exist are empty; a malformed line is kInvalidArgument with file and line.
  static Result<Profiles> Load(const Surroundings& surroundings);
  /// nullptr when neither file has it.
  const Profile* Find(std::string_view name) const;
  /// The [sso-session NAME] of the config file; nullptr when there is none.
  const Profile* FindSsoSession(std::string_view name) const;
  /// kInvalidArgument that names the nearest profile there is.
  Error Missing(std::string_view name) const;

 private:
  Status Parse(std::string_view text, std::string_view file, bool is_config);
  std::map<std::string, Profile, std::less<>> profiles_, sso_sessions_;
};

}  // namespace millrace::object::s3
