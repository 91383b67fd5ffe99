// The `millrace` program as a script sees it: arguments and standard input go in; exit status, standard output and
// standard error come out.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/base/process/subprocess.h"

namespace millrace::testing_support {

/// How a run of the program ended.
struct Ran {
  int exit = -1;  ///< minus the signal's number if a signal ended the program
  std::string out, err;
  /// Returns the lines of `out` that are not empty.
  std::vector<std::string> lines() const;
  /// Returns the JSON value of each such line; null for a line that is not JSON.
  std::vector<Json> objects() const;
};

/// Runs $MILLRACE_BIN/millrace in a temporary folder that is removed with this object. The program does not see the
/// machine's AWS settings. Not thread-safe.
class Program {
 public:
  /// Without $MILLRACE_BIN, available() is false and no other function may be called.
  Program();
  bool available() const { return !path_.empty(); }
  const std::filesystem::path& path() const { return path_; }
  /// The folder that the program runs in.
  const std::filesystem::path& folder() const { return work_; }
  /// The environment of all later runs.
  std::map<std::string, std::string>& env() { return env_; }

  Ran Run(std::vector<std::string> arguments, const std::map<std::string, std::string>& env = {},
          std::string_view input = "");
  /// Runs a line of bash in which `millrace` is the program.
  Ran Shell(const std::string& line);
  /// Starts the program and does not wait for it. Its output goes to files in the folder above folder().
  Subprocess Start(std::vector<std::string> arguments);

  void Write(const std::string& name, std::string_view content) const;
  /// Returns the content of a file, or "<absent>" if there is none.
  std::string Read(const std::string& name) const;

 private:
  Ran Finish(Subprocess::Options options) const;
  Subprocess::Options Options(std::vector<std::string> arguments) const;

  TempDir directory_ = std::move(*TempDir::Create());
  std::filesystem::path path_, work_;
  std::map<std::string, std::string> env_;
};

}  // namespace millrace::testing_support
