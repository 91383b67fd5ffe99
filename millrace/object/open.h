// From what a user types to a Store: URLs, endpoints and credentials.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::object {

/// "s3://bucket/some/key", "file:///folder/file", "/folder/file", "folder/file" (relative to the working directory).
struct Url {
  enum class Scheme { kS3, kFile };
  Scheme scheme = Scheme::kFile;
  std::string bucket;  ///< s3 only; may be empty for "s3://"
  std::string key;     ///< s3: without a leading slash; file: the absolute or relative path as typed
  /// "s3://bucket/key" or the path; parses back to the same Url.
  std::string ToString() const;
  bool operator==(const Url&) const = default;
};
/// Fails with kInvalidArgument on an unknown scheme or an impossible bucket name; says which.
Result<Url> ParseUrl(std::string_view text);

/// How to reach a service. Empty fields come from the environment and the shared AWS files, as in the AWS command line
/// (see object/s3/credentials/credentials.h for the order).
struct ConnectOptions {
  std::string endpoint_url, region, profile, ca_bundle;
  bool no_sign_request = false;
  bool request_payer = false;
  std::optional<bool> path_style;  ///< nothing: path style for explicit endpoints, else virtual-host style
  int concurrency = 64;            ///< connections
  int max_attempts = 0;            ///< 0: AWS_MAX_ATTEMPTS, else 10
  std::uint64_t bandwidth = 0;     ///< bytes a second, 0: no limit
  /// SSE-C: keys of the owner's, 32 bytes, or empty. All that is written and read is encrypted by the first, the
  /// sources of copies inside the store by the second. Secrets: for no message, and refused where the network could see
  /// them.
  std::string customer_key, copy_source_key;
  Logger log;
};

/// One endpoint with one identity: hands out stores that share its connections, retry budget and credentials.
/// Thread-safe; must outlive its stores.
class Connection {
 public:
  static Result<std::unique_ptr<Connection>> Open(ConnectOptions options);
  virtual ~Connection() = default;
  /// s3: the bucket of `url`. file: the root folder "/", so that the absolute path without its first slash is the key.
  virtual Result<std::shared_ptr<Store>> OpenStore(const Url& url) = 0;
  virtual Result<std::shared_ptr<Service>> OpenService() = 0;
  /// Looks for credentials anew, as at first: the shared AWS files may have others by now. Stores that are open use
  /// them from then on; requests under way end with the old. On failure the old ones stay. Blocks on files only.
  virtual Status ReloadCredentials() { return {}; }
};

/// A place inside a store: what most commands and modules take.
struct Location {
  std::shared_ptr<Store> store;
  std::string key;  ///< a key or a prefix, as the user of it says
};
/// Parses the URL and opens its store. For file URLs the key is the absolute path without its first slash.
Result<Location> Locate(Connection& connection, std::string_view url);

}  // namespace millrace::object
