// An S3 endpoint for development and tests: the library of `millrace s3d`, also for use inside a test's process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"

namespace millrace::s3d {

struct Options {
  std::filesystem::path root;          ///< created when missing; one endpoint per root at a time
  std::string listen = "127.0.0.1:0";  ///< host:port; port 0 takes a free one
  std::string access_key, secret_key;  ///< the one identity
  bool anonymous = false;              ///< also accept requests without a signature
  bool insecure = false;               ///< anonymous: also beyond loopback, and with any Host
  std::string policy;  ///< a document of IAM that limits what the identity may do (policy.h); empty: none
  std::string fault;   ///< faults to order; see fault.h for the grammar
  /// If false, acknowledged changes survive the process but perhaps not a power failure. Faster, for tests.
  bool sync = true;
  std::uint64_t min_part_bytes = 5 * 1024 * 1024;  ///< minimum of all parts of an upload but the last; S3's limit
  int max_connections = 1024;                      ///< each has a thread
  Clock* clock = nullptr;  ///< for signatures' dates, modification times and faults; nullptr: the system's
  Logger log;
};

/// A running endpoint. Thread-safe. The destructor closes every connection and joins every thread.
class Server {
 public:
  /// Errors: kBusy if another endpoint uses the root; those of ManagedFolder::Open(); those of listening.
  static Result<std::unique_ptr<Server>> Start(Options options);
  ~Server();

  int port() const;
  std::string address() const;   ///< "127.0.0.1:39121"
  std::string endpoint() const;  ///< "http://127.0.0.1:39121"
  /// Makes a bucket. Errors: kAlreadyExists.
  Status CreateBucket(std::string_view name);
  /// Replaces the faults; an empty `spec` means none. Errors: kInvalidArgument.
  Status SetFaults(std::string_view spec);
  /// The actions that Options::policy has allowed so far, such as "s3:GetObject".
  std::set<std::string> used_actions() const;
  /// Stops accepting requests and waits at most `grace` for those in progress.
  void Stop(Duration grace);

 private:
  struct Rep;
  explicit Server(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::s3d
