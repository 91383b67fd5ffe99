// The global flags of all programs, and the stop token of Ctrl-C.
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

/// The longest wait for the first answer of an endpoint, in commands that a user watches, without --wait-for-endpoint.
/// Ranks of jobs and drivers have no such limit: they start again, beside a store that may be away for a while.
inline constexpr Duration kFirstContact = std::chrono::seconds(3);

/// Reads an SSE-C key from a file that has its 32 bytes, or a line with their base64 or hex form. Messages never quote
/// the content.
Result<std::string> ReadCustomerKey(const std::string& path);

/// Adds the global flags. `globals` must outlive the parsing.
void AddGlobalFlags(CLI::App& app, Globals& globals);
/// Returns the flags as environment variables, for a program that this one starts. Flags with their default value are
/// left out.
std::map<std::string, std::string> GlobalsEnvironment(const Globals& globals);

/// Turns SIGINT, SIGTERM and SIGHUP into a stop token; a second SIGINT or SIGTERM ends the process at once. Made before
/// any other thread, so that all of them inherit the blocked signals. A handler that is installed later replaces the
/// one of SIGHUP.
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
