// What every program of Millrace shares on its command line: the global flags, and the stop token of Ctrl-C.
#pragma once

#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <stop_token>
#include <string>
#include <thread>

#include "millrace/base/bytes.h"
#include "millrace/base/log.h"
#include "millrace/object/connect_options.h"

namespace millrace::cli {

/// Flags that every command takes. MILLRACE_<FLAG> in the environment sets a default.
struct Globals {
  object::ConnectOptions connect;
  std::string sse_c_key_file, sse_c_source_key_file;  ///< read by Context::Connect
  std::uint64_t memory_budget = 512 * kMiB;
  bool json = false;
  bool dry_run = false;
  bool quiet = false;
  std::string progress = "auto";  ///< auto | on | off
  LogLevel log_level = LogLevel::kWarning;
};

/// A key for SSE-C from a file that holds its 32 bytes, or their base64 or hex form in a line. Messages quote none of
/// it.
Result<std::string> ReadCustomerKey(const std::string& path);

/// `globals` must outlive the parsing.
void AddGlobalFlags(CLI::App& app, Globals& globals);
/// The same flags as environment variables, for a program that this one starts. Those left at their default are absent.
std::map<std::string, std::string> GlobalsEnvironment(const Globals& globals);

/// Turns SIGINT and SIGTERM into a stop token; a second one ends the process at once. Made before any other thread, so
/// that all of them inherit the blocked signals.
class SignalStop {
 public:
  SignalStop();
  ~SignalStop();
  std::stop_token token() const { return stop_.get_token(); }

 private:
  sigset_t signals_;
  std::stop_source stop_;
  std::thread thread_;
};

}  // namespace millrace::cli
