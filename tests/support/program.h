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
  int exit = -1;  ///< minus the signal's number when one ended it
  std::string out, err;
  /// Those of `out` that are not empty.
  std::vector<std::string> lines() const;
  /// `out` with one JSON value a line; null for a line that is none.
  std::vector<Json> objects() const;
};

/// Runs the program that $MILLRACE_BIN has, in a folder of its own that goes with this object. It sees no AWS settings
/// of the machine's. One owner, one thread.
class Program {
 public:
  /// Where there is no $MILLRACE_BIN, available() is false and nothing else may be called.
  Program();
  bool available() const { return !path_.empty(); }
  const std::filesystem::path& path() const { return path_; }
  /// The folder it runs in.
  const std::filesystem::path& folder() const { return work_; }
  /// For every run that follows.
  std::map<std::string, std::string>& env() { return env_; }

  Ran Run(std::vector<std::string> arguments, const std::map<std::string, std::string>& env = {},
          std::string_view input = "");
  /// Runs a line of bash in which `millrace` is the program.
  Ran Shell(const std::string& line);
  /// For tests that do something to it while it runs; its output goes to files in the folder above folder().
  Subprocess Start(std::vector<std::string> arguments);

  void Write(const std::string& name, std::string_view content) const;
  /// "<absent>" when there is no such file.
  std::string Read(const std::string& name) const;

 private:
  Ran Finish(Subprocess::Options options) const;
  Subprocess::Options Options(std::vector<std::string> arguments) const;

  TempDir directory_ = std::move(*TempDir::Create());
  std::filesystem::path path_, work_;
  std::map<std::string, std::string> env_;
};

}  // namespace millrace::testing_support
