#include "tests/support/program.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "millrace/base/text.h"

namespace millrace::testing_support {

namespace fs = std::filesystem;

std::vector<std::string> Ran::lines() const {
  std::vector<std::string> all;
  for (std::string_view line : Split(out, '\n')) {
    if (!line.empty()) all.emplace_back(line);
  }
  return all;
}

std::vector<Json> Ran::objects() const {
  std::vector<Json> all;
  for (const std::string& line : lines()) all.push_back(ParseJson(line, "output").value_or(Json()));
  return all;
}

Program::Program() : work_(directory_.path() / "work") {
  if (const char* bin = std::getenv("MILLRACE_BIN")) path_ = fs::path(bin) / "millrace";
  fs::create_directory(work_);
  env_ = {{"AWS_CONFIG_FILE", "/dev/null"},
          {"AWS_SHARED_CREDENTIALS_FILE", "/dev/null"},
          {"AWS_EC2_METADATA_DISABLED", "true"},
          {"AWS_MAX_ATTEMPTS", "2"},
          {"XDG_STATE_HOME", (directory_.path() / "state").string()}};
}

Subprocess::Options Program::Options(std::vector<std::string> arguments) const {
  Subprocess::Options options{.argv = {path_.string()},
                              .env = env_,
                              .unset_env = {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"},
                              .working_directory = work_,
                              .stderr_file = directory_.path() / "stderr"};
  for (const auto& [name, value] : env_) std::erase(options.unset_env, name);
  for (std::string& argument : arguments) options.argv.push_back(std::move(argument));
  fs::remove(options.stderr_file);
  return options;
}

Ran Program::Run(std::vector<std::string> arguments, const std::map<std::string, std::string>& env,
                 std::string_view input) {
  Subprocess::Options options = Options(std::move(arguments));
  for (const auto& [name, value] : env) {
    options.env[name] = value;
    std::erase(options.unset_env, name);
  }
  if (!input.empty()) {  // a shell redirects standard input
    fs::path file = directory_.path() / "stdin";
    EXPECT_TRUE(WriteFileAtomic(file, AsBytes(input)));
    std::vector<std::string> shell = {"sh", "-c", "exec \"$@\" <" + file.string(), "sh"};
    options.argv.insert(options.argv.begin(), shell.begin(), shell.end());
  }
  return Finish(std::move(options));
}

Ran Program::Shell(const std::string& line) {
  Subprocess::Options options = Options({});
  options.argv = {"bash", "-c", "PATH=" + path_.parent_path().string() + ":$PATH; " + line};
  return Finish(std::move(options));
}

Ran Program::Finish(Subprocess::Options options) const {
  fs::path errors = options.stderr_file;
  auto output = Subprocess::Run(std::move(options));
  EXPECT_TRUE(output) << (output ? "" : output.error().ToString());
  if (!output) return {};
  const ExitState& state = output->state;
  return {state.signal ? -state.signal : state.exit_code, std::move(output->stdout_text),
          ReadFile(errors).value_or("")};
}

Subprocess Program::Start(std::vector<std::string> arguments) {
  Subprocess::Options options = Options(std::move(arguments));
  options.stdout_file = directory_.path() / "stdout";
  return std::move(*Subprocess::Start(std::move(options)));
}

void Program::Write(const std::string& name, std::string_view content) const {
  fs::create_directories((work_ / name).parent_path());
  std::ofstream(work_ / name, std::ios::binary) << content;
}

std::string Program::Read(const std::string& name) const {
  return ReadFile(work_ / name, 256 * kMiB).value_or("<absent>");
}

}  // namespace millrace::testing_support
