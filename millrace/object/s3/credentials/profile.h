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

/// The operating system's services that the settings and the chain of credentials use. Tests supply their own.
struct Environment {
  /// No value if the variable is unset or empty. HOME comes from the user database if the environment lacks it.
  std::function<std::optional<std::string>(const char*)> getenv;
  std::function<Result<std::string>(const std::filesystem::path&)> read_file;
  /// Replaces a file. Only its owner may read the new one.
  std::function<Status(const std::filesystem::path&, std::string_view)> write_file;
  /// Runs a program without a shell and returns its standard output.
  std::function<Result<std::string>(std::vector<std::string> argv)> run;
  /// Sends an HTTP request once. Blocks.
  std::function<Result<http::Response>(http::Request, http::Call)> fetch;
  Clock* clock = &SystemClock();

  /// Returns the environment of this process. The caller sets `fetch`.
  static Environment System();
};

/// The settings of a profile, by their names in lower case. Nested settings (`s3 =` and indented lines) have names such
/// as "s3.addressing_style".
using Profile = std::map<std::string, std::string, std::less<>>;

/// The value of a setting; empty if the profile lacks it.
std::string Member(const Profile& profile, std::string_view name);

/// The profiles of both files. If both have a setting, that of the credentials file counts.
class Profiles {
 public:
  /// Treats files that do not exist as empty. Errors: kInvalidArgument for a malformed line, with file and line.
  static Result<Profiles> Load(const Environment& environment);
  /// Null if neither file has it.
  const Profile* Find(std::string_view name) const;
  /// The section [sso-session NAME] of the config file; null if there is none.
  const Profile* FindSsoSession(std::string_view name) const;
  /// The section [services NAME] of the config file that a profile of this name chooses; null if it chooses none.
  /// Errors: kInvalidArgument if there is no such section.
  Result<const Profile*> ServicesOf(std::string_view name, const Profile& profile) const;
  /// The error for a profile that does not exist (kInvalidArgument). Its message suggests the most similar name.
  Error Missing(std::string_view name) const;

 private:
  Status Parse(std::string_view text, std::string_view file, bool is_config);
  std::map<std::string, Profile, std::less<>> profiles_, sso_sessions_, services_;
};

}  // namespace millrace::object::s3
