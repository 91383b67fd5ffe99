// An S3 endpoint for development and tests: the library behind `millrace s3d`, also for use inside a test's process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
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
  bool anonymous = false;              ///< also take requests without a signature
  bool insecure = false;               ///< anonymous: also beyond loopback, and with any Host
  std::string fault;                   ///< faults to order; see fault.h for the grammar
  /// With false, what is acknowledged survives the process but perhaps not the machine: faster, for tests.
  bool sync = true;
  std::uint64_t min_part_bytes = 5 * 1024 * 1024;  ///< of every part of a multipart upload but the last, as S3 wants it
  int max_connections = 1024;
  Clock* clock = nullptr;  ///< nullptr: the system's. For signatures' dates, modification times and faults
  Logger log;
};

/// A running endpoint. Any thread may call any method; the owner destroys it, which closes every connection and joins
/// every thread.
class Server {
 public:
  /// Fails when the root cannot be used (kBusy: another endpoint has it) or the address cannot be listened on.
  static Result<std::unique_ptr<Server>> Start(Options options);
  ~Server();

  int port() const;
  std::string address() const;   ///< "127.0.0.1:39121"
  std::string endpoint() const;  ///< "http://127.0.0.1:39121"
  /// Makes a bucket, as a client would; kAlreadyExists when there is one.
  Status CreateBucket(std::string_view name);
  /// From now on these faults instead of the ones before; empty: none.
  Status SetFaults(std::string_view spec);
  /// Stops taking requests and waits up to `grace` for those under way.
  void Stop(Duration grace);

 private:
  struct Rep;
  explicit Server(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::s3d
